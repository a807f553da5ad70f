from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import checkpoints as fake
from vllm_spark.errors import ConfigError
from vllm_spark.runtime.stream.headers import Checkpoint, Shard, Tensor, scan
from vllm_spark.runtime.stream.plan import SMALL, Limits, Plan, make_plan, slice_ranges, unit_name
from vllm_spark.runtime.stream.simulate import simulate, tensor_parallel_needs

if TYPE_CHECKING:
    from collections.abc import Iterable

BIG = 96 << 10


def shard(name: str, sizes: dict[str, int]) -> Shard:
    at, tensors = 100, []
    for key, size in sizes.items():
        tensors.append(Tensor(key, "U8", (size,), at, size, Path(name)))
        at += size
    return Shard(Path(name), (0, 0, at, 0), "", tuple(tensors))


def checkpoint(*shards: Shard) -> Checkpoint:
    return Checkpoint(Path(), shards, {t.key: t for s in shards for t in s.tensors})


@pytest.mark.parametrize(
    ("key", "unit"),
    [
        ("model.layers.3.mlp.experts.17.gate_proj.weight", "model.layers.3.mlp.experts.17.gate_up"),
        ("model.layers.3.mlp.experts.17.up_proj.weight_scale_inv", "model.layers.3.mlp.experts.17.gate_up"),
        ("model.layers.3.mlp.experts.17.w3.weight", "model.layers.3.mlp.experts.17.gate_up"),
        ("model.layers.3.mlp.experts.17.down_proj.weight", "model.layers.3.mlp.experts.17.down_proj"),
        ("model.layers.3.mlp.experts.gate_up_proj", "model.layers.3.mlp.experts.gate_up_proj"),
        ("model.layers.3.mlp.experts.gate_up_proj_scale_inv", "model.layers.3.mlp.experts.gate_up_proj"),
        ("model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.qkv"),
        ("lm_head.weight", "lm_head"),
        ("backbone.layers.0.mixer.A_log", "backbone.layers.0.mixer.A_log"),
    ],
)
def test_unit_names_join_what_is_quantised_together(key: str, unit: str) -> None:
    assert unit_name(key) == unit


def test_parts_of_a_unit_follow_each_other_though_they_lie_in_different_files() -> None:
    found = checkpoint(
        shard("1", {"e.0.gate_proj.weight": BIG, "e.1.gate_proj.weight": BIG, "e.2.down_proj.weight": BIG}),
        shard("2", {"e.1.up_proj.weight": BIG, "e.0.up_proj.weight": BIG}),
    )
    order = [[b.tensor.key for b in u.blocks] for u in make_plan(found).units]
    assert order == [
        ["e.0.gate_proj.weight", "e.0.up_proj.weight"],
        ["e.1.gate_proj.weight", "e.1.up_proj.weight"],
        ["e.2.down_proj.weight"],
    ]


def test_neighbours_are_merged_and_files_are_read_front_to_back() -> None:
    sizes = {f"l.{i}.x.weight": BIG for i in range(400)}
    plan = make_plan(checkpoint(shard("1", sizes)))
    assert len(plan.reads) == -(-400 * BIG // (16 << 20))
    assert [r.start for r in plan.reads] == sorted(r.start for r in plan.reads)


def test_small_tensors_are_read_together_before_the_first_unit_that_needs_one() -> None:
    sizes = {f"l.{i}.x.weight_scale_inv": 256 for i in range(300)} | {f"l.{i}.x.weight": BIG for i in range(300)}
    plan = make_plan(checkpoint(shard("1", sizes)))
    assert plan.reads[0].side
    assert len(plan.reads[0].blocks) == 300
    assert sum(read.side for read in plan.reads) == 1


def test_a_tensor_larger_than_a_block_is_cut_into_whole_rows() -> None:
    tensor = Tensor("lm_head.weight", "BF16", (100_000, 512), 64, 102_400_000, Path("1"))
    plan = make_plan(
        Checkpoint(Path(), (Shard(Path("1"), (0, 0, 0, 0), "", (tensor,)),), {tensor.key: tensor}), Limits(16 << 20)
    )
    blocks = plan.units[0].blocks
    assert blocks[0].first == 0
    assert blocks[-1].last == 100_000
    assert all(a.last == b.first and a.stop == b.start and a.last % 128 == 0 for a, b in itertools.pairwise(blocks))
    assert all(b.stop - b.start <= plan.limits.block for b in blocks)


def test_a_row_that_does_not_fit_says_which_staging_would() -> None:
    tensor = Tensor("x", "U8", (2, 9 << 20), 64, 18 << 20, Path("1"))
    found = Checkpoint(Path(), (Shard(Path("1"), (0, 0, 0, 0), "", (tensor,)),), {"x": tensor})
    with pytest.raises(ConfigError, match="staging_mb of at least 37"):
        make_plan(found, Limits(16 << 20))


def test_too_little_staging_is_refused() -> None:
    with pytest.raises(ConfigError, match="staging_mb"):
        Limits(1 << 20)


def union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out


def covered(plan: Plan) -> dict[str, list[tuple[int, int]]]:
    """Ranges of each key that the units deliver, after asserting that the reads fetch them."""
    fetched: dict[Path, list[tuple[int, int]]] = {}
    for read in plan.reads:
        assert all(read.start <= low < high <= read.stop for low, high in read.ranges)
        fetched.setdefault(read.path, []).extend(read.ranges)
    for path, ranges in fetched.items():
        fetched[path] = union(ranges)
    out: dict[str, list[tuple[int, int]]] = {}
    for unit in plan.units:
        for block in unit.blocks:
            for low, high in block.ranges:
                assert any(a <= low and high <= b for a, b in fetched[block.tensor.path])
                out.setdefault(block.tensor.key, []).append((low - block.tensor.start, high - block.tensor.start))
    return {key: union(ranges) for key, ranges in out.items()}


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@given(shapes, st.data())
def test_slice_ranges_hold_exactly_or_more_than_the_slice(shape: list[int], data: st.DataObject) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    first = data.draw(st.integers(0, shape[dim]))
    last = data.draw(st.integers(first, shape[dim]))
    size = 1
    for extent in shape:
        size *= extent
    tensor = Tensor("x", "U8", tuple(shape), 0, size, Path("1"))
    inner = size
    for extent in shape[: dim + 1]:
        inner //= extent
    wanted = {i for i in range(size) if first <= i // inner % shape[dim] < last}
    got = {i for low, high in slice_ranges(tensor, dim, first, last) for i in range(low, high)}
    assert got >= wanted
    assert bool(got) == bool(wanted)


def test_wide_gaps_of_a_slice_are_not_read() -> None:
    tensor = Tensor("x", "U8", (4, 4 << 20), 0, 16 << 20, Path("1"))
    assert sum(b - a for a, b in slice_ranges(tensor, 1, 0, 2 << 20)) == 8 << 20


@settings(max_examples=30)
@given(st.lists(st.integers(1, 3 * SMALL), min_size=1, max_size=12), st.randoms(use_true_random=False), st.booleans())
def test_every_needed_byte_is_read_and_delivered_once(sizes: list[int], random: object, half: bool) -> None:
    keys = [f"l.{i % 4}.{'gate_proj' if i % 2 else 'up_proj'}.w{i}" for i in range(len(sizes))]
    parts = [{}, {}]  # type: list[dict[str, int]]
    for i, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        parts[i * 7 % 3 % 2][key] = size
    found = checkpoint(*(shard(str(i), part) for i, part in enumerate(parts)))
    needs = {key: ((0, (size + 1) // 2),) for key, size in zip(keys, sizes, strict=True)} if half else None
    plan = make_plan(found, Limits(4 << 20), needs)
    got = covered(plan)
    for key, size in zip(keys, sizes, strict=True):
        assert got[key] == [(0, (size + 1) // 2 if half else size)]


def test_keys_that_this_rank_does_not_need_are_not_read() -> None:
    found = checkpoint(shard("1", {"a": BIG, "b": BIG, "c": 10}))
    plan = make_plan(found, needs={"b": ((0, 5),)})
    assert [u.name for u in plan.units] == ["b"]
    assert plan.nbytes == 5


def test_the_same_bits_in_any_shard_order(tmp_path: Path) -> None:
    fake.write_moe(tmp_path, 2, 4, 512, 256)
    plan = make_plan(scan(tmp_path))
    total = sum(t.nbytes for t in scan(tmp_path).tensors.values())
    assert total <= plan.nbytes <= 1.01 * total  # small gaps are read through
    names = [unit.name for unit in plan.units]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_a_397b_checkpoint_proves_its_peak(tmp_path: Path) -> None:
    fake.write_moe(tmp_path, 60, 512, 4096, 1024, vocab=248_320)
    found = scan(tmp_path)
    plan = make_plan(found, needs=tensor_parallel_needs(found, 0, 2))

    def bits(key: str) -> float:
        if "scale_inv" in key:
            return 0
        return (
            16
            if "embed" in key or "norm" in key or "gate.weight" in key
            else 8
            if "self_attn" in key or "head" in key
            else 4.5
        )

    peak = simulate(plan, bits, by_rows=lambda key: "head" in key or "embed" in key)
    assert peak.final > 95 << 30
    assert peak.extra <= 512 << 20, peak
