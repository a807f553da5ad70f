"""Why a patch does not apply: which hunks, and what upstream has in their place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_spark.distro.series.diff import Change, Hunk
    from vllm_spark.distro.series.patch import Patch

__all__ = ["Failure", "diagnose"]

_AROUND = 2  # lines of upstream's text shown before and after the place
_REPORT = re.compile(r"error: (?:patch failed: )?(?P<path>.+?)(?::(?P<line>\d+))?(?:: (?P<why>[^:]+))?$")


@dataclass(frozen=True)
class Failure:
    """One place where a patch meets something else than it expects.

    Attributes:
        file: the file concerned.
        hunk: which hunk of the file, from 1; 0 when the whole file is at fault.
        line: where it was expected, or where the most similar text is.
        why: the reason in words.
        text: upstream's lines around `line`, each with its number; empty when there are none.
    """

    file: str
    hunk: int
    line: int
    why: str
    text: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.hunk:
            return f"{self.file}: {self.why}"
        return f"{self.file}: hunk {self.hunk} (line {self.line}): {self.why}"


def diagnose(patch: Patch, stderr: str, content: Callable[[str], bytes | None]) -> tuple[Failure, ...]:
    """Every failing hunk of a patch that `git apply` refused.

    Args:
        patch: the patch.
        stderr: what git said.
        content: a file of the tree as it was; None where there is no such file.
    """
    found = [failure for change in patch.changes for failure in _of(change, stderr, content)]
    if found:
        return tuple(found)
    # git refuses more than we can explain; then its own words are the reason
    lines = [line.removeprefix("error: ") for line in stderr.splitlines() if line.startswith("error: ")]
    return (Failure(patch.changes[0].path, 0, 0, "; ".join(lines) or stderr.strip()),)


def _of(change: Change, stderr: str, content: Callable[[str], bytes | None]) -> list[Failure]:
    if f"error: {change.path}: already exists in index" in stderr:
        return [Failure(change.path, 0, 0, "upstream has a file of this name already")]
    creates = all(not hunk.source for hunk in change.hunks)
    data = content(change.source)
    if data is None:
        return [] if creates and change.source == change.path else [Failure(change.source, 0, 0, "no such file")]
    lines = data.decode("latin-1").split("\n")
    failed = [(number, hunk) for number, hunk in enumerate(change.hunks, 1) if not _places(lines, hunk.source)]
    if not failed:
        # each hunk fits somewhere, but git wants them in order and at the ends of the file where they say so
        reports = [match for match in map(_REPORT.match, stderr.splitlines()) if match is not None]
        said = [int(match["line"] or 0) for match in reports if match["path"] == change.source]
        failed = [(number, hunk) for number, hunk in enumerate(change.hunks, 1) if hunk.start in said]
    return [_failure(change.source, number, hunk, lines) for number, hunk in failed]


def _places(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    if not wanted:
        return [0]
    size = len(wanted)
    starts = (index for index, line in enumerate(lines) if line == wanted[0])
    return [start for start in starts if tuple(lines[start : start + size]) == tuple(wanted)]


def _failure(path: str, number: int, hunk: Hunk, lines: list[str]) -> Failure:
    start = _most_similar(lines, hunk)
    first = max(start - _AROUND, 0)
    shown = lines[first : start + len(hunk.source) + _AROUND]
    text = tuple(f"{first + offset:6} | {line}" for offset, line in enumerate(shown, 1))
    return Failure(path, number, hunk.start, f"upstream's text differs; the most similar is at line {start + 1}", text)


def _most_similar(lines: list[str], hunk: Hunk) -> int:
    """The index of the window with the most lines equal to the hunk's; the one nearest to its place among equals."""
    scores: dict[int, int] = {}
    where: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        where.setdefault(line, []).append(index)
    for offset, line in enumerate(hunk.source):
        if line.strip():  # empty lines are everywhere and say nothing
            for index in where.get(line, ()):
                scores[index - offset] = scores.get(index - offset, 0) + 1
    expected = min(hunk.start - 1, max(len(lines) - 1, 0))
    best = max(scores, key=lambda start: (scores[start], -abs(start - expected)), default=expected)
    return max(best, 0)
