"""Writes a cache entry in the background while the model loads.

Whatever goes wrong here is said once and ends the entry, never the load. Nothing is copied ahead: an item only
refers to its finished tensor, whose bytes are fetched when its turn comes.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark import console, paths
from vllm_spark.errors import ResourceError, SparkError
from vllm_spark.runtime.quant import cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import IO

__all__ = ["Item", "Writer"]

SHARD = 1 << 30
DROP = 128 << 20  # dirty pages are written out and dropped after this many bytes


@dataclass(frozen=True, slots=True)
class Item:
    """A finished tensor: `data` yields its bytes in order, in pieces that stay valid until the next one."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    data: Callable[[], Iterator[memoryview]]


class _Stopped(Exception):
    """The load was given up."""


class Writer:
    """One entry in the making.

    Args:
        folder: the cache's root.
        inputs: what decides the entry's content.
        needed: bytes that it will take, to make room before writing.
        limit: bytes that the cache may take.
        report: called with one sentence when the entry is given up.
    """

    def __init__(
        self,
        folder: Path,
        inputs: Mapping[str, object],
        *,
        needed: int,
        limit: int,
        report: Callable[[str], None] = console.warn,
    ) -> None:
        self.folder, self.inputs, self.report = folder, dict(inputs), report
        self.key = cache.entry_key(inputs)
        self._needed, self._limit = needed, limit
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._consumed: list[str] = []
        self._stop = threading.Event()
        self._dirty = 0
        self._thread = threading.Thread(target=self._run, name="spark-cache", daemon=True)
        self._thread.start()
        atexit.register(self.abort)

    def add(self, item: Item) -> None:
        """Hand over a finished tensor; returns at once."""
        self._items.put(item)

    def finish(self, consumed: Iterable[str]) -> None:
        """All tensors are handed over; `consumed` are the checkpoint keys that they replace. Returns at once."""
        self._consumed = sorted(consumed)
        self._items.put(None)

    def abort(self) -> None:
        """Give the entry up unless it is already whole, and leave nothing behind."""
        self._stop.set()
        self._items.put(None)
        self._thread.join()
        atexit.unregister(self.abort)

    def wait(self) -> None:
        """Until the entry is whole or given up; for tests and tools."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with paths.lock(cache.lock_path(self.folder, self.key)):
                if cache.find(self.folder, self.key) is None:
                    cache.make_room(self.folder, self._needed, self._limit)
                    with paths.atomic_dir(self.folder / self.key) as fresh:
                        self._write(fresh)
        except _Stopped:
            return
        except (OSError, SparkError) as err:
            if isinstance(err, ResourceError) and "another run" in err.what:
                return  # it writes the same bytes
            self.report(f"quantised weights are not kept: {err}; the load goes on")

    def _write(self, fresh: Path) -> None:
        crc: dict[str, int] = {}
        for number, group in enumerate(self._groups()):
            crc |= self._shard(fresh / f"part-{number:05}.safetensors", group)
        manifest = {"inputs": self.inputs, "consumed": self._consumed, "crc": crc}
        paths.atomic_write(fresh / cache.MANIFEST, json.dumps(manifest))

    def _groups(self) -> Iterator[list[Item]]:
        group: list[Item] = []
        while True:
            item = self._items.get()
            if self._stop.is_set():
                raise _Stopped
            if item is not None:
                group.append(item)
            if group and (item is None or sum(i.nbytes for i in group) >= SHARD):
                yield group
                group = []
            if item is None:
                return

    def _shard(self, path: Path, group: list[Item]) -> dict[str, int]:
        header, at = {}, 0
        for item in group:
            header[item.key] = {"dtype": item.dtype, "shape": list(item.shape), "data_offsets": [at, at + item.nbytes]}
            at += item.nbytes
        raw = json.dumps(header).encode()
        raw += b" " * (-(8 + len(raw)) % 4096)  # data on a page boundary: aligned for every type and for direct I/O
        crc = {}
        with path.open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for item in group:
                crc[item.key] = self._tensor(file, item)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return crc

    def _tensor(self, file: IO[bytes], item: Item) -> int:
        crc = written = 0
        for piece in item.data():
            if self._stop.is_set():
                raise _Stopped
            file.write(piece)
            crc, written = zlib.crc32(piece, crc), written + piece.nbytes
            self._dirty += piece.nbytes
            if self._dirty >= DROP:
                file.flush()
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                self._dirty = 0
        if written != item.nbytes:
            raise OSError(f"{item.key} gave {written} of {item.nbytes} bytes")
        return crc
