"""`vllm-spark rebase`: carry the series to another vLLM release."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, paths
from vllm_spark.distro.rebase import report as reports
from vllm_spark.distro.rebase.known import normalise
from vllm_spark.distro.rebase.plan import make_plan
from vllm_spark.distro.rebase.session import Session, refuse_older
from vllm_spark.distro.rebase.state import Options
from vllm_spark.distro.rebase.steps import STEPS
from vllm_spark.distro.upstream import pins
from vllm_spark.errors import ConfigError, DecisionNeeded, PatchError, RuleError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from vllm_spark.distro.rebase.report import Report

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str, action: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(run=action)
        return sub

    plan = add("plan", "say what would become of each patch; writes nothing", _plan)
    begin = add("run", "carry the series; stops where a person is needed, ends with a branch", _run)
    for sub in (plan, begin):
        sub.add_argument("--onto", metavar="VERSION", required=True, help="the release to go to, such as 0.34.0")
        sub.add_argument("--source", type=Path, metavar="PATH", help="an sdist, a folder or a clone that has it")
        sub.add_argument("--history", type=Path, metavar="CLONE", help="a clone of upstream: commits, pull requests")
        sub.add_argument("--allow-older", action="store_true", help="the release may be older than the base")
    plan.add_argument("--patches", type=Path, metavar="DIR", help="another patches folder (default: the checkout's)")
    plan.add_argument("--report", type=Path, metavar="DIR", help="also write report.md, report.json and report.html")
    for name, text in STEPS.items():
        begin.add_argument(f"--skip-{name}", action="store_true", help=f"do without: {text}")
    go_on = add("continue", "go on with what the work tree holds, or without a patch", _continue)
    go_on.add_argument("--drop", metavar="PATCH", default="", help="let a patch go, with an entry in the ledger")
    go_on.add_argument("--why", metavar="REASON", default="", help="the reason for the ledger")
    undo = add("abort", "undo everything that `run` made", _abort)
    show = add("report", "show the report of the last run", _report)
    show.add_argument("--format", choices=("md", "json", "html"), default="md")
    for sub in (begin, go_on, undo, show):
        sub.add_argument("--work", type=Path, metavar="DIR", help="state, work tree, report (default: out/rebase)")


def run(args: argparse.Namespace) -> int:
    """Run the sub-verb."""
    action: Callable[[argparse.Namespace], int] = args.run
    return action(args)


def _session(args: argparse.Namespace) -> Session:
    return Session(paths.repo_root(), args.work.absolute() if args.work else None)


def _plan(args: argparse.Namespace) -> int:
    folder = args.patches.absolute() if args.patches else paths.repo_root() / "patches"
    upstream, version = pins.load(), normalise(args.onto)
    refuse_older(upstream.version, version, allowed=args.allow_older)
    report = make_plan(upstream, version, folder, source=args.source, history=args.history, diffs=bool(args.report))
    if args.report:
        reports.write(report, args.report)
    _show(report)
    verdicts = {result.verdict for result in report.results if result.stuck}
    if verdicts & {"broken", "conflict"}:
        return PatchError.exit_code
    return DecisionNeeded.exit_code if verdicts else 0


def _run(args: argparse.Namespace) -> int:
    options = Options(
        source=str(args.source.absolute()) if args.source else "",
        history=str(args.history.absolute()) if args.history else "",
        allow_older=args.allow_older,
        skip=tuple(name for name in STEPS if getattr(args, f"skip_{name}")),
    )
    return _finished(_session(args), lambda session: session.start(args.onto, options))


def _continue(args: argparse.Namespace) -> int:
    if bool(args.drop) != bool(args.why):
        raise ConfigError("--drop and --why go together", where="rebase continue", hint="say which patch, and why")
    return _finished(_session(args), lambda session: session.resume(args.drop, args.why))


def _finished(session: Session, action: Callable[[Session], Report]) -> int:
    try:
        report = action(session)
    except (PatchError, DecisionNeeded):
        if (session.work / "report.json").exists():
            _show(session.report())
        raise
    _show(report)
    console.say(f"{session.work / 'report.md'}, .json, .html; git log {report.branch}")
    failed = [step for step in report.steps if step.state == "failed"]
    if failed:
        hint = f"see {session.work / 'report.md'}; the branch {report.branch} is there to be mended"
        raise RuleError(f"check failed: {failed[0].detail}", where=failed[0].name, hint=hint)
    return 0


def _abort(args: argparse.Namespace) -> int:
    console.say(f"undone: {_session(args).abort()}")
    return 0


def _report(args: argparse.Namespace) -> int:
    report = _session(args).report()
    if args.format == "json":
        text = reports.to_json(report).decode()
    else:
        text = reports.markdown(report) if args.format == "md" else reports.html(report)
    console.result(text.rstrip("\n"))
    return 0


def _show(report: Report) -> None:
    rows = [[result.patch, result.verdict, "open" if result.stuck else "", result.why] for result in report.results]
    console.table(f"series on vLLM {report.onto}", ["patch", "verdict", "", "why"], rows)
    if report.findings:
        rows = [[each.what, each.old, each.new, each.follow] for each in report.findings]
        console.table("what our wheels must follow", ["what", report.base, report.onto, "follow"], rows)
    if report.steps:
        rows = [[step.name, step.state, f"{step.seconds:.0f} s", step.detail] for step in report.steps]
        console.table("checks", ["check", "state", "time", "detail"], rows)
    if report.unknown:
        console.warn(report.unknown)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in reports.notes(report):
            console.result(line)
    console.result(report.summary)
