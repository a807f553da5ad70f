"""Conflicts as a person needs them: our hunk, upstream's lines there, and the change of theirs that came between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.rebase.moves import hunks, successor
from vllm_spark.distro.rebase.verdict import Clash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.rebase.history import History
    from vllm_spark.distro.rebase.merge import Bench, Conflict, Merge

__all__ = ["Sides", "explain", "has_markers"]

_AROUND = 3  # upstream's lines shown before and after the place
_KINDS = {
    "contents": "both changed these lines",
    "modify/delete": "upstream has no such file any more",
    "rename/delete": "one side renamed the file, the other deleted it",
    "binary": "both changed a binary file",
    "add/add": "upstream has a file of this name already",
    "file/directory": "a file stands where the other side has a folder",
}


@dataclass(frozen=True)
class Sides:
    """The trees that a conflict lies between.

    Attributes:
        before: the patch's old release with all earlier patches.
        after: the same with the patch.
        old: the old release.
        new: the new release.
        tip: the new release with the patches carried so far.
    """

    before: str
    after: str
    old: str
    new: str
    tip: str


@dataclass(frozen=True)
class _Region:
    """One marked place: where it starts in upstream's file, from 0, and its three texts."""

    start: int
    ours: tuple[str, ...]
    base: tuple[str, ...]
    theirs: tuple[str, ...]


def explain(
    bench: Bench, sides: Sides, merge: Merge, moved: dict[str, str], history: History | None
) -> tuple[Clash, ...]:
    """What stands in a patch's way, place by place."""
    origin = {new: old for old, new in moved.items()}
    found: list[Clash] = []
    for conflict in merge.conflicts:
        source = origin.get(conflict.path, conflict.path)
        found += _of(bench, sides, merge, conflict, source, history)
    return tuple(found)


def _of(
    bench: Bench, sides: Sides, merge: Merge, conflict: Conflict, source: str, history: History | None
) -> Iterator[Clash]:
    mine = hunks(bench, sides.before, sides.after, source)
    upstream = bench.blob(sides.tip, conflict.path)
    marked = bench.blob(merge.tree, conflict.path) or b""
    regions = list(_regions(marked.decode("utf-8", "surrogateescape").split("\n"))) if upstream is not None else []
    why = _KINDS.get(conflict.kind, conflict.kind)
    if not regions:
        like = successor(bench, sides.old, sides.new, source) if upstream is None else ""
        cause = history.removal(source) if history and upstream is None else ()
        yield Clash(file=conflict.path, why=why, ours="".join(mine), successor=like, cause=cause)
    for region in regions:
        lines = (upstream or b"").decode("utf-8", "surrogateescape").split("\n")
        first = max(region.start - _AROUND, 0)
        shown = lines[first : region.start + len(region.ours) + _AROUND]
        lost = {line for line in region.base if line.strip()} - set(region.ours)
        yield Clash(
            file=conflict.path,
            why=f"{why} (line {region.start + 1})",
            ours="".join(_touching(mine, region)) or "".join(mine),
            upstream=tuple(f"{number:6} | {line}" for number, line in enumerate(shown, first + 1)),
            cause=history.cause(conflict.path, lost) if history else (),
        )


def _regions(lines: list[str]) -> Iterator[_Region]:
    """The places that git marked, in diff3 form."""
    texts: list[list[str]] = []
    start = number = 0
    for line in lines:
        if line.startswith("<<<<<<< ") and not texts:
            texts, start = [[]], number
        elif texts and line.startswith(("||||||| ", "=======")):
            texts.append([])
        elif len(texts) == 3 and line.startswith(">>>>>>> "):
            yield _Region(start, tuple(texts[0]), tuple(texts[1]), tuple(texts[2]))
            number += len(texts[0])
            texts = []
        elif texts:
            texts[-1].append(line)
        else:
            number += 1


def _touching(texts: list[str], region: _Region) -> Iterator[str]:
    """The hunks of which the place holds a changed line."""
    ours = {line for line in region.theirs if line.strip()} - set(region.base)
    gone = {line for line in region.base if line.strip()} - set(region.theirs)
    for text in texts:
        changed = text.split("\n")[1:]
        added = {line[1:] for line in changed if line.startswith("+")}
        removed = {line[1:] for line in changed if line.startswith("-")}
        if added & ours or removed & gone:
            yield text


def has_markers(data: bytes) -> bool:
    """Whether somebody left conflict markers in a file."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return any(True for _ in _regions(lines)) or any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in lines)
