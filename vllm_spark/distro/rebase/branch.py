"""The result as commits: one for each patch that goes, then one that carries the rest."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.rebase import repin
from vllm_spark.distro.series.store import SeriesFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_spark.distro.rebase.checkout import Checkout
    from vllm_spark.distro.rebase.verdict import Result
    from vllm_spark.distro.upstream.pins import FilePin, Requires, Upstream

__all__ = ["Outcome", "commits", "contents"]

_LINK = re.compile(r"pull request (\d+)")


@dataclass(frozen=True)
class Outcome:
    """What a finished rebase is made of.

    Attributes:
        upstream: the pins of the old release.
        version: the new release.
        requires: what the new release was built with.
        files: the new release's files.
        results: the verdicts.
        rendered: every carried patch as it must be written, by path, in order.
    """

    upstream: Upstream
    version: str
    requires: Requires
    files: Sequence[FilePin]
    results: Sequence[Result]
    rendered: Mapping[str, bytes]


def commits(checkout: Checkout, head: str, outcome: Outcome) -> str:
    """Make the commits on top of `head`; returns the last one."""
    tip = head
    for result in outcome.results:
        if result.dropped:
            message = f"Drop {result.patch}: {result.verdict} in {outcome.upstream.project} {outcome.version}\n\n"
            tip = checkout.commit(tip, _dropping(checkout, tip, outcome, result), message + f"{result.dropped}\n")
    counts = {
        result.verdict: sum(each.verdict == result.verdict for each in outcome.results) for result in outcome.results
    }
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    lines = [f"{result.patch}: {result.verdict}, {result.why}" for result in outcome.results if result.commit]
    title = f"Rebase the series onto {outcome.upstream.project} {outcome.version}"
    changed = {
        path: data for path, data in _carrying(checkout, tip, outcome).items() if data != checkout.git.blob(tip, path)
    }
    return checkout.commit(tip, changed, "\n".join([title, "", words, "", *lines, ""]))


def contents(checkout: Checkout, commit: str) -> dict[str, bytes]:
    """The patches folder of a commit, by path below it."""
    names = checkout.git("ls-tree", "-r", "-z", "--name-only", commit, "--", "patches").text.split("\0")
    return {name.removeprefix("patches/"): checkout.git.blob(commit, name) or b"" for name in names if name}


def _dropping(checkout: Checkout, tip: str, outcome: Outcome, result: Result) -> dict[str, bytes | None]:
    path = f"{result.patch}.patch"
    listing = SeriesFile.parse(checkout.read(tip, "patches/series").encode())
    entries = [entry for entry in listing.entries if entry != path]
    today = dt.datetime.now(dt.UTC).date()
    pulls = [number for sign in result.candidates for number in _LINK.findall(sign)]
    link = f"https://github.com/vllm-project/vllm/pull/{pulls[0]}" if pulls else ""
    text = checkout.read(tip, "patches/ledger.toml")
    ledger = repin.drop(text, result.patch, outcome.version, f"{result.verdict}: {result.dropped}", link, today)
    files: dict[str, bytes | None] = {
        f"patches/{path}": None,
        "patches/series": listing.with_entries(entries).format(),
        "patches/ledger.toml": ledger.encode(),
    }
    need = f"\nSpark-Needs: {result.patch}\n".encode()
    for entry in entries:
        data = checkout.git.blob(tip, f"patches/{entry}") or b""
        if need in data:
            files[f"patches/{entry}"] = data.replace(need, b"\n", 1)
    return files


def _carrying(checkout: Checkout, tip: str, outcome: Outcome) -> dict[str, bytes | None]:
    files: dict[str, bytes | None] = {f"patches/{path}": data for path, data in outcome.rendered.items()}
    if outcome.version == outcome.upstream.version:
        return files
    pins = checkout.read(tip, "patches/upstream.toml")
    files["patches/upstream.toml"] = repin.repin(pins, outcome.version, outcome.requires, outcome.files).encode()
    known = checkout.read(tip, "patches/known.toml")
    files["patches/known.toml"] = repin.remember(known, [outcome.upstream.file("sdist")]).encode()
    project = checkout.read(tip, "pyproject.toml")
    if project:
        files["pyproject.toml"] = repin.own_version(project, outcome.upstream, outcome.version).encode()
    return files
