"""Reading a large file piece by piece, and a changed view of it that is never held in memory."""

from __future__ import annotations

import bisect
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

__all__ = ["BytesSource", "Edit", "EditedSource", "FileSource", "Part", "Source", "Span", "chunks"]

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
        self.path = path
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


class BytesSource:
    """Bytes that are in memory anyway."""

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self.size = len(data)
        self._data = data

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`.

        Raises:
            ArtefactError: they end before.
        """
        if size < 0 or offset < 0 or offset + size > self.size:
            raise ArtefactError(f"ends before byte {offset + size}", where=self.name)
        return self._data[offset : offset + size]


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
        return sum(map(_length, self.parts))

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.size


class EditedSource:
    """`source` with `edits` made; nothing is copied before it is read.

    Args:
        edits: disjoint, in any order.
    """

    def __init__(self, source: Source, edits: Sequence[Edit]) -> None:
        self.name = source.name
        self.size = source.size
        self._source = source
        self._parts: list[Part | int] = []  # an int stands for so many zeros
        self._starts: list[int] = []
        at = 0
        for edit in sorted(edits, key=lambda edit: edit.offset):
            if edit.offset < at or edit.end > source.size:
                raise ValueError(f"edit at {edit.offset} overlaps another one or leaves the file")
            for part in (Span(at, edit.offset - at), *edit.parts, edit.size - edit.filled):
                at = self._place(part, at)
        self._place(Span(at, source.size - at), at)

    def _place(self, part: Part | int, at: int) -> int:
        if _length(part):
            self._parts.append(part)
            self._starts.append(at)
        return at + _length(part)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`.

        Raises:
            ArtefactError: the file ends before.
        """
        if size < 0 or offset < 0 or offset + size > self.size:
            raise ArtefactError(f"ends before byte {offset + size}", where=self.name)
        out = bytearray()
        index = bisect.bisect_right(self._starts, offset) - 1
        while len(out) < size:
            part = self._parts[index]
            skip = offset + len(out) - self._starts[index]
            count = min(_length(part) - skip, size - len(out))
            if isinstance(part, Span):
                out += self._source.read(part.offset + skip, count)
            else:
                out += bytes(count) if isinstance(part, int) else part[skip : skip + count]
            index += 1
        return bytes(out)


def _length(part: Part | int) -> int:
    if isinstance(part, Span):
        return part.size
    return part if isinstance(part, int) else len(part)


def chunks(source: Source) -> Iterator[bytes]:
    """All bytes of `source`, in pieces of at most one MiB."""
    for at in range(0, source.size, _CHUNK):
        yield source.read(at, min(_CHUNK, source.size - at))
