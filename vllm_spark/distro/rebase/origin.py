"""The series on the release that it is made for: each patch as a commit, and whether another release holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.rebase.moves import brings, followed, remains
from vllm_spark.distro.series.apply import Stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_spark.distro.rebase.merge import Bench
    from vllm_spark.distro.series.patch import Patch

__all__ = ["Old", "Origin", "Release"]


@dataclass(frozen=True)
class Release:
    """A release's commit on the bench, and its version."""

    version: str
    commit: str


@dataclass(frozen=True)
class Old:
    """A patch on its own release: its commit, and the trees before and after it."""

    patch: Patch
    commit: str
    before: str
    after: str


class Origin:
    """A series on its own release.

    Args:
        bench: sees the release's objects.
        patches: those that can be read, in order.
        release: the release.

    Attributes:
        patches: each patch as a commit, or why it does not even apply here, by name.
        tip: the last commit.
    """

    def __init__(self, bench: Bench, patches: Sequence[Patch], release: Release) -> None:
        self._bench = bench
        self._base = release.commit
        self.patches: dict[str, Old | str] = {}
        stack = Stack(bench, release.commit)
        for patch in patches:
            before = bench.tree_of(stack.tip)
            outcome = stack.push(patch)
            if outcome.ok:
                self.patches[patch.stem] = Old(patch, outcome.commit, before, bench.tree_of(outcome.commit))
            else:
                why = f"does not apply to {release.version}, for which it is made: {outcome.failures[0]}"
                self.patches[patch.stem] = why
        self.tip = stack.tip

    def commit(self, name: str) -> str:
        """The commit of a patch; empty when it does not apply."""
        found = self.patches.get(name)
        return found.commit if isinstance(found, Old) else ""

    def reversible(self, tree: str) -> frozenset[str]:
        """Patches that another release holds, by the third rung of the ladder.

        They come out in reverse, the last one first; going in again gives the same tree; and their lines tell.
        """
        bench, current = self._bench, tree
        olds = [each for each in self.patches.values() if isinstance(each, Old)]
        touched = {path for old in olds for path in bench.changed(old.before, old.after)}
        moved = followed(bench, bench.tree_of(self._base), tree, touched)
        found: set[str] = set()
        for old in reversed(olds):
            without = bench.reversed(old.patch, current, moved)
            if without is None or without == current:
                continue
            back = bench.merge(old.before, without, old.after)
            sides = (old.before, old.after)
            tells = brings(bench, sides, current, moved) and not remains(bench, sides, current, moved)
            if tells and not back.conflicts and back.tree == current:
                found.add(old.patch.stem)
                current = without
        return frozenset(found)
