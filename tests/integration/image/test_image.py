"""docker/Dockerfile, really built for arm64 and run: by buildah and podman, under emulation, from a slim bundle.

Slim means: the patched vLLM and our extension as released, the oldest torch that the extension loads with (its aarch64
wheel is a CPU build of 140 MB), and what `import torch` needs. The full tree is 20 times that.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.integration.image.arm64 import PYTHON, Store, emulation
from vllm_spark.distro.bundle import make
from vllm_spark.distro.bundle.target import Target
from vllm_spark.distro.image import build as building
from vllm_spark.distro.image.plan import plan
from vllm_spark.distro.image.verify import verify
from vllm_spark.distro.release import gather
from vllm_spark.distro.upstream import pins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Released
    from vllm_spark.distro.image.report import Report

pytestmark = pytest.mark.slow

TAG, BASE = "localhost/vllm-spark:test", "localhost/base:arm64"
TORCH = [
    "torch==2.10.0",
    "filelock",
    "typing-extensions",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "fsspec",
]


@pytest.fixture(scope="module")
def wheels(released: Released) -> tuple[Path, Path]:
    return gather.wheels(released.dist, pins.load())


@pytest.fixture(scope="module")
def bundle(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    upstream = pins.load()
    ours = [f"vllm=={upstream.vllm_version}", f"vllm-spark=={upstream.package_version}"]
    target = Target(PYTHON, "aarch64", "2.36")
    planned = make.plan([*ours, *TORCH, "numpy", "packaging"], str(released.dist / "index"), target, dependencies=False)
    return make.make(planned, folder / "bundle")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    found = Store(tmp_path_factory.mktemp("store"))
    found.prepare()
    with emulation():
        yield found
    found.close()
    shutil.rmtree(found.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def image(store: Store, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("image") / "image"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONTAINERS_STORAGE_CONF", "BUILDAH_ISOLATION"):
            patch.setenv(name, store.env[name])
        store.base(BASE)
        building.build(plan(bundle, base=BASE, packages=""), TAG, out, "buildah")
    return out


@pytest.fixture(scope="module")
def verified(image: Path, wheels: tuple[Path, Path]) -> tuple[Report, tuple[str, ...]]:
    return verify(image, wheels)


def test_it_is_what_it_says(verified: tuple[Report, tuple[str, ...]]) -> None:
    report, problems = verified
    assert problems == ()
    assert report.platform == "linux/arm64"
    assert list(report.packages)[:2] == ["vllm", "torch"]
    assert report.added < 10_000_000  # a virtual environment's scripts, entry point and health check


def test_doctor_runs_inside_and_finds_all_but_the_gpu(store: Store, image: Path) -> None:
    done = store.run(TAG, "vllm-spark", "doctor")
    states = dict(re.findall(r"(?m)^(?:ok|warn|fail) +(\w+(?: \w+)?)  +(.*)$", done.text))
    assert done.status == 7, done.output  # no GPU, no driver
    assert "aarch64" in states["platform"]
    assert pins.load().vllm_version in states["versions"]
    assert "E2M1 conversion" in states["extension"]
    failed = re.findall(r"(?m)^fail +(\w+)", done.text)
    assert failed == ["gpu", "driver"]


PROGRAM = """
import os, platform, vllm, torch, vllm_spark
from vllm_spark.runtime import kernels
print(platform.machine(), os.getuid(), vllm.__version__, torch.__version__, kernels.e2m1_path(), end=" ")
print(os.access("/opt", os.W_OK))
"""


def test_both_packages_import_as_a_user_without_rights(store: Store, image: Path) -> None:
    done = store.run(TAG, "-c", PROGRAM, options=("--entrypoint", "python"))
    version = pins.load().vllm_version
    assert done.text.splitlines()[-1:] == [f"aarch64 1000 {version} 2.10.0+cpu software False"], done.output


def test_any_other_user_may_run_it(store: Store, image: Path) -> None:
    program = "import os, vllm_spark; print(os.getuid(), os.access('/cache', os.W_OK))"
    done = store.run(TAG, "-c", program, options=("--entrypoint", "python", "--user", "4321:4321"))
    assert done.text.strip() == "4321 True", done.output


def test_health_says_no_where_no_server_is(store: Store, image: Path) -> None:
    words = ("/opt/vllm-spark/libexec/healthcheck.py",)
    done = store.run(TAG, *words, options=("--entrypoint", "/opt/vllm-spark/bin/python"))
    assert done.status == 1
    assert "no token from http://127.0.0.1:8000" in done.text
