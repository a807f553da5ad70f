"""Packs the patched vLLM and our extension for a GPU machine without a network.

    python -m tests.gpu.pack [--profile h100-cu130] [--out out/gpu]

The machine has Python 3.12, PyTorch 2.11 for CUDA 13.0 and little else. Two parts of some 50 MB are written, to be
carried there in whichever way there is:

    site.tar.xz   the patched vLLM, vllm_spark and the compiled extension; device code for that GPU only
    wheels/       what vLLM imports and such a machine lacks

`tests/gpu/unpack.sh SITE PART…` puts them into a folder for PYTHONPATH. FlashAttention's device code is left out,
for its size: run with TRITON_ATTN and VLLM_USE_FLASHINFER_SAMPLER=0.
"""

from __future__ import annotations

import argparse
import configparser
import lzma
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, paths, proc
from vllm_spark.distro import profile as profiles
from vllm_spark.distro.elf.blank import plan_blanking
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import EditedSource, FileSource, chunks
from vllm_spark.distro.elf.target import Capability
from vllm_spark.distro.ext.library import LIBRARY, compiled
from vllm_spark.distro.release.patched import apply_for_wheel
from vllm_spark.distro.upstream import fetch, pins
from vllm_spark.distro.wheel.repack import repack

if TYPE_CHECKING:
    from vllm_spark.distro.profile import Profile

# Extensions that a text model needs; the others are large and only imported on demand.
EXTENSIONS = {"_C_stable_libtorch", "_moe_C_stable_libtorch", "_vllm_fa2_C", "cumem_allocator", "spinloop", "fs_io_C"}
WITHOUT_CODE = "_vllm_fa2_C"  # imported at start, too large to carry
LEFT_OUT = ("vllm/vllm-rs", "vllm/third_party/fmha_sm100/", "vllm/third_party/deep_gemm/", "vllm/third_party/tml_fa4/")
GLIBC = ("39", "36", "35", "34", "31", "28", "27", "24", "17", "12", "5")


def wanted(name: str) -> bool:
    if name.startswith(LEFT_OUT):
        return False
    return not name.endswith(".so") or Path(name).name.split(".")[0] in EXTENSIONS


def strip_code(path: Path) -> None:
    """Take all device code out: no device has capability 0.0."""
    with FileSource(path) as source:
        edits = plan_blanking(read_shared_object(source).containers, Capability.parse("0.0")).edits
        data = b"".join(chunks(EditedSource(source, edits)))
    path.write_bytes(data)


def site(profile: Profile, folder: Path) -> Path:
    """The tree that PYTHONPATH will name."""
    upstream = pins.load()
    official = fetch.fetch(upstream.project, upstream.file("wheel", profile.machine))
    patched = apply_for_wheel(upstream, official)
    made = repack(
        official,
        folder,
        version=upstream.vllm_version,
        platform_tag=official.name.removesuffix(".whl").split("-")[-1],
        replaced=patched.replaced,
        added=patched.added,
        keep_for=Capability.parse(profile.compute_capability),
    )
    tree = folder / "site"
    with zipfile.ZipFile(made.path) as wheel:
        for name in filter(wanted, wheel.namelist()):
            wheel.extract(name, tree)
    for path in tree.rglob(f"{WITHOUT_CODE}*.so"):
        strip_code(path)
    root = paths.repo_root()
    for path in (root / "vllm_spark").rglob("*.py"):
        target = tree / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (tree / LIBRARY).write_bytes(compiled(profile, strict=True).read_bytes())
    register(tree, upstream.package_version)
    return tree


def register(tree: Path, version: str) -> None:
    """Give vllm_spark the metadata by which vLLM finds its plugin."""
    project = tomllib.loads((paths.repo_root() / "pyproject.toml").read_text())["project"]
    folder = tree / f"vllm_spark-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    points = configparser.ConfigParser()
    points.read_dict(project["entry-points"])
    with (folder / "entry_points.txt").open("w") as file:
        points.write(file)


def download(folder: Path, machine: str) -> None:
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + [
        f"manylinux{year}_{machine}" for year in (2014, 2010)
    ]
    proc.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
            *("--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "abi3", "--abi", "none"),
            *(word for tag in tags for word in ("--platform", tag)),
            *("--dest", folder, "--requirement", Path(__file__).parent / "requirements.txt"),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="h100-cu130")
    parser.add_argument("--out", type=Path, default=Path("out/gpu"))
    args = parser.parse_args()
    profile = profiles.load(args.profile)
    with tempfile.TemporaryDirectory() as name, console.step("pack the site"):
        tree = site(profile, Path(name))
        # Level 3 gives up a tenth of the size for a third of the time.
        with (
            paths.atomic_file(args.out / "site.tar.xz") as raw,
            lzma.open(raw, "wb", preset=3) as packed,
            tarfile.open(fileobj=packed, mode="w|") as archive,
        ):
            archive.add(tree, arcname=".")
    with paths.atomic_dir(args.out / "wheels") as folder, console.step("download what the machine lacks"):
        download(folder, profile.machine)
    for part in (args.out / "site.tar.xz", args.out / "wheels"):
        size = part.stat().st_size if part.is_file() else sum(path.stat().st_size for path in part.iterdir())
        console.result(f"{part}: {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
