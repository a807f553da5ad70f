"""The end of a rebase: everything is carried or dropped, now it is proved and becomes a branch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.distro.rebase.branch import Outcome, commits, contents
from vllm_spark.distro.rebase.checkout import Checkout
from vllm_spark.distro.rebase.known import announced
from vllm_spark.distro.rebase.requirements import Finding, look
from vllm_spark.distro.rebase.state import Decision
from vllm_spark.distro.rebase.steps import Scene, Step, prove, run_step
from vllm_spark.distro.series import export, store
from vllm_spark.distro.upstream import pins
from vllm_spark.distro.upstream.mirror import Mirror
from vllm_spark.errors import ConfigError, IntegrityError, NothingToDo, ResourceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vllm_spark.distro.rebase.ladder import Ladder
    from vllm_spark.distro.rebase.sources import Ground
    from vllm_spark.distro.rebase.state import State
    from vllm_spark.distro.rebase.verdict import Result
    from vllm_spark.distro.rebase.worktree import WorkTree
    from vllm_spark.distro.series.guards import Proof
    from vllm_spark.distro.upstream.pins import FilePin, Upstream

__all__ = ["Finish", "Made"]


@dataclass(frozen=True)
class Made:
    """What the end made, beside the branch."""

    steps: tuple[Step, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Finish:
    """The last part of one rebase.

    Attributes:
        root: the checkout.
        work: the rebase's folder.
        tree: its work tree.
        state: decisions are added to it.
        ground: both releases.
    """

    root: Path
    work: Path
    tree: WorkTree
    state: State
    ground: Ground

    def make(self, ladder: Ladder, results: Sequence[Result]) -> Made | None:
        """Prove the guards, make the branch, do the other checks; None when a guard made a patch obsolete.

        Raises:
            NothingToDo: the result is what the checkout has.
        """
        state, skip = self.state, self.state.options.skip
        upstream = pins.load(self.root / "patches" / "upstream.toml")
        checkout = Checkout(self.root, self.work / "index")
        rendered = {f"{each.patch}.patch": export.render(ladder.bench, each.commit) for each in results if each.commit}
        have = contents(checkout, state.head)
        if state.onto == state.base and all(have.get(path) == data for path, data in rendered.items()):
            raise NothingToDo(f"the series is on {state.onto}, and nothing changes", where=str(self.root / "patches"))
        self.tree.show(ladder, ladder.tip)
        files, lost = self._files(upstream)
        requires, findings = look(upstream, ladder.bench, self.ground.new.commit, None if lost else files)
        outcome = Outcome(upstream, state.onto, requires or upstream.requires, files, results, rendered)
        tip = commits(checkout, state.head, outcome)
        scene = self._scene(upstream, checkout, tip)
        proved = [prove(scene, name, skip) for name in ("guards", "native")]
        if self._obsolete([proof for _, proofs in proved for proof in proofs]):
            return None
        checkout.make_branch(state.branch, tip)
        pinned = [] if requires else [Step(name="pins", state="failed", detail=f"[requires] kept: {findings[0].new}")]
        steps = (
            pinned + [step for step, _ in proved] + [run_step(name, scene, skip) for name in ("lint", "smoke", "wheel")]
        )
        return Made(tuple(steps), (*findings, *lost))

    def _files(self, upstream: Upstream) -> tuple[tuple[FilePin, ...], tuple[Finding, ...]]:
        """The new release's files; without the index only the sdist, and a finding that says so."""
        if self.state.onto == upstream.version:
            return upstream.files, ()
        try:
            found = announced(upstream.project, self.state.onto)
        except (ResourceError, IntegrityError, ConfigError) as err:
            why = f"not known: {err.what}"
            found = ()
        else:
            why = "" if found else "not known: the index has no such release"
        pin = self.ground.pin
        if pin is not None:  # what was read counts, whatever the index says now
            found = (pin, *(each for each in found if each.role != "sdist"))
        if not why:
            return found, ()
        follow = "run again when the index answers, or pin the files in patches/upstream.toml by hand"
        return found, (Finding(what="files of the release", old="pinned", new=why, follow=follow),)

    def _scene(self, upstream: Upstream, checkout: Checkout, tip: str) -> Scene:
        folder = self.work / "patches"
        shutil.rmtree(folder, ignore_errors=True)
        for path, data in contents(checkout, tip).items():
            paths.atomic_write(folder / path, data)
        return Scene(
            series=store.load(folder),
            mirror=Mirror(upstream.project, self.tree.git.path),
            version=self.state.onto,
            tree=self.tree.path,
            folder=folder,
            root=self.root,
            work=self.work,
            checkout=checkout,
            branch=tip,
        )

    def _obsolete(self, proofs: Sequence[Proof]) -> bool:
        """Decide on patches whose guards are all green without them."""
        if self.state.onto == self.state.base:
            return False
        found = False
        for patch in dict.fromkeys(proof.patch for proof in proofs):
            mine = [proof for proof in proofs if proof.patch == patch]
            if all(proof.complete == proof.without == "green" for proof in mine):
                names = ", ".join(proof.guard for proof in mine)
                why = f"its guards are green on {self.state.onto} without it: {names}"
                self.state.decisions[patch] = Decision("obsolete", why)
                found = True
        return found
