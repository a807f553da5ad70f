"""Whole loads into a model that loads as vLLM's do, on a CPU and without vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from tests.fakes import checkpoints as fake
from tests.fakes import models
from vllm_spark.errors import ArtefactError, SparkError
from vllm_spark.runtime.quant.source import find_sources
from vllm_spark.runtime.stream.headers import CheckpointError, scan
from vllm_spark.runtime.stream.load import Load, require_loaded
from vllm_spark.runtime.stream.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = {"staging_mb": 4}


def save(folder: Path, weights: dict[str, torch.Tensor], shards: int = 2) -> None:
    """Deal the weights out over shards, so that parts of one layer lie in different files."""
    files: dict[str, list[str]] = {}
    for number in range(shards):
        part = {key: tensor.contiguous() for i, (key, tensor) in enumerate(weights.items()) if i % shards == number}
        name = f"model-{number}.safetensors"
        save_file(part, folder / name)
        files[name] = list(part)
    fake.write_index(folder, files)


def load(folder: Path, model: models.Model, options: dict[str, Any] | None = None, *, sharded: bool = False) -> Load:
    found = scan(folder)
    job = Load(
        found,
        find_sources(found, {}),
        Options.parse({**SMALL, **(options or {})}),
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        sharded=sharded,
    )
    loaded = job.run(model)
    sunk = []
    for name, module in model.named_modules():
        for sink in getattr(module, "spark_sinks", ()):
            param = sink.name.rpartition(".")[2]
            sunk += [f"{name}.{param}", f"{name}.{param}_final"]
    require_loaded(model, loaded, iter(sunk))
    return job


def held(model: models.Model) -> dict[str, torch.Tensor]:
    parameters = {name: param.data for name, param in model.named_parameters() if not param.is_meta}
    return {name.removesuffix("_final"): value for name, value in parameters.items()}


@pytest.mark.parametrize("scheme", ["", "nvfp4", "fp8"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_weight_arrives_in_its_place(tmp_path: Path, scheme: str, stacked: bool, shards: int) -> None:
    weights = models.checkpoint(stacked=stacked)
    save(tmp_path, weights, shards)
    model = models.Model(scheme)
    load(tmp_path, model)
    wanted = models.expected(weights)
    assert held(model).keys() == wanted.keys()
    for name, value in held(model).items():
        assert torch.equal(value, wanted[name]), name


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make even the test's tensors too large for one block, as stacked experts of real models are."""
    from vllm_spark.runtime.stream import plan

    monkeypatch.setattr(plan.Limits, "block", property(lambda _: 140 << 10))


@pytest.mark.parametrize("scheme", ["", "nvfp4"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.usefixtures("tiny_blocks")
def test_tensors_larger_than_a_block_arrive_in_pieces(tmp_path: Path, scheme: str, stacked: bool) -> None:
    weights = models.checkpoint(stacked=stacked)
    save(tmp_path, weights)
    model = models.Model(scheme)
    load(tmp_path, model)
    for name, value in models.expected(weights).items():
        assert torch.equal(held(model)[name], value), name


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.usefixtures("tiny_blocks")
def test_stacked_experts_are_finished_one_by_one(tmp_path: Path, stacked: bool) -> None:
    save(tmp_path, models.checkpoint(stacked=stacked), 1)
    model = models.Model("nvfp4")
    load(tmp_path, model)
    experts: Any = model.experts
    assert max(sink.peak for sink in experts.spark_sinks) == 1


@pytest.mark.parametrize("scheme", ["", "nvfp4"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_reads_and_holds_its_part_only(tmp_path: Path, scheme: str, stacked: bool, rank: int) -> None:
    weights = models.checkpoint(stacked=stacked)
    save(tmp_path, weights)
    model = models.Model(scheme, rank=rank, size=2)
    load(tmp_path, model, sharded=True)
    for name, value in models.expected(weights, rank=rank, size=2).items():
        assert torch.equal(held(model)[name], value), name


def test_a_rank_plans_no_bytes_of_rows_that_it_does_not_need(tmp_path: Path) -> None:
    save(tmp_path, models.checkpoint())
    found = scan(tmp_path)
    job = Load(
        found, find_sources(found, {}), Options(), device=torch.device("cpu"), dtype=torch.bfloat16, sharded=True
    )
    plan = job._plan(models.Model("nvfp4", rank=1, size=2), frozenset())
    by_key = {b.tensor.key: b for u in plan.units for b in u.blocks}
    head = by_key["head.weight"]
    assert head.ranges == ((head.tensor.start + head.tensor.nbytes // 2, head.tensor.stop),)
    gate = by_key["experts.0.gate_proj.weight"]
    assert gate.ranges == ((gate.tensor.start + gate.tensor.nbytes // 2, gate.tensor.stop),)


@pytest.mark.parametrize("stacked", [False, True])
def test_block_fp8_is_dequantised_on_arrival(tmp_path: Path, stacked: bool) -> None:
    plain = models.checkpoint(stacked=stacked)
    stored, wanted = {}, {}
    for key, weight in plain.items():
        stored[key] = wanted[key] = weight
        if weight.dim() > 1 and key not in ("embed.weight", "head.weight"):
            codes, scale = models.block_fp8(weight)
            stored[key], stored[f"{key}_scale_inv"] = codes, scale
            spread = scale.repeat_interleave(128, -2).repeat_interleave(128, -1)
            wanted[key] = (codes.float() * spread).to(torch.bfloat16)
    save(tmp_path, stored)
    model = models.Model("nvfp4")
    load(tmp_path, model)
    for name, value in models.expected(wanted).items():
        assert torch.equal(held(model)[name], value), name


@pytest.mark.parametrize("kind", ["tensor", "channel"])
def test_other_fp8_scales_are_applied(tmp_path: Path, kind: str) -> None:
    weights = models.checkpoint()
    codes = weights["q.weight"].to(torch.float8_e4m3fn)
    scale = torch.tensor(0.5) if kind == "tensor" else torch.rand(models.HIDDEN, 1)
    save(tmp_path, weights | {"q.weight": codes, "q.weight_scale": scale, "q.input_scale": torch.tensor(1.0)})
    model = models.Model("fp8")
    load(tmp_path, model)
    got = held(model)["qkv.weight"][: models.HIDDEN]
    assert torch.equal(got, (codes.float() * scale).to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_floats_are_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = models.checkpoint()
    save(tmp_path, {key: weight.to(dtype) for key, weight in weights.items()})
    model = models.Model("nvfp4")
    load(tmp_path, model)
    rounded = {key: weight.to(dtype).to(torch.bfloat16) for key, weight in weights.items()}
    for name, value in models.expected(rounded).items():
        assert torch.equal(held(model)[name], value), name


def poison(key: str, value: float) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(weights: dict[str, torch.Tensor]) -> None:
        weights[key].view(-1)[1000 if weights[key].numel() > 1000 else 3] = value

    return change


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("key", ["embed.weight", "q.weight", "experts.2.down_proj.weight", "norm.weight"])
@pytest.mark.parametrize("scheme", ["", "nvfp4"])
def test_a_weight_that_is_not_finite_is_named_with_its_offset(
    tmp_path: Path, key: str, value: float, scheme: str
) -> None:
    weights = models.checkpoint()
    poison(key, value)(weights)
    save(tmp_path, weights)
    with pytest.raises(CheckpointError, match="NaN or infinity") as caught:
        load(tmp_path, models.Model(scheme))
    assert caught.value.key == key
    at = 1000 if weights[key].numel() > 1000 else 3
    assert caught.value.offset == scan(tmp_path).tensors[key].start + 2 * at


@pytest.mark.parametrize(
    "key", ["experts.2.up_proj.weight", "experts.0.down_proj.weight", "k.weight", "norm.weight", "head.weight"]
)
@pytest.mark.parametrize("scheme", ["", "nvfp4"])
def test_a_part_that_is_missing_is_named(tmp_path: Path, key: str, scheme: str) -> None:
    weights = models.checkpoint()
    del weights[key]
    save(tmp_path, weights)
    model = models.Model(scheme)
    partial = not scheme and key not in ("norm.weight", "head.weight")
    if partial:  # without sinks, holes inside a fused parameter are vLLM's business, as with its own loaders
        load(tmp_path, model)
        return
    with pytest.raises(ArtefactError) as caught:
        load(tmp_path, model)
    assert key.split(".", maxsplit=1)[0][0] in caught.value.where


def test_a_part_of_the_wrong_shape_is_refused(tmp_path: Path) -> None:
    weights = models.checkpoint()
    weights["experts.1.up_proj.weight"] = weights["experts.1.up_proj.weight"][:-1]
    save(tmp_path, weights)
    with pytest.raises((SparkError, RuntimeError)):
        load(tmp_path, models.Model("nvfp4"))


def test_the_summary_says_bytes_times_and_schemes(tmp_path: Path) -> None:
    save(tmp_path, models.checkpoint())
    job = load(tmp_path, models.Model("nvfp4"))
    text = job.summary({"nvfp4": 4})
    assert "GiB/s" in text
    assert "disk wait" in text
    assert "4 x nvfp4" in text


def test_buffers_are_given_back(tmp_path: Path) -> None:
    save(tmp_path, models.checkpoint())
    model = models.Model("nvfp4")
    load(tmp_path, model)
    for module in model.modules():
        for sink in getattr(module, "spark_sinks", ()):
            assert not sink._open
            assert not sink._spare
