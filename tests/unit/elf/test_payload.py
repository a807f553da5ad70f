import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_spark.distro.elf.fatbin import Flag
from vllm_spark.distro.elf.kernels import assembled_for, cubin_kernels, kernels, ptx_kernels
from vllm_spark.distro.elf.payload import LIMIT, lz4_block, payload
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import FileSource
from vllm_spark.distro.elf.target import Form, Suffix
from vllm_spark.errors import ArtefactError

Open = Callable[[Path], FileSource]
THREE = ("_Z5scaleILi2EEvPf", "_Z5scaleILi3EEvPf", "add_one")


@pytest.mark.parametrize(
    ("file", "names"),
    [("many.so", [THREE, ("hopper_only",)]), ("suffixes.so", [THREE]), ("speed.so", [("hopper_only",)])],
)
def test_kernels_of_real_files(data: Path, opened: Open, file: str, names: list[tuple[str, ...]]) -> None:
    source = opened(data / file)
    for container, expected in zip(read_shared_object(source).containers, names, strict=True):
        assert {kernels(source, entry) for entry in container.entries} == {expected}


def test_flags_agree_with_the_assemblers_note(data: Path, opened: Open) -> None:
    """The note keeps ptxas' -arch, the one place in a cubin that tells 120 from 120f."""
    seen = set()
    for file in ("many.so", "suffixes.so"):
        source = opened(data / file)
        for container in read_shared_object(source).containers:
            for entry in container.entries:
                note = assembled_for(payload(source, entry)) if entry.form is Form.CUBIN else None
                if note is not None:
                    assert note == entry.label
                    seen.add(entry.target.suffix)
    assert seen == set(Suffix)


def test_ptx_names_its_own_target(data: Path, opened: Open) -> None:
    source = opened(data / "suffixes.so")
    for entry in read_shared_object(source).containers[0].entries:
        if entry.form is Form.PTX:
            assert b".target sm_" + str(entry.target).encode() in payload(source, entry)


def test_damage_is_named(data: Path, opened: Open) -> None:
    source = opened(data / "many.so")
    good = read_shared_object(source).containers[0].entries[0]
    for bad, message in [
        (replace(good, raw_size=good.raw_size - 1), "damaged"),
        (replace(good, raw_size=good.raw_size + 1), "bytes, not"),
        (replace(good, raw_size=LIMIT + 1), "says it has"),
        (replace(good, offset=good.offset + 8), "damaged"),
        (replace(good, flags=good.flags & ~Flag.ZSTD | Flag.LZ4), "damaged"),
        (replace(good, flags=good.flags | Flag.LZ4), "unknown compression"),
        (replace(good, offset=source.size), "ends before byte"),
    ]:
        with pytest.raises(ArtefactError, match=message):
            payload(source, bad)


def test_plain_bytes_that_are_no_cubin(data: Path, opened: Open) -> None:
    source = opened(data / "speed.so")
    entry = next(one for one in read_shared_object(source).containers[0].entries if one.form is Form.CUBIN)
    with pytest.raises(ArtefactError, match="sm_80 image is no cubin"):
        kernels(source, replace(entry, offset=entry.offset + 8))


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (b"", b""),
        (b"\x30abc", b"abc"),
        (b"\x32abc\x03\x00\x10d", b"abcabcabcd"),  # match longer than its distance
        (b"\x1fa\x01\x00\x00\x10z", b"a" * 20 + b"z"),  # fifteen and an extension of 0
        (b"\xf0\x01" + b"x" * 16, b"x" * 16),
    ],
)
def test_lz4(block: bytes, text: bytes) -> None:
    assert lz4_block(block, len(text)) == text


@pytest.mark.parametrize(
    ("block", "limit"),
    [
        (b"\x40abc", 9),  # literals end early
        (b"\x10a\x02\x00\x10b", 99),  # reaches before the start
        (b"\x10a\x00\x00\x10b", 99),  # distance 0
        (b"\x10a\x01", 99),  # cut distance
        (b"\xf0\xff", 999),  # cut length
        (b"\x1fa\x01\x00\xff\xff\xff\x00", 300),  # longer than allowed
        (b"\x30abc", 2),
    ],
)
def test_damaged_lz4(block: bytes, limit: int) -> None:
    with pytest.raises((ValueError, IndexError)):
        lz4_block(block, limit)


def test_ptx_names() -> None:
    text = b".visible .entry  _Z1aPf(\n.entry b$1()\n.weak .entry\n\t%c(\n.func d(\n// .entries\n"
    assert ptx_kernels(text) == ("%c", "_Z1aPf", "b$1")


@pytest.mark.parametrize(
    "head", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(60), b"\x7fELF\x02\x01" + b"\xff" * 60]
)
def test_no_cubin(head: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        cubin_kernels(head)
