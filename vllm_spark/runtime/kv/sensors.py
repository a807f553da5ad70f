"""The kernel's memory files, opened once and read in place: sampling must work when memory is nearly gone."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from vllm_spark.errors import ResourceError
from vllm_spark.runtime.kv import cgroup

__all__ = ["Sample", "Sensors", "parse_stall"]

_AVAILABLE = re.compile(rb"^MemAvailable:\s*(\d+) kB$", re.MULTILINE)
_FULL = re.compile(rb"^full .*total=(\d+)$", re.MULTILINE)
_SIZE = 16384  # more than any of these files holds


@dataclass(frozen=True)
class Sample:
    """One look at the memory.

    Attributes:
        time: seconds, monotonic.
        headroom: bytes until the host or the tightest cgroup is full.
        stall: seconds so far in which every task waited for memory (PSI); 0 on kernels without it.
        limit: what `headroom` comes from.
    """

    time: float
    headroom: int
    stall: float = 0.0
    limit: str = "MemAvailable"


def parse_stall(data: bytes) -> float:
    """Seconds of "full" stall in /proc/pressure/memory (microseconds there); 0 where the line is missing."""
    found = _FULL.search(data)
    return int(found[1]) / 1e6 if found else 0.0


@dataclass(frozen=True)
class _Group:
    where: str
    usage: int
    stat: int
    limit: int
    key: re.Pattern[bytes]

    def headroom(self) -> int:
        """As `cgroup.Group.headroom`, from descriptors that are open already."""
        usage = int(os.pread(self.usage, _SIZE, 0))
        found = self.key.search(os.pread(self.stat, _SIZE, 0))
        cached = int(found[1]) if found else 0
        return max(0, self.limit - max(0, usage - cached))


@dataclass(frozen=True)
class Sensors:
    """File descriptors of /proc/meminfo, PSI and the limited cgroups."""

    meminfo: int
    pressure: int | None
    groups: tuple[_Group, ...]

    @classmethod
    def open(cls, proc: Path = Path("/proc")) -> Sensors:
        """Open them. A limit that changes later is not seen.

        Raises:
            ResourceError: /proc/meminfo or a limited cgroup's file cannot be opened.
        """
        try:
            pressure: int | None = os.open(proc / "pressure" / "memory", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # built without PSI, or switched off (psi=0): the other limits still hold
            pressure = None
        groups = []
        for hierarchy in cgroup.hierarchies(_text(proc / "self/cgroup"), _text(proc / "self/mountinfo")):
            for folder in hierarchy.folders:
                group = cgroup.read_group(folder, hierarchy.version)
                if group is None or group.limit is None:
                    continue
                files = hierarchy.files
                key = re.compile(rb"^" + files.reclaimable.encode() + rb" (\d+)$", re.MULTILINE)
                usage, stat = _open(folder / files.usage), _open(folder / "memory.stat")
                groups.append(_Group(str(folder), usage, stat, group.limit, key))
        sensors = cls(_open(proc / "meminfo"), pressure, tuple(groups))
        sensors.sample()
        return sensors

    def sample(self) -> Sample:
        """Look now.

        Raises:
            ResourceError: /proc/meminfo has no MemAvailable.
        """
        found = _AVAILABLE.search(os.pread(self.meminfo, _SIZE, 0))
        if found is None:
            raise ResourceError("no MemAvailable", where="/proc/meminfo", hint="mount a real /proc")
        headroom, limit = int(found[1]) * 1024, "MemAvailable"
        for group in self.groups:
            left = group.headroom()
            if left < headroom:
                headroom, limit = left, group.where
        stall = parse_stall(os.pread(self.pressure, _SIZE, 0)) if self.pressure is not None else 0.0
        return Sample(time.monotonic(), headroom, stall, limit)

    def close(self) -> None:
        """Close everything."""
        files = [self.meminfo, self.pressure, *(fd for group in self.groups for fd in (group.usage, group.stat))]
        for fd in files:
            if fd is not None:
                os.close(fd)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as err:
        raise ResourceError(f"cannot open it: {err.strerror}", where=str(path), hint="mount /proc") from err


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
