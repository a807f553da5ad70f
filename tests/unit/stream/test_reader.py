from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import checkpoints as fake
from vllm_spark.errors import ResourceError
from vllm_spark.runtime.stream.headers import Checkpoint, CheckpointError, scan
from vllm_spark.runtime.stream.plan import Limits, make_plan
from vllm_spark.runtime.stream.reader import Reader
from vllm_spark.runtime.stream.staging import PAGE, Ring

MIB = 1 << 20


def real(folder: Path, sizes: dict[str, dict[str, int]], seed: int = 0) -> dict[str, bytes]:
    """Shards with random content; returns it by key."""
    source = random.Random(seed)  # noqa: S311 - test data
    out: dict[str, bytes] = {}
    for name, tensors in sizes.items():
        data = {key: source.randbytes(size) for key, size in tensors.items()}
        fake.write_shard(folder / name, {key: ("U8", (len(raw),), raw) for key, raw in data.items()})
        out |= data
    return out


def gather(reader: Reader) -> dict[str, bytes]:
    got: dict[str, bytes] = {}
    for _, block, view in reader:
        got[block.tensor.key] = got.get(block.tensor.key, b"") + bytes(view)
    return got


LAYOUT = {
    "1.safetensors": {"l.0.a.weight": 3 * MIB + 13, "l.1.a.weight": 200_001, "norm": 77, "big": 11 * MIB},
    "2.safetensors": {"l.0.a.weight_scale": 500, "l.1.b.weight": 5 * MIB, "tail": 70_001},
}


@pytest.fixture
def content(tmp_path: Path) -> dict[str, bytes]:
    return real(tmp_path, LAYOUT)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("threads", [1, 8])
def test_every_byte_arrives(tmp_path: Path, content: dict[str, bytes], direct: bool, threads: int) -> None:
    found = scan(tmp_path)
    with Reader(make_plan(found, Limits(8 * MIB)), found, direct=direct, threads=threads) as reader:
        assert gather(reader) == content
        assert reader.ring.used == 0
    assert sum(map(len, content.values())) <= reader.stats.nbytes < 1.1 * sum(map(len, content.values()))


def test_the_staging_ring_bounds_what_is_in_memory(tmp_path: Path, content: dict[str, bytes]) -> None:
    found = scan(tmp_path)
    with Reader(make_plan(found, Limits(4 * MIB)), found) as reader:
        assert reader.ring.size == 4 * MIB
        for _ in reader:
            assert reader.ring.used <= 4 * MIB


def test_only_needed_bytes_are_fetched(tmp_path: Path, content: dict[str, bytes]) -> None:
    found = scan(tmp_path)
    needs = {"big": ((MIB, 2 * MIB),), "norm": ((0, 10),)}
    with Reader(make_plan(found, Limits(64 * MIB), needs), found) as reader:
        got = gather(reader)
    assert got["big"][MIB : 2 * MIB] == content["big"][MIB : 2 * MIB]
    assert got["norm"][:10] == content["norm"][:10]
    assert reader.stats.nbytes <= MIB + 4 * PAGE


def test_small_tensors_of_a_unit_stay_valid_until_the_unit_ends(tmp_path: Path, content: dict[str, bytes]) -> None:
    found = scan(tmp_path)
    kept = b""
    with Reader(make_plan(found, Limits(4 * MIB)), found) as reader:
        scale: memoryview | None = None
        for unit, block, view in reader:
            if block.tensor.key == "l.0.a.weight_scale":
                scale = view
            if block.tensor.key == "l.0.a.weight":
                assert unit.name == "l.0.a"
                assert scale is not None
                kept = bytes(scale)
    assert kept == content["l.0.a.weight_scale"]


def failing(after: int, code: int) -> object:
    calls = iter(range(10**9))
    lock = threading.Lock()

    def pread(fd: int, buffers: list[memoryview], at: int) -> int:
        with lock:
            if next(calls) >= after:
                raise OSError(code, os.strerror(code))
        return os.preadv(fd, buffers, at)

    return pread


@pytest.mark.parametrize("after", [0, 2, 5])
def test_a_disk_error_in_the_middle_names_file_key_and_offset(
    tmp_path: Path, content: dict[str, bytes], after: int
) -> None:
    found = scan(tmp_path)
    reader = Reader(make_plan(found, Limits(8 * MIB)), found, pread=failing(after, errno.EIO))  # type: ignore[arg-type]
    with reader, pytest.raises(ResourceError, match=r"\.safetensors: key '.*' at byte \d+: cannot be read \(Input"):
        gather(reader)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spark-read")]


def test_short_reads_are_completed(tmp_path: Path, content: dict[str, bytes]) -> None:
    def pread(fd: int, buffers: list[memoryview], at: int) -> int:
        return os.preadv(fd, [buffers[0][: max(PAGE, len(buffers[0]) // 3)]], at)

    found = scan(tmp_path)
    with Reader(make_plan(found, Limits(8 * MIB)), found, direct=False, pread=pread) as reader:
        assert gather(reader) == content


def test_a_file_that_ends_early_is_refused(tmp_path: Path, content: dict[str, bytes]) -> None:
    found = scan(tmp_path)
    reader = Reader(make_plan(found), found, pread=lambda *_: 0)
    with reader, pytest.raises(ResourceError, match="ended while it was read"):
        gather(reader)


def replace(found: Checkpoint) -> None:
    path = found.shards[0].path
    copy = path.with_suffix(".new")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def test_a_file_replaced_before_it_is_opened_is_refused(tmp_path: Path, content: dict[str, bytes]) -> None:
    found = scan(tmp_path)
    replace(found)
    with Reader(make_plan(found), found) as reader, pytest.raises(CheckpointError, match="changed"):
        gather(reader)


def test_a_file_written_to_while_it_is_read_is_refused(tmp_path: Path, content: dict[str, bytes]) -> None:
    found = scan(tmp_path)
    with Reader(make_plan(found, Limits(4 * MIB)), found) as reader:
        steps = iter(reader)
        next(steps)
        with found.shards[0].path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        with pytest.raises(CheckpointError, match="changed"):
            list(steps)


def test_a_missing_file_is_refused(tmp_path: Path, content: dict[str, bytes]) -> None:
    found = scan(tmp_path)
    found.shards[1].path.unlink()
    with Reader(make_plan(found), found) as reader, pytest.raises(ResourceError, match="No such file"):
        gather(reader)


def test_while_held_nothing_is_read_ahead(tmp_path: Path, content: dict[str, bytes]) -> None:
    found = scan(tmp_path)
    with Reader(make_plan(found, Limits(64 * MIB)), found, hold=lambda: True) as reader:
        steps = iter(reader)
        next(steps)
        ahead = reader.ring.used
        assert len(list(steps)) >= len(content) - 1
    with Reader(make_plan(found, Limits(64 * MIB)), found) as reader:
        next(iter(reader))
        assert reader.ring.used > ahead


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_leaving_early_leaves_no_thread_and_no_open_file(tmp_path: Path, content: dict[str, bytes]) -> None:
    found = scan(tmp_path)
    before = open_files()
    with pytest.raises(KeyboardInterrupt), Reader(make_plan(found), found) as reader:
        for _ in reader:
            raise KeyboardInterrupt
    assert open_files() == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spark-read")]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * PAGE)), max_size=40))
def test_ring_regions_never_overlap(steps: list[tuple[bool, int]]) -> None:
    ring, taken = Ring(8 * PAGE), []  # type: Ring, list[tuple[int, int]]
    for free, size in steps:
        if free and taken:
            ring.free(taken.pop(0)[0])
        at = ring.take(size)
        if at is not None:
            assert at + size <= ring.size
            assert all(at >= b or at + size <= a for a, b in taken)
            taken.append((at, at + size))
        else:
            assert taken, "an empty ring has room"


def test_a_ring_frees_only_the_oldest_and_refuses_what_can_never_fit() -> None:
    ring = Ring(4 * PAGE)
    first, second = ring.take(PAGE), ring.take(PAGE)
    assert (first, second) == (0, PAGE)
    with pytest.raises(ValueError, match="oldest"):
        ring.free(PAGE)
    with pytest.raises(ValueError, match="do not fit"):
        ring.take(5 * PAGE)
