"""Putting compiled images where a fat binary has dead machine code, so that the file keeps its layout.

A container is rewritten in place like a blanked one (`elf.blank`): its address stays, its size field shrinks, zeros
follow. It then holds the compiled image, and the PTX as well where that is asked for.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vllm_spark.distro.aot.candidates import Candidate, candidates, obstacle, text
from vllm_spark.distro.aot.program import check_same, read_program
from vllm_spark.distro.elf.fatbin import container_header
from vllm_spark.distro.elf.kernels import ptx_kernels
from vllm_spark.distro.elf.source import Edit, Span
from vllm_spark.distro.elf.target import Support
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_spark.distro.aot.program import Program
    from vllm_spark.distro.elf.fatbin import Container
    from vllm_spark.distro.elf.source import Source
    from vllm_spark.distro.elf.target import Capability, Target

__all__ = ["Absent", "Image", "Splice", "State", "Supply", "check_spliced", "splice"]


class State(enum.Enum):
    """What became of a fat binary that the device can use."""

    NATIVE = "native"  # had machine code for the device
    COMPILED = "compiled"
    MISSING = "not in the cache"
    KEPT = "kept as PTX"


@dataclass(frozen=True)
class Absent:
    """Why there is no machine code: not yet compiled, or not to be had."""

    state: State
    reason: str = ""


class Supply(Protocol):
    """Where machine code comes from."""

    @property
    def device(self) -> Capability:
        """What it is for."""

    @property
    def target(self) -> Target:
        """The same, as ptxas is told."""

    @property
    def keep_ptx(self) -> bool:
        """Whether PTX stays beside its machine code."""

    def find(self, ptx: bytes) -> Program | Absent:
        """The machine code of one PTX module."""


@dataclass(frozen=True)
class Image:
    """One fat binary in the summary.

    Attributes:
        label: what was there: machine code, or the PTX that the driver would compile.
        kernels: their number, 0 where it was not counted.
        room: bytes that the fat binary has.
        size: bytes of the compiled image, 0 for none.
    """

    extension: str
    container: int
    label: str
    kernels: int
    room: int
    size: int
    state: State
    reason: str = ""


@dataclass(frozen=True)
class Splice:
    """What is to be done to one shared object.

    Attributes:
        programs: by index of the container, what each edit puts there.
    """

    edits: tuple[Edit, ...]
    images: tuple[Image, ...]
    programs: dict[int, Program]


def splice(source: Source, found: Sequence[Container], supply: Supply) -> Splice:
    """Plan to replace the PTX of every fat binary that `supply` has machine code for.

    Raises:
        ArtefactError: an image is damaged or compressed in a way that we do not know.
    """
    waiting = {one.container.index: one for one in candidates(found, supply.device)}
    edits: list[Edit] = []
    images: list[Image] = []
    programs: dict[int, Program] = {}
    for container in found:
        candidate = waiting.get(container.index)
        if candidate is None:
            images += _native(source, container, supply.device)
            continue
        image, program = _prepare(source, candidate, supply)
        images.append(image)
        if program is not None:
            programs[container.index] = program
            edits.append(_edit(candidate, program, keep_ptx=supply.keep_ptx))
    return Splice(tuple(edits), tuple(images), programs)


def _native(source: Source, container: Container, device: Capability) -> list[Image]:
    labels = [one.label for one in container.entries if one.target.runs_on(device, one.form) is Support.NATIVE]
    return [Image(source.name, container.index, " ".join(labels), 0, container.room, 0, State.NATIVE)] if labels else []


def _prepare(source: Source, candidate: Candidate, supply: Supply) -> tuple[Image, Program | None]:
    container, entry = candidate.container, candidate.entry
    ptx = text(source, entry)
    kernels = ptx_kernels(ptx)
    reason = obstacle(source, candidate)
    found = Absent(State.KEPT, reason) if reason else supply.find(ptx)
    if not isinstance(found, Absent):
        reason = _misfit(source, candidate, found, kernels, keep_ptx=supply.keep_ptx)
        found = Absent(State.KEPT, reason) if reason else found
    place = (source.name, container.index, entry.label, len(kernels), container.room)
    if isinstance(found, Absent):
        return Image(*place, 0, found.state, found.reason), None
    check_same(ptx, found.cubin, supply.target, f"{source.name} fat binary {container.index}")
    return Image(*place, len(found.image), State.COMPILED), found


def _misfit(source: Source, candidate: Candidate, program: Program, kernels: tuple[str, ...], *, keep_ptx: bool) -> str:
    """Why the compiled image cannot take the place of the PTX; empty when it can."""
    for other in candidate.usable:
        more = set() if other is candidate.entry else set(ptx_kernels(text(source, other))) - set(kernels)
        if more:
            return f"{other.label} beside it has {len(more)} kernels more, such as {min(more)}"
    needed = _edit_size(candidate, program, keep_ptx=keep_ptx)
    room = candidate.container.room
    return f"needs {needed} bytes where {room} are" if needed > room else ""


def _kept(candidate: Candidate, *, keep_ptx: bool) -> tuple[Span, ...]:
    return tuple(Span(entry.offset, entry.size) for entry in candidate.usable) if keep_ptx else ()


def _edit_size(candidate: Candidate, program: Program, *, keep_ptx: bool) -> int:
    kept = sum(span.size for span in _kept(candidate, keep_ptx=keep_ptx))
    return candidate.container.header_size + len(program.image) + kept


def _edit(candidate: Candidate, program: Program, *, keep_ptx: bool) -> Edit:
    container, kept = candidate.container, _kept(candidate, keep_ptx=keep_ptx)
    body = len(program.image) + sum(span.size for span in kept)
    header = container_header(container.version, body)
    return Edit(container.offset, container.room, (header, program.image, *kept))


def check_spliced(
    before: Sequence[Container],
    source: Source,
    after: Sequence[Container],
    result: Source,
    plan: Splice,
    supply: Supply,
) -> None:
    """Prove from the two files that each rewritten fat binary holds the program that its PTX was, and no other.

    Raises:
        ArtefactError: it does not.
    """
    for candidate in candidates(before, supply.device):
        index = candidate.container.index
        if index not in plan.programs:
            continue
        new = after[index]
        where = f"{result.name} fat binary {index}"
        if new.offset != candidate.container.offset or not new.entries:
            raise ArtefactError("moved or emptied while being rewritten", where=where)
        first, *rest = new.entries
        alone = container_header(new.version, first.size) + result.read(first.offset, first.size)
        check_same(text(source, candidate.entry), read_program(alone, supply.target, where).cubin, supply.target, where)
        kept = [result.read(entry.offset, entry.size) for entry in rest]
        if kept not in ([], [source.read(entry.offset, entry.size) for entry in candidate.usable]):
            raise ArtefactError("holds something else than the compiled image and its PTX", where=where)
