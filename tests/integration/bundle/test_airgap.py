"""A bundle installs where there is no network: real wheels, real pip, an empty network namespace."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.image import arm64
from tests.unit.index import wheels
from vllm_spark import proc
from vllm_spark.distro.bundle import make
from vllm_spark.distro.bundle.target import Target
from vllm_spark.distro.bundle.unpack import unpack
from vllm_spark.distro.bundle.verify import verify
from vllm_spark.distro.index import tree

if TYPE_CHECKING:
    from pathlib import Path

NATIVE = Target(f"3.{sys.version_info.minor}", platform.machine(), platform.libc_ver()[1])
# Pure, compiled, and from our own index.
WANTED = ["idna", "msgspec", "vllm-spark-probe"]
PROGRAM = """
import idna, msgspec, platform, vllm_spark_probe_stand_in as probe
print(platform.machine(), msgspec.json.encode(probe.VALUE))
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    tmp_path = tmp_path_factory.mktemp("airgap")
    tree.build(tmp_path / "index", [wheels.make(tmp_path / "in", "vllm-spark-probe", "1.0+spark.1")])
    return str(tmp_path / "index")


@pytest.fixture(scope="module")
def planned(index: str) -> make.Plan:
    return make.plan(WANTED, index, NATIVE)


@pytest.fixture
def bundle(planned: make.Plan, tmp_path: Path) -> Path:
    return make.make(planned, tmp_path / "bundle")


def offline(*words: str | os.PathLike[str], env: dict[str, str] | None = None) -> proc.Finished:
    """Run in a network namespace that has nothing, not even a loopback that is up."""
    unshare = proc.require("unshare", hint="apt-get install util-linux")
    plain = {"PATH": os.environ["PATH"], "PYTHON": sys.executable} | (env or {})
    return proc.run([unshare, "--net", "--map-root-user", *words], env=plain, check=False)


@pytest.mark.slow
def test_installs_and_imports_without_a_network(bundle: Path, tmp_path: Path) -> None:
    assert offline("sh", "-c", "ls /sys/class/net").status == 0
    to = tmp_path / "somewhere" / "env"
    done = offline("sh", bundle / "install.sh", to)
    assert done.status == 0, done.output
    assert "checking" in done.output
    said = offline(to / "bin" / "python", "-I", "-c", PROGRAM)
    assert said.text.strip() == f"{platform.machine()} b'1'", said.output
    assert offline(to / "bin" / "python", "-m", "pip", "check").status == 0


@pytest.mark.parametrize(
    ("spoil", "status", "says"),
    [
        (lambda b: (b / "lock.txt").write_text((b / "lock.txt").read_text() + " "), 9, "altered"),
        (lambda b: next((b / "wheels").glob("msgspec*")).unlink(), 9, "missing, cut short or altered"),
        (lambda b: os.truncate(next((b / "wheels").glob("msgspec*")), 1000), 9, "missing, cut short or altered"),
        (lambda b: (b / "SHA256SUMS").unlink(), 9, "missing, cut short or altered"),
    ],
)
def test_a_damaged_bundle_installs_nothing(bundle: Path, tmp_path: Path, spoil: object, status: int, says: str) -> None:
    assert callable(spoil)
    spoil(bundle)
    done = offline("sh", bundle / "install.sh", tmp_path / "env")
    assert (done.status, says in done.output) == (status, True), done.output
    assert done.output.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "env").exists()


def test_a_wheel_that_passes_the_sums_still_meets_the_lock(bundle: Path, tmp_path: Path) -> None:
    """Somebody who can rewrite SHA256SUMS must rewrite the lock as well; signatures are what stops that."""
    wheel = next((bundle / "wheels").glob("vllm_spark_probe*"))
    evil = wheels.make(tmp_path / "evil", "vllm-spark-probe", "1.0+spark.1", content=b"EVIL = True\n")
    shutil.copy(evil, wheel)
    old = (bundle / "SHA256SUMS").read_text().splitlines()
    fresh = proc.run(["sha256sum", *[line[66:] for line in old]], cwd=bundle).stdout
    (bundle / "SHA256SUMS").write_bytes(fresh)
    done = offline("sh", bundle / "install.sh", tmp_path / "env")
    assert done.status != 0
    assert "hash" in done.output.lower()
    assert not (tmp_path / "env").exists()


def test_another_machine_is_told_so(index: str, tmp_path: Path) -> None:
    other = make.make(make.plan(["vllm-spark-probe"], index, Target("3.13", "aarch64", "2.39")), tmp_path / "other")
    done = offline("sh", other / "install.sh", tmp_path / "env")
    assert done.status == 10
    assert "the bundle is for Python 3.13, aarch64, glibc 2.39 or newer; this is Python" in done.output
    assert not (tmp_path / "env").exists()


def test_wrong_words(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert offline("sh", bundle / "install.sh").status == 2
    assert "exists already" in offline("sh", bundle / "install.sh", tmp_path / "there").output
    assert offline("sh", bundle / "install.sh", tmp_path / "env", env={"PYTHON": "no-such-python"}).status == 8


def test_a_small_disk_is_foreseen(bundle: Path, tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=64k none "$DISK" && sh "$BUNDLE/install.sh" "$DISK/env"'
    (tmp_path / "disk").mkdir()
    known = {"DISK": str(tmp_path / "disk"), "BUNDLE": str(bundle)}
    done = offline("--mount", "sh", "-c", script, env=known)
    assert done.status == 10
    assert "MiB needed" in done.output


@pytest.mark.slow
def test_installs_on_aarch64_without_a_network(index: str, tmp_path: Path) -> None:
    target = Target(arm64.PYTHON, "aarch64", "2.34")
    tar = make.make(make.plan(WANTED, index, target), tmp_path / "bundle.tar")
    system = tmp_path / "root"
    shutil.copytree(arm64.root(), system, symlinks=True)
    unpack(tar, system / "bundle")
    verify(system / "bundle")
    with arm64.emulation():
        environment = {"PYTHON": f"python{arm64.PYTHON}", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        chroot = shutil.which("chroot") or "/usr/sbin/chroot"
        done = offline(chroot, system, "/bin/sh", "/bundle/install.sh", "/env", env=environment)
        assert done.status == 0, done.output
        said = offline(chroot, system, "/env/bin/python", "-I", "-c", PROGRAM, env=environment)
    assert said.text.strip() == "aarch64 b'1'", said.output
