"""Reading a large file piece by piece, and a changed view of it that is never held in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

__all__ = ["Edit", "FileSource", "Part", "Source", "Span", "stream"]

_CHUNK = 1 << 20


class Source(Protocol):
    """Bytes that can be read at any place."""

    @property
    def name(self) -> str:
        """What to call it in messages."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`; `ArtefactError` when the file ends before."""


class FileSource:
    """A file on disk, read with pread: resident memory does not grow with the file."""

    def __init__(self, path: Path, name: str = "") -> None:
        self.name = name or str(path)
        self._fd = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._fd)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`.

        Raises:
            ArtefactError: the file ends before.
        """
        if size < 0 or offset < 0 or offset + size > self.size:
            raise ArtefactError(f"ends before byte {offset + size}", where=self.name, hint="fetch the file again")
        data = os.pread(self._fd, size, offset)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                raise ArtefactError("became shorter while it was read", where=self.name)
            data += more
        return data


@dataclass(frozen=True)
class Span:
    """Bytes of the unchanged file."""

    offset: int
    size: int


Part = Span | bytes


@dataclass(frozen=True)
class Edit:
    """`size` bytes at `offset` become `parts`, and zeros after them; the file keeps its length."""

    offset: int
    size: int
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if self.filled > self.size:
            raise ValueError(f"{self.filled} bytes do not fit into {self.size}")

    @property
    def filled(self) -> int:
        """Bytes that the parts take."""
        return sum(part.size if isinstance(part, Span) else len(part) for part in self.parts)

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.size


def stream(source: Source, edits: Sequence[Edit]) -> Iterator[bytes]:
    """The bytes of `source` with `edits` made, in pieces of at most one MiB.

    Args:
        edits: disjoint, in any order.
    """
    at = 0
    for edit in sorted(edits, key=lambda edit: edit.offset):
        if edit.offset < at or edit.end > source.size:
            raise ValueError(f"edit at {edit.offset} overlaps another one or leaves the file")
        yield from _copy(source, Span(at, edit.offset - at))
        for part in edit.parts:
            if isinstance(part, Span):
                yield from _copy(source, part)
            else:
                yield part
        yield from _zeros(edit.size - edit.filled)
        at = edit.end
    yield from _copy(source, Span(at, source.size - at))


def _copy(source: Source, span: Span) -> Iterator[bytes]:
    for done in range(0, span.size, _CHUNK):
        yield source.read(span.offset + done, min(_CHUNK, span.size - done))


def _zeros(size: int) -> Iterator[bytes]:
    block = bytes(min(size, _CHUNK))
    for done in range(0, size, _CHUNK):
        yield block[: size - done]
