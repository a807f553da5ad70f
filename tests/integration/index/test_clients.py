"""Real pip and uv against the index on loopback: what they choose, what they fetch, what they refuse."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.integration.index.server import Server, serve
from tests.unit.index import wheels
from vllm_spark import proc
from vllm_spark.distro.index import clients, releases, tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIP = [sys.executable, "-m", "pip"]
ARM = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.12"]


def pip_install(server: Server, target: Path, *words: str) -> proc.Finished:
    command = [*PIP, "install", "--no-cache-dir", "--index-url", server.simple, "--target", str(target), *words]
    return proc.run(command, env=clients.clean_environment(), check=False)


def uv_install(server: Server, target: Path, *words: str) -> proc.Finished:
    command = [clients.uv(), "pip", "install", "--no-cache", "--default-index", server.simple]
    command += ["--python", sys.executable, "--target", str(target), *words]
    return proc.run(command, env=clients.clean_environment(), check=False)


class Install(Protocol):
    def __call__(self, server: Server, target: Path, *words: str) -> proc.Finished: ...


INSTALLERS = pytest.mark.parametrize("install", [pip_install, uv_install], ids=["pip", "uv"])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An index with a real pair of tags, and a pure package that this machine can install."""
    out = tmp_path / "index"
    tree.build(out, [*wheels.release(tmp_path / "in", 1), *wheels.release(tmp_path / "in", 2)])
    tree.build(out, [wheels.make(tmp_path / "in", "vllm-spark-probe", v) for v in ("1.0+spark.1", "1.1", "1.2")])
    return out


@pytest.fixture(params=[False, True], ids=["html", "json"])
def server(out: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    with serve(out, negotiate=request.param) as running:
        yield running
    types = {kind for path, status, kind in running.asked if path.endswith("/") and status == 200}
    assert types == ({"application/vnd.pypi.simple.v1+json"} if request.param else {""})


@INSTALLERS
def test_a_package_installs_and_imports(server: Server, tmp_path: Path, install: Install) -> None:
    target = tmp_path / "target"
    done = install(server, target, "vllm-spark-probe==1.0+spark.1")
    assert done.status == 0, done.output
    code = "import vllm_spark_probe_stand_in as probe; print(probe.VALUE)"
    environment = os.environ | {"PYTHONPATH": str(target)}
    assert proc.run([sys.executable, "-c", code], env=environment).text.strip() == "1"
    assert server.paths(".whl") == ["/files/vllm_spark_probe-1.0%2Bspark.1-py3-none-any.whl"]


@INSTALLERS
def test_a_yanked_version_is_passed_over_but_can_be_named(
    out: Path, server: Server, tmp_path: Path, install: Install
) -> None:
    releases.yank(out, "1.2", "breaks <everything>", project="vllm-spark-probe")
    newest = install(server, tmp_path / "a", "vllm-spark-probe")
    assert newest.status == 0, newest.output
    assert (tmp_path / "a" / "vllm_spark_probe-1.1.dist-info").is_dir()
    named = install(server, tmp_path / "b", "vllm-spark-probe==1.2")
    assert named.status == 0, named.output
    assert "breaks <everything>" in named.output
    assert (tmp_path / "b" / "vllm_spark_probe-1.2.dist-info").is_dir()


@INSTALLERS
def test_a_wheel_whose_hash_differs_is_refused(out: Path, server: Server, tmp_path: Path, install: Install) -> None:
    other = wheels.make(tmp_path / "attack", "vllm-spark-probe", "1.2", content=b"EVIL = True\n")
    (out / "files" / other.name).write_bytes(other.read_bytes())
    done = install(server, tmp_path / "target", "vllm-spark-probe==1.2")
    assert done.status != 0
    assert "hash" in done.output.lower()
    assert not list((tmp_path / "target").glob("vllm*"))


@INSTALLERS
def test_a_sidecar_whose_hash_differs_is_refused(out: Path, server: Server, tmp_path: Path, install: Install) -> None:
    sidecar = out / "files" / "vllm_spark_probe-1.2-py3-none-any.whl.metadata"
    sidecar.write_bytes(sidecar.read_bytes() + b"Requires-Dist: evil\n")
    done = install(server, tmp_path / "target", "vllm-spark-probe==1.2")
    assert done.status != 0
    assert "hash" in done.output.lower()
    assert not list((tmp_path / "target").glob("vllm*"))


@INSTALLERS
def test_another_hash_than_the_lock_says_is_refused(server: Server, tmp_path: Path, install: Install) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"vllm-spark-probe==1.2 --hash=sha256:{'0' * 64}\n")
    words = ("--require-hashes", "-r", str(lock))
    done = install(server, tmp_path / "target", *words)
    assert done.status != 0
    assert "hash" in done.output.lower()


@pytest.mark.parametrize(
    ("platform", "pin", "fits"),
    [
        ("manylinux_2_28_aarch64", "vllm==0.33.0", True),
        ("manylinux_2_28_aarch64", "vllm-spark==0.33.0.1", False),
        ("manylinux_2_34_aarch64", "vllm-spark==0.33.0.1", True),
        ("manylinux_2_28_x86_64", "vllm==0.33.0", False),
        ("manylinux_2_34_x86_64", "vllm-spark==0.33.0.1", False),
        ("", "vllm==0.33.0", False),
    ],
)
def test_pip_takes_what_the_tag_promises(server: Server, tmp_path: Path, platform: str, pin: str, fits: bool) -> None:
    words = [*ARM, "--platform", platform] if platform else []
    done = pip_install(server, tmp_path / "target", "--dry-run", "--no-deps", *words, pin)
    assert (done.status == 0) is fits, done.output
    if fits:
        assert "Would install" in done.output
    else:
        assert "No matching distribution" in done.output


@pytest.mark.parametrize(
    ("platform", "fits"),
    [("aarch64-manylinux_2_39", True), ("aarch64-manylinux_2_28", False), ("x86_64-manylinux_2_39", False)],
)
def test_uv_takes_what_the_tag_promises(server: Server, tmp_path: Path, platform: str, fits: bool) -> None:
    words = ["--dry-run", "--no-deps", "--python-platform", platform, "--python-version", "3.12"]
    done = uv_install(server, tmp_path / "target", *words, "vllm-spark==0.33.0.1")
    assert (done.status == 0) is fits, done.output


def test_resolvers_read_the_sidecar_and_not_the_wheel(server: Server, tmp_path: Path) -> None:
    pin = "vllm-spark-probe==1.1"
    sidecar = ["/files/vllm_spark_probe-1.1-py3-none-any.whl.metadata"]
    resolved = proc.run(
        [clients.uv(), "pip", "compile", "--no-cache", "--default-index", server.simple, "--generate-hashes", "-"],
        env=clients.clean_environment(),
        stdin=pin.encode(),
    )
    assert pin in resolved.text
    assert (server.paths(".metadata"), server.paths(".whl")) == (sidecar, [])
    done = pip_install(server, tmp_path / "target", "--dry-run", pin)
    assert done.status == 0, done.output
    assert (server.paths(".metadata"), server.paths(".whl")) == (sidecar * 2, [])


def test_pip_downloads_for_another_machine(out: Path, server: Server, tmp_path: Path) -> None:
    command = [*PIP, "download", "--no-cache-dir", "--index-url", server.simple, "--dest", str(tmp_path / "got"), *ARM]
    platform = ["--platform", "manylinux_2_28_aarch64", "--no-deps"]
    proc.run([*command, *platform, "vllm==0.33.0+spark.2"], env=clients.clean_environment())
    name = "vllm-0.33.0+spark.2-cp38-abi3-manylinux_2_28_aarch64.whl"
    assert (tmp_path / "got" / name).read_bytes() == (out / "files" / name).read_bytes()
