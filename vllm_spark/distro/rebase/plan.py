"""Reports made: of a plan, which writes nothing, and of a rebase under way."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark.distro.rebase.ladder import Ladder
from vllm_spark.distro.rebase.report import Report
from vllm_spark.distro.rebase.requirements import look
from vllm_spark.distro.rebase.sources import open_ground
from vllm_spark.distro.series import store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_spark.distro.rebase.finish import Made
    from vllm_spark.distro.rebase.sources import Ground
    from vllm_spark.distro.rebase.state import State
    from vllm_spark.distro.rebase.verdict import Result
    from vllm_spark.distro.upstream.pins import Upstream

__all__ = ["make_plan", "make_report"]


def make_plan(
    upstream: Upstream,
    version: str,
    patches: Path,
    *,
    source: Path | None = None,
    history: Path | None = None,
    diffs: bool = False,
) -> Report:
    """The verdict on every patch of a series.

    Args:
        upstream: the pins of its base.
        version: the release that it goes to.
        patches: its folder.
        source: what holds the new release; None takes the package index.
        history: a clone of upstream.
        diffs: also collect each patch's change on both releases, for the page that shows them.
    """
    with tempfile.TemporaryDirectory(prefix="vllm-spark-") as folder:
        ground = open_ground(Path(folder) / "plan.git", upstream, version, patches, source=source, history=history)
        ladder = Ladder(ground.bench, store.survey(patches), ground.old, ground.new, ground.history)
        results = ladder.climb()
        return Report(
            base=upstream.version,
            onto=version,
            origin=ground.origin,
            unknown="; ".join(filter(None, (ground.unknown, "wheel tags are compared by `rebase run`"))),
            results=tuple(results),
            diffs=side_by_side(ladder, results) if diffs else {},
            findings=look(upstream, ground.bench, ground.new.commit, None)[1],
        )


def make_report(
    upstream: Upstream,
    ground: Ground,
    ladder: Ladder,
    results: Sequence[Result],
    state: State,
    made: Made | None,
    tree: str,
) -> Report:
    """The report of a rebase under way, or of a finished one (`made`)."""
    findings = made.findings if made else look(upstream, ground.bench, ground.new.commit, None)[1]
    return Report(
        base=state.base,
        onto=state.onto,
        origin=ground.origin,
        unknown=ground.unknown,
        results=tuple(results),
        diffs=side_by_side(ladder, results),
        findings=findings,
        steps=made.steps if made else (),
        range_diff=range_diff(ground, ladder),
        tree=tree,
        stopped=state.stopped,
        branch=state.branch if state.done else "",
    )


def side_by_side(ladder: Ladder, results: Sequence[Result]) -> dict[str, tuple[str, str]]:
    """The change of each carried patch on both releases, where they differ."""
    found: dict[str, tuple[str, str]] = {}
    for result in results:
        commits = (ladder.origin.commit(result.patch), result.commit)
        if all(commits):
            old, new = (ladder.bench("diff", "--no-ext-diff", f"{commit}^", commit).text for commit in commits)
            if old != new:
                found[result.patch] = (old, new)
    return found


def range_diff(ground: Ground, ladder: Ladder) -> str:
    """What git says of the two series side by side; empty when one of them is."""
    if ladder.origin.tip == ground.old.commit or ladder.tip == ground.new.commit:
        return ""
    ranges = (f"{ground.old.commit}..{ladder.origin.tip}", f"{ground.new.commit}..{ladder.tip}")
    return ground.bench("range-diff", "--no-color", *ranges).text
