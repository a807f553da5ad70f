import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark.distro.elf.fatbin import Compression, Container, Entry, container_header, containers
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import FileSource
from vllm_spark.distro.elf.target import Form
from vllm_spark.errors import ArtefactError

Make = Callable[[bytes], FileSource]


def entry(payload: bytes = bytes(8), *, kind: int = 2, number: int = 120, flags: int = 0x11, stored: int = 0) -> bytes:
    head = struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(payload), stored, 0, 8, 1, number, 0, 0, flags, 0, 0)
    return head + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return container_header(1, len(body)) + body


def read(source: FileSource) -> list[Container]:
    return list(containers(source, 0, source.size))


@pytest.mark.parametrize(
    ("file", "labels"),
    [
        ("many.so", [["sm_100f", "sm_120", "sm_80", "sm_90a", "compute_80"], ["sm_90a"]]),
        ("suffixes.so", [["compute_120f", "compute_121a", "compute_90", "sm_120a", "sm_120f", "sm_121", "sm_121a"]]),
        ("speed.so", [["compute_80", "sm_80"]]),
    ],
)
def test_images_of_real_files(
    data: Path, opened: Callable[[Path], FileSource], file: str, labels: list[list[str]]
) -> None:
    found = read_shared_object(opened(data / file)).containers
    assert [sorted(one.label for one in each.entries) for each in found] == [sorted(each) for each in labels]


def test_compression_of_real_files(data: Path, opened: Callable[[Path], FileSource]) -> None:
    def kinds(file: str) -> set[tuple[Form, Compression]]:
        found = read_shared_object(opened(data / file)).containers
        return {(one.form, one.compression) for each in found for one in each.entries}

    assert kinds("many.so") == {(Form.PTX, Compression.ZSTD), (Form.CUBIN, Compression.ZSTD)}
    assert kinds("speed.so") == {(Form.PTX, Compression.LZ4), (Form.CUBIN, Compression.NONE)}


def test_positions_and_room(from_bytes: Make) -> None:
    first, second = container(entry(), entry(bytes(16), kind=1, number=80)), container()
    found = read(from_bytes(bytes(8) + first + bytes(24) + second + bytes(7)))
    assert [(one.offset, one.size, one.room) for one in found] == [
        (8, len(first), len(first) + 24),
        (8 + len(first) + 24, 16, 23),
    ]
    assert [(one.offset, one.size, one.label) for one in found[0].entries] == [
        (24, 72, "sm_120"),
        (96, 80, "compute_80"),
    ]
    assert found[1].entries == ()


def test_unknown_kinds_keep_their_number(from_bytes: Make) -> None:
    (found,) = read(from_bytes(container(entry(kind=8, number=80), entry(kind=77))))
    assert [(one.form, one.label) for one in found.entries] == [
        (Form.OTHER, "kind8_80"),
        (Form.OTHER, "kind77_120"),
    ]


@pytest.mark.parametrize(
    ("flags", "stored", "kind"),
    [
        (0x11, 0, Compression.NONE),
        (0x2011, 5, Compression.LZ4),
        (0x8011, 5, Compression.ZSTD),
        (0xA011, 5, Compression.UNKNOWN),
        (0x11, 5, Compression.UNKNOWN),
        (0x8011, 0, Compression.UNKNOWN),
    ],
)
def test_compression_flags(from_bytes: Make, flags: int, stored: int, kind: Compression) -> None:
    (found,) = read(from_bytes(container(entry(flags=flags, stored=stored))))
    one: Entry = found.entries[0]
    assert one.compression is kind


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"garbage!" * 4, "not a fat binary"),
        (container(entry()) + b"rubbish-" * 2, "not a fat binary"),
        (container(entry())[:-1], "leaves its section"),
        (container_header(1, 0)[:10], "cut fat binary header"),
        (container_header(2, 0), "unknown fat binary version 2"),
        (container_header(1, 1 << 40), "leaves its section"),
        (container(entry()[:60]), "cut image header"),
        (container(entry(stored=9)), "leaves its fat binary"),
        (container(entry()[:-8]), "leaves its fat binary"),
        (container(entry()[:4] + struct.pack("<I", 8) + entry()[8:]), "leaves its fat binary"),
    ],
)
def test_malformed(from_bytes: Make, content: bytes, message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        read(from_bytes(content))
