from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import checkpoints as fake
from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant.source import Source, exclusions, find_sources, quantization_config, read_config
from vllm_spark.runtime.stream.headers import CheckpointError, scan

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.checkpoints import Spec

W = "model.layers.0.mlp.up_proj.weight"
FP8: dict[str, Spec] = {W: ("F8_E4M3", (300, 256))}


def sources(folder: Path, tensors: dict[str, Spec], quant: dict[str, Any] | None = None) -> dict[str, Source]:
    fake.write_sparse(folder / "model.safetensors", tensors)
    return find_sources(scan(folder), {"quantization_config": quant} if quant else {})


@pytest.mark.parametrize(
    ("suffix", "shape", "kind", "quant"),
    [
        ("_scale_inv", (3, 2), "block", {"quant_method": "fp8", "weight_block_size": [128, 128]}),
        ("_scale_inv", (5, 4), "block", {"quant_method": "fp8", "weight_block_size": [64, 64]}),
        ("_scale", (3, 2), "block", {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}),
        ("_scale", (), "tensor", {"quant_method": "fp8"}),
        ("_scale", (1,), "tensor", {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}),
        (
            "_scale",
            (300, 1),
            "channel",
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"type": "float", "num_bits": 8}}},
            },
        ),
        ("_scale", (300,), "channel", {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}),
    ],
)
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_each_spelling_of_fp8_is_recognised(
    tmp_path: Path, suffix: str, shape: tuple[int, ...], kind: str, quant: dict[str, Any], dtype: str
) -> None:
    found = sources(
        tmp_path, FP8 | {W + suffix: (dtype, shape), W.replace("weight", "input_scale"): ("F32", ())}, quant
    )
    assert set(found) == {W}
    assert found[W].kind == kind
    assert found[W].scale is not None


def test_stacked_experts_have_scales_per_expert(tmp_path: Path) -> None:
    key = "model.layers.0.mlp.experts.gate_up_proj"
    found = sources(tmp_path, {key: ("F8_E4M3", (4, 256, 128)), key + "_scale_inv": ("F32", (4, 2, 1))})
    assert found[key].kind == "block"


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_plain_floats_need_no_scale(tmp_path: Path, dtype: str) -> None:
    assert sources(tmp_path, {W: (dtype, (8, 8))})[W].kind == "plain"


def test_a_weight_whose_name_ends_in_scale_is_no_scale(tmp_path: Path) -> None:
    key = "model.layers.0.router.per_expert_scale"  # Gemma-4
    assert set(sources(tmp_path, {key: ("BF16", (4,)), W: ("BF16", (8, 8))})) == {key, W}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (FP8, "without weight_scale_inv"),
        (FP8 | {W + "_scale_inv": ("F32", (2, 2))}, r"would need \[3, 2\]"),
        (FP8 | {W + "_scale": ("F32", (299, 1))}, "fits no layout"),
        (FP8 | {W + "_scale": ("F8_E8M0", (3, 2))}, "scale of type F8_E8M0"),
        ({W: ("BF16", (8, 8)), W + "_scale": ("F32", ())}, "missing or not FP8"),
        ({W + "_scale": ("F32", ())}, "missing or not FP8"),
        ({W: ("U8", (8, 8))}, "type U8"),
        ({W: ("F8_E5M2", (8, 8))}, "type F8_E5M2"),
        ({"a.qweight": ("I32", (8, 8))}, "type I32"),
        ({"a.weight_packed": ("I32", (8, 8))}, "type I32"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(tmp_path: Path, tensors: dict[str, Spec], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        sources(tmp_path, tensors)
    assert caught.value.key
    assert caught.value.offset is not None


@pytest.mark.parametrize(
    "quant",
    [
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "mxfp4"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_method": "modelopt", "quantization": {"quant_algo": "MIXED_PRECISION"}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "int", "num_bits": 4}}}},
    ],
)
def test_other_formats_are_refused_with_what_would_be_needed(tmp_path: Path, quant: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"cannot be requantised.*Next:"):
        sources(tmp_path, {W: ("BF16", (8, 8))}, quant)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}}, ("lm_head",)),
        ({"text_config": {"quantization_config": {"ignore": ["re:.*gate$"]}}}, ("re:.*gate$",)),
        ({"compression_config": {"ignore": ["a"]}}, ("a",)),
        ({"quantization_config": {"exclude_modules": ["x*"]}}, ("x*",)),
        ({"text_config": None}, ()),
    ],
)
def test_exclusions_are_found_in_every_spelling(config: dict[str, Any], names: tuple[str, ...]) -> None:
    assert exclusions(quantization_config(config)) == names


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_folder_without_a_readable_config_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_malformed_block_size_is_refused(tmp_path: Path) -> None:
    quant = {"quant_method": "fp8", "weight_block_size": [128]}
    with pytest.raises(ConfigError, match="weight_block_size"):
        sources(tmp_path, FP8 | {W + "_scale_inv": ("F32", (3, 2))}, quant)
