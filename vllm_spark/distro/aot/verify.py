"""A file with compiled images as NVIDIA's tools see it, compared with what our own reader sees."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import paths, proc
from vllm_spark.distro.aot.members import extracted
from vllm_spark.distro.elf.kernels import cubin_kernels
from vllm_spark.distro.elf.payload import payload
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import FileSource
from vllm_spark.distro.elf.target import Form
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from vllm_spark.distro.elf.target import Target
    from vllm_spark.distro.ext.toolchain import Toolchain

__all__ = ["Verified", "disassembled_kernels", "verify", "verify_wheel"]

_LISTED = re.compile(r"\.(sm_\w+)\.(?:cubin|ptx)$", re.MULTILINE)


@dataclass(frozen=True)
class Verified:
    """What agreed: numbers of images listed, extracted for the target, and kernels disassembled."""

    name: str
    listed: int
    extracted: int
    kernels: int


def verify(path: Path, name: str, target: Target, tools: Toolchain, *, disassemble: bool = False) -> Verified:
    """Compare the file at `path` image by image; those for `target` byte by byte.

    Args:
        disassemble: also have nvdisasm print each image for `target`, and look for every kernel.

    Raises:
        ArtefactError: tools and reader disagree.
        ProcessError: a tool does not take the file.
    """
    with FileSource(path, name) as source:
        entries = [entry for one in read_shared_object(source).containers for entry in one.entries]
        cubins = [payload(source, one) for one in entries if one.form is Form.CUBIN and one.target == target]
    listed = 0
    for form, option in ((Form.CUBIN, "--list-elf"), (Form.PTX, "--list-ptx")):
        theirs = Counter(_LISTED.findall(proc.run([tools.cuobjdump, option, path], env=tools.env).text))
        # It drops the f of a cubin's target, and calls PTX sm_ like cubins.
        ours = Counter(
            f"sm_{one.target}".rstrip("f" if form is Form.CUBIN else "") for one in entries if one.form is form
        )
        if theirs != ours:
            raise ArtefactError(f"cuobjdump {option} lists {dict(theirs)}, we read {dict(ours)}", where=name)
        listed += ours.total()
    with tempfile.TemporaryDirectory(prefix="vllm-spark-aot-") as scratch:
        _extract(path.resolve(), cubins, target, tools, Path(scratch), name)
        kernels = _disassemble(Path(scratch), tools, name) if disassemble else 0
    return Verified(name, listed, len(cubins), kernels)


def verify_wheel(
    wheel: Path, target: Target, tools: Toolchain, *, disassemble: bool = False, names: Collection[str] | None = None
) -> Iterator[Verified]:
    """`verify` each shared object of a wheel that has device code.

    Args:
        names: these members only.

    Raises:
        ArtefactError, IntegrityError, ProcessError: as `verify`, or the wheel is not sound.
    """
    with tempfile.TemporaryDirectory(dir=paths.cache_dir(), prefix="aot-") as folder:
        for source in extracted(wheel, Path(folder), names):
            with source:
                if read_shared_object(source).containers:
                    yield verify(source.path, source.name, target, tools, disassemble=disassemble)
            source.path.unlink()


def _extract(path: Path, cubins: list[bytes], target: Target, tools: Toolchain, folder: Path, name: str) -> None:
    if not cubins:
        return
    proc.run([tools.cuobjdump, "--extract-elf", f"sm_{target}", path], cwd=folder, env=tools.env)
    theirs = Counter(hashlib.sha256(one.read_bytes()).hexdigest() for one in folder.iterdir())
    if theirs != Counter(hashlib.sha256(one).hexdigest() for one in cubins):
        what = f"cuobjdump extracts {theirs.total()} images for sm_{target} that are not the {len(cubins)} we read"
        raise ArtefactError(what, where=name)


def _disassemble(folder: Path, tools: Toolchain, name: str) -> int:
    total = 0
    for path in sorted(folder.iterdir()):
        kernels = cubin_kernels(path.read_bytes())
        shown = disassembled_kernels(path, tools)
        missing = sorted(set(kernels) - shown)
        if missing:
            raise ArtefactError(f"nvdisasm shows no code of {missing[0]}", where=name)
        total += len(kernels)
    return total


def disassembled_kernels(cubin: Path, tools: Toolchain) -> set[str]:
    """Names of the functions that nvdisasm shows code of."""
    listing = proc.run([tools.nvdisasm, "--print-code", cubin], env=tools.env).stdout
    return {name.decode() for name in re.findall(rb"^\s*\.text\.([\w$%.]+):", listing, re.MULTILINE)}
