"""`vllm-spark release`: the whole release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.release import describe, pipeline

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = verbs.add_parser("build", help="both wheels, their audit and the index", allow_abbrev=False)
    build.add_argument("--profile", default="gb10-cu130", help="a file of build/profiles (default: gb10-cu130)")
    build.add_argument("--out", type=Path, default=Path("dist"), metavar="DIR", help="for the wheels (default: dist)")
    build.add_argument("--index", type=Path, metavar="DIR", help="the index to add to (default: OUT/index)")


def run(args: argparse.Namespace) -> int:
    """Build, then print what was built."""
    release = pipeline.build(args.profile, args.out, args.index or args.out / "index")
    console.table("Files", ("wheel", "MiB", "SHA-256"), describe.file_rows(release))
    console.table("Patches", ("patch", "class", "state"), describe.patch_rows(release))
    console.table("Steps", ("step", "seconds"), describe.step_rows(release))
    console.result(f"Index: {release.index}")
    return 0
