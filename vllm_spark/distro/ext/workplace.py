"""The folder that a build works in: at a path that depends on its content alone, and on nobody's machine.

nvcc puts a hash of the source's absolute path into symbol names, so the build runs on a copy below /tmp and not
below TMPDIR. The environment is our own for the same reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["environment", "sources", "stage", "workplace"]

_LEFT_OUT = {"__pycache__", ".mypy_cache", ".ruff_cache"}
_TEMPORARY = Path("/tmp")  # noqa: S108 - a path that is the same for everybody; `workplace` guards it
_EPOCH = "315532800"  # 1980-01-01, the first date that a zip can tell


def sources(root: Path, parts: tuple[str, ...]) -> dict[str, bytes]:
    """The files of a checkout that `parts` name, by relative path."""
    found: list[Path] = []
    for part in parts:
        path = root / part
        found += sorted(path.rglob("*")) if path.is_dir() else [path]
    kept = [path for path in found if path.is_file() and not _LEFT_OUT.intersection(path.parts)]
    return {str(path.relative_to(root)): path.read_bytes() for path in kept if not path.name.endswith((".so", "~"))}


def stage(files: dict[str, bytes], into: Path) -> None:
    """Write `files` below `into`, each with the same mode whatever the umask."""
    for name, data in files.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)


@contextlib.contextmanager
def workplace(digest: str) -> Iterator[Path]:
    """An empty folder at the path that `digest` gives. One build of a user runs at a time: each takes all cores.

    Raises:
        ResourceError: the folder belongs to somebody else.
    """
    work = _TEMPORARY / f"vllm-spark-build-{digest}"
    with paths.lock(_TEMPORARY / f"vllm-spark-build-{os.geteuid()}.lock", wait=True), paths.resource_errors(work):
        if work.is_symlink() or (work.exists() and work.stat().st_uid != os.geteuid()):
            raise ResourceError("belongs to somebody else", where=str(work), hint="have it removed, then run again")
        if work.exists():
            # A killed build left it, and its compilers may still be at work there: away with the name first.
            shutil.rmtree(work.rename(f"{work}.{os.getpid()}"), ignore_errors=True)
        work.mkdir(mode=0o700)
        try:
            yield work
        finally:
            shutil.rmtree(work)


def environment(work: Path) -> dict[str, str]:
    """Nothing of the caller's but where programs are: CFLAGS and the like would change the bytes."""
    scratch = work / "tmp"
    scratch.mkdir()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return {"PATH": path, "TMPDIR": str(scratch), "HOME": str(scratch), "LC_ALL": "C", "SOURCE_DATE_EPOCH": _EPOCH}
