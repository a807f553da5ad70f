"""`vllm-spark ext`: the compiled extension's toolchain and build."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, paths
from vllm_spark.distro import profile
from vllm_spark.distro.ext import build, library, report, toolchain

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add `toolchain` and `build`."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = verbs.add_parser("toolchain", help="fetch and compose the compiler, and say where it is")
    built = verbs.add_parser("build", help="compile the extension into a wheel")
    told = verbs.add_parser("report", help="registers, instructions and launch limits of every kernel (no GPU needed)")
    for sub in (made, built, told):
        sub.add_argument("--profile", default="gb10-cu130", help="a file of build/profiles (default: %(default)s)")
    built.add_argument("--out", type=Path, help="folder for the wheel (default: dist/ of the checkout)")
    told.add_argument("--json", type=Path, help="file for the whole record")


def run(args: argparse.Namespace) -> int:
    """Do it and print the paths that came of it."""
    chosen = profile.load(args.profile)
    if args.action == "toolchain":
        tools = toolchain.ensure(chosen)
        rows = [("nvcc", str(tools.nvcc)), ("host compiler", str(tools.host_compiler()))]
        rows.append(("torch headers", str(tools.torch_include())))
        console.table(f"toolchain of {chosen.name}", ("what", "where"), rows)
        return 0

    if args.action == "report":
        return _report(chosen, args.json)
    console.result(str(build.build(chosen, args.out or paths.repo_root() / "dist")))
    return 0


def _report(chosen: profile.Profile, json_file: Path | None) -> int:
    kernels = report.survey(library.compiled(chosen), toolchain.ensure(chosen))
    records = report.rows(kernels, report.GB10)
    if json_file is not None:
        paths.atomic_write(json_file, json.dumps(records, indent=1) + "\n")
    columns = ("kernel", "regs", "stack", "shared", "threads", "blocks/SM", "spill", "matrix", "all", "GB/s")
    table = [
        (
            _short(kernel.name),
            *(str(n) for n in (kernel.registers, kernel.stack, kernel.shared, kernel.threads)),
            str(record["blocks_per_sm"]),
            *(str(kernel.mix[kind]) for kind in ("spill", "matrix", "all")),
            str(record.get("gigabytes_per_second", "")),
        )
        for kernel, record in zip(kernels, records, strict=True)
    ]
    console.table(f"kernels of {chosen.name} on {report.GB10.name} (predicted GB/s of weights)", columns, table)
    report.check(kernels, report.GB10)
    return 0


def _short(name: str) -> str:
    """A mangled name without namespaces and parameters."""
    plain = re.sub(r"^_Z\w*?(w4_kernel|quantize_groups|quantize|find_largest|expand_\w+?|sum_slots)(?=I)", r"\1 ", name)
    return plain.split("EEv")[0].removeprefix("_Z")[:64]
