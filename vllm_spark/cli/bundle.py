"""`vllm-spark bundle make|verify|unpack`: installing without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.bundle import make
from vllm_spark.distro.bundle import verify as verifying
from vllm_spark.distro.bundle.target import Target
from vllm_spark.distro.bundle.unpack import unpack
from vllm_spark.distro.upstream import pins

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    making = verbs.add_parser("make", help="resolve, download and write a bundle", allow_abbrev=False)
    making.add_argument("wanted", nargs="*", metavar="REQUIREMENT", help="default: this version of vllm-spark")
    making.add_argument("--python", default="3.12", help="of the target (default: 3.12)")
    making.add_argument("--platform", default="aarch64", help="machine of the target (default: aarch64)")
    making.add_argument("--glibc", default="2.39", help="of the target (default: 2.39, as in DGX OS 7)")
    making.add_argument("--index", default="dist/index", help="our index, folder or address (default: dist/index)")
    making.add_argument("--out", type=Path, metavar="PATH", help="folder, or NAME.tar (default: a folder in dist)")
    making.add_argument("--lock", type=Path, metavar="FILE", help="exactly what a lock.txt names")
    making.add_argument("--no-deps", action="store_true", help="the requirements alone")
    making.add_argument("--dry-run", action="store_true", help="say what it would hold and weigh, and stop")
    check = verbs.add_parser("verify", help="is every file there and unaltered?", allow_abbrev=False)
    check.add_argument("bundle", type=Path)
    taking = verbs.add_parser("unpack", help="take a bundle out of its tar, safely", allow_abbrev=False)
    taking.add_argument("tar", type=Path)
    taking.add_argument("out", type=Path, help="the new folder")


def run(args: argparse.Namespace) -> int:
    """Do what the sub-verb says."""
    if args.action == "make":
        return _make(args)
    if args.action == "unpack":
        console.result(str(unpack(args.tar, args.out)))
        return 0
    contents = verifying.verify(args.bundle)
    console.result(
        f"{args.bundle}: {len(contents.wheels)} wheels for Python {contents.python} on {contents.platform}, all sound"
    )
    return 0


def _make(args: argparse.Namespace) -> int:
    target = Target(args.python, args.platform, args.glibc)
    version = pins.load().package_version
    wanted = args.wanted or [f"vllm-spark=={version}"]
    with console.step("resolve"):
        planned = make.plan(wanted, args.index, target, dependencies=not args.no_deps, lock=args.lock)
    largest = sorted(planned.lock.wheels, key=lambda one: -one.size)
    shown = largest if args.dry_run else largest[:10]
    rows = [(f"{one.size / 2**20:.1f}", one.name) for one in shown]
    console.table("Wheels, largest first", ("MiB", "file"), rows)
    total, missing = planned.lock.size / 2**20, planned.missing / 2**20
    console.result(f"{len(largest)} wheels, {total:.0f} MiB; {missing:.0f} MiB to download")
    if args.dry_run:
        return 0
    name = f"vllm-spark-{version}-cp{args.python.replace('.', '')}-{args.platform}"
    console.result(f"Bundle: {make.make(planned, args.out or Path('dist', name))}")
    return 0
