"""The report for people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.rebase.report.model import Report
    from vllm_spark.distro.rebase.verdict import Clash, Result

__all__ = ["markdown"]

_LONGEST = 60  # lines of one excerpt; the HTML page has all of them


def markdown(report: Report) -> str:
    """A summary line, a table, and for each patch that needs a person everything to decide by."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"# Series on vLLM {report.onto}"
    yield ""
    yield f"**{report.summary}**"
    yield ""
    yield f"- new release: {report.origin}"
    if report.branch:
        yield f"- branch: `{report.branch}`"
    if report.tree:
        yield f"- work tree: `{report.tree}`"
    if report.unknown:
        yield f"- not known: {report.unknown}"
    yield ""
    rows = [[f"`{result.patch}`", f"**{result.verdict}**", _settled(result), result.why] for result in report.results]
    yield from _table(["patch", "verdict", "result", "why"], rows)
    for result in report.results:
        yield from _detail(report, result)
    if report.findings:
        yield from ("", "## What our wheels must follow", "")
        rows = [[finding.what, finding.old, finding.new, finding.follow] for finding in report.findings]
        yield from _table(["what", report.base, report.onto, "follow"], rows)
    if report.steps:
        yield from ("", "## Checks", "")
        rows = [[step.name, f"**{step.state}**", f"{step.seconds:.0f} s", step.detail] for step in report.steps]
        yield from _table(["check", "state", "time", "detail"], rows)
    if report.range_diff:
        yield from ("", "## git range-diff of the old and the new series", "")
        yield from _fence(report.range_diff, "diff")


def _settled(result: Result) -> str:
    if result.commit:
        return "carried, settled by hand" if result.resolved else "carried"
    return "dropped" if result.dropped else "open"


def _detail(report: Report, result: Result) -> Iterator[str]:
    notes = []
    if result.moved:
        notes += [f"follows `{old}` → `{new}`" for old, new in result.moved.items()]
    if result.landed and not result.dropped:
        notes.append(f"upstream has its change to {', '.join(f'`{name}`' for name in result.landed)} already")
    if result.left_out:
        notes.append(f"left out, tests only: {', '.join(f'`{name}`' for name in result.left_out)}")
    notes += [f"sign: {sign}" for sign in result.candidates]
    following = report.next_step(result)
    if not notes and not result.clashes and not following:
        return
    yield from ("", f"## {result.patch}: {result.verdict}", "")
    yield from (f"- {note}" for note in notes)
    for clash in result.clashes:
        yield from _clash(clash)
    if following:
        yield from ("", f"Next: {following}")


def _clash(clash: Clash) -> Iterator[str]:
    yield from ("", f"### `{clash.file}`: {clash.why}", "")
    if clash.successor:
        yield from (f"The most similar new file is `{clash.successor}`.", "")
    if clash.cause:
        yield from (f"Changed upstream by: {'; '.join(clash.cause)}", "")
    if clash.ours:
        yield from ("Our change:", "")
        yield from _fence(clash.ours, "diff")
        yield ""
    if clash.upstream:
        yield from ("Upstream's text there:", "")
        yield from _fence("\n".join(clash.upstream), "text")


def _fence(text: str, language: str) -> Iterator[str]:
    """A code block whose fence no line of the text can end."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) > _LONGEST:
        lines = [*lines[:_LONGEST], f"… {len(lines) - _LONGEST} more lines in report.html"]
    longest = max((len(found) for line in lines for found in re.findall("`+", line)), default=0)
    mark = "`" * max(3, longest + 1)
    yield f"{mark}{language}"
    yield from lines
    yield mark


def _table(columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\r", " ").replace("\n", " ")
