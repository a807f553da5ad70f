import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.aot.conftest import entry, only, reduced
from vllm_spark.distro.aot.candidates import candidates, obstacle, text
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import BytesSource, EditedSource, FileSource, chunks
from vllm_spark.distro.elf.target import Capability
from vllm_spark.errors import ArtefactError

Open = Callable[[str], FileSource]


@pytest.mark.parametrize(
    ("file", "device", "taken"),
    [
        ("speed.so", "12.1", ["compute_80"]),
        ("speed.so", "9.0", ["compute_80"]),
        ("speed.so", "8.0", []),  # has sm_80
        ("speed.so", "7.5", []),  # older than the PTX
        ("many.so", "12.1", []),  # has sm_120; its second fat binary has nothing at all for 12.1
        ("suffixes.so", "12.1", []),
        ("suffixes.so", "12.0", []),
        ("suffixes.so", "10.0", ["compute_90"]),
        ("elsewhere.so", "12.1", []),
        ("unstable.so", "12.1", []),
    ],
)
def test_rule(opened: Open, file: str, device: str, taken: list[str]) -> None:
    source = opened(file)
    found = list(candidates(read_shared_object(source).containers, Capability.parse(device)))
    assert [one.entry.label for one in found] == taken
    assert [obstacle(source, one) for one in found] == [""] * len(taken)


def test_takes_the_latest_ptx(suffixes: FileSource) -> None:
    labels = ("compute_90", "compute_121a", "compute_120f")
    source = reduced(suffixes, *(entry(suffixes, label) for label in labels))
    (found,) = candidates(read_shared_object(source).containers, Capability(12, 1))
    assert found.entry.label == "compute_121a"
    assert [one.label for one in found.usable] == list(labels)
    (found,) = candidates(read_shared_object(source).containers, Capability(12, 0))
    assert found.entry.label == "compute_120f"


def changed(source: EditedSource, at: int, data: bytes) -> BytesSource:
    whole = bytearray(b"".join(chunks(source)))
    whole[at : at + len(data)] = data
    return BytesSource(bytes(whole), source.name)


def test_obstacles(waiting: EditedSource, suffixes: FileSource) -> None:
    device = Capability(12, 1)
    ptx = only(waiting).entries[0]
    # The note about options of `-Xptxas`: where it starts in the header, and its length; 80 bytes hold eight of it.
    (block,) = struct.unpack("<I", waiting.read(ptx.offset + 20, 4))
    assert block == 64
    noted = changed(waiting, ptx.offset + block, struct.pack("<II", 72, 8) + b"-O1 -v\0\0")
    (found,) = candidates(read_shared_object(noted).containers, device)
    assert obstacle(noted, found) == "was made with ptxas options: -O1 -v"
    damaged = changed(waiting, ptx.offset + block, struct.pack("<II", 72, 9))
    with pytest.raises(ArtefactError, match="damaged header of a compute_90 image"):
        obstacle(damaged, next(candidates(read_shared_object(damaged).containers, device)))
    strange = changed(reduced(suffixes, ptx_of(suffixes), ptx_of(suffixes)), ptx.offset, struct.pack("<H", 77))
    (found,) = candidates(read_shared_object(strange).containers, device)
    assert obstacle(strange, found) == "holds an image of unknown kind 77 beside it"


def ptx_of(source: FileSource) -> bytes:
    ptx = entry(source, "compute_90")
    return source.read(ptx.offset, ptx.size)


def test_relocatable(opened: Open) -> None:
    source = opened("speed.so")
    (found,) = candidates(read_shared_object(source).containers, Capability(12, 1))
    other = replace(found, container=replace(found.container, relocatable=True))
    assert obstacle(source, other) == "is to be linked on the device"


def test_unknown_compression(waiting: EditedSource) -> None:
    flags = only(waiting).entries[0].flags | 0x2000
    source = changed(waiting, only(waiting).entries[0].offset + 40, struct.pack("<Q", flags))
    (found,) = candidates(read_shared_object(source).containers, Capability(12, 1))
    with pytest.raises(ArtefactError, match="unknown compression"):
        text(source, found.entry)
