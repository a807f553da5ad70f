"""`vllm-spark doctor`: is this machine fit, and what is not?"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.errors import ArtefactError
from vllm_spark.host import doctor, facts

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--json", action="store_true", help="print the findings for machines")


def run(args: argparse.Namespace) -> int:
    """Print every finding; the exit code tells whether one of them is a failure."""
    findings = doctor.diagnose(facts.gather())
    if args.json:
        console.result(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        rows = [(finding.status, finding.check, finding.seen, finding.hint) for finding in findings]
        console.table("This machine", ("", "check", "seen", "what to do"), rows)
    failed = any(finding.status == "fail" for finding in findings)
    return ArtefactError.exit_code if failed else 0
