"""Look for a vLLM release newer than the base, carry the series to it, and leave what a person needs to act on it.

Leaves a branch `rebase/vX` when every patch could be settled, and always the report in `out/rebase` and a draft issue
in `out/new-tag/issue.md`. Exit codes: those of `vllm-spark rebase run`; 3 when there is no newer release.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, paths, proc
from vllm_spark.distro.rebase import report as reports
from vllm_spark.distro.rebase.known import newer
from vllm_spark.distro.rebase.session import Session
from vllm_spark.distro.rebase.steps import STEPS
from vllm_spark.distro.upstream import pins
from vllm_spark.errors import ConfigError, NothingToDo, SparkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_spark.distro.rebase.report import Report

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Do it; the return value is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pre", action="store_true", help="release candidates count as well")
    parser.add_argument("--history", metavar="CLONE", help="a clone of upstream, for commits and pull requests")
    for name, text in STEPS.items():
        parser.add_argument(f"--skip-{name}", action="store_true", help=f"do without: {text}")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except SparkError as err:
        console.error(err)
        return err.exit_code


def _run(args: argparse.Namespace) -> int:
    root = paths.repo_root()
    upstream = pins.load(root / "patches" / "upstream.toml")
    found = newer(upstream.project, upstream.version, pre=args.pre)
    if not found:
        raise NothingToDo(f"no release newer than {upstream.version}", where=upstream.project)
    version = found[-1]
    console.say(f"newer than {upstream.version}: {', '.join(found)}; trying {version}")
    words = [f"--skip-{name}" for name in STEPS if getattr(args, f"skip_{name}")]
    words += ["--history", args.history] if args.history else []
    done = proc.run([sys.executable, "-m", "vllm_spark", "rebase", "run", "--onto", version, *words], check=False)
    console.result(done.output)
    session = Session(root)
    if not (session.work / "report.json").exists():
        raise ConfigError(f"the rebase left no report (exit status {done.status})", where=version, hint="see above")
    report = session.report()
    issue = root / "out" / "new-tag" / "issue.md"
    paths.atomic_write(issue, _issue(report))
    _outputs({"version": version, "branch": report.branch, "issue": str(issue), "status": str(done.status)})
    console.result(str(issue))
    return done.status


def _issue(report: Report) -> str:
    """A draft for people: the first line is the title."""
    stuck = [result for result in report.results if result.stuck]
    need = "1 patch needs a person" if len(stuck) == 1 else f"{len(stuck)} patches need a person"
    title = f"vLLM {report.onto}: {need if stuck else 'the series is carried'}"
    if report.branch:
        way = f"The branch `{report.branch}` holds the result: look at it, and merge it."
    else:
        way = f"No branch yet. On a checkout: `vllm-spark rebase run --onto {report.onto}`, then as the report says."
    body = reports.markdown(report).encode("utf-8", "replace").decode()
    return f"{title}\n\n{way}\n\n{body}"


def _outputs(values: dict[str, str]) -> None:
    """Hand values to the next steps of a workflow."""
    target = os.environ.get("GITHUB_OUTPUT")
    if target:
        with Path(target).open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())


if __name__ == "__main__":
    sys.exit(main())
