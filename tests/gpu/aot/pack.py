"""Packs what `tests/gpu/aot/prove.py` needs on a GPU machine without a network.

    python -m tests.gpu.aot.pack [--out .carry]

The machine has Python 3.12, PyTorch 2.11 for CUDA 13.0 and little else. Some 35 MB are written: FlashAttention 2 of
upstream's x86-64 wheel with the PTX of a covering set of images and nothing else, compiled images of the cache, the
CUDA tools, and the Python libraries that the step imports. Then, there, in a copy of this checkout:
`python3 -m tests.gpu.aot.prove .carry OUT`.
"""

from __future__ import annotations

import argparse
import lzma
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, proc
from vllm_spark.distro import profile as profiles
from vllm_spark.distro.aot.assembler import Assembler
from vllm_spark.distro.aot.candidates import candidates, text
from vllm_spark.distro.aot.supply import open_supply
from vllm_spark.distro.elf.blank import plan_blanking
from vllm_spark.distro.elf.fatbin import container_header
from vllm_spark.distro.elf.kernels import ptx_kernels
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import Edit, EditedSource, FileSource, chunks
from vllm_spark.distro.ext import toolchain
from vllm_spark.distro.upstream import fetch, pins

if TYPE_CHECKING:
    from vllm_spark.distro.aot.supply import CacheSupply
    from vllm_spark.distro.ext.toolchain import Toolchain

PROFILE = "h100-cu130"
MEMBER = "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"
# Head size, keys per block (of paged kernels) and element type, as they stand in the mangled names of the kernels
# that the cases of prove.py use: sixteen images. 128 x 64 is what a caller that asks for one split gets.
PLAIN = {("64", "bfloat16_t"), ("128", "bfloat16_t"), ("256", "bfloat16_t"), ("128", "half_t")}
PAGED = {
    ("64", "256", "bfloat16_t"),
    ("128", "64", "bfloat16_t"),
    ("128", "128", "bfloat16_t"),
    ("128", "128", "half_t"),
}
KERNEL = re.compile(
    r"flash_fwd_(splitkv_)?kernelI23Flash_fwd_kernel_traitsILi(\d+)ELi\d+ELi(\d+)E\w*?7cutlass\d+(bfloat16_t|half_t)E"
)
LIBRARIES = (
    "pyelftools",
    "zstandard",
    "msgspec",
    "pypi-simple",
    "mailbits",
    "pytest",
    "pluggy",
    "iniconfig",
    "packaging",
)
TOOLS = ("ptxas", "fatbinary", "cuobjdump", "nvdisasm")


def wanted(kernel: str) -> bool:
    found = KERNEL.search(kernel)
    if found is None:
        return False
    paged, head, keys, element = found.groups()
    return (head, keys, element) in PAGED if paged else (head, element) in PLAIN


def reduced(source: FileSource, supply: CacheSupply) -> EditedSource:
    """The file with the PTX of the covering set, and without any other device code."""
    found = read_shared_object(source).containers
    blanking = {edit.offset: edit for edit in plan_blanking(found, supply.device).edits}
    for one in candidates(found, supply.device):
        if not any(map(wanted, ptx_kernels(text(source, one.entry)))):
            blanking[one.container.offset] = Edit(one.container.offset, one.container.size, (container_header(1, 0),))
    return EditedSource(source, list(blanking.values()))


def write_site(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        proc.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
                *("--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "none"),
                *("--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64"),
                *("--platform", "manylinux_2_28_x86_64", "--dest", scratch, *LIBRARIES),
            ]
        )
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    archive.extract(name, folder)


def write_cache(supply: CacheSupply, stock: Path, folder: Path) -> None:
    """The images of `stock` that are compiled already; prove.py compiles the others."""
    target = folder / supply.store.folder.name
    target.mkdir(parents=True)
    with FileSource(stock) as source:
        for one in candidates(read_shared_object(source).containers, supply.device):
            key = supply.assembler.key(text(source, one.entry))
            image = supply.store.folder / f"{key}.image"
            if image.exists():
                shutil.copy(image, target)


def pack(out: Path, tools: Toolchain) -> None:
    supply = open_supply(Assembler.of(tools))
    upstream = pins.load()
    wheel = fetch.fetch(upstream.project, upstream.file("wheel", tools.profile.machine))
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "aot")
        tree.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            original = Path(archive.extract(MEMBER, scratch))
        with FileSource(original) as source, (tree / "stock.so").open("wb") as file:
            file.writelines(chunks(reduced(source, supply)))
        write_site(tree / "site")
        write_cache(supply, tree / "stock.so", tree / "cache" / "aot")
        (tree / "bin").mkdir()
        for name in TOOLS:
            shutil.copy(tools.root / "bin" / name, tree / "bin")
        out.mkdir(parents=True, exist_ok=True)
        with lzma.open(out / "aot.tar.xz", "wb", preset=6) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(tree, "aot")
    console.result(f"{out / 'aot.tar.xz'}: {(out / 'aot.tar.xz').stat().st_size / 2**20:.1f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(".carry"))
    pack(parser.parse_args().out, toolchain.ensure(profiles.load(PROFILE)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
