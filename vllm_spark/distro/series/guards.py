"""Proving guards: each must be green in the whole series and red in the series without its patch."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vllm_spark import console, proc
from vllm_spark.distro.series.apply import apply_series

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vllm_spark.distro.series.patch import Patch
    from vllm_spark.distro.series.store import Series
    from vllm_spark.distro.upstream.mirror import Mirror

__all__ = ["Proof", "State", "prove", "run_guards"]

State = Literal["green", "red", "error", "not run"]
_TIMEOUT = 1800  # seconds for all guards of one tree: some compile
_USAGE = 4  # pytest's exit status for a test id that it does not find
_ASSERTION = re.compile(r"AssertionError|assert\b|Failed: ")


@dataclass(frozen=True)
class Proof:
    """What one guard said in both trees.

    Attributes:
        patch: the patch that it guards.
        guard: its pytest id.
        complete: in the whole series; must be green.
        without: without the patch and what needs it; must be red.
        detail: the first message of what is not as it must be, or else of the red.
    """

    patch: str
    guard: str
    complete: State
    without: State
    detail: str

    @property
    def holds(self) -> bool:
        """The guard guards."""
        return self.complete == "green" and self.without == "red"


def prove(
    series: Series, chosen: Sequence[Patch], mirror: Mirror, version: str, root: Path, complete: Path
) -> list[Proof]:
    """Run the guards of some patches with and without them.

    Args:
        series: the whole series.
        chosen: the patches to prove.
        mirror: holds the release.
        version: the release.
        root: the checkout, where pytest runs.
        complete: a tree with the whole series.

    Raises:
        ApplyError: the series without a patch does not apply: a need is not declared.
    """
    guards = list(dict.fromkeys(guard for patch in chosen for guard in patch.meta.guards))
    with console.step(f"{len(guards)} guards in the whole series"):
        green = run_guards(root, guards, complete)
    proofs: list[Proof] = []
    for patch in chosen:
        with console.step(f"without {patch.stem}"), tempfile.TemporaryDirectory(prefix="vllm-spark-") as folder:
            tree = Path(folder) / "tree"
            apply_series(series.without({patch.stem}), mirror, version, tree)
            red = run_guards(root, patch.meta.guards, tree)
        for guard in patch.meta.guards:
            (was, reason), (now, detail) = green[guard], red[guard]
            proofs.append(Proof(patch.stem, guard, was, now, detail if was == "green" else reason))
    return proofs


def run_guards(root: Path, guards: Iterable[str], tree: Path) -> dict[str, tuple[State, str]]:
    """Run guards against a tree; state and first message of each."""
    files: dict[str, list[str]] = {}
    for guard in guards:
        files.setdefault(guard.partition("::")[0], []).append(guard)
    everything = [guard for wanted in files.values() for guard in wanted]
    status, cases, output = _pytest(root, everything, tree)
    if status == _USAGE and len(files) > 1:
        # pytest runs nothing at all when one file has no such test or cannot be collected: then each for itself
        return {guard: state for wanted in files.values() for guard, state in run_guards(root, wanted, tree).items()}
    return {guard: _state(guard, cases, output) for guard in everything}


def _pytest(root: Path, guards: list[str], tree: Path) -> tuple[int, list[ET.Element], str]:
    # what a surrounding pytest or a user's shell sets must not change what ours collects
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory(prefix="vllm-spark-") as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junitxml={report}"]
        argv = [sys.executable, "-m", "pytest", *options, *guards]
        done = proc.run(argv, cwd=root, env={**env, "VLLM_SPARK_TREE": str(tree)}, check=False, timeout=_TIMEOUT)
        console.trace(done.output)
        cases = list(ET.parse(report).getroot().iter("testcase")) if report.exists() else []  # noqa: S314 - see above
    return done.status, cases, done.output


def _state(guard: str, cases: list[ET.Element], output: str) -> tuple[State, str]:
    """One guard's state over its parametrised cases: an error outweighs red, and red outweighs green."""
    file, *names = guard.split("::")
    module = file.removesuffix(".py").replace("/", ".")
    mine = [case for case in cases if case.get("file") == file and _path(case, module)[: len(names)] == names]
    uncollected = [case for case in cases if case.get("name") == module and case.find("error") is not None]
    results = [_case(case) for case in [*mine, *uncollected]]
    for state in ("error", "not run", "red"):
        for found, message in results:
            if found == state:
                return found, message
    if results:
        return "green", ""
    tail = [line for line in output.splitlines() if line.strip()]
    return "not run", tail[-1] if tail else "pytest said nothing"


def _path(case: ET.Element, module: str) -> list[str]:
    """A test's classes and its function, without parameters."""
    classes = case.get("classname", "").removeprefix(module).strip(".")
    return [*(classes.split(".") if classes else []), case.get("name", "").partition("[")[0]]


def _case(case: ET.Element) -> tuple[State, str]:
    if (error := case.find("error")) is not None:
        return "error", _first_line(error)
    if (failure := case.find("failure")) is not None:
        message = _first_line(failure)
        return ("red" if _ASSERTION.match(message) else "error"), message
    if (skipped := case.find("skipped")) is not None:
        return "not run", _first_line(skipped)
    return "green", ""


def _first_line(element: ET.Element) -> str:
    return element.get("message", "").split("\n")[0]
