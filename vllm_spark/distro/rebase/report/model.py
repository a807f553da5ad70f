"""What a report holds; its JSON form is this, field by field."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from vllm_spark.distro.rebase.requirements import Finding  # noqa: TC001 - msgspec reads the annotations
from vllm_spark.distro.rebase.steps import Step  # noqa: TC001 - msgspec reads the annotations
from vllm_spark.distro.rebase.verdict import VERDICTS, Result
from vllm_spark.errors import ConfigError

__all__ = ["Report", "from_json", "to_json"]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One state of one rebase.

    Attributes:
        base: the release that the series is made for.
        onto: the release that it goes to.
        origin: where that release's text is from.
        unknown: what could not be looked at, and why; empty when everything was.
        results: the verdicts, in the order of the series.
        diffs: for each patch that is shown side by side, its change on the old and on the new release.
        findings: what else our wheels must follow.
        steps: the checks.
        range_diff: git's comparison of the old and the new series.
        tree: the work tree; empty for a plan.
        stopped: the patch that waits for a person; empty when none does.
        branch: the branch with the result; empty before it is made.
    """

    form: int = 1
    base: str
    onto: str
    origin: str
    unknown: str = ""
    results: tuple[Result, ...]
    diffs: dict[str, tuple[str, str]] = {}
    findings: tuple[Finding, ...] = ()
    steps: tuple[Step, ...] = ()
    range_diff: str = ""
    tree: str = ""
    stopped: str = ""
    branch: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How many patches got each verdict; those that none got are left out."""
        found = {verdict: sum(result.verdict == verdict for result in self.results) for verdict in VERDICTS}
        return {verdict: count for verdict, count in found.items() if count}

    @property
    def summary(self) -> str:
        """The whole in one line."""
        words = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items()) or "no patches"
        stuck = sum(result.stuck for result in self.results)
        failed = [step.name for step in self.steps if step.state == "failed"]
        off = [step.name for step in self.steps if step.state == "not done"]
        tail = f"; {stuck} open" if stuck else ""
        tail += f"; failed: {', '.join(failed)}" if failed else ""
        tail += f"; not done: {', '.join(off)}" if off else ""
        return f"{self.base} → {self.onto}: {words}{tail}"

    def next_step(self, result: Result) -> str:
        """The command that comes next for a patch; empty when none does."""
        if not result.stuck:
            return ""
        if result.verdict == "broken":
            return "mend the patch on its own base: vllm-spark series lint"
        if not self.tree:
            return f"vllm-spark rebase run --onto {self.onto}"
        if result.patch != self.stopped:
            return f"comes after {self.stopped}" if self.stopped else ""
        drop = f"vllm-spark rebase continue --drop {result.patch} --why REASON"
        return f"settle it in {self.tree}, then vllm-spark rebase continue; or {drop}"


def to_json(report: Report) -> bytes:
    """The report for machines: the fields, and the summary, the counts and each patch's next command."""
    data: dict[str, Any] = msgspec.to_builtins(report)
    for entry, result in zip(data["results"], report.results, strict=True):
        entry["stuck"], entry["next"] = result.stuck, report.next_step(result)
    data = {"summary": report.summary, "counts": report.counts, **data}
    # JSON has no form for bytes that are no UTF-8: they become question marks
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def from_json(data: bytes, where: str) -> Report:
    """Read what `to_json` wrote.

    Raises:
        ConfigError: it did not.
    """
    try:
        return msgspec.json.decode(data, type=Report)
    except msgspec.DecodeError as err:
        raise ConfigError(f"damaged: {err}", where=where, hint="run the rebase again") from err
