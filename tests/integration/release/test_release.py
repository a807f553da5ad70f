"""The whole release from real input, through the command that a person runs."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.index import wheels

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import Released

VLLM = "vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl"
OURS = "vllm_spark-0.33.0.1-cp311-abi3-manylinux_2_34_aarch64.whl"
OFFICIAL_SIZE = 333_472_621
COMMAND = [sys.executable, "-m", "vllm_spark", "release", "build"]


def release(*options: str | os.PathLike[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], cwd=cwd, capture_output=True, text=True, check=False)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(released: Released) -> tuple[Path, subprocess.CompletedProcess[str]]:
    return released.folder, released.done


@pytest.mark.slow
def test_release_makes_what_it_promises(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = made
    assert done.returncode == 0, done.stderr
    files = digests(folder / "dist")
    assert {VLLM, OURS} <= set(files)
    assert {f"index/files/{VLLM}", f"index/files/{OURS}", "index/simple/vllm/index.html"} <= set(files)
    assert files[VLLM] == files[f"index/files/{VLLM}"]
    for name in (VLLM, OURS):
        assert files[name] in done.stdout
    assert "not applicable" in done.stdout
    assert (folder / "dist" / VLLM).stat().st_size <= 0.55 * OFFICIAL_SIZE


@pytest.mark.slow
def test_second_run_gives_the_same_bytes(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = made
    before = digests(folder / "dist")
    other = folder / "elsewhere"
    other.mkdir()
    # Another user as far as the build can tell; the files that it reads are still ours.
    somebody = ["unshare", "--map-user=4321", "--map-group=4321"]
    known = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "LANG": "tr_TR.UTF-8", "USER": "somebody", "HOME": str(other)}
    again = subprocess.run(
        [*somebody, *COMMAND],
        cwd=other,
        env={**os.environ, **known, "VLLM_SPARK_CACHE": cache()},
        umask=0o077,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert differences(folder / "dist", other / "dist") == ""
    assert digests(other / "dist") == before
    repeated = release(cwd=folder)
    assert repeated.returncode == 0, repeated.stderr
    assert digests(folder / "dist") == before


def differences(one: Path, other: Path) -> str:
    """What diffoscope finds, down to the members of the wheels; nothing where there is none."""
    tool = Path(sys.executable).with_name("diffoscope")
    assert tool.is_file(), "diffoscope is not installed: pip install diffoscope"
    command = [str(tool), "--exclude-directory-metadata", "yes", "--text", "-", str(one), str(other)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_diffoscope_sees_into_wheels(tmp_path: Path) -> None:
    for name, content in (("a", b"ONE = 1\n"), ("b", b"TWO = 2\n")):
        wheels.make(tmp_path / name, "demo", "1.0", content=content)
    found = differences(tmp_path / "a", tmp_path / "b")
    assert "demo_stand_in.py" in found
    assert "+TWO = 2" in found


def cache() -> str:
    from vllm_spark import paths

    return str(paths.cache_dir())


@pytest.mark.slow
def test_terminated_run_leaves_nothing_half_written_and_no_lock(tmp_path: Path) -> None:
    child = subprocess.Popen(COMMAND, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert child.stderr is not None
    with child.stderr:
        for line in child.stderr:
            if line.startswith("repack vLLM"):
                break
        time.sleep(1)  # into the writing of the wheel
        child.send_signal(signal.SIGTERM)
        told = child.stderr.read()
        assert child.wait() == 130, told
    assert "interrupted" in told
    left = [path.name for path in (tmp_path / "dist").iterdir()]
    assert left == [OURS]  # the step before was whole
    assert release(cwd=tmp_path).returncode == 0


def test_unknown_profile(tmp_path: Path) -> None:
    done = release("--profile", "gb200-cu140", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "gb200-cu140: unknown profile. Next: choose one of: gb10-cu130, h100-cu130" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmpfs: Callable[[str], Path]) -> Path:
    return tmpfs("64m")


def test_full_disk_is_foreseen(small_disk: Path) -> None:
    done = release("--out", small_disk / "dist", cwd=small_disk)
    assert done.returncode == 10
    assert "MiB needed" in done.stderr.splitlines()[-1]
    assert not [path for path in small_disk.rglob("*") if path.is_file()]


def test_output_that_cannot_be_written(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = release("--out", small_disk / "dist", cwd=small_disk.parent)
    assert done.returncode == 10
    assert len(done.stderr.splitlines()) == 1
    assert "not writable" in done.stderr


def test_output_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "dist").touch()
    done = release(cwd=tmp_path)
    assert done.returncode == 2
    assert "not a folder" in done.stderr
