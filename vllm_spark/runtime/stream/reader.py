"""Reads a plan: several direct reads in flight into the staging ring while earlier blocks are consumed.

Direct I/O keeps the page cache out of it. Where a file system refuses O_DIRECT, a plain read is followed by
POSIX_FADV_DONTNEED, so that the cache never holds more than what is in flight.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from vllm_spark.errors import ResourceError
from vllm_spark.runtime.stream.headers import CheckpointError, file_identity
from vllm_spark.runtime.stream.staging import PAGE, Ring, pages, round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from vllm_spark.runtime.stream.headers import Checkpoint
    from vllm_spark.runtime.stream.plan import Block, Plan, Read, Unit

__all__ = ["Reader", "Stats"]

CHUNK = 4 << 20  # one request: large enough for any disk, small enough that several threads share one read


@dataclass
class Stats:
    """What a run did: bytes fetched, requests, seconds in which the consumer waited for the disk."""

    nbytes: int = 0
    requests: int = 0
    waited: float = 0.0
    direct: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


@dataclass
class _File:
    """An open shard."""

    path: Path
    fd: int
    direct: bool
    identity: tuple[int, int, int, int]

    @classmethod
    def open(cls, path: Path, identity: tuple[int, int, int, int], *, direct: bool) -> _File:
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            if direct:
                try:
                    return cls(path, os.open(path, flags | os.O_DIRECT), direct=True, identity=identity).checked()
                except OSError as err:
                    if err.errno != errno.EINVAL:  # this file system has no direct I/O
                        raise
            return cls(path, os.open(path, flags), direct=False, identity=identity).checked()
        except OSError as err:
            raise ResourceError(
                f"cannot be read ({err.strerror})", where=str(path), hint="check path and rights"
            ) from err

    def checked(self) -> _File:
        if file_identity(self.fd) != self.identity:
            raise CheckpointError("the file changed after its header was read", file=self.path)
        return self


class _Landed:
    """A read that was issued: where it lands and how many of its blocks are still to be consumed."""

    def __init__(self, read: Read, memory: memoryview, at: int | None) -> None:
        self.read = read
        self.base = read.start // PAGE * PAGE
        self.memory = memory
        self.at = at  # offset in the ring; None on the heap
        self.left = len(read.blocks)
        self.parts: list[Future[None]] = []
        self.landing = 0  # parts that have not arrived yet

    def view(self, block: Block) -> memoryview:
        return self.memory[block.start - self.base : block.stop - self.base]


class Reader:
    """Iterates over (unit, block, bytes) in plan order.

    The bytes of a block are valid until the next step, except those of small tensors, which stay valid until
    the unit changes. Bytes outside `block.ranges` are undefined. Use it as a context manager: leaving it stops
    all requests and returns the memory, whatever the reason.

    Args:
        plan: what to read.
        checkpoint: whose files they are; a file that changed since its header was read is refused.
        threads: requests in flight.
        direct: try O_DIRECT first.
        pread: os.preadv, or a replacement that fails on purpose.
        hold: while it returns True nothing is read ahead; only what the consumer waits for is.
        check: called in a reading thread with every block that has landed; what it raises ends the iteration.
    """

    def __init__(
        self,
        plan: Plan,
        checkpoint: Checkpoint,
        *,
        threads: int = 8,
        direct: bool = True,
        pread: Callable[[int, list[memoryview], int], int] = os.preadv,
        hold: Callable[[], bool] = lambda: False,
        check: Callable[[Block, memoryview], object] | None = None,
    ) -> None:
        self.plan = plan
        self.stats = Stats()
        self.ring = Ring(plan.limits.staging)
        self._identity = {shard.path: shard.identity for shard in checkpoint.shards}
        self._files: dict[Path, _File] = {}
        self._direct = direct
        self._pread = pread
        self._hold = hold
        self._check = check
        self._todo = deque(plan.reads)
        self._where: dict[int, _Landed] = {}
        self._pool = ThreadPoolExecutor(threads, "spark-read")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop: requests not yet begun are dropped, running ones are waited for, files and memory go."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()
        self._where.clear()
        self._todo.clear()

    def __iter__(self) -> Iterator[tuple[Unit, Block, memoryview]]:
        for unit in self.plan.units:
            for block in unit.blocks:
                landed = self._wait(block)
                yield unit, block, landed.view(block)
                if landed.at is not None:
                    self._consumed(landed, block)
            for block in unit.blocks:
                side = self._where.get(id(block))
                if side is not None:
                    self._consumed(side, block)
        for file in self._files.values():
            file.checked()

    def _consumed(self, landed: _Landed, block: Block) -> None:
        del self._where[id(block)]
        landed.left -= 1
        if not landed.left and landed.at is not None:
            self.ring.free(landed.at)

    def _wait(self, block: Block) -> _Landed:
        self._issue(until=block)
        landed = self._where[id(block)]
        start = time.monotonic()
        for part in landed.parts:
            part.result()
        self.stats.waited += time.monotonic() - start
        landed.parts = []
        return landed

    def _issue(self, until: Block) -> None:
        """Start reads in order while the ring has room; at least up to the one that holds `until`."""
        while self._todo:
            if id(until) in self._where and self._hold():
                return
            read = self._todo[0]
            size = round_up(read.stop) - read.start // PAGE * PAGE
            at = None if read.side else self.ring.take(size)
            if at is None and not read.side:
                return
            self._todo.popleft()
            memory = pages(size) if at is None else self.ring.memory[at : at + size]
            landed = _Landed(read, memory, at)
            for block in read.blocks:
                self._where[id(block)] = landed
            file = self._file(read.path)
            parts = [
                (low, min(low + CHUNK, stop))
                for begin, stop in read.ranges
                for low in range(begin // PAGE * PAGE, stop, CHUNK)
            ]
            landed.landing = len(parts)
            landed.parts = [self._pool.submit(self._fetch, file, landed, low, high) for low, high in parts]

    def _file(self, path: Path) -> _File:
        if path not in self._files:
            self._files[path] = _File.open(path, self._identity[path], direct=self._direct)
            self.stats.direct &= self._files[path].direct
        return self._files[path]

    def _fetch(self, file: _File, landed: _Landed, low: int, high: int) -> None:
        """Fill file bytes `low` (a page boundary) up to `high`."""
        size = file.identity[2]
        at, stop = low, min(round_up(high), landed.base + len(landed.memory))
        while at < min(high, size):
            try:
                got = self._pread(file.fd, [landed.memory[at - landed.base : stop - landed.base]], at)
            except OSError as err:
                raise self._failure(f"cannot be read ({err.strerror})", landed, at) from err
            if got <= 0:
                raise self._failure("the file ended while it was read", landed, at)
            at += got
            if at < min(high, size) and at % PAGE:
                at = at // PAGE * PAGE  # direct I/O goes on at page boundaries only
                if got < PAGE:
                    raise self._failure("the file ended while it was read", landed, at)
            with self.stats.lock:
                self.stats.nbytes += got
                self.stats.requests += 1
        if not file.direct:
            os.posix_fadvise(file.fd, low, stop - low, os.POSIX_FADV_DONTNEED)
        file.checked()
        with self.stats.lock:
            landed.landing -= 1
            last = not landed.landing
        if last and self._check is not None:
            for block in landed.read.blocks:
                self._check(block, landed.view(block))

    @staticmethod
    def _failure(what: str, landed: _Landed, at: int) -> ResourceError:
        hit = next((block for block in landed.read.blocks if block.stop > at), landed.read.blocks[-1])
        where = f"{landed.read.path}: key {hit.tensor.key!r} at byte {max(at, hit.start)}"
        return ResourceError(what, where=where, hint="check the disk (dmesg), then start again; nothing was kept")
