"""`vllm-spark ext`: the compiled extension's toolchain and build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, paths
from vllm_spark.distro import profile
from vllm_spark.distro.ext import build, toolchain

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add `toolchain` and `build`."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = verbs.add_parser("toolchain", help="fetch and compose the compiler, and say where it is")
    built = verbs.add_parser("build", help="compile the extension into a wheel")
    for sub in (made, built):
        sub.add_argument("--profile", default="gb10-cu130", help="a file of build/profiles (default: %(default)s)")
    built.add_argument("--out", type=Path, help="folder for the wheel (default: dist/ of the checkout)")


def run(args: argparse.Namespace) -> int:
    """Do it and print the paths that came of it."""
    chosen = profile.load(args.profile)
    if args.action == "toolchain":
        tools = toolchain.ensure(chosen)
        rows = [("nvcc", str(tools.nvcc)), ("host compiler", str(tools.host_compiler()))]
        rows.append(("torch headers", str(tools.torch_include())))
        console.table(f"toolchain of {chosen.name}", ("what", "where"), rows)
        return 0

    console.result(str(build.build(chosen, args.out or paths.repo_root() / "dist")))
    return 0
