"""Files appear whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from vllm_spark import paths
from vllm_spark.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Stop(BaseException):
    """Stands for whatever may end a block."""


def test_atomic_file_keeps_the_old_one_on_failure(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    paths.atomic_write(path, "old\n")
    with pytest.raises(Stop), paths.atomic_file(path) as file:
        file.write(b"new")
        raise Stop
    assert path.read_text() == "old\n"
    assert names(path.parent) == ["a.txt"]


def test_atomic_write_sets_the_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        paths.atomic_write(tmp_path / "a", b"")
        with paths.atomic_dir(tmp_path / "d"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o755


def test_atomic_dir_replaces_or_leaves_no_trace(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with paths.atomic_dir(target) as fresh:
        (fresh / "one").touch()
    with pytest.raises(Stop), paths.atomic_dir(target) as fresh:
        (fresh / "two").touch()
        raise Stop
    assert names(target) == ["one"]
    with paths.atomic_dir(target) as fresh:
        (fresh / "three").touch()
    assert names(target) == ["three"]
    assert names(tmp_path) == ["out"]


def test_terminated_writer_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; from pathlib import Path; from vllm_spark import paths\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "with paths.atomic_file(Path(sys.argv[1]) / 'x') as f:\n"
        "    f.write(b'half'); f.flush(); print('ready', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGTERM)
        child.wait()
    assert names(tmp_path) == []


def hold(path: Path, ready: object) -> None:
    with paths.lock(path):
        ready.set()  # type: ignore[attr-defined]
        time.sleep(60)


def test_lock_dies_with_its_holder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=hold, args=(tmp_path / "lock", ready))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(ResourceError, match="another run"), paths.lock(tmp_path / "lock"):
        pass
    holder.kill()
    holder.join()
    with paths.lock(tmp_path / "lock"):
        pass


def test_refusals_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="MiB free"):
        paths.require_space(tmp_path / "not" / "yet", 1 << 60)


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="not a folder"):
            paths.require_folder(folder)
    with pytest.raises(ConfigError, match="not a folder"):
        paths.atomic_write(tmp_path / "file" / "below", b"")


def test_repo_root_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SPARK_ROOT", str(tmp_path))
    with pytest.raises(ConfigError, match="not a vllm-spark checkout"):
        paths.repo_root()
