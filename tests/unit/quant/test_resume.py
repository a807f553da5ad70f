"""First starts, second starts, damaged and missing entries, against a model that loads as vLLM's do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from tests.fakes import models
from vllm_spark.runtime.quant import cache, resume
from vllm_spark.runtime.quant.cachewriter import Writer
from vllm_spark.runtime.quant.policy import Policy
from vllm_spark.runtime.quant.resume import load_or_resume
from vllm_spark.runtime.quant.schemes import round_trip
from vllm_spark.runtime.quant.source import find_sources
from vllm_spark.runtime.stream.headers import CheckpointError, scan
from vllm_spark.runtime.stream.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.runtime.stream.load import Load

WEIGHTS = models.checkpoint()
SUNK = ("qkv.weight", "o.weight", "experts.w13_weight", "experts.w2_weight", "head.weight")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_SPARK_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "model"
    made.mkdir()
    save_file(WEIGHTS, made / "model.safetensors")
    return made


@pytest.fixture(autouse=True)
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    """The writers that loads make, so that tests can wait for them."""
    made: list[Writer] = []

    class Kept(Writer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(resume, "Writer", Kept)
    return made


def start(folder: Path, writers: list[Writer], scheme: str = "nvfp4", **options: Any) -> tuple[models.Model, Load]:
    model = models.Model(scheme, rounded=True)
    found = scan(folder)
    load = load_or_resume(
        model,
        found,
        find_sources(found, {}),
        Options.parse({"staging_mb": 4, **options}),
        policy=Policy(scheme),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        ranks=(1, 0, 1, 0),
    )
    for writer in writers:
        writer.wait()
    return model, load


def state(model: models.Model) -> dict[str, torch.Tensor]:
    parameters = {name: param.data.clone() for name, param in model.named_parameters() if not param.is_meta}
    return {name.removesuffix("_final"): value for name, value in parameters.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("scheme", ["nvfp4", "nf4", "mxfp4", "fp8"])
def test_layers_hold_what_the_scheme_makes_of_them(folder: Path, writers: list[Writer], scheme: str) -> None:
    model, _ = start(folder, writers, scheme)
    for name, value in models.expected(WEIGHTS).items():
        got = state(model)[name]
        if name not in SUNK:
            assert torch.equal(got, value), name
            continue
        parts = value if value.dim() == 3 else value[None]
        wanted = torch.stack([round_trip(scheme, part, search=False) for part in parts]).view(value.shape)
        assert torch.equal(got, wanted), name


def test_a_second_start_reads_kept_weights_and_the_rest_from_the_checkpoint(
    folder: Path, writers: list[Writer]
) -> None:
    first, loaded = start(folder, writers)
    assert "kept weights" not in loaded.times
    second, resumed = start(folder, writers)
    assert "kept weights" in resumed.times
    assert same(state(first), state(second))
    (entry,) = cache.entries(cache.root())
    rest = sum(WEIGHTS[f"{name}.weight"].nbytes for name in ("embed", "norm"))
    assert resumed.nbytes <= entry.nbytes + rest + 16 * 4096


def test_another_policy_makes_another_entry(folder: Path, writers: list[Writer]) -> None:
    start(folder, writers, "nvfp4")
    _, load = start(folder, writers, "fp8")
    assert "kept weights" not in load.times
    assert len(cache.entries(cache.root())) == 2


def test_without_cache_nothing_is_kept(folder: Path, writers: list[Writer]) -> None:
    start(folder, writers, cache=False)
    assert cache.entries(cache.root()) == []


def damage(entry: cache.Entry, how: str) -> None:
    part = entry.path / "part-00000.safetensors"
    if how == "flip":
        with part.open("r+b") as file:
            file.seek(-5, os.SEEK_END)
            file.write(b"\xff\x00\xff")
    elif how == "cut":
        os.truncate(part, part.stat().st_size // 2)
    else:
        part.unlink()


@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_a_damaged_entry_is_named_and_made_again(
    folder: Path, writers: list[Writer], how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = start(folder, writers)
    damage(cache.entries(cache.root())[0], how)
    second, load = start(folder, writers)
    said = capsys.readouterr().err
    assert "damaged" in said
    assert str(cache.root()) in said
    assert same(state(first), state(second))
    assert "kept weights" not in load.times
    (entry,) = cache.entries(cache.root())
    assert cache.verify(entry) == []


def test_an_entry_of_another_model_is_not_used(folder: Path, writers: list[Writer]) -> None:
    start(folder, writers)
    other = {key: weight for key, weight in WEIGHTS.items() if not key.startswith("head")}
    save_file({**other, "head.weight": torch.zeros(models.VOCAB + 64, models.HIDDEN)}, folder / "model.safetensors")
    found = scan(folder)
    assert cache.find(cache.root(), cache.entry_key({"checkpoint": found.digest()})) is None


def test_a_load_that_fails_keeps_nothing(folder: Path, writers: list[Writer]) -> None:
    poisoned = {key: weight.clone() for key, weight in WEIGHTS.items()}
    poisoned["experts.3.down_proj.weight"][5, 7] = float("nan")
    save_file(poisoned, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="NaN") as caught:
        start(folder, writers)
    assert caught.value.key == "experts.3.down_proj.weight"
    assert caught.value.offset == scan(folder).tensors[caught.value.key].start + 2 * (5 * models.INTER + 7)
    assert [path.name for path in cache.root().iterdir()] == ["locks"]


def test_a_full_disk_does_not_end_the_load(
    folder: Path, writers: list[Writer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    model, _ = start(folder, writers)
    assert "not kept" in capsys.readouterr().err
    assert torch.equal(state(model)["norm.weight"], WEIGHTS["norm.weight"])
