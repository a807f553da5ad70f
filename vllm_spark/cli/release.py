"""`vllm-spark release build|assemble|verify`: the whole release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.aot import summary
from vllm_spark.distro.release import assemble, describe, native, pipeline
from vllm_spark.distro.release import verify as verifying
from vllm_spark.errors import ArtefactError, ConfigError

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
    build.add_argument(
        "--aot",
        choices=[mode.value for mode in native.Aot],
        default="cached",
        help="machine code for what a driver would compile at first use: all of it (minutes the first time), "
        "what the cache has (default), none",
    )
    whole = verbs.add_parser("assemble", help="manifest, reports, statement, notes and sums", allow_abbrev=False)
    whole.add_argument("dir", type=Path, help="the folder with both wheels")
    whole.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="the bundle of this release")
    whole.add_argument("--index", type=Path, metavar="DIR", help="the index that lists them (default: DIR/index)")
    whole.add_argument("--profile", default="gb10-cu130", help="what the wheels were built for (default: gb10-cu130)")
    whole.add_argument("--image", type=Path, metavar="FILE", help="report of `image verify`")
    whole.add_argument("--previous", type=Path, metavar="FILE", help="manifest of the release before, for the notes")
    whole.add_argument(
        "--accept", default="", metavar="WHY", help="release although packages are vulnerable or unjudged"
    )
    whole.add_argument("--osv-url", metavar="URL", help="ask this OSV service instead of PyPI")
    whole.add_argument(
        "--builder", default=assemble.Options.builder, metavar="URI", help="who builds, for the statement"
    )
    check = verbs.add_parser("verify", help="is the folder the release that it says it is?", allow_abbrev=False)
    check.add_argument("dir", type=Path)
    check.add_argument("--index", type=Path, metavar="DIR", help="an index elsewhere (default: DIR/index)")
    check.add_argument("--signer", default="", metavar="IDENTITY", help="who must have signed it")
    check.add_argument("--issuer", default="", metavar="URL", help="who vouches for the signer")


def run(args: argparse.Namespace) -> int:
    """Run one sub-verb."""
    return {"build": _build, "assemble": _assemble, "verify": _verify}[args.action](args)


def _build(args: argparse.Namespace) -> int:
    release = pipeline.build(args.profile, args.out, args.index or args.out / "index", native.Aot(args.aot))
    console.table("Files", ("wheel", "MiB", "SHA-256"), describe.file_rows(release))
    console.table("Patches", ("patch", "class", "state"), describe.patch_rows(release))
    images = release.repacked.images
    if images:
        console.table("Fat binaries", summary.EXTENSION_COLUMNS, summary.extension_rows(images))
        for line in summary.open_ends(images):
            console.result(line)
    console.table("Steps", ("step", "seconds"), describe.step_rows(release))
    console.result(f"Index: {release.index}")
    return 0


def _assemble(args: argparse.Namespace) -> int:
    options = assemble.Options(
        bundle=args.bundle,
        index=args.index or args.dir / "index",
        profile=args.profile,
        image=args.image,
        previous=args.previous,
        accept=args.accept,
        osv_url=args.osv_url,
        builder=args.builder,
    )
    made = assemble.assemble(args.dir, options)
    console.result(f"{args.dir}: {made.project} {made.version}, {len(made.files)} files, {made.signature}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    if bool(args.signer) != bool(args.issuer):
        raise ConfigError("--signer and --issuer go together", hint="name both, or neither")
    found = verifying.verify(args.dir, index=args.index, signer=args.signer, issuer=args.issuer)
    for problem in found.problems:
        console.result(problem)
    if found.problems:
        what = f"{len(found.problems)} faults, the first: {found.problems[0]}"
        raise ArtefactError(what, where=str(args.dir), hint="fetch the release again")
    manifest = found.manifest
    console.result(
        f"{args.dir}: {manifest.project} {manifest.version}, {found.files} files, all sound; {manifest.signature}"
    )
    return 0
