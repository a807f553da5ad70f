"""`vllm-spark release`: the whole release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.aot import summary
from vllm_spark.distro.release import describe, native, pipeline

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = verbs.add_parser("build", help="both wheels, their audit and the index", allow_abbrev=False)
    build.add_argument("--profile", default="gb10-cu130", help="a file of build/profiles (default: gb10-cu130)")
    build.add_argument("--out", type=Path, default=Path("dist"), metavar="DIR", help="for the wheels (default: dist)")
    build.add_argument(
        "--aot",
        choices=[mode.value for mode in native.Aot],
        default="cached",
        help="machine code for what a driver would compile at first use: all of it (minutes the first time), "
        "what the cache has (default), none",
    )
    build.add_argument("--index", type=Path, metavar="DIR", help="the index to add to (default: OUT/index)")


def run(args: argparse.Namespace) -> int:
    """Build, then print what was built."""
    release = pipeline.build(args.profile, args.out, args.index or args.out / "index", native.Aot(args.aot))
    console.table("Files", ("wheel", "MiB", "SHA-256"), describe.file_rows(release))
    console.table("Patches", ("patch", "class", "state"), describe.patch_rows(release))
    images = release.repacked.images
    if images:
        console.table("Fat binaries", summary.EXTENSION_COLUMNS, summary.extension_rows(images))
        for line in summary.open_ends(images):
            console.result(line)
        console.result("")
    console.table("Steps", ("step", "seconds"), describe.step_rows(release))
    console.result(f"Index: {release.index}")
    return 0
