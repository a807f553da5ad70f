"""What lies in an index folder, compared with what `SHA256SUMS` says was put there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vllm_spark.distro.index.state import STATE_FILE
from vllm_spark.distro.upstream.fetch import sha256_of
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["OWN_FOLDERS", "SUMS_FILE", "edits", "read_sums", "require_folder", "require_untouched"]

SUMS_FILE = "SHA256SUMS"
# Everything below these is the index's own; elsewhere only the files that it lists.
OWN_FOLDERS = ("simple", "files")
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._+!/-]*)")


def read_sums(out: Path) -> dict[str, str]:
    """Path below `out` -> SHA-256.

    Raises:
        ArtefactError: there is no such file, or a line of it is malformed.
    """
    path = out / SUMS_FILE
    if not path.is_file():
        raise ArtefactError(
            f"no {SUMS_FILE}, so this is no index", where=str(out), hint=f"vllm-spark index build {out}"
        )
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or ".." in match[2].split("/"):
            raise ArtefactError("malformed line", where=f"{path}:{number}", hint="restore the published copy")
        found[match[2]] = match[1]
    return found


def edits(out: Path) -> Iterator[str]:
    """One sentence for each page, sidecar or stray file that the index did not put there as it is.

    Wheels are not read: hashing hundreds of gigabytes belongs to `verify`.
    """
    sums = read_sums(out)
    for path, digest in sums.items():
        there = out / path
        if there.is_symlink():
            yield f"{path}: is a symbolic link"
        elif there.is_file() and not path.endswith(".whl") and sha256_of(there) != digest:
            yield f"{path}: edited by hand"
        elif not there.is_file() and (path == STATE_FILE or path.endswith(".metadata")):
            yield f"{path}: missing"
    for own in OWN_FOLDERS:
        if (out / own).is_symlink():
            yield f"{own}: is a symbolic link"
        for there in sorted((out / own).rglob("*")):
            name = there.relative_to(out).as_posix()
            if name not in sums and (there.is_symlink() or not there.is_dir()):
                yield f"{name}: not put there by the index"


def require_folder(out: Path) -> None:
    """Refuse a path that is, or leads through, a file.

    Raises:
        ConfigError: it does.
    """
    there = next(path for path in (out, *out.absolute().parents) if path.exists() or path.is_symlink())
    if not there.is_dir():
        raise ConfigError("not a folder", where=str(there), hint="name another folder for the index")


def require_untouched(out: Path) -> None:
    """Refuse to build on a folder that is something else, or was edited.

    A page that is missing is no obstacle: it is written anew.

    Raises:
        ConfigError: not an index, and not empty of what an index would overwrite.
        ArtefactError: edited by hand; the first difference is named.
    """
    if not (out / SUMS_FILE).exists():
        taken = [name for name in (*OWN_FOLDERS, "index.html", STATE_FILE) if (out / name).exists()]
        if taken:
            what = f"not an index ({SUMS_FILE} is missing), but has {', '.join(taken)}"
            raise ConfigError(what, where=str(out), hint="name an empty folder, or restore the published copy")
        return
    found = list(edits(out))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        hint = f"restore the published copy; `vllm-spark index verify {out}` lists every difference"
        raise ArtefactError(f"{found[0]}{more}", where=str(out), hint=hint)
