"""What each format does to values: definitions, quality, odd weights."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_spark.errors import ConfigError, IntegrityError
from vllm_spark.runtime.quant import formats
from vllm_spark.runtime.quant.formats.codes import E2M1, NF4, e2m1_codes, nf4_codes, pack, unpack

Quantise = Callable[..., Any]
# name -> quantiser, its inverse, block, options
FORMATS: dict[str, tuple[Quantise, Quantise, int, dict[str, Any]]] = {
    "nvfp4": (formats.quantize_nvfp4, formats.dequantize_nvfp4, 16, {}),
    "mxfp4": (formats.quantize_mxfp4, formats.dequantize_mxfp4, 32, {}),
    "nf4-32": (formats.quantize_nf4, formats.dequantize_nf4, 32, {"block": 32}),
    "nf4-64": (formats.quantize_nf4, formats.dequantize_nf4, 64, {"block": 64}),
    "nf4-128": (formats.quantize_nf4, formats.dequantize_nf4, 128, {"block": 128}),
    "fp8-rows": (formats.quantize_fp8, formats.dequantize_fp8, 1, {}),
    "fp8-blocks": (formats.quantize_fp8, formats.dequantize_fp8, 1, {"blocks": True}),
}


def gauss(rows: int, columns: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * 0.02).to(dtype)


def error(name: str, weight: torch.Tensor, **options: Any) -> float:
    quantise, restore, _, fixed = FORMATS[name]
    back = restore(quantise(weight, **fixed, **options))
    return float((back - weight.float()).norm() / weight.float().norm())


# Relative Frobenius error on Gaussian weights of standard deviation 0.02; the scales of MXFP4 are powers of two, so
# its error depends on the deviation. Bounds are 0.5 % above what was measured.
@pytest.mark.parametrize(
    ("name", "plain", "searched"),
    [
        ("nvfp4", 0.0956, 0.0818),
        ("mxfp4", 0.1127, 0.1121),
        ("nf4-32", 0.0878, 0.0807),
        ("nf4-64", 0.0925, 0.0864),
        ("nf4-128", 0.0961, 0.0908),
        ("fp8-rows", 0.0267, 0.0267),
        ("fp8-blocks", 0.0267, 0.0267),
    ],
)
def test_quality_on_gaussian_weights(name: str, plain: float, searched: float) -> None:
    weight = gauss(256, 2048)
    first, second = error(name, weight), error(name, weight, search=True)
    assert first <= plain
    assert second <= searched
    assert second <= first


def test_e2m1_rounds_to_the_nearest_value_and_ties_to_even() -> None:
    values = torch.cat([torch.linspace(-7, 7, 4001), torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -2.5, -0.0])])
    codes = e2m1_codes(values)
    levels = torch.tensor(E2M1)
    distance = (values[:, None] - levels[None]).abs()
    assert torch.equal((levels[codes.int()] - values).abs(), distance.amin(dim=1))
    assert codes[-9:].tolist() == [0, 2, 2, 4, 4, 6, 6, 12, 8]


def test_nf4_rounds_to_the_nearest_level() -> None:
    values = torch.linspace(-1.2, 1.2, 4001)
    levels = torch.tensor(NF4)
    distance = (values[:, None] - levels[None]).abs()
    assert torch.allclose((levels[nf4_codes(values).int()] - values).abs(), distance.amin(dim=1), atol=1e-7)


@given(st.lists(st.integers(0, 15), min_size=2, max_size=64).filter(lambda codes: len(codes) % 2 == 0))
def test_packing_keeps_codes(codes: list[int]) -> None:
    tensor = torch.tensor(codes, dtype=torch.uint8)
    assert unpack(pack(tensor)).tolist() == codes
    assert pack(tensor)[0] == codes[0] | codes[1] << 4


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("search", [False, True])
def test_values_that_the_format_holds_come_back_exactly(name: str, search: bool) -> None:
    quantise, restore, block, fixed = FORMATS[name]
    weight = restore(quantise(gauss(5, 4 * max(block, 32)), **fixed))
    if name == "nvfp4":
        fixed = {**fixed, "global_scale": quantise(weight).global_scale}
    again = restore(quantise(weight, search=search, **fixed))
    assert float((again - weight).norm() / weight.norm()) < (2e-2 if name.startswith("fp8") else 1e-6) or not search


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("search", [False, True])
def test_zeros_and_denormals_stay_finite(name: str, search: bool) -> None:
    quantise, restore, _, fixed = FORMATS[name]
    weight = gauss(4, 256)
    weight[0] = 0
    weight[1] = 1e-40
    weight[2, :128] = 0
    weight[3] *= 1e-30
    back = restore(quantise(weight, search=search, **fixed))
    assert back.isfinite().all()
    assert (back[0] == 0).all()
    assert (back[2, :128] == 0).all()
    assert restore(quantise(torch.zeros(2, 256), search=search, **fixed)).eq(0).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_refused_by_name_and_count(name: str, value: float) -> None:
    weight = gauss(8, 256, torch.bfloat16)
    weight[3, 17] = value
    weight[7, 200] = value
    quantise, _, _, fixed = FORMATS[name]
    with pytest.raises(IntegrityError, match=r"model\.w: 2 elements are NaN"):
        quantise(weight, name="model.w", **fixed)


def test_a_magnitude_beyond_the_scales_of_nf4_is_refused() -> None:
    weight = gauss(2, 64)
    weight[0, 0] = 1e5
    with pytest.raises(IntegrityError, match="1 elements"):
        formats.quantize_nf4(weight, scale_dtype=torch.float16)
    assert formats.dequantize_nf4(formats.quantize_nf4(weight))[0, 0] == pytest.approx(1e5, rel=4e-3)


@pytest.mark.parametrize("name", [n for n in FORMATS if not n.startswith("fp8")])
def test_columns_must_be_whole_blocks(name: str) -> None:
    quantise, _, block, fixed = FORMATS[name]
    with pytest.raises(ConfigError, match=f"{block + 8} columns are no multiple of the block of {block}"):
        quantise(torch.ones(2, block + 8), **fixed)


@pytest.mark.parametrize("name", FORMATS)
def test_no_rows(name: str) -> None:
    quantise, restore, _, fixed = FORMATS[name]
    assert restore(quantise(torch.empty(0, 256), **fixed)).shape == (0, 256)


@pytest.mark.parametrize("name", FORMATS)
def test_strides_do_not_matter(name: str) -> None:
    quantise, _, _, fixed = FORMATS[name]
    wide = gauss(256, 512, torch.bfloat16)
    for view in (wide.T[:, :256], wide[::2, 128:384], wide[:, ::2]):
        pairs = zip(quantise(view, **fixed), quantise(view.contiguous(), **fixed), strict=True)
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(1,), (200,), (200, 1), (2, 3)])
def test_fp8_sources_are_expanded_on_the_fly(name: str, shape: tuple[int, ...]) -> None:
    quantise, _, _, fixed = FORMATS[name]
    codes = gauss(200, 384, seed=2).mul(500).to(torch.float8_e4m3fn)
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(3)) * 0.01
    if shape == (2, 3):
        spread = scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)
    else:
        spread = scale.reshape(-1, 1)
    dense = codes.float() * spread
    pairs = zip(quantise(codes, source_scale=scale, **fixed), quantise(dense, **fixed), strict=True)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


@pytest.mark.parametrize(
    ("weight", "scale", "message"),
    [
        (torch.ones(2, 2, 32), None, "a matrix of floats"),
        (torch.ones(2, 128, dtype=torch.int32), None, "a matrix of floats"),
        (torch.ones(2, 128).to(torch.float8_e4m3fn), None, "come with their scales"),
        (torch.ones(2, 128), torch.ones(1), "come with their scales"),
        (torch.ones(4, 128).to(torch.float8_e4m3fn), torch.ones(3, 2), "fit no FP8 weight"),
    ],
)
def test_what_does_not_fit_is_refused(weight: torch.Tensor, scale: torch.Tensor | None, message: str) -> None:
    for quantise, _, _, fixed in FORMATS.values():
        with pytest.raises(ConfigError, match=message):
            quantise(weight, source_scale=scale, **fixed)


def test_unknown_blocks_and_scale_types_of_nf4() -> None:
    with pytest.raises(ConfigError, match="not 48"):
        formats.quantize_nf4(torch.ones(1, 96), block=48)
    with pytest.raises(ConfigError, match="float32"):
        formats.quantize_nf4(torch.ones(1, 64), scale_dtype=torch.float32)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e4), st.sampled_from(["nvfp4", "mxfp4", "nf4-64", "fp8-blocks"]))
def test_search_never_loses(seed: int, size: float, name: str) -> None:
    weight = gauss(3, 256, seed=seed) * size
    weight[1, 5] *= 50  # an outlier
    quantise, restore, _, fixed = FORMATS[name]
    plain = (restore(quantise(weight, **fixed)) - weight).square().sum()
    searched = (restore(quantise(weight, search=True, **fixed)) - weight).square().sum()
    assert searched <= plain * (1 + 1e-5)


def test_global_scale_can_be_shared() -> None:
    gate, up = gauss(4, 64), gauss(4, 64, seed=1) * 3
    shared = formats.global_scale_of(torch.maximum(gate.abs().amax(), up.abs().amax()))
    made = formats.quantize_nvfp4(gate, global_scale=shared)
    assert torch.equal(made.global_scale, shared)
    assert float((formats.dequantize_nvfp4(made) - gate).norm() / gate.norm()) < 0.11
