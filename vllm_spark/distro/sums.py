"""SHA256SUMS in the form that `sha256sum --check` reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["NAME", "differences", "dump", "parse"]

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._+!/-]*)")


def dump(digests: Mapping[str, str]) -> bytes:
    """The file: one line per name, in the order of names."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())).encode()


def parse(data: bytes, where: str) -> dict[str, str]:
    """Name -> hex digest.

    Raises:
        ArtefactError: a line is malformed, leads out of the folder, or repeats a name.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or ".." in match[2].split("/") or match[2] in found:
            raise ArtefactError("malformed line", where=f"{where}:{number}", hint="restore the published copy")
        found[match[2]] = match[1]
    return found


def differences(listed: Mapping[str, str], there: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each name that is missing, altered or not listed."""
    for name in sorted(listed.keys() | there.keys()):
        if name not in there:
            yield f"{name}: missing"
        elif name not in listed:
            yield f"{name}: not listed in {NAME}"
        elif listed[name] != there[name]:
            yield f"{name}: altered"
