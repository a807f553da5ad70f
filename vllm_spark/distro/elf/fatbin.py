"""The layout of CUDA fat binaries.

A shared object carries them in `.nv_fatbin` (or `__nv_relfatbin`, code still to be linked on the device): containers
one after another, with zeros between for alignment. A container is a 16-byte header and then entries; an entry is a
header (64 bytes, and more where options or attributes follow) and its payload, padded to eight bytes. Fields and
flags were calibrated with nvcc 13.0.88 (`tests/data/wheel`), whose `cuobjdump` is the oracle of the tests.

Every position is an offset in the file, so that a container can be rewritten in place.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.elf.target import Form, Suffix, Target
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.elf.source import Source

__all__ = ["MAGIC", "Compression", "Container", "Entry", "Flag", "container_header", "containers"]

MAGIC = 0xBA55ED50
_HEAD = struct.Struct("<IHHQ")  # magic, version, header bytes, bytes of entries
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_GAP_CHUNK = 1 << 16
_FORMS = {1: Form.PTX, 2: Form.CUBIN}


class Flag(enum.IntFlag):
    """Bits of an entry's flag word that matter here."""

    DEBUG = 0x2
    LZ4 = 0x2000
    ZSTD = 0x8000
    ARCH_SPECIFIC = 0x100000  # suffix a
    FAMILY_SPECIFIC = 0x200000  # suffix f


class Compression(enum.Enum):
    """How a payload is stored."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Entry:
    """One image: machine code or PTX for one target.

    Attributes:
        offset: where its header starts in the file.
        kind: 1 PTX, 2 cubin, 8 link-time intermediate code.
        header_size: bytes of the header with what follows its fixed part.
        padded_size: bytes of the payload with its padding.
        stored_size: bytes of a compressed payload, 0 for a plain one.
        raw_size: bytes after decompression, 0 for a plain payload.
        version: of the code: PTX ISA 9.0 is (9, 0).
    """

    offset: int
    kind: int
    header_size: int
    padded_size: int
    stored_size: int
    raw_size: int
    version: tuple[int, int]
    number: int
    flags: int

    @property
    def size(self) -> int:
        """Bytes in the container: header and padded payload."""
        return self.header_size + self.padded_size

    @property
    def payload_offset(self) -> int:
        """Where the payload starts in the file."""
        return self.offset + self.header_size

    @property
    def payload_size(self) -> int:
        """Bytes of the payload as stored; a plain one includes its padding."""
        return self.stored_size or self.padded_size

    @property
    def form(self) -> Form:
        """What the payload is."""
        return _FORMS.get(self.kind, Form.OTHER)

    @property
    def target(self) -> Target:
        """What the code was compiled for."""
        if self.flags & Flag.FAMILY_SPECIFIC:
            return Target(self.number, Suffix.FAMILY)
        return Target(self.number, Suffix.ARCH if self.flags & Flag.ARCH_SPECIFIC else Suffix.PORTABLE)

    @property
    def compression(self) -> Compression:
        """How the payload is stored, by flags and sizes together."""
        match (bool(self.flags & Flag.LZ4), bool(self.flags & Flag.ZSTD), bool(self.stored_size)):
            case (False, False, False):
                return Compression.NONE
            case (True, False, True):
                return Compression.LZ4
            case (False, True, True):
                return Compression.ZSTD
            case _:
                return Compression.UNKNOWN

    @property
    def label(self) -> str:
        """The target as the CUDA tools write it: `sm_120f`, `compute_80`; other kinds carry their number."""
        match self.form:
            case Form.CUBIN:
                return f"sm_{self.target}"
            case Form.PTX:
                return f"compute_{self.target}"
            case Form.OTHER:
                return f"kind{self.kind}_{self.target}"


@dataclass(frozen=True)
class Container:
    """One fat binary: what one translation unit registers with the CUDA runtime.

    Attributes:
        index: its place in the file, from 0; stays the same when containers are rewritten in place.
        offset: where its header starts in the file.
        room: bytes from its header to the next container or the section's end, alignment included. What is
            written over it may be no longer.
        relocatable: its code is still to be linked on the device (`__nv_relfatbin`).
    """

    index: int
    offset: int
    version: int
    header_size: int
    body_size: int
    room: int
    entries: tuple[Entry, ...]
    relocatable: bool = False

    @property
    def size(self) -> int:
        """Bytes of the header and all entries."""
        return self.header_size + self.body_size


def container_header(version: int, body_size: int) -> bytes:
    """The 16 bytes that open a container with `body_size` bytes of entries."""
    return _HEAD.pack(MAGIC, version, _HEAD.size, body_size)


def containers(
    source: Source, offset: int, size: int, first_index: int = 0, *, relocatable: bool = False
) -> Iterator[Container]:
    """The containers in `size` bytes of `source` at `offset`, a section that holds nothing else.

    Raises:
        ArtefactError: bytes that are neither a container nor zeros, or sizes that do not add up.
    """
    end = offset + size
    at = _skip_zeros(source, offset, end)
    index = first_index
    while at < end:
        version, header_size, body_size = _head(source, at, end)
        after = at + header_size + body_size
        entries = tuple(_entries(source, at + header_size, after))
        following = _skip_zeros(source, after, end)
        yield Container(index, at, version, header_size, body_size, following - at, entries, relocatable)
        at = following
        index += 1


def _head(source: Source, at: int, end: int) -> tuple[int, int, int]:
    if end - at < _HEAD.size:
        raise _malformed(source, at, "cut fat binary header")
    magic, version, header_size, body_size = _HEAD.unpack(source.read(at, _HEAD.size))
    if magic != MAGIC:
        raise _malformed(source, at, f"not a fat binary (magic {magic:#010x})")
    if version != 1 or header_size != _HEAD.size:
        raise _malformed(source, at, f"unknown fat binary version {version} with {header_size} header bytes")
    if header_size + body_size > end - at:
        raise _malformed(source, at, f"fat binary of {body_size} bytes leaves its section")
    return version, header_size, body_size


def _entries(source: Source, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        if end - at < _ENTRY.size:
            raise _malformed(source, at, "cut image header")
        fields = _ENTRY.unpack(source.read(at, _ENTRY.size))
        kind, _, header_size, padded, stored, _, minor, major, number, _, _, flags, _, raw = fields
        entry = Entry(at, kind, header_size, padded, stored, raw, (major, minor), number, flags)
        if header_size < _ENTRY.size or entry.size > end - at or stored > padded:
            raise _malformed(source, at, f"image of {padded} bytes leaves its fat binary")
        yield entry
        at += entry.size


def _skip_zeros(source: Source, at: int, end: int) -> int:
    """The first place from `at` whose aligned eight bytes are not all zero."""
    while at < end:
        block = source.read(at, min(_GAP_CHUNK, end - at))
        rest = len(block.lstrip(b"\0"))
        if rest:
            return at + (len(block) - rest) // 8 * 8
        at += len(block)
    return end


def _malformed(source: Source, at: int, what: str) -> ArtefactError:
    return ArtefactError(what, where=f"{source.name} byte {at:#x}", hint="the file is damaged or of a newer toolkit")
