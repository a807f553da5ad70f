"""`vllm-spark image plan|build|verify`: the container image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from vllm_spark import console, paths
from vllm_spark.distro.image import build as building
from vllm_spark.distro.image import plan as planning
from vllm_spark.distro.image import verify as verifying
from vllm_spark.distro.release import gather
from vllm_spark.distro.upstream import pins
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    import argparse

    from vllm_spark.distro.image.report import Report

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (("plan", "base, contents, labels and commands; builds nothing"), ("build", "build it")):
        one = verbs.add_parser(name, help=text, allow_abbrev=False)
        one.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="what to install (bundle make)")
        one.add_argument("--base", metavar="IMAGE@sha256:…", help="another base, or a localhost/ one")
        one.add_argument(
            "--packages", metavar="NAMES", help='Debian packages to add; "" for none (default: see Dockerfile)'
        )
        one.add_argument("--tag", help="default: localhost/vllm-spark:VERSION")
        one.add_argument("--out", type=Path, default=Path("dist/image"), metavar="DIR", help="default: dist/image")
        one.add_argument("--tool", choices=("buildah", "docker"), help="default: whichever is installed")
    check = verbs.add_parser("verify", help="is it what its labels say, and made from our wheels?", allow_abbrev=False)
    check.add_argument("dir", type=Path, help="an OCI layout, or a dir: copy")
    check.add_argument("--wheels", type=Path, default=Path("dist"), metavar="DIR", help="the release's (default: dist)")
    check.add_argument("--report", type=Path, metavar="FILE", help="for `release assemble --image`")


def run(args: argparse.Namespace) -> int:
    """Run one sub-verb."""
    if args.action == "verify":
        return _verify(args)
    args.tag = args.tag or f"localhost/vllm-spark:{pins.load().package_version}"
    revision = gather.source().commit
    planned = planning.plan(args.bundle, base=args.base, packages=args.packages, revision=revision)
    if args.action == "plan":
        _show(planned, args)
    else:
        console.result(f"Image: {building.build(planned, args.tag, args.out, args.tool)}")
    return 0


def _show(planned: planning.Plan, args: argparse.Namespace) -> None:
    size = sum(one.size for one in planned.contents.wheels)
    rows = [("base", planned.base), ("platform", f"linux/{planned.architecture}"), ("bundle", str(planned.bundle))]
    rows += [("wheels", f"{len(planned.contents.wheels)}, {size / 2**20:.0f} MiB")]
    rows += [("unpacked", f"{planned.contents.unpacked / 2**20:.0f} MiB")]
    console.table("Inputs", ("what", "value"), rows)
    console.table("Labels", ("label", "value"), sorted(planned.labels.items()))
    for command in building.commands(planned, args.tag, args.out, building.choose(args.tool)):
        console.result(" ".join(command))


def _verify(args: argparse.Namespace) -> int:
    report, problems = verifying.verify(args.dir, gather.wheels(args.wheels, pins.load()))
    _table(report)
    for problem in problems:
        console.result(problem)
    if problems:
        what = f"{len(problems)} faults, the first: {problems[0]}"
        raise ArtefactError(what, where=str(args.dir), hint="build the image anew")
    if args.report:
        paths.atomic_write(args.report, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    console.result(f"{args.dir}: {report.digest}, made from the wheels of {args.wheels}")
    return 0


def _table(report: Report) -> None:
    largest = list(report.packages.items())[:10]
    rows = [("base", f"{report.base_unpacked / 1e6:.0f}"), *((name, f"{size / 1e6:.0f}") for name, size in largest)]
    rows += [(f"{len(report.packages) - len(largest)} other packages", f"{_rest(report, largest) / 1e6:.0f}")]
    rows += [("added by us", f"{report.added / 1e6:.0f}"), ("all files", f"{report.unpacked / 1e6:.0f}")]
    rows += [("as pulled, compressed", f"{report.compressed / 1e6:.0f}")]
    console.table(f"{report.platform} on {report.base}", ("what is in it", "MB"), rows)


def _rest(report: Report, largest: list[tuple[str, int]]) -> int:
    return sum(report.packages.values()) - sum(size for _name, size in largest)
