import contextlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vllm_spark.distro.aot.program import Program
from vllm_spark.distro.aot.splice import Absent, State
from vllm_spark.distro.elf.fatbin import Container, Entry, container_header
from vllm_spark.distro.elf.payload import payload
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import Edit, EditedSource, FileSource, Part, Source, Span
from vllm_spark.distro.elf.target import Capability, Target

DATA = Path(__file__).resolve().parents[2] / "data" / "wheel"
GB10 = Capability(12, 1)
SM_121 = Target(121)


@pytest.fixture
def suffixes() -> Iterator[FileSource]:
    """One fat binary with the same three kernels for every kind of target, PTX for 9.0 and cubin for 12.1 included."""
    with FileSource(DATA / "suffixes.so") as source:
        yield source


@pytest.fixture
def opened() -> Iterator[Callable[[str], FileSource]]:
    """Files of tests/data/wheel."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(FileSource(DATA / name))


def only(source: Source) -> Container:
    (container,) = read_shared_object(source).containers
    return container


def entry(source: Source, label: str) -> Entry:
    return next(one for one in only(source).entries if one.label == label)


def reduced(source: Source, *parts: Entry | bytes) -> EditedSource:
    """`source` with nothing but `parts` in its fat binary."""
    container = only(source)
    body: list[Part] = [Span(one.offset, one.size) if isinstance(one, Entry) else one for one in parts]
    size = sum(part.size if isinstance(part, Span) else len(part) for part in body)
    header = container_header(container.version, size)
    return EditedSource(source, [Edit(container.offset, container.size, (header, *body))])


def plain_ptx(text: bytes, number: int) -> bytes:
    """An image with uncompressed PTX."""
    data = text + bytes(-len(text) % 8)
    head = struct.pack("<HHIQIIHHIIIQQQ", 1, 0x101, 64, len(data), 0, 0, 0, 9, number, 0, 0, 0x11, 0, 0)
    return head + data


@pytest.fixture
def program(suffixes: FileSource) -> Program:
    """What ptxas made of the kernels of suffixes.so for 12.1."""
    cubin = entry(suffixes, "sm_121")
    return Program(suffixes.read(cubin.offset, cubin.size), payload(suffixes, cubin))


@pytest.fixture
def waiting(suffixes: FileSource) -> EditedSource:
    """The file as an extension that has PTX only."""
    return reduced(suffixes, entry(suffixes, "compute_90"))


@dataclass
class Shelf:
    """A supply that has one program, or none."""

    program: Program | Absent = field(default_factory=lambda: Absent(State.MISSING))
    keep_ptx: bool = False
    device: Capability = GB10
    target: Target = SM_121

    def find(self, ptx: bytes) -> Program | Absent:
        assert b".version" in ptx
        assert not ptx.endswith(b"\0")
        return self.program
