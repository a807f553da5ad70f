"""Where things are, and the only way to put a file there: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from vllm_spark.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "atomic_dir",
    "atomic_file",
    "atomic_write",
    "cache_dir",
    "lock",
    "repo_root",
    "require_folder",
    "require_space",
    "resource_errors",
]


def repo_root() -> Path:
    """The checkout that holds `patches/series` and `csrc/`; `VLLM_SPARK_ROOT` names another one.

    Raises:
        ConfigError: this installation is not a checkout and the variable is not set.
    """
    given = os.environ.get("VLLM_SPARK_ROOT")
    root = Path(given).resolve() if given else Path(__file__).resolve().parent.parent
    if not (root / "patches" / "series").is_file():
        raise ConfigError(
            "not a vllm-spark checkout (no patches/series)",
            where=str(root),
            hint="run inside a clone, or set VLLM_SPARK_ROOT to one",
        )
    return root


def cache_dir(*parts: str) -> Path:
    """A folder of the user's cache (`VLLM_SPARK_CACHE`, else `$XDG_CACHE_HOME/vllm-spark`), made on demand."""
    given = os.environ.get("VLLM_SPARK_CACHE")
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(given or user / "vllm-spark", *parts)
    with resource_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def resource_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals about `path` into one `ResourceError` line."""
    try:
        yield
    except OSError as err:
        if err.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = f"free some space (df -h {path.parent}) and run the command again"
            raise ResourceError("no space left on device", where=str(path), hint=hint) from err
        if err.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "choose a folder that you may write to"
            raise ResourceError("not writable", where=str(path), hint=hint) from err
        if err.errno in (errno.ENOTDIR, errno.EEXIST):
            raise ConfigError(
                "not a folder, or below one that is a file", where=str(path), hint="name another"
            ) from err
        raise


def require_folder(path: Path) -> None:
    """Make `path` a folder that can be written to, before minutes of work whose result could not be kept.

    Raises:
        ConfigError: something else stands there.
        ResourceError: it cannot be made or written to.
    """
    with resource_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        # Asking the kernel beats reading mode bits: root may write anywhere but to a read-only disk.
        with tempfile.TemporaryFile(dir=path):
            pass


def require_space(path: Path, needed: int) -> None:
    """Check before writing that the file system of `path` has `needed` bytes free.

    Raises:
        ResourceError: it has not.
    """
    there = path
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ResourceError(
            f"{needed / 2**20:.0f} MiB needed, {free / 2**20:.0f} MiB free",
            where=str(path),
            hint=f"free some space (df -h {there}) and run the command again",
        )


@contextlib.contextmanager
def atomic_file(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends well, and vanishes otherwise.

    The temporary file stands in the same folder, so that the last step is one rename.
    """
    with resource_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        fresh = Path(name)
        try:
            with os.fdopen(fd, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            fresh.chmod(mode)
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


def atomic_write(path: Path, data: bytes | str, *, mode: int = 0o644) -> None:
    """Write `data` to `path`, whole or not at all; text is UTF-8 with its newlines as given."""
    with atomic_file(path, mode=mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """A fresh folder that takes the place of `path` when the block ends well, and vanishes otherwise.

    An existing `path` is kept until the new one stands and is then removed.
    """
    with resource_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
        try:
            yield fresh
            fresh.chmod(0o755)
            _replace_dir(fresh, path)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise


def _replace_dir(fresh: Path, path: Path) -> None:
    if not path.exists():
        fresh.rename(path)
        return
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".old"))
    path.rename(old / "was")
    try:
        fresh.rename(path)
    except OSError:
        (old / "was").rename(path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold an advisory lock on `path`; the kernel drops it with the process, so none can be left behind.

    Args:
        wait: wait for another holder instead of refusing.

    Raises:
        ResourceError: another process holds it, and `wait` is false.
    """
    with resource_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise ResourceError(
                    "another run holds the lock", where=str(path), hint="wait for it to end, then run again"
                ) from None
            yield
