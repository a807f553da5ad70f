"""Where upstream's files went between two releases, and what a patch's own lines are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from vllm_spark.distro.rebase.merge import Bench

__all__ = ["brings", "doubled", "followed", "hunks", "is_test", "remains", "renamed", "successor"]

_RANGE = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_TELLING = 60  # characters of added text from which on the same text elsewhere is no accident
_LEAST = 20  # percent of equal text below which a new file is not worth naming as a vanished one's successor
_TESTS = re.compile(r"(^|/)(tests?|testing)/|(^|/)(test_[^/]*|conftest)\.py$|_test\.(py|cc|cpp|cu)$")


@dataclass(frozen=True)
class _Block:
    """One run of changed lines: those that go and those that come, as bytes without line ends."""

    path: str
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


def is_test(path: str) -> bool:
    """Whether a file holds tests, so that no release is built from it."""
    return bool(_TESTS.search(path))


def renamed(bench: Bench, old: str, new: str, sources: Collection[str], targets: Collection[str]) -> dict[str, str]:
    """Which of `sources` became which of `targets` between two trees; both are paths."""
    if not sources or not targets:
        return {}
    words = ("-r", "-z", "-M50%", "-l0", "--diff-filter=R", "--name-status", old, new, "--", *sources, *targets)
    fields = bench("diff-tree", *words).text.split("\0")
    return dict(zip(fields[1::3], fields[2::3], strict=False))


def followed(bench: Bench, old: str, new: str, sources: Collection[str]) -> dict[str, str]:
    """Which new file each vanished one of `sources` became, where one is at least half equal."""
    return {source: target for source, target, _ in _similar(bench, old, new, sources, 50)}


def successor(bench: Bench, old: str, new: str, path: str) -> str:
    """The new file that is most like a vanished one, with how much of it is equal; "" when none is."""
    found = _similar(bench, old, new, [path], _LEAST)
    return f"{found[0][1]} ({found[0][2]} % equal)" if found else ""


def _similar(bench: Bench, old: str, new: str, sources: Collection[str], least: int) -> list[tuple[str, str, int]]:
    """Vanished files, new files of the same suffix, and how many percent of each pair are equal."""
    gone = {path: entry for path, entry in _only(bench, old, new, "D").items() if path in sources}
    suffixes = {PurePosixPath(path).suffix for path in gone}
    come = {path: e for path, e in _only(bench, old, new, "A").items() if PurePosixPath(path).suffix in suffixes}
    # trees of these alone: thousands of path arguments would take git minutes
    trees = [_tree(bench, entries) for entries in (gone, come)]
    words = ("-r", "-z", f"-M{least}%", "-l0", "--diff-filter=R", "--name-status", *trees)
    fields = bench("diff-tree", *words).text.split("\0")
    rows = zip(fields[0::3], fields[1::3], fields[2::3], strict=False)
    return [(source, target, int(score[1:])) for score, source, target in rows]


def _only(bench: Bench, old: str, new: str, which: str) -> dict[str, str]:
    """Files that only one of two trees has, with mode and blob as `update-index` takes them."""
    fields = bench("diff-tree", "-r", "-z", "--no-renames", f"--diff-filter={which}", old, new).text.split("\0")
    entries = [(facts.lstrip(":").split(" "), path) for facts, path in zip(fields[0::2], fields[1::2], strict=False)]
    return {path: f"{f[0]} {f[2]}" if which == "D" else f"{f[1]} {f[3]}" for f, path in entries}


def _tree(bench: Bench, entries: dict[str, str]) -> str:
    bench("read-tree", "--empty")
    data = "".join(f"{entry}\t{path}\0" for path, entry in entries.items())
    bench("update-index", "-z", "--index-info", stdin=data.encode("utf-8", "surrogateescape"))
    return bench.line("write-tree")


def remains(bench: Bench, sides: tuple[str, str], new: str, moved: Mapping[str, str]) -> str:
    """A file of a tree that still has a line that a patch took from it for good; "" when none has.

    Neither an empty merge nor a patch that comes out in reverse proves a removal: the text may have moved, or be put
    in twice.

    Args:
        bench: where the trees are.
        sides: the trees before and after the patch on the old release.
        new: the tree in question.
        moved: the patch's files that upstream renamed.
    """
    for path, gone, _, there in _lines_of(bench, sides, new, moved):
        if gone & there:
            return path
    return ""


def brings(bench: Bench, sides: tuple[str, str], new: str, moved: Mapping[str, str]) -> bool:
    """Whether a tree has every line that a patch brought; a file in which no line tells counts as lacking it."""
    return all((gone or come) and not come - there for _, gone, come, there in _lines_of(bench, sides, new, moved))


def _lines_of(
    bench: Bench, sides: tuple[str, str], new: str, moved: Mapping[str, str]
) -> Iterator[tuple[str, set[bytes], set[bytes], set[bytes]]]:
    """For each file of a patch but tests: its name in the new tree, what lines went, what came, and what is there."""
    for path in bench.changed(*sides):
        if not is_test(path):
            texts = [bench.blob(tree, path) for tree in sides]
            name = path if texts[1] is None else moved.get(path, path)  # what the patch deletes has not moved
            before, after = (set((text or b"").split(b"\n")) for text in texts)
            there = set((bench.blob(new, name) or b"").split(b"\n"))
            yield name, before - after, after - before, there


def hunks(bench: Bench, old: str, new: str, path: str) -> list[str]:
    """The hunks of one file's change, each as text with its header."""
    text = bench("diff", "--no-renames", "--no-ext-diff", old, new, "--", path).text
    return re.split(r"(?m)^(?=@@ -)", text)[1:]


def doubled(bench: Bench, sides: tuple[str, str], tip: str, moved: Mapping[str, str]) -> str:
    """Where a patch would add text that upstream has added to the same file elsewhere; "" if nowhere.

    Args:
        bench: where the trees are.
        sides: the trees before and after the patch on the old release.
        tip: the tree that it should be applied to.
        moved: the patch's files that upstream renamed.
    """
    for block in _blocks(bench, *sides):
        if is_test(block.path) or sum(len(line.strip()) for line in block.added) < _TELLING:
            continue
        path = moved.get(block.path, block.path)
        text = b"\n".join(block.added) + b"\n"
        was, now = bench.blob(sides[0], block.path), bench.blob(tip, path)
        if now is not None and text in now and text not in (was or b""):
            line = now[: now.index(text)].count(b"\n") + 1
            return f"{path} line {line} has this text already; carrying the patch would double it"
    return ""


def _blocks(bench: Bench, old: str, new: str, *paths: str) -> list[_Block]:
    """Every run of changed lines between two trees or commits; binary files have none."""
    words = ("-r", "-p", "-U0", "--no-renames", "--no-ext-diff", old, new, *(("--", *paths) if paths else ()))
    found: list[_Block] = []
    lines = iter(bench("-c", "core.quotePath=false", "diff-tree", *words).stdout.split(b"\n"))
    path = ""
    for line in lines:
        if line.startswith(b"diff --git "):
            path = ""
        elif line.startswith((b"--- a/", b"+++ b/")):
            path = line[6:].rstrip(b"\t").decode("utf-8", "surrogateescape")
        elif (match := _RANGE.match(line)) is not None:
            counts = [int(count) if count is not None else 1 for count in match.groups()]
            removed, added = (tuple(_lines(lines, count)) for count in counts)
            found.append(_Block(path, removed, added))
    return found


def _lines(lines: Iterator[bytes], count: int) -> Iterator[bytes]:
    """The next `count` lines without their mark; git's word on a missing newline is none of them."""
    while count:
        line = next(lines)
        if not line.startswith(b"\\"):
            count -= 1
            yield line[1:]
