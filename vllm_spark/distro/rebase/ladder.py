"""The ladder of detection: from each patch and the new release to a verdict.

A patch is the change between two trees of the old release. A three-way merge takes that change to the new release,
so blob ids, renames and the neighbours' patches are all known to git. In this order:

1. an empty result, with no line left that the patch takes away, is the one certain proof that a patch has landed;
2. a result that `git apply` reaches too is clean or offset; any other is merged or moved, and git's answer counts;
3. a result that puts text where upstream has the same text elsewhere, or any result of a patch whose pull request,
   commit, version or name is there, is a variant: a person decides;
4. with a conflict, the patch has landed if taking it out of the release in reverse, the last patch first, and putting
   it back gives the release again, and the release lacks what it takes away for good and has what it brings;
5. else it is a variant if there are signs, or a conflict.

A guard that is green without its patch (obsolete) is found later, by running it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from vllm_spark import console
from vllm_spark.distro.rebase.candidates import candidates, namers
from vllm_spark.distro.rebase.explain import Sides, explain
from vllm_spark.distro.rebase.moves import doubled, followed, is_test, remains, renamed
from vllm_spark.distro.rebase.origin import Old, Origin, Release
from vllm_spark.distro.rebase.verdict import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_spark.distro.rebase.history import History
    from vllm_spark.distro.rebase.merge import Bench, Merge
    from vllm_spark.distro.rebase.state import Decision
    from vllm_spark.distro.rebase.verdict import Verdict
    from vllm_spark.distro.series.patch import Patch
    from vllm_spark.distro.series.store import Folder

__all__ = ["Ladder", "Release"]


@dataclass
class Ladder:
    """One evaluation of a whole series; the same input always gives the same commits.

    Attributes:
        bench: sees the objects of both releases.
        folder: the series as it is on disk.
        old: the release that it is made for.
        new: the release that it goes to.
        history: upstream's commits between them, if known.
        decisions: what people, or guards, have decided, by patch.
    """

    bench: Bench
    folder: Folder
    old: Release
    new: Release
    history: History | None = None
    decisions: Mapping[str, Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tip = self.new.commit
        self._trees = (self.bench.tree_of(self.old.commit), self.bench.tree_of(self.new.commit))
        self._gone: set[str] = set()
        self._settled: dict[str, Result] = {}
        self.origin = Origin(self.bench, self.folder.patches, self.old)
        self.stops: dict[str, tuple[str, Merge]] = {}  # stuck patch -> tip before it, and the merge that failed

    def climb(self) -> list[Result]:
        """A result per patch, in order; `tip` is then the last carried patch's commit."""
        good = {patch.path: patch for patch in self.folder.patches}
        bad = {str(err.where).partition(":")[0]: err for err in self.folder.malformed}
        results: list[Result] = []
        with console.progress("verdicts", len(self.folder.file.entries), "patches") as bar:
            for path in dict.fromkeys(self.folder.file.entries):
                name = path.removesuffix(".patch")
                if path in good:
                    result = self._verdict(good[path])
                else:
                    why = bad[path].what if path in bad else "listed in series, but does not exist"
                    result = Result(patch=name, verdict="broken", why=why)
                self._settled[name] = result
                if result.dropped:
                    self._gone.add(name)
                results.append(result)
                bar.advance(1)
        return results

    @cached_property
    def _reversible(self) -> frozenset[str]:
        return self.origin.reversible(self._trees[1])

    def _verdict(self, patch: Patch) -> Result:
        name = patch.stem
        if patch.problems:
            return Result(patch=name, verdict="broken", why=patch.problems[0])
        open_needs = [need for need in patch.meta.needs if need not in self._settled or self._settled[need].stuck]
        if open_needs:
            return Result(patch=name, verdict="waiting", why=f"needs {', '.join(open_needs)}")
        old = self.origin.patches[name]
        if isinstance(old, str):
            return Result(patch=name, verdict="broken", why=old)
        merge = self.bench.merge(old.before, self.bench.tree_of(self.tip), old.after)
        signs = candidates(patch, self.bench, self._trees, (self.old.version, self.new.version), self.history)
        result = self._conflict(old, merge, signs) if merge.conflicts else self._fit(old, merge.tree, signs)
        return self._decided(old, merge, result)

    def _fit(self, old: Old, tree: str, signs: tuple[str, ...], left_out: tuple[str, ...] = ()) -> Result:
        """The verdict on a change that fits, perhaps without its tests."""
        tip = self.bench.tree_of(self.tip)
        files = self.bench.changed(tip, tree)
        touched = self.bench.changed(old.before, old.after)
        code = [path for path in touched if not is_test(path)]
        if not files or (code and all(is_test(path) for path in files)):
            moved = followed(self.bench, *self._trees, touched)
            left = remains(self.bench, (old.before, old.after), tip, moved)
            if left:
                why = f"nothing of it is left to apply, but {left} has a line that it takes away"
                return Result(patch=old.patch.stem, verdict="variant", why=why, candidates=signs)
            return self._landed(old, "the release has all of it: the three-way result is empty", signs, files)
        moved = self._moved(touched, files)
        landed = tuple(path for path in touched if moved.get(path, path) not in (*files, *left_out))
        facts = Result(
            patch=old.patch.stem,
            verdict="merged",
            why="",
            files=files,
            moved=moved,
            landed=landed,
            left_out=left_out,
            candidates=signs,
        )
        twice = doubled(self.bench, (old.before, old.after), tip, moved)
        if twice or signs:
            why = twice or f"{signs[0]}, but the patch still changes something"
            return msgspec.structs.replace(facts, verdict="variant", why=why)
        verdict, why = self._manner(old.patch, tree, left_out, moved)
        if landed:
            why += f"; upstream has its change to {', '.join(landed)} already"
        commit = self._commit(old, tree)
        return msgspec.structs.replace(facts, verdict=verdict, why=why, commit=commit)

    def _manner(
        self, patch: Patch, tree: str, left_out: tuple[str, ...], moved: Mapping[str, str]
    ) -> tuple[Verdict, str]:
        """How a change fits."""
        tests = f"; its change to {', '.join(left_out)} does not fit and is left out" if left_out else ""
        if moved:
            pairs = ", ".join(f"{old} → {new}" for old, new in moved.items())
            return "moved", f"upstream renamed {pairs}{tests}"
        applied = self.bench.applied(patch, self.tip, left_out)
        if applied is None or applied[0] != tree:
            return "merged", f"its context changed; git merged it three ways{tests}"
        if applied[1]:
            return "offset", f"fits at other lines ({len(applied[1])} hunks){tests}"
        return "clean", f"fits as it is{tests}"

    def _conflict(self, old: Old, merge: Merge, signs: tuple[str, ...]) -> Result:
        """The verdict on a change that does not fit."""
        clashing = tuple(conflict.path for conflict in merge.conflicts)
        tip = self.bench.tree_of(self.tip)
        touched = self.bench.changed(old.before, old.after)
        if all(map(is_test, clashing)) and not all(map(is_test, touched)):
            tree = self.bench.restored(merge.tree, tip, clashing)
            return self._fit(old, tree, signs, clashing)
        if old.patch.stem in self._reversible:
            return self._landed(old, "the release has all of it: it can be taken out in reverse, and put back", signs)
        moved = self._moved(touched, (*clashing, *self.bench.changed(tip, merge.tree)))
        sides = Sides(old.before, old.after, *self._trees, tip)
        clashes = explain(self.bench, sides, merge, moved, self.history)
        changed = self.bench.changed(tip, merge.tree)
        landed = tuple(path for path in touched if moved.get(path, path) not in (*changed, *clashing))
        why = f"{signs[0]}, in another form" if signs else f"{clashes[0].file}: {clashes[0].why}"
        return Result(
            patch=old.patch.stem,
            verdict="variant" if signs else "conflict",
            why=why,
            moved=moved,
            landed=landed,
            candidates=signs,
            clashes=clashes,
        )

    def _landed(self, old: Old, why: str, signs: tuple[str, ...], tests: tuple[str, ...] = ()) -> Result:
        names = namers(old.patch, old.patch.tail, self.history)
        if tests:
            why = f"the release has all of it but its tests in {', '.join(tests)}"
        dropped = "; ".join((why, *names, *signs))
        return Result(
            patch=old.patch.stem,
            verdict="landed",
            why=why,
            dropped=dropped,
            landed=self.bench.changed(old.before, old.after),
            left_out=tests,
            candidates=(*names, *signs),
        )

    def _moved(self, touched: tuple[str, ...], targets: tuple[str, ...]) -> dict[str, str]:
        """Which files of the patch have another name in the new release."""
        strange = [path for path in targets if path not in touched]
        return renamed(self.bench, *self._trees, touched, strange)

    def _commit(self, old: Old, tree: str) -> str:
        self.tip = self.bench.recommit(old.commit, tree, self.tip, self._gone)
        return self.tip

    def _decided(self, old: Old, merge: Merge, result: Result) -> Result:
        """What a decision makes of a verdict."""
        decision = self.decisions.get(result.patch)
        if decision is not None and decision.action in ("drop", "obsolete") and not result.dropped:
            if result.commit:
                self.tip = self.bench.line("rev-parse", f"{result.commit}^")
            verdict = "obsolete" if decision.action == "obsolete" else result.verdict
            resolved = decision.action == "drop"
            return msgspec.structs.replace(
                result, verdict=verdict, commit="", dropped=decision.why, why=decision.why, resolved=resolved
            )
        if not result.stuck:
            return result
        if decision is not None and decision.action == "resolved":
            before, after = (self.bench.tree_of(name) for name in (f"{decision.commit}^", decision.commit))
            again = self.bench.merge(before, self.bench.tree_of(self.tip), after)
            if not again.conflicts:
                files = self.bench.changed(self.bench.tree_of(self.tip), again.tree)
                commit = self._commit(old, again.tree)
                return msgspec.structs.replace(result, commit=commit, files=files, resolved=True)
            merge = again
        self.stops[result.patch] = (self.tip, merge)
        return result
