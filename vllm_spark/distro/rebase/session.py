"""A rebase under way: start, stop at what needs a person, go on, or undo everything."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from vllm_spark import console, paths
from vllm_spark.distro.rebase import report as reports
from vllm_spark.distro.rebase.checkout import Checkout
from vllm_spark.distro.rebase.finish import Finish, Made
from vllm_spark.distro.rebase.known import normalise
from vllm_spark.distro.rebase.ladder import Ladder
from vllm_spark.distro.rebase.plan import make_report
from vllm_spark.distro.rebase.sources import Ground, open_ground
from vllm_spark.distro.rebase.state import Decision, Options, State, load, save
from vllm_spark.distro.rebase.worktree import WorkTree
from vllm_spark.distro.series import guards, store
from vllm_spark.distro.upstream import pins
from vllm_spark.errors import ConfigError, DecisionNeeded, NothingToDo, PatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vllm_spark.distro.rebase.report import Report
    from vllm_spark.distro.rebase.verdict import Result

__all__ = ["Session", "refuse_older"]


def refuse_older(base: str, onto: str, *, allowed: bool) -> None:
    """Make sure that nobody goes back by accident.

    Raises:
        ConfigError: the release is older, and that was not asked for.
    """
    if Version(onto) < Version(base) and not allowed:
        raise ConfigError(f"older than the base {base}", where=onto, hint="add --allow-older if that is meant")


class Session:
    """One rebase of a checkout.

    Args:
        root: the checkout.
        work: where the state, the work tree and the report are; None is `out/rebase` in the checkout.
    """

    def __init__(self, root: Path, work: Path | None = None) -> None:
        self.root = root
        self.patches = root / "patches"
        self.work = work or root / "out" / "rebase"
        self.tree = WorkTree(self.work / "tree")
        self._file = self.work / "state.json"

    def start(self, onto: str, options: Options) -> Report:
        """Begin.

        Raises:
            ConfigError: wrong input, unsaved work, or a rebase is under way.
            NothingToDo: the series is on that release, and nothing changes.
            PatchError: a patch is broken, or conflicts.
            DecisionNeeded: a patch landed in another form.
        """
        version = normalise(onto)
        with self._locked():
            self._refuse_running()
            upstream = pins.load(self.patches / "upstream.toml")
            refuse_older(upstream.version, version, allowed=options.allow_older)
            self.work.mkdir(parents=True)
            try:
                checkout = Checkout(self.root, self.work / "index")
                checkout.refuse_unsaved()
                branch = f"rebase/v{version}"
                checkout.refuse_branch(branch)
                state = State(
                    base=upstream.version,
                    onto=version,
                    head=checkout.head(),
                    series=self._digest(),
                    branch=branch,
                    options=options,
                )
                ground = self._ground(state)
            except BaseException:
                shutil.rmtree(self.work)
                raise
            save(self._file, state)
            return self._advance(state, ground)

    def resume(self, drop: str = "", why: str = "") -> Report:
        """Go on: with what a person made of the work tree, or without a patch.

        Raises:
            ConfigError: no rebase is under way, or the series was changed meanwhile.
            PatchError, DecisionNeeded: the next one that needs a person.
        """
        with self._locked():
            state = self._running()
            if self._digest() != state.series:
                hint = "vllm-spark rebase abort, then run it anew"
                raise ConfigError("the series changed since the rebase began", where=str(self.patches), hint=hint)
            if drop:
                known = {path.removesuffix(".patch") for path in store.survey(self.patches).file.entries}
                if drop not in known:
                    raise ConfigError("the series has no such patch", where=drop, hint="vllm-spark rebase report")
                state.decisions[drop] = Decision("drop", why)
            elif state.stopped:
                commit = self.tree.resolution(state.stopped)
                state.decisions[state.stopped] = Decision("resolved", commit=commit)
            state.stopped = ""
            save(self._file, state)
            return self._advance(state, self._ground(state))

    def abort(self) -> str:
        """Undo: the branch, the work tree and the state go; returns what was undone."""
        with self._locked():
            state = load(self._file)
            checkout = Checkout(self.root, self.work / "index")
            if state.done and checkout.git.resolve(f"refs/heads/{state.branch}") is not None:
                checkout.remove_branch(state.branch)
            shutil.rmtree(self.work)
            return f"{state.base} → {state.onto}"

    def report(self) -> Report:
        """What was found so far.

        Raises:
            ConfigError: there is no report.
        """
        path = self.work / "report.json"
        if not path.exists():
            raise ConfigError("no report", where=str(path), hint="vllm-spark rebase run --onto VERSION")
        return reports.from_json(path.read_bytes(), str(path))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with paths.lock(self.work.parent / f".{self.work.name}.lock"):
            yield

    def _refuse_running(self) -> None:
        """Make place for a new rebase, unless an unfinished one, or something else, is there."""
        if self._file.exists() and not load(self._file).done:
            hint = "vllm-spark rebase continue, or vllm-spark rebase abort"
            raise ConfigError(f"a rebase onto {load(self._file).onto} is under way", where=str(self.work), hint=hint)
        if self.work.exists() and not (self._file.exists() or (self.work / "report.json").exists()):
            raise ConfigError("exists, and is no rebase's folder", where=str(self.work), hint="name another --work")
        shutil.rmtree(self.work, ignore_errors=True)

    def _running(self) -> State:
        state = load(self._file)
        if state.done:
            hint = f"git merge {state.branch}, or vllm-spark rebase abort to undo it"
            raise ConfigError(f"the rebase onto {state.onto} is finished", where=str(self.work), hint=hint)
        return state

    def _digest(self) -> str:
        """What the series and its pins are, byte for byte."""
        total = hashlib.sha256()
        for path in sorted(path for path in self.patches.rglob("*") if path.is_file()):
            data = path.read_bytes()
            total.update(f"{path.relative_to(self.patches)} {len(data)}\n".encode() + data)
        return total.hexdigest()

    def _ground(self, state: State) -> Ground:
        options = state.options
        return open_ground(
            self.tree.git.path,
            pins.load(self.patches / "upstream.toml"),
            state.onto,
            self.patches,
            source=Path(options.source) if options.source else None,
            history=Path(options.history) if options.history else None,
        )

    def _advance(self, state: State, ground: Ground) -> Report:
        """From the decisions so far to the next stop, or to the end."""
        while True:
            ladder = Ladder(
                ground.bench, store.survey(self.patches), ground.old, ground.new, ground.history, state.decisions
            )
            results = ladder.climb()
            self._write(state, ground, ladder, results)
            self._refuse_broken(results)
            stuck = [result for result in results if result.patch in ladder.stops]
            if self._try_guards(state, ladder, stuck):
                continue
            if stuck:
                self._stop(state, ground, ladder, results, stuck[0])
            finish = Finish(self.root, self.work, self.tree, state, ground)
            try:
                made = finish.make(ladder, results)
            except NothingToDo:
                shutil.rmtree(self.work)
                raise
            if made is None:  # a guard is green without its patch: now without that one
                save(self._file, state)
                continue
            state.done = True
            report = self._write(state, ground, ladder, results, made)
            save(self._file, state)
            return report

    def _refuse_broken(self, results: Sequence[Result]) -> None:
        broken = next((result for result in results if result.verdict == "broken"), None)
        if broken is not None:
            # nothing was changed, and nothing can be continued: only the report stays
            shutil.rmtree(self.tree.path)
            self._file.unlink()
            hint = f"vllm-spark series lint; the other patches' verdicts: {self.work / 'report.md'}"
            raise PatchError(broken.why, where=f"{broken.patch}.patch", hint=hint)

    def _try_guards(self, state: State, ladder: Ladder, stuck: Sequence[Result]) -> bool:
        """Run the guards of patches that do not fit, without them; whether one is green, and so obsolete."""
        if state.onto == state.base:
            return False
        wanted = {patch.stem: patch for patch in ladder.folder.patches}
        skip = {"python": "guards" in state.options.skip, "native": "native" in state.options.skip}
        chosen = [wanted[each.patch] for each in stuck if each.patch not in state.tried]
        chosen = [patch for patch in chosen if not skip[patch.meta.cls]]
        if not chosen:
            return False
        self.tree.show(ladder, ladder.tip)
        found = False
        with console.step(f"guards of {', '.join(patch.stem for patch in chosen)}, without them"):
            states = guards.run_guards(self.root, [g for patch in chosen for g in patch.meta.guards], self.tree.path)
        for patch in chosen:
            said = {guard: states[guard][0] for guard in patch.meta.guards}
            state.tried[patch.stem] = ", ".join(f"{guard} {word}" for guard, word in said.items())
            if set(said.values()) == {"green"}:
                why = f"its guards are green on {state.onto} without it: {', '.join(said)}"
                state.decisions[patch.stem] = Decision("obsolete", why)
                found = True
        save(self._file, state)
        return found

    def _stop(self, state: State, ground: Ground, ladder: Ladder, results: Sequence[Result], first: Result) -> None:
        tip, merge = ladder.stops[first.patch]
        self.tree.show(ladder, tip, merge)
        state.stopped = first.patch
        save(self._file, state)
        report = self._write(state, ground, ladder, results)
        hint = f"{report.next_step(first)}. All verdicts: {self.work / 'report.md'}"
        kind = DecisionNeeded if first.verdict == "variant" else PatchError
        raise kind(f"{first.verdict}: {first.why}", where=f"{first.patch}.patch", hint=hint)

    def _write(
        self, state: State, ground: Ground, ladder: Ladder, results: Sequence[Result], made: Made | None = None
    ) -> Report:
        upstream = pins.load(self.patches / "upstream.toml")
        report = make_report(upstream, ground, ladder, results, state, made, str(self.tree.path))
        reports.write(report, self.work)
        return report
