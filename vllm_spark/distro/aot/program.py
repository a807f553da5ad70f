"""One compiled image: a fat binary with one cubin, and the proof that it is the program that the PTX was."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.elf.fatbin import containers
from vllm_spark.distro.elf.kernels import (
    assembled_for,
    cubin_kernels,
    cubin_variables,
    ptx_kernels,
    ptx_variables,
)
from vllm_spark.distro.elf.payload import payload
from vllm_spark.distro.elf.source import BytesSource
from vllm_spark.distro.elf.target import Form
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from vllm_spark.distro.elf.target import Target

__all__ = ["Program", "check_same", "read_program"]


@dataclass(frozen=True)
class Program:
    """A compiled image.

    Attributes:
        image: header and payload as they stand in a fat binary.
        cubin: the payload as ptxas made it.
    """

    image: bytes
    cubin: bytes


def read_program(fat_binary: bytes, target: Target, where: str) -> Program:
    """Read a fat binary that must hold one cubin for `target` and nothing else.

    Raises:
        ArtefactError: it holds anything else, or is damaged.
    """
    source = BytesSource(fat_binary, where)
    found = list(containers(source, 0, source.size))
    entries = [entry for one in found for entry in one.entries]
    if len(found) != 1 or len(entries) != 1 or (entries[0].form, entries[0].target) != (Form.CUBIN, target):
        labels = ", ".join(entry.label for entry in entries) or "nothing"
        raise ArtefactError(f"holds {labels} instead of one sm_{target}", where=where)
    entry = entries[0]
    return Program(source.read(entry.offset, entry.size), payload(source, entry))


def check_same(ptx: bytes, cubin: bytes, target: Target, where: str) -> None:
    """Kernels are launched, and variables written, by name: both files must have the same ones.

    Raises:
        ArtefactError: names differ, or the cubin was assembled for another target.
    """
    try:
        made_for = assembled_for(cubin)
        kernels, variables = cubin_kernels(cubin), set(cubin_variables(cubin))
    except (struct.error, IndexError, ValueError) as err:
        raise ArtefactError(f"no cubin ({err})", where=where) from err
    if made_for != f"sm_{target}":
        raise ArtefactError(f"assembled for {made_for}, not sm_{target}", where=where)
    if kernels != ptx_kernels(ptx):
        differing = sorted(set(kernels) ^ set(ptx_kernels(ptx)))
        raise ArtefactError(f"{len(differing)} kernels differ from the PTX, such as {differing[0]}", where=where)
    missing = sorted(set(ptx_variables(ptx)) - variables)
    if missing:
        raise ArtefactError(f"{len(missing)} variables of the PTX are missing, such as {missing[0]}", where=where)
