"""The report as one page: the table, and every change side by side. No script, no file beside it."""

from __future__ import annotations

import difflib
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vllm_spark.distro.rebase.report.model import Report
    from vllm_spark.distro.rebase.verdict import Clash, Result

__all__ = ["html"]

_STYLE = """
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 100rem; padding: 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid color-mix(in srgb, currentColor 25%, transparent); padding: .3rem .5rem;
  text-align: left; vertical-align: top; }
.scroll { overflow-x: auto; }
.sides { table-layout: fixed; font-family: ui-monospace, monospace; font-size: .8125rem; }
.sides td { white-space: pre-wrap; overflow-wrap: anywhere; border-block: 0; padding: 0 .4rem; }
.gone { background: color-mix(in srgb, #d33 20%, transparent); }
.come { background: color-mix(in srgb, #2a2 20%, transparent); }
pre { overflow-x: auto; font-size: .8125rem; }
summary { cursor: pointer; }
"""


def html(report: Report) -> str:
    """The page."""
    title = f"Series on vLLM {report.onto}"
    body = "\n".join(_body(report, title))
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _body(report: Report, title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>\n<p><strong>{escape(report.summary)}</strong></p>"
    yield f"<p>New release: {escape(report.origin)}</p>"
    if report.unknown:
        yield f"<p>Not known: {escape(report.unknown)}</p>"
    rows = [
        [f'<a href="#{escape(result.patch)}">{escape(result.patch)}</a>', escape(result.verdict), escape(result.why)]
        for result in report.results
    ]
    yield _table(["patch", "verdict", "why"], rows)
    for result in report.results:
        yield from _patch(report, result)
    if report.findings:
        rows = [[*map(escape, (each.what, each.old, each.new, each.follow))] for each in report.findings]
        yield "<h2>What our wheels must follow</h2>"
        yield _table(["what", report.base, report.onto, "follow"], rows)
    if report.steps:
        yield "<h2>Checks</h2>"
        yield _table(["check", "state", "detail"], [[*map(escape, (s.name, s.state, s.detail))] for s in report.steps])
    if report.range_diff:
        yield "<h2>git range-diff of the old and the new series</h2>"
        yield f'<pre tabindex="0">{escape(report.range_diff)}</pre>'


def _patch(report: Report, result: Result) -> Iterator[str]:
    yield f'<h2 id="{escape(result.patch)}">{escape(result.patch)}: {escape(result.verdict)}</h2>'
    yield f"<p>{escape(result.why)}</p>"
    if result.candidates:
        yield f"<ul>{''.join(f'<li>{escape(sign)}</li>' for sign in result.candidates)}</ul>"
    following = report.next_step(result)
    if following:
        yield f"<p>Next: {escape(following)}</p>"
    for clash in result.clashes:
        yield from _clash(clash)
    if result.patch in report.diffs:
        old, new = report.diffs[result.patch]
        yield f"<details><summary>the change on {escape(report.base)} and on {escape(report.onto)}</summary>"
        yield _sides(old.split("\n"), new.split("\n"), (report.base, report.onto))
        yield "</details>"


def _clash(clash: Clash) -> Iterator[str]:
    yield f"<h3>{escape(clash.file)}: {escape(clash.why)}</h3>"
    if clash.successor:
        yield f"<p>The most similar new file is {escape(clash.successor)}.</p>"
    if clash.cause:
        yield f"<p>Changed upstream by: {escape('; '.join(clash.cause))}</p>"
    wanted = [line[1:] for line in clash.ours.split("\n")[1:] if line[:1] in ("+", " ")]
    theirs = [line.partition(" | ")[2] for line in clash.upstream]
    yield _sides(theirs, wanted, ("upstream's text", "what our patch wants there"))


def _sides(left: Sequence[str], right: Sequence[str], names: tuple[str, str]) -> str:
    """Two texts line by line, what differs marked."""
    rows: list[str] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        old, new = list(left[i:j]), list(right[k:m])
        for number in range(max(len(old), len(new))):
            cells = (old[number : number + 1], new[number : number + 1])
            marks = ("gone", "come") if kind != "equal" else ("", "")
            pairs = zip(cells, marks, strict=True)
            row = "".join(f'<td class="{mark}">{escape(cell[0])}</td>' if cell else "<td></td>" for cell, mark in pairs)
            rows.append(f"<tr>{row}</tr>")
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    return f'<div class="scroll"><table class="sides"><tr>{head}</tr>{"".join(rows)}</table></div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
