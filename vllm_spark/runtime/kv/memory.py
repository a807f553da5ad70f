"""How much memory a new allocation may take: pure functions over what the kernel and the driver report.

On an integrated GPU (GB10) device and host share one pool. `cudaMemGetInfo` counts the page cache as used there, so
MemAvailable is the truth, and a container's limit cuts it further. On a discrete GPU the driver's figure is the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark.errors import ConfigError, ResourceError
from vllm_spark.runtime.kv import cgroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["GIB", "MIB", "Device", "Meminfo", "Room", "gib", "lowest", "parse_meminfo", "read_host", "room"]

MIB = 1 << 20
GIB = 1 << 30


def gib(count: int) -> str:
    """`count` bytes as people read them."""
    return f"{count / GIB:.2f} GiB"


@dataclass(frozen=True)
class Meminfo:
    """The part of /proc/meminfo that sizing needs, in bytes."""

    total: int
    free: int
    available: int
    cached: int


@dataclass(frozen=True)
class Device:
    """What the driver reports about one GPU, in bytes; `total` is 0 where it reports nothing."""

    name: str
    total: int
    free: int
    integrated: bool


@dataclass(frozen=True)
class Room:
    """Memory in reach: `total` could ever be used, `available` can be used now, `limit` names what decides."""

    total: int
    available: int
    limit: str


def parse_meminfo(text: str, where: str = "/proc/meminfo") -> Meminfo:
    """Read /proc/meminfo (Linux 3.14 and later, which has MemAvailable).

    Raises:
        ResourceError: a field is missing or no number of kB.
    """
    fields: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name not in ("MemTotal", "MemFree", "MemAvailable", "Cached"):
            continue
        if len(words) != 2 or words[1] != "kB" or not words[0].isdecimal():
            raise ResourceError(f"cannot read the line {line!r}", where=where, hint="report this kernel's version")
        fields[name] = int(words[0]) * 1024
    missing = [name for name in ("MemTotal", "MemFree", "MemAvailable", "Cached") if name not in fields]
    if missing:
        hint = "mount a real /proc into the container (lxcfs and gVisor need their memory view enabled)"
        raise ResourceError(f"no {', '.join(missing)}", where=where, hint=hint)
    return Meminfo(fields["MemTotal"], fields["MemFree"], fields["MemAvailable"], fields["Cached"])


def lowest(samples: Iterable[int]) -> int:
    """The reading to plan with: the lowest, so that neither order nor a lucky moment matters.

    Raises:
        ConfigError: there are no samples.
    """
    found = min(samples, default=None)
    if found is None:
        raise ConfigError("no memory samples", hint="take at least one")
    return found


def room(meminfo: Meminfo, groups: Sequence[cgroup.Group], device: Device | None) -> Room:
    """What may be allocated, given captured readings.

    Args:
        meminfo: the host's memory.
        groups: this process's cgroups from the innermost outwards; only those with a limit matter.
        device: the GPU; None means that the model runs in host memory.

    Raises:
        ConfigError: a discrete GPU that reports no memory.
    """
    if device is not None and not device.integrated:
        if device.total <= 0 or device.free < 0:
            hint = "give the size yourself: --kv-cache-memory-bytes"
            raise ConfigError("the GPU does not report its memory", where=device.name, hint=hint)
        return Room(device.total, min(device.free, device.total), device.name)
    total, available, limit = meminfo.total, meminfo.available, "MemAvailable"
    for group in groups:
        headroom = group.headroom
        if headroom is None or group.limit is None:
            continue
        total = min(total, group.limit)
        if headroom < available:
            available, limit = headroom, group.where
    if device is not None and device.total > 0:
        total, available = min(total, device.total), min(available, device.total)
    return Room(total, available, limit)


def read_host(proc: Path = Path("/proc")) -> tuple[Meminfo, list[cgroup.Group]]:
    """The host's memory and this process's limits, now.

    Raises:
        ResourceError: a file cannot be read or understood.
    """
    path = proc / "meminfo"
    try:
        text = path.read_text()
    except OSError as err:
        raise ResourceError(f"cannot read it: {err.strerror}", where=str(path), hint="mount /proc") from err
    return parse_meminfo(text, str(path)), cgroup.read(proc)
