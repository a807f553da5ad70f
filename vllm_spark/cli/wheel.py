"""`vllm-spark wheel`: repack a wheel, look into one, audit one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.elf.target import Capability
from vllm_spark.distro.wheel.audit import audit
from vllm_spark.distro.wheel.expected import read_expectations
from vllm_spark.distro.wheel.facts import read_facts
from vllm_spark.distro.wheel.record import verify_record
from vllm_spark.distro.wheel.render import as_json, show_facts
from vllm_spark.distro.wheel.repack import repack
from vllm_spark.distro.wheel.rules import RULES
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    inspect = verbs.add_parser("inspect", help="what is in a wheel, extension by extension")
    inspect.add_argument("file", type=Path)
    inspect.add_argument("--cc", default="12.1", help="compute capability to judge for (default: 12.1, a GB10)")
    inspect.add_argument("--json", action="store_true", help="for machines")
    check = verbs.add_parser("audit", help="check a wheel against the rules W001 to W007; exit code 7 when one fails")
    check.add_argument("file", type=Path)
    check.add_argument("--original", type=Path, help="the wheel it was made from: prove that no kernel was lost")
    check.add_argument("--expected", type=Path, help="expectations (default: build/audit.toml)")
    check.add_argument("--patch", action="append", metavar="NAME", help="a patch that the SBOM must list; repeatable")
    pack = verbs.add_parser("repack", help="rewrite a wheel: version, tag, members, device code")
    pack.add_argument("file", type=Path)
    pack.add_argument("--out", type=Path, default=Path("dist"), help="folder of the new wheel (default: dist)")
    pack.add_argument("--version", required=True, help="version of the new wheel, such as 0.33.0+spark.1")
    pack.add_argument("--platform", help="platform tag (default: the one of the file name)")
    pack.add_argument("--replace", action="append", default=[], metavar="MEMBER=FILE", help="repeatable")
    pack.add_argument("--keep-for", metavar="CC", help="take out device code that this compute capability cannot use")


def run(args: argparse.Namespace) -> int:
    """Run one sub-verb."""
    return {"inspect": _inspect, "audit": _audit, "repack": _repack}[args.action](args)


def _inspect(args: argparse.Namespace) -> int:
    facts = read_facts(args.file, Capability.parse(args.cc))
    if args.json:
        console.result(json.dumps(as_json(facts), indent=1))
    else:
        show_facts(facts)
    return 0


def _audit(args: argparse.Namespace) -> int:
    outcome = audit(args.file, read_expectations(args.expected), patches=args.patch, original=args.original)
    show_facts(outcome.facts)
    for rule in RULES:
        found = [one.message for one in outcome.violations if one.rule == rule.id]
        for message in found:
            console.result(f"{rule.id}  FAIL  {message}")
        if not found:
            console.result(f"{rule.id}  ok    {rule.title}")
    return ArtefactError.exit_code if outcome.violations else 0


def _repack(args: argparse.Namespace) -> int:
    verify_record(args.file)
    done = repack(
        args.file,
        args.out,
        version=args.version,
        platform_tag=args.platform or args.file.name.removesuffix(".whl").split("-")[-1],
        replaced=dict(_replacement(text) for text in args.replace),
        keep_for=Capability.parse(args.keep_for) if args.keep_for else None,
    )
    rows = [
        (
            one.name,
            ", ".join(f"{count} {label}" for label, count in one.blanking.dropped.items()),
            str(one.blanking.emptied),
            f"{one.blanking.bytes_zeroed / 2**20:.1f}",
        )
        for one in done.blanked
    ]
    if rows:
        console.table("Taken out", ("extension", "images", "emptied fat binaries", "MiB zeroed"), rows)
    row = (str(done.path), str(done.size), done.sha256, f"{done.seconds['total']:.1f}")
    console.table("Wheel", ("file", "bytes", "sha256", "s"), [row])
    return 0


def _replacement(text: str) -> tuple[str, bytes]:
    member, separator, file = text.partition("=")
    if not separator or not Path(file).is_file():
        raise ConfigError("not MEMBER=FILE with a file that exists", where=f"--replace {text}")
    return member, Path(file).read_bytes()
