"""Compiling what the cache lacks: in parallel, resumable, with progress, and within the machine's memory."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, paths
from vllm_spark.distro.aot.assembler import Refused
from vllm_spark.distro.aot.candidates import candidates, obstacle, text
from vllm_spark.distro.aot.members import extracted
from vllm_spark.distro.elf.shared import read_shared_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_spark.distro.aot.supply import CacheSupply
    from vllm_spark.distro.elf.fatbin import Entry
    from vllm_spark.distro.elf.source import FileSource

__all__ = ["Filled", "fill", "fill_from_wheel", "jobs_for"]

_SECONDS_PER_BYTE = 2.6e-6  # of PTX, on one core of the machine that docs/aot.md names; only for what is said before
_MEMORY_PER_BYTE = 100  # of PTX; measured 60 to 90
_RESERVE = 1 << 30  # bytes that are left to the machine


@dataclass(frozen=True)
class Filled:
    """What a run added to the cache: numbers of images."""

    present: int
    compiled: int
    refused: int
    seconds: float


@dataclass(frozen=True)
class _Task:
    source: FileSource
    entry: Entry
    size: int


def jobs_for(wanted: int | None, largest: int) -> int:
    """How many images to compile at once: one per core, fewer where memory is short.

    Args:
        wanted: what the user says; is not exceeded.
        largest: bytes of the largest PTX.
    """
    cores = len(os.sched_getaffinity(0))
    available = next(
        int(line.split()[1]) << 10
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    fitting = (available - _RESERVE) // max(largest * _MEMORY_PER_BYTE, 1)
    return max(1, min(wanted or cores, cores, fitting))


def fill(supply: CacheSupply, files: Iterable[FileSource], jobs: int | None = None) -> Filled:
    """Compile every image of `files` that the cache lacks, largest first.

    What is finished stays in the cache, whatever happens to the rest.

    Raises:
        ResourceError: another run is at it, or the disk is full.
        ProcessError: a tool was killed.
        ArtefactError: a file is damaged, or the tools disagree about a result.
    """
    started = time.monotonic()
    with paths.lock(supply.store.folder / ".lock"):
        tasks, present = _tasks(supply, files)
        count = jobs_for(jobs, max((task.size for task in tasks), default=0))
        if tasks:
            estimate = sum(task.size for task in tasks) * _SECONDS_PER_BYTE / count / 60
            console.say(
                f"  {len(tasks)} images to compile for sm_{supply.target}, {count} at a time: about "
                f"{estimate:.0f} minutes; what is finished is kept, so the run may be stopped and started again"
            )
        _compile(supply, tasks, count)
    refused = len(supply.refused)
    return Filled(present, len(tasks) - refused, refused, time.monotonic() - started)


def _tasks(supply: CacheSupply, files: Iterable[FileSource]) -> tuple[list[_Task], int]:
    tasks: dict[str, _Task] = {}
    present: set[str] = set()
    for source in files:
        for candidate in candidates(read_shared_object(source).containers, supply.device):
            if obstacle(source, candidate):
                continue
            ptx = text(source, candidate.entry)
            key = supply.assembler.key(ptx)
            if key in tasks or key in present:
                continue
            if supply.has(ptx):
                present.add(key)
            else:
                tasks[key] = _Task(source, candidate.entry, len(ptx))
    return sorted(tasks.values(), key=lambda task: -task.size), len(present)


def _compile(supply: CacheSupply, tasks: list[_Task], jobs: int) -> None:
    with (
        console.progress(f"compile for sm_{supply.target}", sum(task.size for task in tasks)) as bar,
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
    ):
        running = {pool.submit(_one, supply, task): task for task in tasks}
        try:
            for future in concurrent.futures.as_completed(running):
                future.result()
                bar.advance(running[future].size)
        except BaseException:
            console.say("  stopping: images under way are finished and kept")
            pool.shutdown(cancel_futures=True)
            raise


def _one(supply: CacheSupply, task: _Task) -> None:
    ptx = text(task.source, task.entry)
    key = supply.assembler.key(ptx)
    try:
        supply.store.save(key, supply.assembler.assemble(ptx))
    except Refused as err:
        supply.refused[key] = str(err)
        console.warn(f"{task.source.name}, {task.entry.label} image at {task.entry.offset:#x}: ptxas refuses it: {err}")


def fill_from_wheel(supply: CacheSupply, wheel: Path, jobs: int | None = None) -> Filled:
    """`fill` with the shared objects of a wheel.

    Raises:
        IntegrityError, ArtefactError: the wheel is not sound.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=paths.cache_dir(), prefix="aot-"))
        return fill(supply, [stack.enter_context(one) for one in extracted(wheel, Path(folder))], jobs)
