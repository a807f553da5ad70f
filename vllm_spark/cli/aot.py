"""`vllm-spark aot`: machine code for PTX, compiled ahead of time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, paths
from vllm_spark.distro import profile as profiles
from vllm_spark.distro.aot import summary
from vllm_spark.distro.aot.assembler import Assembler
from vllm_spark.distro.aot.fetch import open_packed
from vllm_spark.distro.aot.fill import fill, fill_from_wheel
from vllm_spark.distro.aot.members import survey
from vllm_spark.distro.aot.supply import open_supply
from vllm_spark.distro.aot.verify import verify, verify_wheel
from vllm_spark.distro.elf.source import FileSource, chunks
from vllm_spark.distro.ext import toolchain
from vllm_spark.distro.upstream import fetch, pins
from vllm_spark.distro.wheel.devicecode import DeviceCode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from vllm_spark.distro.aot.supply import CacheSupply

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    status = verbs.add_parser("status", help="each image of a wheel: native, compiled, or waiting for the driver")
    made = verbs.add_parser("compile", help="compile what the cache lacks; may be stopped and started again")
    made.add_argument("--jobs", type=int, metavar="N", help="images at once (default: one per core)")
    put = verbs.add_parser("splice", help="one shared object with the compiled images of the cache in it")
    put.add_argument("--keep-ptx", action="store_true", help="leave the PTX beside its machine code")
    put.add_argument("--out", type=Path, required=True, metavar="FILE")
    check = verbs.add_parser("verify", help="compare our reader with cuobjdump and nvdisasm, image by image")
    check.add_argument("--disassemble", action="store_true", help="every kernel; minutes for a whole wheel")
    pack = verbs.add_parser("pack", help="write the cache into one file")
    unpack = verbs.add_parser("unpack", help="take over a packed cache")
    for sub in (status, made, check):
        sub.add_argument("file", type=Path, nargs="?", help="a wheel or .so (default: upstream's pinned wheel)")
    put.add_argument("file", type=Path)
    pack.add_argument("file", type=Path)
    unpack.add_argument("file", help="a file, or an https URL")
    unpack.add_argument("--sha256", help="what the file must have; a URL needs it")
    for sub in (status, made, put, check, pack, unpack):
        sub.add_argument("--profile", default="gb10-cu130", help="a file of build/profiles (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run one sub-verb."""
    actions: dict[str, Callable[[argparse.Namespace, CacheSupply], int]] = {
        "status": _status,
        "compile": _compile,
        "splice": _splice,
        "verify": _verify,
        "pack": _pack,
        "unpack": _unpack,
    }
    profile = profiles.load(args.profile)
    supply = open_supply(Assembler.of(toolchain.ensure(profile)), keep_ptx=args.action == "splice" and args.keep_ptx)
    if "jobs" in args or args.action in ("status", "verify"):
        args.file = args.file or _official(profile.machine)
    return actions[args.action](args, supply)


def _official(machine: str) -> Path:
    upstream = pins.load()
    return fetch.fetch(upstream.project, upstream.file("wheel", machine))


def _status(args: argparse.Namespace, supply: CacheSupply) -> int:
    images = survey(args.file, supply)
    console.table(f"{args.file.name} for {supply.device}", summary.IMAGE_COLUMNS, summary.image_rows(images))
    for line in summary.open_ends(images):
        console.result(line)
    return 0


def _compile(args: argparse.Namespace, supply: CacheSupply) -> int:
    if args.file.suffix == ".whl":
        done = fill_from_wheel(supply, args.file, args.jobs)
    else:
        with FileSource(args.file) as source:
            done = fill(supply, [source], args.jobs)
    row = (str(done.present), str(done.compiled), str(done.refused), f"{done.seconds:.1f}")
    console.table(f"Cache {supply.store.folder}", ("were there", "compiled", "refused by ptxas", "s"), [row])
    return 0


def _splice(args: argparse.Namespace, supply: CacheSupply) -> int:
    code = DeviceCode(supply.device, supply)
    with FileSource(args.file) as source:
        result = code.rewrite(source)
        with paths.atomic_file(args.out, mode=0o755) as file:
            if result is None:
                shutil.copyfileobj(args.file.open("rb"), file)
            else:
                file.writelines(chunks(result))
    console.table(str(args.out), summary.IMAGE_COLUMNS, summary.image_rows(code.images))
    return 0


def _verify(args: argparse.Namespace, supply: CacheSupply) -> int:
    tools, target = supply.assembler.tools, supply.target
    if args.file.suffix == ".whl":
        found = list(verify_wheel(args.file, target, tools, disassemble=args.disassemble))
    else:
        found = [verify(args.file, args.file.name, target, tools, disassemble=args.disassemble)]
    rows = [(one.name, str(one.listed), str(one.extracted), str(one.kernels or "-")) for one in found]
    columns = ("extension", "images listed alike", f"sm_{target} extracted alike", "kernels disassembled")
    console.table(args.file.name, columns, rows)
    return 0


def _pack(args: argparse.Namespace, supply: CacheSupply) -> int:
    count = supply.store.pack(args.file)
    console.result(f"{args.file}: {count} images, SHA-256 {fetch.sha256_of(args.file)}")
    return 0


def _unpack(args: argparse.Namespace, supply: CacheSupply) -> int:
    with open_packed(args.file, args.sha256) as path:
        done = supply.store.unpack(path)
    console.result(f"{supply.store.folder}: {done.added} images added, {done.present} were there")
    return 0
