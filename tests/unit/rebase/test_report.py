"""Reports of anything: nothing in a patch, a path or a reason can break their form."""

from html.parser import HTMLParser

import pytest

from vllm_spark.distro.rebase import report as reports
from vllm_spark.distro.rebase.report import Report
from vllm_spark.distro.rebase.requirements import Finding
from vllm_spark.distro.rebase.steps import Step
from vllm_spark.distro.rebase.verdict import Clash, Result
from vllm_spark.errors import ConfigError

NASTY = "a|b <script>alert(1)</script> & `x` ```\n::error::no\r% \udce9"


def report(text: str = "plain", **changes: object) -> Report:
    clash = Clash(
        file=text, why=text, ours=f"@@ -1 +1 @@\n-{text}\n+```\n", upstream=(f"     1 | {text}",), cause=(text,)
    )
    results = (
        Result(patch="model/a", verdict="conflict", why=text, clashes=(clash,), candidates=(text,)),
        Result(patch="model/b", verdict="waiting", why="needs model/a"),
        Result(patch="model/c", verdict="moved", why=text, commit="1" * 40, moved={text: text}, left_out=(text,)),
        Result(patch="model/d", verdict="landed", why=text, dropped=text),
    )
    values = {
        "base": "0.33.0",
        "onto": "0.34.0",
        "origin": text,
        "unknown": text,
        "results": results,
        "diffs": {"model/c": (text, f"{text}\nmore")},
        "findings": (Finding(what=text, old=text, new=text, follow=text),),
        "steps": (
            Step(name="guards", state="not done", detail=text),
            Step(name="lint", state="failed", detail=text),
            Step(name="smoke", state="done", detail=text),
        ),
        "range_diff": text,
    }
    return Report(**{**values, **changes})  # type: ignore[arg-type]


class Tags(HTMLParser):
    """Checks that every element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the base names it
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("text", ["plain", NASTY])
def test_html_is_well_formed(text: str) -> None:
    tags = Tags()
    tags.feed(reports.html(report(text)).encode("utf-8", "replace").decode())
    assert tags.open == []
    assert "script" not in tags.seen
    assert {"details", "table", "h3"} <= tags.seen


@pytest.mark.parametrize("text", ["plain", NASTY])
def test_markdown_tables_and_fences_hold(text: str) -> None:
    lines = reports.markdown(report(text)).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    counts = [row.replace("\\|", "").count("|") for row in rows]
    assert counts[:5] == [5] * 5
    fences = [line for line in lines if line.startswith("```")]
    assert len(fences) % 2 == 0
    # no line of an excerpt ends the block that it stands in
    for start, end in zip(fences[::2], fences[1::2], strict=True):
        assert start.startswith(end)


def test_markdown_says_what_comes_next() -> None:
    text = reports.markdown(report(tree="/t", stopped="model/a"))
    assert (
        "Next: settle it in /t, then vllm-spark rebase continue; or vllm-spark rebase continue --drop model/a" in text
    )
    assert "Next: comes after model/a" in text
    assert "Next: vllm-spark rebase run --onto 0.34.0" in reports.markdown(report())


def test_summary_counts_and_lists_what_was_not_done() -> None:
    expected = "0.33.0 → 0.34.0: 1 moved, 1 landed, 1 conflict, 1 waiting; 2 open; failed: lint; not done: guards"
    assert report().summary == expected
    assert report(results=(), steps=()).summary == "0.33.0 → 0.34.0: no patches"


def test_json_comes_back() -> None:
    made = report()
    assert reports.from_json(reports.to_json(made), "x") == made
    assert b"\\udc" not in reports.to_json(report(NASTY))
    with pytest.raises(ConfigError, match="damaged"):
        reports.from_json(b"{", "x")


@pytest.mark.parametrize("text", ["plain", NASTY])
def test_annotations_are_one_line_each(text: str) -> None:
    lines = list(reports.notes(report(text)))
    assert [line.partition("::")[2].split(" ")[0] for line in lines] == [
        *("error", "warning", "warning"),  # conflict, waiting, tests left out
        *("warning", "warning", "error"),  # finding, check not done, check failed
        "notice",
    ]
    assert not [line for line in lines if "\n" in line or "\r" in line]


def test_long_excerpts_are_cut_in_markdown_alone() -> None:
    clash = Clash(file="f", why="w", ours="\n".join(f"+{n}" for n in range(100)))
    made = report(results=(Result(patch="model/a", verdict="conflict", why="w", clashes=(clash,)),))
    assert "… 40 more lines in report.html" in reports.markdown(made)
    assert "99" in reports.html(made)
