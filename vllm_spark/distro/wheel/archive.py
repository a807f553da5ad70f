"""Reading a wheel's zip file without trusting it.

The whole directory is checked when the file is opened: names that leave the tree, duplicates, links, overlapping or
encrypted members, and sizes that no wheel of this project has. Members are then read in pieces.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Self

from vllm_spark.distro.wheel.names import WheelName, check_member_name
from vllm_spark.errors import ArtefactError, ConfigError, IntegrityError
from vllm_spark.paths import resource_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

__all__ = ["MAX_INFLATED", "Wheel"]

MAX_INFLATED = 8 << 30  # bytes of all members together; vLLM 0.33.0 has 0.8 billion
_MAX_RATIO = 1032  # deflate cannot do better: 258 bytes for two bits
_CHUNK = 1 << 20
_UNREADABLE = 0x1 | 0x20 | 0x40  # flag bits: encrypted, patch data, strongly encrypted
_LOCAL = struct.Struct("<4s5H3I2H")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Wheel:
    """An open wheel.

    Attributes:
        members: files by name, in the order of the archive; folders are left out.
    """

    def __init__(self, path: Path) -> None:
        """Open and check `path`.

        Raises:
            ConfigError: there is no such file.
            ArtefactError: it is no wheel, or unsafe to unpack.
        """
        self.path = path
        self.name = WheelName.parse(path)
        if not path.is_file():
            raise ConfigError("no such file", where=str(path))
        try:
            with resource_errors(path):
                self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, struct.error, UnicodeDecodeError, NotImplementedError) as err:
            raise ArtefactError(
                f"not a zip file, or cut short ({err})", where=str(path), hint="fetch the file again"
            ) from err
        try:
            self._file = path.open("rb")
            self.members = self._checked()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._zip.close()
        if hasattr(self, "_file"):
            self._file.close()

    @property
    def dist_info(self) -> str:
        """The metadata folder that the file name asks for; `_checked` has seen that it is the only one."""
        return self.name.dist_info

    def fail(self, what: str, member: str = "") -> ArtefactError:
        """An error about this wheel, or about one member of it."""
        return ArtefactError(what, where=f"{self.path.name}: {member}" if member else self.path.name)

    def _checked(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            problem = check_member_name(info.orig_filename) or _problem(info)
            if problem is None and info.filename in members:
                problem = "appears twice"
            if problem is not None:
                raise self.fail(problem, info.orig_filename)
            if not info.is_dir():
                members[info.filename] = info
        total = sum(info.file_size for info in members.values())
        if total > MAX_INFLATED:
            raise self.fail(f"would unpack to {total / 2**30:.1f} GiB")
        self._check_overlap(members)
        folders = {name.split("/")[0] for name in members if name.split("/")[0].endswith(".dist-info")}
        if folders != {self.dist_info}:
            raise self.fail(f"has {', '.join(sorted(folders)) or 'no .dist-info'} instead of {self.dist_info}")
        if f"{self.dist_info}/RECORD" not in members:
            raise self.fail("has no RECORD", f"{self.dist_info}/RECORD")
        return members

    def _check_overlap(self, members: dict[str, zipfile.ZipInfo]) -> None:
        """Members that share bytes are how a small file unpacks to a huge one."""
        end = 0
        for info in sorted(members.values(), key=lambda info: info.header_offset):
            if info.header_offset < end:
                raise self.fail("overlaps another member", info.filename)
            end = info.header_offset + _LOCAL.size + info.compress_size
        if end > self._zip.start_dir:
            raise self.fail("members reach into the archive's directory")

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a member, in pieces of at most one MiB; its checksum is verified.

        Raises:
            IntegrityError: the compressed data are damaged.
        """
        if name not in self.members:
            raise self.fail("missing", name)
        try:
            with self._zip.open(self.members[name]) as file:
                while block := file.read(_CHUNK):
                    yield block
        except (zipfile.BadZipFile, zlib.error, EOFError) as err:
            raise IntegrityError(
                f"damaged ({err})", where=f"{self.path.name}: {name}", hint="fetch the file again"
            ) from err

    def read(self, name: str, limit: int = 64 << 20) -> bytes:
        """A whole member of at most `limit` bytes."""
        if name in self.members and self.members[name].file_size > limit:
            raise self.fail(f"larger than {limit} bytes", name)
        return b"".join(self.chunks(name))

    def raw_chunks(self, name: str) -> Iterator[bytes]:
        """The compressed bytes of a member as they stand in the archive."""
        info = self.members[name]
        self._file.seek(info.header_offset)
        head = self._file.read(_LOCAL.size)
        fields = _LOCAL.unpack(head) if len(head) == _LOCAL.size else (b"",)
        if fields[0] != b"PK\x03\x04":
            raise self.fail("local header is damaged", name)
        local_name = self._file.read(fields[9])
        encoding = "utf-8" if fields[2] & 0x800 else "cp437"
        if local_name != info.orig_filename.encode(encoding, "replace") or fields[3] != info.compress_type:
            raise self.fail("local header and directory disagree", name)
        self._file.seek(fields[10], 1)
        left = info.compress_size
        while left:
            block = self._file.read(min(_CHUNK, left))
            if not block:
                raise self.fail("ends early", name)
            left -= len(block)
            yield block


def _problem(info: zipfile.ZipInfo) -> str | None:
    mode = info.external_attr >> 16
    if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_IFMT(mode) == 0):
        return "is a link or a device"
    if info.flag_bits & _UNREADABLE:
        return "is encrypted or a patch"
    if info.compress_type not in _METHODS:
        return f"compressed with method {info.compress_type}"
    if info.file_size > max(info.compress_size, 1) * _MAX_RATIO:
        return f"says that {info.compress_size} bytes unpack to {info.file_size}"
    return None
