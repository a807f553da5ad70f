from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from vllm_spark import paths
from vllm_spark.cli.main import main
from vllm_spark.errors import ConfigError, IntegrityError, NothingToDo
from vllm_spark.runtime.quant import cache
from vllm_spark.runtime.quant.cachewriter import Item, Writer
from vllm_spark.runtime.stream.plan import make_plan
from vllm_spark.runtime.stream.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GIB = 1 << 30
INPUTS = {"checkpoint": "abc", "policy": "def", "rank": 0, "model": "some/model"}


def item(key: str, size: int = 1000, seed: int = 0) -> Item:
    raw = random.Random(seed).randbytes(size)  # noqa: S311 - test data

    def data() -> Iterator[memoryview]:
        for at in range(0, size, 300):
            yield memoryview(raw)[at : at + 300]

    return Item(key, "U8", (size,), size, data)


def write(folder: Path, inputs: dict[str, object] | None = None, size: int = 1000, limit: int = GIB) -> list[str]:
    said: list[str] = []
    writer = Writer(folder, inputs or INPUTS, needed=2 * size, limit=limit, report=said.append)
    writer.add(item("a", size, 1))
    writer.add(item("b", size, 2))
    writer.finish(["source.a", "source.b"])
    writer.wait()
    return said


def content(entry: cache.Entry) -> dict[str, bytes]:
    found = entry.checkpoint()
    with Reader(make_plan(found), found, check=lambda b, v: entry.check(b.tensor.key, v)) as reader:
        return {block.tensor.key: bytes(view) for _, block, view in reader}


def only(folder: Path) -> cache.Entry:
    (entry,) = cache.entries(folder)
    return entry


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name != "locks"]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert write(tmp_path) == []
    entry = cache.find(tmp_path, cache.entry_key(INPUTS))
    assert entry is not None
    assert content(entry) == {k: b"".join(map(bytes, item(k, 1000, s).data())) for k, s in (("a", 1), ("b", 2))}
    assert entry.manifest["consumed"] == ["source.a", "source.b"]
    assert cache.verify(entry) == []
    assert entry.model == "some/model"


def test_the_address_follows_what_decides_the_bytes_and_not_the_models_path() -> None:
    base = cache.entry_key(INPUTS)
    assert cache.entry_key(INPUTS | {"model": "elsewhere"}) == base
    for name in ("checkpoint", "policy", "rank"):
        assert cache.entry_key(INPUTS | {name: "other"}) != base


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        file.write(bytes([byte[0] ^ 1]))


def part(entry: cache.Entry) -> Path:
    return entry.path / "part-00000.safetensors"


DAMAGE: list[tuple[str, Callable[[cache.Entry], object]]] = [
    ("a flipped bit", lambda e: flip(part(e), -1)),
    ("a shortened file", lambda e: os.truncate(part(e), part(e).stat().st_size - 1)),
    ("a missing file", lambda e: part(e).unlink()),
    ("a damaged header", lambda e: flip(part(e), 9)),
    ("a missing checksum", lambda e: (e.path / cache.MANIFEST).write_text(json.dumps(e.manifest | {"crc": {"a": 1}}))),
]


@pytest.mark.parametrize(("what", "damage"), DAMAGE, ids=[what for what, _ in DAMAGE])
def test_damage_is_found_by_verify_and_while_loading(
    tmp_path: Path, what: str, damage: Callable[[cache.Entry], object]
) -> None:
    write(tmp_path)
    damage(only(tmp_path))
    entry = only(tmp_path)
    assert cache.verify(entry)
    with pytest.raises((IntegrityError, OSError, Exception), match=r"\S"):
        content(entry)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"inputs": {}, "crc": {}, "consumed": 3}'])
def test_an_entry_without_a_readable_manifest_is_none_and_is_replaced(tmp_path: Path, text: str) -> None:
    write(tmp_path)
    key = only(tmp_path).key
    (tmp_path / key / cache.MANIFEST).write_text(text)
    assert cache.find(tmp_path, key) is None
    assert cache.entries(tmp_path) == []
    write(tmp_path)
    assert cache.verify(only(tmp_path)) == []


def entry_inputs(number: int) -> dict[str, object]:
    return INPUTS | {"checkpoint": str(number)}


def test_the_least_recently_used_entry_goes_first(tmp_path: Path) -> None:
    keys = [cache.entry_key(entry_inputs(i)) for i in range(3)]
    for i, key in enumerate(keys):
        write(tmp_path, entry_inputs(i))
        os.utime(tmp_path / key / cache.MANIFEST, (1000 + i, 1000 + i))
    assert cache.find(tmp_path, keys[0]) is not None  # used just now
    size = only_size(tmp_path)
    gone = cache.prune(tmp_path, 2 * size)
    assert [entry.key for entry in gone] == [keys[1]]
    assert {entry.key for entry in cache.entries(tmp_path)} == {keys[0], keys[2]}
    assert sorted(leftovers(tmp_path)) == sorted([keys[0], keys[2]])


def only_size(folder: Path) -> int:
    return max(entry.nbytes for entry in cache.entries(folder))


def test_writing_evicts_until_the_limit_holds(tmp_path: Path) -> None:
    size = 100_000
    write(tmp_path, entry_inputs(0), size)
    limit = only_size(tmp_path) + size
    write(tmp_path, entry_inputs(1), size, limit)
    write(tmp_path, entry_inputs(2), size, limit)
    assert len(cache.entries(tmp_path)) == 1
    assert only(tmp_path).key == cache.entry_key(entry_inputs(2))


def test_an_entry_larger_than_the_limit_is_not_begun_and_evicts_nothing(tmp_path: Path) -> None:
    write(tmp_path, entry_inputs(0))
    (said,) = write(tmp_path, entry_inputs(1), size=5000, limit=8000)
    assert "raise cache_gb" in said
    assert only(tmp_path).key == cache.entry_key(entry_inputs(0))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_or_failing_disk_ends_the_entry_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(_fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    (said,) = write(tmp_path)
    assert "not kept" in said
    assert "the load goes on" in said
    assert leftovers(tmp_path) == []


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    said: list[str] = []
    writer = Writer(tmp_path, INPUTS, needed=1 << 60, limit=1 << 61, report=said.append)
    writer.finish([])
    writer.wait()
    assert "MiB free" in said[0]
    assert leftovers(tmp_path) == []


def test_a_load_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path, INPUTS, needed=1, limit=GIB)
    writer.add(item("a"))
    writer.abort()
    writer.abort()
    assert leftovers(tmp_path) == []


def test_giving_up_in_the_middle_of_a_tensor_leaves_nothing(tmp_path: Path) -> None:
    writer: Writer

    def data() -> Iterator[memoryview]:
        while True:
            writer._stop.set()
            yield memoryview(b"x" * 10)

    writer = Writer(tmp_path, INPUTS, needed=1, limit=GIB)
    writer.add(Item("a", "U8", (1000,), 1000, data))
    writer.finish([])
    writer.wait()
    assert leftovers(tmp_path) == []


def test_a_tensor_that_gives_too_few_bytes_ends_the_entry(tmp_path: Path) -> None:
    said: list[str] = []
    writer = Writer(tmp_path, INPUTS, needed=1, limit=GIB, report=said.append)
    writer.add(Item("a", "U8", (5,), 5, lambda: iter([memoryview(b"1234")])))
    writer.finish([])
    writer.wait()
    assert "4 of 5 bytes" in said[0]
    assert leftovers(tmp_path) == []


def test_while_another_process_writes_the_same_entry_this_one_keeps_out(tmp_path: Path) -> None:
    with paths.lock(cache.lock_path(tmp_path, cache.entry_key(INPUTS))):
        assert write(tmp_path) == []
    assert leftovers(tmp_path) == []


def test_an_entry_that_exists_is_not_written_again(tmp_path: Path) -> None:
    write(tmp_path)
    before = part(only(tmp_path)).stat().st_ino
    write(tmp_path)
    assert part(only(tmp_path)).stat().st_ino == before


KILLED = """
import sys, time
from pathlib import Path
from vllm_spark.runtime.quant.cachewriter import Item, Writer
def data():
    yield memoryview(b"1")
    print("writing", flush=True)
    time.sleep(60)
w = Writer(Path(sys.argv[1]), {"checkpoint": "killed"}, needed=1, limit=1 << 30)
w.add(Item("a", "U8", (2,), 2, data))
w.finish([])
w.wait()
"""


def test_what_a_killed_process_left_is_no_entry_and_is_swept(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cache.entries(tmp_path) == []
        cache.prune(tmp_path, GIB)
        assert leftovers(tmp_path), "the writer is alive, so its folder stays"
        process.send_signal(signal.SIGKILL)
    assert cache.entries(tmp_path) == []
    cache.prune(tmp_path, GIB)
    assert leftovers(tmp_path) == []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_SPARK_CACHE", str(tmp_path))
    return cache.root()


def test_list_shows_entries(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home)
    assert main(["cache", "list"]) == 0
    out = capsys.readouterr().out
    assert "some/model" in out
    assert time.strftime("%Y") in out


def test_verify_names_damage_and_removes_it_on_request(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home)
    assert main(["cache", "verify"]) == 0
    flip(part(only(home)), -1)
    assert main(["cache", "verify"]) == IntegrityError.exit_code
    assert "damaged" in capsys.readouterr().out
    assert main(["cache", "verify", "--remove"]) == 0
    assert cache.entries(home) == []


def test_prune_by_size_and_by_name(home: Path) -> None:
    write(home, entry_inputs(0))
    write(home, entry_inputs(1))
    assert main(["cache", "prune", "--keep-gib", "1"]) == NothingToDo.exit_code
    assert main(["cache", "prune", "--entry", cache.entry_key(entry_inputs(0))[:12]]) == 0
    assert only(home).key == cache.entry_key(entry_inputs(1))
    assert main(["cache", "prune", "--entry", "zz"]) == ConfigError.exit_code
    assert main(["cache", "prune", "--keep-gib", "-1"]) == ConfigError.exit_code
    assert main(["cache", "prune", "--keep-gib", "0"]) == 0
    assert cache.entries(home) == []
