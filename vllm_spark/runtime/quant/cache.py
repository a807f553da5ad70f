"""Finished weights of earlier loads, kept by content, so that a second start only reads them.

An entry is a folder named by the hash of everything that decides its bytes: the checkpoint's header hashes and
sizes, the policy, layout and operator versions, rank and device kind. It holds safetensors shards, which the
stream reader loads as it loads any checkpoint, and `entry.json` with a CRC-32 per tensor. Entries appear whole
by one rename; a folder whose name begins with a dot is one being written, or the rest of a killed process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_spark import paths
from vllm_spark.errors import IntegrityError, ResourceError, SparkError
from vllm_spark.runtime.stream.headers import scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from vllm_spark.runtime.stream.headers import Checkpoint

__all__ = [
    "LAYOUT",
    "MANIFEST",
    "Entry",
    "entries",
    "entry_key",
    "find",
    "lock_path",
    "make_room",
    "prune",
    "remove",
    "root",
    "verify",
]

LAYOUT = 1  # raised whenever the meaning of a stored tensor changes
MANIFEST = "entry.json"
_CHUNK = 8 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole entry on disk."""

    path: Path
    nbytes: int
    used: float
    manifest: dict[str, Any]

    @property
    def key(self) -> str:
        """Its content address."""
        return self.path.name

    @property
    def model(self) -> str:
        """The folder that it was made from."""
        return str(self.manifest["inputs"].get("model", ""))

    def checkpoint(self) -> Checkpoint:
        """Its shards, validated.

        Raises:
            IntegrityError: they are not what the manifest lists.
        """
        found = scan(self.path)
        if found.tensors.keys() != self.manifest["crc"].keys():
            raise IntegrityError("its tensors are not those of its manifest", where=str(self.path), hint=_hint(self))
        return found

    def check(self, key: str, data: memoryview) -> None:
        """Compare one tensor's bytes with the recorded checksum.

        Raises:
            IntegrityError: they differ.
        """
        if zlib.crc32(data) != self.manifest["crc"][key]:
            raise IntegrityError("its checksum is wrong", where=f"{self.path}: key {key!r}", hint=_hint(self))


def _hint(entry: Entry) -> str:
    return f"it is rebuilt at the next load; or: vllm-spark cache prune --entry {entry.key[:12]}"


def root() -> Path:
    """Where entries live."""
    return paths.cache_dir("weights")


def entry_key(inputs: Mapping[str, object]) -> str:
    """The content address of what `inputs` decide; `model` is for people and does not count."""
    decisive = {name: value for name, value in inputs.items() if name != "model"} | {"layout": LAYOUT}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def lock_path(folder: Path, key: str) -> Path:
    """The lock that whoever writes an entry holds."""
    return folder / "locks" / f"{key}.lock"


def _manifest(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads((path / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    shaped = isinstance(value, dict) and all(isinstance(value.get(key), dict) for key in ("inputs", "crc"))
    return value if shaped and isinstance(value.get("consumed"), list) else None


def _read(path: Path) -> Entry | None:
    manifest = _manifest(path)
    if manifest is None:
        return None
    nbytes = sum(file.stat().st_size for file in path.iterdir())
    return Entry(path, nbytes, (path / MANIFEST).stat().st_mtime, manifest)


def entries(folder: Path) -> list[Entry]:
    """All whole entries, the most recently used first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.name.startswith(".") and path.name != "locks":
            # Another process may remove it while we look.
            with contextlib.suppress(FileNotFoundError):
                entry = _read(path)
                found += [entry] if entry else []
    return sorted(found, key=lambda entry: -entry.used)


def find(folder: Path, key: str) -> Entry | None:
    """The entry with content address `key`, marked as just used; None when there is none.

    A folder of that name without a readable manifest is no entry; the next writer replaces it.
    """
    try:
        os.utime(folder / key / MANIFEST)
        return _read(folder / key)
    except OSError:
        return None


def remove(entry: Entry) -> None:
    """Delete an entry; it is renamed first, so that nobody finds half of it."""
    grave = entry.path.with_name(f".{entry.key}.removed.tmp")
    shutil.rmtree(grave, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        entry.path.rename(grave)
    shutil.rmtree(grave, ignore_errors=True)


def _sweep(folder: Path) -> int:
    """Delete what killed processes left: temporary folders whose entry nobody is writing."""
    count = 0
    for path in folder.glob(".*"):
        key = path.name[1:].partition(".")[0]
        try:
            with paths.lock(lock_path(folder, key)):
                shutil.rmtree(path, ignore_errors=True)
                count += 1
        except ResourceError:
            continue  # its writer is alive
    return count


def prune(folder: Path, limit: int) -> list[Entry]:
    """Delete the least recently used entries until all that remain fit in `limit` bytes, and leftovers.

    Returns:
        The deleted entries.
    """
    _sweep(folder)
    gone, total = [], 0
    for entry in entries(folder):
        total += entry.nbytes
        if total > limit:
            remove(entry)
            gone.append(entry)
            total -= entry.nbytes
    return gone


def make_room(folder: Path, needed: int, limit: int) -> None:
    """Evict until an entry of `needed` bytes fits below `limit`.

    Raises:
        ResourceError: it is larger than the limit, or the disk has not that much free.
    """
    if needed > limit:
        raise ResourceError(
            f"the entry needs {needed / 2**30:.1f} GiB, the cache may have {limit / 2**30:.1f}",
            where=str(folder),
            hint="raise cache_gb",
        )
    prune(folder, limit - needed)
    paths.require_space(folder, needed + (1 << 30))


def _tensors(entry: Entry) -> Iterator[tuple[str, int]]:
    for shard in entry.checkpoint().shards:
        with shard.path.open("rb") as file:
            for tensor in shard.tensors:
                file.seek(tensor.start)
                crc, left = 0, tensor.nbytes
                while left:
                    data = file.read(min(_CHUNK, left))
                    if not data:
                        break
                    crc, left = zlib.crc32(data, crc), left - len(data)
                os.posix_fadvise(file.fileno(), tensor.start, tensor.nbytes, os.POSIX_FADV_DONTNEED)
                yield tensor.key, crc


def verify(entry: Entry) -> list[str]:
    """Read a whole entry and name what is wrong with it; empty when nothing is."""
    try:
        return [f"{key}: its checksum is wrong" for key, crc in _tensors(entry) if crc != entry.manifest["crc"][key]]
    except (OSError, SparkError) as err:
        return [str(err)]
