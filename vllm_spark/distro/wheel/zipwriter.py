"""Writing a zip file whose bytes depend on nothing but its content.

The standard `zipfile` cannot take a member that is compressed already; this writer can, and fixes what else would
vary: times, the creating system and the modes. Format: APPNOTE.TXT 6.3.10 without ZIP64, which no wheel here needs.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Packed", "ZipWriter"]

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_DATE = 33  # 1980-01-01, the first that the format knows
_TIME = 0
_UTF8 = 0x800
_UNIX = 3
_VERSION = 20  # deflate and folders
_LEVEL = 6
_LIMIT = 0xFFFFFFFF


@dataclass(frozen=True)
class Packed:
    """What the archive says about one member."""

    name: str
    method: int
    crc: int
    compressed: int
    size: int
    offset: int
    executable: bool

    @property
    def _name(self) -> tuple[bytes, int]:
        return self.name.encode(), 0 if self.name.isascii() else _UTF8

    @property
    def local(self) -> bytes:
        """The header in front of the data."""
        name, flags = self._name
        sizes = (self.crc, self.compressed, self.size)
        return _LOCAL.pack(b"PK\3\4", _VERSION, flags, self.method, _TIME, _DATE, *sizes, len(name), 0) + name

    @property
    def central(self) -> bytes:
        """The entry in the directory."""
        name, flags = self._name
        mode = (0o100755 if self.executable else 0o100644) << 16
        made = _UNIX << 8 | _VERSION
        sizes = (self.crc, self.compressed, self.size)
        fixed = (b"PK\1\2", made, _VERSION, flags, self.method, _TIME, _DATE, *sizes)
        return _CENTRAL.pack(*fixed, len(name), 0, 0, 0, 0, mode, self.offset) + name


class ZipWriter:
    """Writes members to a seekable file; `close` adds the directory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._members: list[Packed] = []

    def copy(self, packed: Packed, raw: Iterable[bytes]) -> None:
        """Add a member from its compressed bytes; `packed.offset` is set here."""
        placed = Packed(
            packed.name, packed.method, packed.crc, packed.compressed, packed.size, self._place(), packed.executable
        )
        self._file.write(placed.local)
        for block in raw:
            self._file.write(block)
        self._add(placed)

    def deflate(self, name: str, blocks: Iterable[bytes], *, executable: bool = False) -> None:
        """Compress and add a member."""
        offset = self._place()
        self._file.write(Packed(name, zlib.DEFLATED, 0, 0, 0, offset, executable).local)
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        start = self._file.tell()
        crc = size = 0
        for block in blocks:
            crc = zlib.crc32(block, crc)
            size += len(block)
            self._file.write(packer.compress(block))
        self._file.write(packer.flush())
        end = self._file.tell()
        placed = Packed(name, zlib.DEFLATED, crc, end - start, size, offset, executable)
        self._file.seek(offset)
        self._add(placed)
        self._file.write(placed.local)
        self._file.seek(end)

    def close(self) -> None:
        """Write the directory; the file itself stays open."""
        start = self._place()
        for member in self._members:
            self._file.write(member.central)
        size = self._file.tell() - start
        count = len(self._members)
        self._file.write(_END.pack(b"PK\5\6", 0, 0, count, count, size, start, 0))

    def _place(self) -> int:
        offset = self._file.tell()
        if offset >= _LIMIT or len(self._members) >= 0xFFFF:
            raise ArtefactError("archive beyond 4 GiB or 65534 members", where="zip writer")
        return offset

    def _add(self, member: Packed) -> None:
        if max(member.size, member.compressed) >= _LIMIT:
            raise ArtefactError("member beyond 4 GiB", where=member.name)
        self._members.append(member)
