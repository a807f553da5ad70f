"""Giving a wheel its new version and its true tag, byte by byte where something must change and nowhere else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["stamp_metadata", "stamp_version_file", "stamp_wheel"]

_VERSION_FIELD = re.compile(rb"^Version:[ \t]*(\S+)[ \t]*\r?$", re.MULTILINE)
_TAG_FIELDS = re.compile(rb"(?:^Tag:[^\n]*\n)+", re.MULTILINE)
_VERSION_TEXT = re.compile(rb"^(__version__ = version = )(['\"])([^'\"\n]+)\2$", re.MULTILINE)
_VERSION_TUPLE = re.compile(rb"^(__version_tuple__ = version_tuple = )\([^()\n]*\)$", re.MULTILINE)


def stamp_metadata(data: bytes, old: str, new: str) -> bytes:
    """METADATA with `Version: old` turned into `new`; the description below the headers is not touched.

    Raises:
        ArtefactError: there is not exactly one Version field, or it is not `old`.
    """
    end = _end_of_headers(data)
    found = list(_VERSION_FIELD.finditer(data, 0, end))
    if len(found) != 1 or Version(found[0][1].decode()) != Version(old):
        seen = ", ".join(match[1].decode() for match in found) or "none"
        raise ArtefactError(f"Version is {seen}, the file name says {old}", where="METADATA")
    return data[: found[0].start(1)] + new.encode() + data[found[0].end(1) :]


def stamp_wheel(data: bytes, tags: Sequence[str]) -> bytes:
    """WHEEL with its Tag fields replaced by `tags`.

    Raises:
        ArtefactError: the Tag fields are missing or scattered.
    """
    found = list(_TAG_FIELDS.finditer(data if data.endswith(b"\n") else data + b"\n"))
    if len(found) != 1:
        raise ArtefactError(f"{len(found)} groups of Tag fields instead of one", where="WHEEL")
    lines = b"".join(f"Tag: {tag}\n".encode() for tag in tags)
    return data[: found[0].start()] + lines + data[found[0].end() :]


def stamp_version_file(data: bytes, version: str) -> bytes:
    """The `_version.py` that setuptools-scm writes, with text and tuple saying `version`.

    The commit id in it stays: it names the upstream commit that the code was made from, which is still true.

    Raises:
        ArtefactError: it does not assign each of the two exactly once.
    """
    parsed = Version(version)
    fields: tuple[int | str, ...] = parsed.release
    if parsed.pre or parsed.post is not None or parsed.dev is not None:
        raise ArtefactError("only plain releases with a local part can be stamped", where=version)
    if parsed.local:
        fields = (*fields, parsed.local)
    data, texts = _VERSION_TEXT.subn(lambda match: match[1] + repr(version).encode(), data)
    data, tuples = _VERSION_TUPLE.subn(lambda match: match[1] + repr(fields).encode(), data)
    if (texts, tuples) != (1, 1):
        raise ArtefactError(f"assigns the version {texts} times and its tuple {tuples} times", where="_version.py")
    return data


def _end_of_headers(data: bytes) -> int:
    ends = [at for at in (data.find(b"\n\n"), data.find(b"\r\n\r\n")) if at >= 0]
    return min(ends, default=len(data))
