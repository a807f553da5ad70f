"""Which PTX images a device would have to compile, found by what a fat binary holds and by nothing else.

The driver chooses within one fat binary: machine code that the device can run wins over PTX, and of several PTX images
the one for the latest target is taken. So what counts is a container without loadable machine code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.elf.payload import payload, ptxas_options
from vllm_spark.distro.elf.target import Form, Support

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vllm_spark.distro.elf.fatbin import Container, Entry
    from vllm_spark.distro.elf.source import Source
    from vllm_spark.distro.elf.target import Capability

__all__ = ["Candidate", "candidates", "obstacle", "text"]


@dataclass(frozen=True)
class Candidate:
    """A fat binary whose kernels `device` could run only after compiling PTX.

    Attributes:
        entry: the PTX that the driver would take.
        usable: all PTX that it could take, `entry` included, in file order.
    """

    container: Container
    entry: Entry
    usable: tuple[Entry, ...]


def candidates(found: Sequence[Container], device: Capability) -> Iterator[Candidate]:
    """The fat binaries that `device` has to compile something of."""
    for container in found:
        supports = [(entry, entry.target.runs_on(device, entry.form)) for entry in container.entries]
        usable = tuple(entry for entry, support in supports if support is Support.JIT)
        if usable and not any(support is Support.NATIVE for _, support in supports):
            yield Candidate(container, max(usable, key=lambda entry: entry.target.number), usable)


def text(source: Source, entry: Entry) -> bytes:
    """The PTX of an image, without the zeros that end a stored one.

    Raises:
        ArtefactError: it is damaged, or compressed in a way that we do not know.
    """
    return payload(source, entry).rstrip(b"\0")


def obstacle(source: Source, candidate: Candidate) -> str:
    """Why a candidate must stay as it is; empty when it need not."""
    if candidate.container.relocatable:
        return "is to be linked on the device"
    other = next((entry for entry in candidate.container.entries if entry.form is Form.OTHER), None)
    if other is not None:
        return f"holds an image of unknown kind {other.kind} beside it"
    options = ptxas_options(source, candidate.entry)
    return f"was made with ptxas options: {options}" if options else ""
