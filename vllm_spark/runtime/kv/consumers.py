"""Who holds the memory: the largest processes, and the children that must end with us."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Consumer", "descendants", "largest", "parent_of"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Consumer:
    """One process and its resident memory in bytes, device memory included where known."""

    pid: int
    name: str
    size: int


def _processes(proc: Path) -> Iterator[tuple[int, Path]]:
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            yield int(entry.name), Path(entry.path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone meanwhile, or hidden (hidepid)
        return None


def largest(count: int = 3, *, extra: Mapping[int, int] | None = None, proc: Path = Path("/proc")) -> list[Consumer]:
    """The `count` processes with the most memory, largest first.

    Pages shared by several processes count in each of them.

    Args:
        extra: pid -> bytes that no file shows (device memory on an integrated GPU).
    """
    found: list[Consumer] = []
    for pid, folder in _processes(proc):
        statm, name = _read(folder / "statm"), _read(folder / "comm")
        if not statm or name is None:
            continue
        size = int(statm.split()[1]) * _PAGE + (extra or {}).get(pid, 0)
        found.append(Consumer(pid, name.strip(), size))
    return sorted(found, key=lambda who: (-who.size, who.pid))[:count]


def parent_of(stat: str) -> int:
    """The parent's pid in /proc/PID/stat; the name in it may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[1])


def descendants(root: int, *, proc: Path = Path("/proc")) -> list[int]:
    """Every process below `root`, deepest first."""
    children: dict[int, list[int]] = {}
    for pid, folder in _processes(proc):
        stat = _read(folder / "stat")
        if stat:
            children.setdefault(parent_of(stat), []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found[::-1]
