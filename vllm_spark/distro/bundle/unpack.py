"""Taking a bundle out of its tar without trusting it."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.distro.bundle.verify import verify
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["unpack"]


def unpack(tar: Path, out: Path) -> Path:
    """Take the bundle out of `tar` into the new folder `out`, whole or not at all.

    Links and devices are refused, names that leave the folder by Python's data filter, and the result is verified:
    a tar that was cut between two files looks like a shorter one.

    Raises:
        ArtefactError: not a tar, cut short, unsafe, or with more than one folder at its top.
        ResourceError: no space.
    """
    paths.require_space(out.parent, tar.stat().st_size)
    try:
        with paths.atomic_dir(out) as fresh, tarfile.open(tar, "r:") as archive:
            top = _checked(tar, archive)
            archive.extractall(fresh, filter="data")
            for path in sorted((fresh / top).iterdir()):
                path.rename(fresh / path.name)
            (fresh / top).rmdir()
            _complete(tar, fresh)
    except tarfile.FilterError as err:
        raise ArtefactError(f"unsafe: {err}", where=str(tar), hint="do not use this file") from err
    except tarfile.TarError as err:
        raise ArtefactError(f"not a tar, or cut short: {err}", where=str(tar), hint="copy it again") from err
    return out


def _checked(tar: Path, archive: tarfile.TarFile) -> str:
    members = archive.getmembers()
    bad = next((member.name for member in members if not (member.isfile() or member.isdir())), None)
    if bad is not None:
        raise ArtefactError("a member is a link or a device", where=f"{tar}: {bad}", hint="do not use this file")
    tops = {member.name.split("/")[0] for member in members}
    end = max((member.offset_data + member.size for member in members), default=0)
    if end > tar.stat().st_size:
        raise ArtefactError("cut short", where=str(tar), hint="copy it again")
    if len(tops) != 1 or tops & {"", ".", ".."}:
        raise ArtefactError("does not hold one folder", where=str(tar), hint="do not use this file")
    return tops.pop()


def _complete(tar: Path, fresh: Path) -> None:
    try:
        verify(fresh)
    except ArtefactError as err:
        raise ArtefactError(err.what, where=str(tar), hint=err.hint) from err
