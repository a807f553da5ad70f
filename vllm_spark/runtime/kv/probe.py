"""What a worker's own process and device hold right now; the only readings here that need torch."""

from __future__ import annotations

import gc
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_spark.errors import ResourceError
from vllm_spark.runtime.kv import memory

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CpuProbe", "CudaProbe", "Reading", "parse_status"]

_SAMPLES = 4
_PAUSE = 0.05


@dataclass(frozen=True)
class Reading:
    """`available` to anybody, `own` taken by this process's allocator, `total` in reach; bytes."""

    total: int
    available: int
    own: int
    limit: str


def _settled(room: Callable[[], memory.Room], own: Callable[[], int]) -> Reading:
    """The lowest of a few samples: a neighbour that breathes must not become our budget."""
    rooms = [room()]
    for _ in range(_SAMPLES - 1):
        time.sleep(_PAUSE)
        rooms.append(room())
    least = memory.lowest(one.available for one in rooms)
    return Reading(rooms[0].total, least, own(), next(one.limit for one in rooms if one.available == least))


class CudaProbe:
    """A GPU, integrated or discrete.

    Args:
        device: the `torch.device` of the worker.
        pooled: bytes held by allocators beside torch's own (sleep mode's).
    """

    def __init__(self, device: Any, pooled: Callable[[], int] = lambda: 0) -> None:  # noqa: ANN401 - torch.device
        import torch

        self._torch = torch
        self._device = device
        self._pooled = pooled
        properties = torch.cuda.get_device_properties(device)
        self.unified = bool(properties.is_integrated)
        self.name = str(properties.name)

    def reserved(self) -> int:
        """Bytes that this process's allocators took from the driver."""
        return int(self._torch.cuda.memory_reserved(self._device)) + self._pooled()

    def room(self) -> memory.Room:
        """What may be allocated now."""
        free, total = self._torch.cuda.mem_get_info(self._device)
        meminfo, groups = memory.read_host()
        return memory.room(meminfo, groups, memory.Device(self.name, total, free, self.unified))

    def release(self) -> None:
        """Give unused blocks back to the driver."""
        gc.collect()
        self._torch.cuda.synchronize(self._device)
        self._torch.cuda.empty_cache()

    def read(self) -> Reading:
        """A settled reading, after unused blocks are given back."""
        self.release()
        return _settled(self.room, self.reserved)

    def peak(self, step: Callable[[], None]) -> int:
        """Bytes that `step` takes for a while beyond what stays.

        On unified memory the allocator's reserved peak counts, because that is what the host loses. A discrete GPU
        is asked for its allocated peak: there the allocator gives unused blocks back before it fails.
        """
        self.release()
        self._torch.cuda.reset_peak_memory_stats(self._device)
        step()
        kind = "reserved_bytes" if self.unified else "allocated_bytes"
        highest = int(self._torch.cuda.memory_stats(self._device)[f"{kind}.all.peak"])
        self.release()
        return max(0, highest - int(self._torch.cuda.memory_stats(self._device)[f"{kind}.all.current"]))


def parse_status(text: str, field: str) -> int:
    """A field in kB of /proc/PID/status, in bytes.

    Raises:
        ResourceError: it is not there.
    """
    found = re.search(rf"^{field}:\s*(\d+) kB$", text, re.MULTILINE)
    if found is None:
        raise ResourceError(f"no {field}", where="/proc/self/status", hint="mount a real /proc")
    return int(found[1]) * 1024


class CpuProbe:
    """A model that runs in host memory: the process's own pages are what it holds."""

    unified = True
    name = "CPU"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def reserved(self) -> int:
        """Anonymous resident bytes of this process."""
        return parse_status((self._proc / "self/status").read_text(), "RssAnon")

    def room(self) -> memory.Room:
        """What may be allocated now."""
        meminfo, groups = memory.read_host(self._proc)
        return memory.room(meminfo, groups, None)

    def release(self) -> None:
        """Free what Python no longer reaches."""
        gc.collect()

    def read(self) -> Reading:
        """A settled reading."""
        self.release()
        return _settled(self.room, self.reserved)

    def peak(self, step: Callable[[], None]) -> int:
        """Resident bytes that `step` takes for a while beyond what stays (VmHWM, reset through clear_refs)."""
        (self._proc / "self/clear_refs").write_text("5")
        step()
        self.release()
        text = (self._proc / "self/status").read_text()
        return max(0, parse_status(text, "VmHWM") - parse_status(text, "VmRSS"))
