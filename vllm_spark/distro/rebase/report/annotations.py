"""The report where GitHub shows it beside the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.rebase.report.model import Report

__all__ = ["notes"]


def notes(report: Report) -> Iterator[str]:
    """One workflow command for each thing that a person must see, and a notice with the summary."""
    for result in report.results:
        if result.stuck:
            kind = "warning" if result.verdict in ("variant", "waiting") else "error"
            words = f"{result.why}. Next: {report.next_step(result)}"
            yield _command(kind, f"{result.patch}: {result.verdict}", words, f"patches/{result.patch}.patch")
        elif result.left_out:
            words = f"left out, tests only: {', '.join(result.left_out)}"
            yield _command("warning", f"{result.patch}: {result.verdict}", words, f"patches/{result.patch}.patch")
    for finding in report.findings:
        words = f"{finding.old} → {finding.new}: {finding.follow}"
        yield _command("warning", finding.what, words, "patches/upstream.toml")
    for step in report.steps:
        if step.state != "done":
            yield _command("error" if step.state == "failed" else "warning", f"check {step.name}", step.detail)
    yield _command("notice", "rebase", report.summary)


def _command(kind: str, title: str, words: str, file: str = "") -> str:
    place = f"file={_property(file)}," if file else ""
    return f"::{kind} {place}title={_property(title)}::{_data(words)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
