"""Memory limits of the cgroups that a process lives in, version 1 and 2, from the innermost outwards.

Formats: Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vllm_spark.errors import ResourceError

__all__ = ["Group", "Hierarchy", "hierarchies", "parse_limit", "parse_stat", "read", "read_group"]

# Version 1 says "no limit" with the largest multiple of the page size below 2^63.
_NO_LIMIT_V1 = 1 << 60


class _Files(NamedTuple):
    limit: str
    usage: str
    reclaimable: str  # key in memory.stat: page cache that nobody used lately, of the group and all below it


_FILES = {
    2: _Files("memory.max", "memory.current", "inactive_file"),
    1: _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@dataclass(frozen=True)
class Group:
    """One cgroup's memory in bytes; `limit` is None where there is none."""

    where: str
    limit: int | None
    usage: int
    reclaimable: int

    @property
    def headroom(self) -> int | None:
        """Bytes that may still be taken before the kernel kills; None without a limit."""
        if self.limit is None:
            return None
        return max(0, self.limit - max(0, self.usage - self.reclaimable))


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup tree, and the folders from this process's group up to the mount."""

    version: int
    folders: tuple[Path, ...]

    @property
    def files(self) -> _Files:
        """The names of the control files."""
        return _FILES[self.version]


def parse_limit(text: str, where: str) -> int | None:
    """The number in memory.max or memory.limit_in_bytes; None means no limit.

    Raises:
        ResourceError: it is neither a number nor "max".
    """
    word = text.strip()
    if word == "max":
        return None
    if not word.isdecimal():
        raise ResourceError(f"no memory limit: {word!r}", where=where, hint="check the container runtime")
    return None if int(word) >= _NO_LIMIT_V1 else int(word)


def parse_stat(text: str, key: str, where: str) -> int:
    """The value of `key` in memory.stat.

    Raises:
        ResourceError: it is missing or no number.
    """
    found = re.search(rf"^{re.escape(key)} (\d+)$", text, re.MULTILINE)
    if found is None:
        raise ResourceError(f"no {key}", where=where, hint="check the container runtime")
    return int(found[1])


def _mounts(mountinfo: str) -> list[tuple[int, PurePosixPath, Path]]:
    """(version, root inside the tree, mount point) of every mount that may control memory."""
    found: list[tuple[int, PurePosixPath, Path]] = []
    for line in mountinfo.splitlines():
        front, separator, back = line.partition(" - ")
        fields, tail = front.split(), back.split()
        if not separator or len(fields) < 5 or len(tail) < 3:
            continue
        root, point = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text) for text in fields[3:5])
        if tail[0] == "cgroup2":
            found.append((2, PurePosixPath(root), Path(point)))
        elif tail[0] == "cgroup" and "memory" in tail[2].split(","):
            found.append((1, PurePosixPath(root), Path(point)))
    return found


def hierarchies(cgroup: str, mountinfo: str) -> list[Hierarchy]:
    """Where this process's limits are, from the texts of /proc/self/cgroup and /proc/self/mountinfo.

    A container often sees a path of the host in /proc/self/cgroup and its own group at the mount point; the mount's
    root tells the two apart, and what is not below it means the mount point itself.
    """
    own: dict[int, PurePosixPath] = {}
    for line in cgroup.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            own[2] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            own[1] = PurePosixPath(path)
    found: list[Hierarchy] = []
    for version, root, point in _mounts(mountinfo):
        if version not in own:
            continue
        relative = own[version].relative_to(root) if own[version].is_relative_to(root) else PurePosixPath()
        if ".." in relative.parts:  # a process outside its cgroup namespace's root
            relative = PurePosixPath()
        leaf = point / relative
        folders = (leaf, *leaf.parents)
        found.append(Hierarchy(version, folders[: len(relative.parts) + 1]))
    return found


def read_group(folder: Path, version: int) -> Group | None:
    """One folder's limit, use and reclaimable cache; None where memory is not controlled (a tree's root).

    Raises:
        ResourceError: a file is there and cannot be read or understood.
    """
    files = _FILES[version]
    texts: list[str] = []
    for name in (files.limit, files.usage, "memory.stat"):
        path = folder / name
        try:
            texts.append(path.read_text())
        except FileNotFoundError:
            return None
        except OSError as err:
            hint = "let this user read its cgroup, or start outside the container"
            raise ResourceError(f"cannot read it: {err.strerror}", where=str(path), hint=hint) from err
    usage = parse_limit(texts[1], str(folder / files.usage))
    if usage is None:
        raise ResourceError("no number", where=str(folder / files.usage), hint="check the container runtime")
    stat = parse_stat(texts[2], files.reclaimable, str(folder / "memory.stat"))
    return Group(str(folder), parse_limit(texts[0], str(folder / files.limit)), usage, stat)


def read(proc: Path = Path("/proc")) -> list[Group]:
    """Every memory-controlled cgroup of this process, now; empty where there is none.

    Raises:
        ResourceError: a file is there and cannot be read or understood.
    """
    texts: list[str] = []
    for name in ("cgroup", "mountinfo"):
        path = proc / "self" / name
        try:
            texts.append(path.read_text())
        except FileNotFoundError:  # a kernel without cgroups
            return []
        except OSError as err:
            raise ResourceError(f"cannot read it: {err.strerror}", where=str(path), hint="mount /proc") from err
    groups = [
        read_group(folder, hierarchy.version)
        for hierarchy in hierarchies(texts[0], texts[1])
        for folder in hierarchy.folders
    ]
    return [group for group in groups if group is not None]
