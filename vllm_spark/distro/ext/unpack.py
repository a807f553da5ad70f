"""Take a part of a verified wheel onto the disk, within bounds and inside one folder."""

from __future__ import annotations

import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["unpack"]

_LIMIT = 1 << 30  # bytes that one wheel may unfold to; the largest pinned one needs 140 MB


def unpack(wheel: Path, into: Path, place: Callable[[str], str | None]) -> None:
    """Write the members that `place` gives a path to, below `into`; any executable bit becomes 0755.

    Args:
        place: from a member's name to its relative path, or None to leave it out.

    Raises:
        ArtefactError: not a zip, a path that leaves `into`, or more than a GiB; nothing is said of what was
            written before, so `into` should be one of `paths.atomic_dir`.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            chosen = [(info, to) for info in archive.infolist() if not info.is_dir() and (to := place(info.filename))]
            total = sum(info.file_size for info, _ in chosen)
            if total > _LIMIT:
                raise ArtefactError(f"unfolds to {total} bytes", where=wheel.name, hint="check the pin")
            paths.require_space(into, total)
            for info, to in chosen:
                target = into / _inside(to, wheel)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                executable = (info.external_attr >> 16) & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
                target.chmod(0o755 if executable else 0o644)
    except (zipfile.BadZipFile, zlib.error, EOFError) as err:
        raise ArtefactError(f"not a readable wheel: {err}", where=wheel.name, hint="fetch it again") from err


def _inside(name: str, wheel: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ArtefactError(f"a member leaves the folder: {name!r}", where=wheel.name, hint="do not use this wheel")
    return path
