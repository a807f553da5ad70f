"""Compiled images on disk: one file each, named by everything that decides its content.

A file is the SHA-256 of what follows, and then a fat binary with one cubin, compressed. A file appears whole, so an
interrupted run leaves all that it finished, and the next one goes on from there.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from vllm_spark import paths
from vllm_spark.errors import ConfigError, IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.aot.assembler import Assembler

__all__ = ["Store", "Unpacked"]

_SUFFIX = ".image"
_NAME = re.compile(r"([0-9a-f]{64})\.image")
_DIGEST = hashlib.sha256().digest_size
_MAX_ENTRY = 64 << 20  # bytes; the largest image of vLLM 0.33.0 takes three million


@dataclass(frozen=True)
class Unpacked:
    """What came out of a packed cache: numbers of images."""

    added: int
    present: int


@dataclass(frozen=True)
class Store:
    """The images of one target and one ptxas."""

    folder: Path

    @classmethod
    def of(cls, assembler: Assembler) -> Self:
        """The user's cache for what `assembler` makes."""
        return cls(paths.cache_dir("aot", f"sm_{assembler.target}-ptxas-{assembler.version}"))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def load(self, key: str) -> bytes | None:
        """The fat binary stored under `key`, None when there is none.

        Raises:
            IntegrityError: its bytes are not those that were stored.
        """
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        return _checked(data, str(self._path(key)))

    def save(self, key: str, fat_binary: bytes) -> None:
        """Store what was compiled, whole or not at all."""
        paths.atomic_write(self._path(key), hashlib.sha256(fat_binary).digest() + fat_binary)

    def remove(self, key: str) -> None:
        """Forget an entry."""
        self._path(key).unlink(missing_ok=True)

    def keys(self) -> list[str]:
        """What is stored, sorted."""
        return sorted(found[1] for path in self.folder.iterdir() if (found := _NAME.fullmatch(path.name)))

    def pack(self, target: Path) -> int:
        """Write all entries into one tar file, the same bytes for the same entries; returns their number.

        Raises:
            IntegrityError: an entry is damaged.
            ConfigError: there is none.
        """
        keys = self.keys()
        if not keys:
            raise ConfigError("no compiled images to pack", where=str(self.folder), hint="vllm-spark aot compile")
        with (
            paths.atomic_file(target) as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for key in keys:
                data = self._path(key).read_bytes()
                _checked(data, str(self._path(key)))
                member = tarfile.TarInfo(f"{self.folder.name}/{key}{_SUFFIX}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return len(keys)

    def unpack(self, source: Path) -> Unpacked:
        """Take over the entries of a packed cache; one that is here already must be the same, or damaged.

        Raises:
            IntegrityError: an entry is damaged, or differs from the one that is here.
            ConfigError: the file is no packed cache, or one of another target or ptxas.
        """
        added = present = 0
        try:
            with tarfile.open(source, mode="r:") as tar:
                for member in tar:
                    key = self._key_of(member, source)
                    file = tar.extractfile(member)
                    data = _checked(file.read() if file else b"", f"{source}: {member.name}")
                    new = self._take(key, data, source)
                    added, present = added + new, present + (not new)
        except (tarfile.TarError, EOFError) as err:
            raise ConfigError(f"no packed cache ({err})", where=str(source), hint="vllm-spark aot pack") from err
        except FileNotFoundError:
            raise ConfigError("no such file", where=str(source)) from None
        return Unpacked(added, present)

    def _key_of(self, member: tarfile.TarInfo, source: Path) -> str:
        folder, _, name = member.name.rpartition("/")
        found = _NAME.fullmatch(name)
        if found is None or not member.isreg() or member.size > _MAX_ENTRY:
            raise ConfigError(f"no packed cache (it holds {member.name})", where=str(source))
        if folder != self.folder.name:
            raise ConfigError(f"is for {folder}, not for {self.folder.name}", where=str(source))
        return found[1]

    def _take(self, key: str, fat_binary: bytes, source: Path) -> bool:
        try:
            present = self.load(key)
        except IntegrityError:
            present = None
        if present is None:
            self.save(key, fat_binary)
            return True
        if present != fat_binary:
            what = f"image {key[:16]}… differs from the one in the cache"
            raise IntegrityError(
                what, where=str(source), hint=f"find out which is right, then remove {self._path(key)}"
            )
        return False


def _checked(data: bytes, where: str) -> bytes:
    if len(data) <= _DIGEST or hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        raise IntegrityError("compiled image is damaged", where=where, hint="vllm-spark aot compile makes it anew")
    return data[_DIGEST:]
