from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes import checkpoints as fake
from vllm_spark.errors import ResourceError
from vllm_spark.runtime.stream.headers import DTYPE_BITS, CheckpointError, parse_header, read_shard, scan

SMALL = {"a.weight": ("BF16", (2, 3)), "b.weight": ("F8_E4M3", (4,)), "empty": ("F32", (0, 5)), "scalar": ("F32", ())}
P = Path("model.safetensors")


def entry(dtype: object = "U8", shape: object = (4,), at: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": at}


def test_a_whole_shard_gives_every_tensor_with_absolute_offsets(tmp_path: Path) -> None:
    path = fake.write_sparse(tmp_path / "m.safetensors", SMALL)
    shard = read_shard(path)
    assert {t.key: (t.dtype, t.shape) for t in shard.tensors} == SMALL
    assert shard.tensors[-1].stop == shard.size == path.stat().st_size
    assert min(t.start for t in shard.tensors) == path.stat().st_size - 12 - 4 - 4


BAD_HEADERS = [
    (b"{", "not valid JSON"),
    (b"\xff\xfe", "not valid JSON"),
    (b"[" * 100_000, "not valid JSON"),
    (b"[]", "not a JSON object"),
    (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{}}', "appears twice"),
    (b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,4]}}', "no JSON number"),
    (b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', "not valid JSON"),
    ({"a": 3}, "exactly dtype"),
    ({"a": {**entry(), "more": 1}}, "exactly dtype"),
    ({"a": entry(dtype="F7")}, "unknown dtype"),
    ({"a": entry(dtype=["U8"])}, "unknown dtype"),
    ({"a": entry(shape=[-4])}, "not a list of sizes"),
    ({"a": entry(shape=[True, 4])}, "not a list of sizes"),
    ({"a": entry(shape=[4.0])}, "not a list of sizes"),
    ({"a": entry(at=[4, 0])}, "data_offsets"),
    ({"a": entry(at=[0])}, "data_offsets"),
    ({"a": entry(at=[0, 5])}, "does not fill"),
    ({"a": entry(dtype="F4", shape=[7])}, "does not fill"),
    ({"a": entry(shape=[2**40, 2**40], at=[0, 4])}, "does not fill"),
    ({"a": entry(), "b": entry(at=[2, 6])}, "overlaps"),
    ({"a": entry(), "b": entry()}, "overlaps"),
    ({"a": entry(at=[1, 5])}, "unused bytes"),
    ({"a": entry(), "b": entry(at=[8, 12])}, "unused bytes"),
    ({"a": entry(shape=[4000], at=[0, 4000])}, "cut short"),
    ({"__metadata__": {"x": 1}, "a": entry()}, "__metadata__"),
    ({"__metadata__": [], "a": entry()}, "__metadata__"),
    ({}, "follow the last tensor"),
]


@pytest.mark.parametrize(("head", "message"), BAD_HEADERS, ids=[f"{i}-{m}" for i, (_, m) in enumerate(BAD_HEADERS)])
def test_each_malformed_header_is_refused_with_the_file_named(tmp_path: Path, head: object, message: str) -> None:
    path = fake.write_raw(tmp_path / "m.safetensors", head, b"1234")
    with pytest.raises(CheckpointError, match=message) as caught:
        read_shard(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("cut", [0, 3, 8, 20, -1])
def test_a_shard_cut_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    path = fake.write_sparse(tmp_path / "m.safetensors", SMALL)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError):
        read_shard(path)


def test_a_header_length_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    with pytest.raises(CheckpointError, match="limit"):
        read_shard(path)


def test_a_folder_in_place_of_a_shard_is_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").mkdir()
    with pytest.raises(ResourceError, match="cannot be read"):
        scan(tmp_path)


def two_shards(folder: Path) -> None:
    fake.write_sparse(folder / "1.safetensors", {"a": ("U8", (4,))})
    fake.write_sparse(folder / "2.safetensors", {"b": ("U8", (4,)), "c": ("U8", (1,))})


def test_index_and_files_agree(tmp_path: Path) -> None:
    two_shards(tmp_path)
    fake.write_sparse(tmp_path / "consolidated.safetensors", {"a": ("U8", (4,))})  # not in the index: does not count
    fake.write_index(tmp_path, {"1.safetensors": ["a"], "2.safetensors": ["b", "c"]})
    found = scan(tmp_path)
    assert sorted(found.tensors) == ["a", "b", "c"]
    assert found.nbytes == 9


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.safetensors": ["a"], "2.safetensors": ["b", "c", "d"]}, "'d'"),
        ({"1.safetensors": ["a"], "2.safetensors": ["b"]}, "index does not list"),
        ({"1.safetensors": ["a", "b"], "2.safetensors": ["c"]}, "'b'"),
        ({"1.safetensors": ["a"], "3.safetensors": ["b", "c"]}, "3.safetensors"),
        ({"../1.safetensors": ["a"]}, "no file of this folder"),
        ({}, "no weight_map"),
    ],
)
def test_an_index_that_contradicts_the_files_is_refused(
    tmp_path: Path, files: dict[str, list[str]], message: str
) -> None:
    two_shards(tmp_path)
    fake.write_index(tmp_path, files)
    with pytest.raises((CheckpointError, ResourceError), match=message):
        scan(tmp_path)


def test_one_key_in_two_shards_is_refused(tmp_path: Path) -> None:
    two_shards(tmp_path)
    fake.write_sparse(tmp_path / "3.safetensors", {"b": ("U8", (4,))})
    with pytest.raises(CheckpointError, match=r"also in 2\.safetensors"):
        scan(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no \\*"):
        scan(tmp_path)


def test_digest_follows_layout_and_size(tmp_path: Path) -> None:
    two_shards(tmp_path)
    first = scan(tmp_path).digest()
    assert first == scan(tmp_path).digest()
    fake.write_sparse(tmp_path / "1.safetensors", {"a": ("U8", (5,))})
    assert scan(tmp_path).digest() != first


names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
specs = st.tuples(
    st.sampled_from([n for n, b in DTYPE_BITS.items() if b >= 8]), st.lists(st.integers(0, 5), max_size=4)
)


@given(st.dictionaries(names, specs, max_size=6))
def test_every_well_formed_header_is_read_back(tensors: dict[str, tuple[str, list[int]]]) -> None:
    wanted = {key: (dtype, tuple(shape)) for key, (dtype, shape) in tensors.items()}
    entries, size = fake.header(wanted)
    raw = json.dumps(entries).encode()
    found = parse_header(raw, P, 8 + len(raw) + size)
    assert {t.key: (t.dtype, t.shape) for t in found} == wanted
    assert sum(t.nbytes for t in found) == size


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(sorted(DTYPE_BITS)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.binary(max_size=64), junk.map(lambda value: json.dumps(value).encode())), st.integers(0, 200))
def test_no_bytes_make_the_parser_fail_in_another_way(raw: bytes, size: int) -> None:
    try:
        tensors = parse_header(raw, P, size)
    except CheckpointError:
        return
    at = 8 + len(raw)
    for tensor in tensors:
        assert tensor.start == at
        at = tensor.stop
    assert at == size
