"""Quantisers on a GPU against their definitions: the same bits when plain, the same error when searched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from vllm_spark.errors import IntegrityError
from vllm_spark.runtime.quant import formats

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.gpu
# name -> quantiser, options
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "nf4-32": ("nf4", {"block": 32}),
    "nf4-64": ("nf4", {"block": 64}),
    "nf4-128": ("nf4", {"block": 128}),
    "nf4-fp16": ("nf4", {"block": 64, "scale_dtype": torch.float16}),
    "mxfp4": ("mxfp4", {}),
    "nvfp4": ("nvfp4", {}),
    "fp8-rows": ("fp8", {}),
    "fp8-blocks": ("fp8", {"blocks": True}),
}
SOURCES = (torch.float32, torch.bfloat16, torch.float16)


def odd_weights(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Gaussian, with outliers, rows of zeros, of equal values, of ties and of very small ones."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.03
    weight[1] = 0
    weight[2] = 0.125
    weight[3] = torch.arange(columns) % 25 * 0.25 - 3
    weight[4] *= 1e-6
    weight[5, ::37] *= 40
    weight[6, : columns // 2] = -0.0
    return weight


def same(found: Any, wanted: Any) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours.cpu().view(torch.uint8), theirs.view(torch.uint8))


def error(name: str, made: Any, weight: torch.Tensor) -> float:
    on_cpu = type(made)(*(part.cpu() for part in made))
    back = getattr(formats, f"dequantize_{name}")(on_cpu)
    return float((back.double() - weight.double()).norm() / weight.double().norm())


@pytest.mark.parametrize("case", FORMATS)
@pytest.mark.parametrize("dtype", SOURCES)
def test_plain_is_bit_equal(extension: ModuleType, case: str, dtype: torch.dtype) -> None:
    name, options = FORMATS[case]
    for rows, columns in ((300, 384), (7, 4096), (1000, 256)):
        weight = odd_weights(rows, columns, seed=rows).to(dtype)
        found = getattr(extension, f"quantize_{name}")(weight.cuda(), **options)
        same(found, getattr(formats, f"quantize_{name}")(weight, **options))


@pytest.mark.parametrize("case", ["mxfp4", "nvfp4", "nf4-64", "fp8-rows"])
def test_denormals_are_bit_equal(extension: ModuleType, case: str) -> None:
    name, options = FORMATS[case]
    weight = torch.randn(64, 256)
    weight[::2] *= 1e-39
    weight[1::4] *= 1e-30
    same(
        getattr(extension, f"quantize_{name}")(weight.cuda(), **options),
        getattr(formats, f"quantize_{name}")(weight, **options),
    )


@pytest.mark.parametrize("case", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_search_is_as_good(extension: ModuleType, case: str, dtype: torch.dtype) -> None:
    name, options = FORMATS[case]
    weight = odd_weights(512, 1024).to(dtype)
    found = getattr(extension, f"quantize_{name}")(weight.cuda(), search=True, **options)
    wanted = getattr(formats, f"quantize_{name}")(weight, search=True, **options)
    plain = getattr(formats, f"quantize_{name}")(weight, **options)
    ours = error(name, found, weight)
    assert ours <= error(name, wanted, weight) * 1.002
    assert ours <= error(name, plain, weight) * 1.0001


@pytest.mark.parametrize("case", FORMATS)
@pytest.mark.parametrize("shape", [(1,), (200,), (2, 3)])
def test_fp8_sources_are_bit_equal(extension: ModuleType, case: str, shape: tuple[int, ...]) -> None:
    name, options = FORMATS[case]
    weight = (odd_weights(200, 384) * 800).clamp(-448, 448).to(torch.float8_e4m3fn)
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 0.01 + 0.001
    found = getattr(extension, f"quantize_{name}")(weight.cuda(), source_scale=scale.cuda(), **options)
    same(found, getattr(formats, f"quantize_{name}")(weight, source_scale=scale, **options))


@pytest.mark.parametrize("case", FORMATS)
def test_any_strides_and_slices_of_results(extension: ModuleType, case: str) -> None:
    name, options = FORMATS[case]
    wide = odd_weights(512, 512).bfloat16()
    views = (wide.T[:, :256], wide[::2, 128:384], wide[:, ::2], wide[:, 1:257])
    for view, there in zip(views, (wide.cuda().T[:, :256], wide.cuda()[::2, 128:384], wide.cuda()[:, ::2],
                                   wide.cuda()[:, 1:257]), strict=True):  # fmt: skip
        wanted = getattr(formats, f"quantize_{name}")(view, **options)
        large = [torch.full((3, *part.shape), 7, device="cuda").to(part.dtype) for part in wanted]
        out = type(wanted)(*(part[1] for part in large))
        getattr(extension, f"quantize_{name}")(there, out=out, **options)
        same(out, wanted)
        for part in large:
            assert (part[0].float() == 7).all()
            assert (part[2].float() == 7).all()


@pytest.mark.parametrize("case", FORMATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_counted(extension: ModuleType, case: str, value: float) -> None:
    name, options = FORMATS[case]
    weight = torch.randn(64, 256).bfloat16()
    weight[3, 17] = weight[3, 18] = weight[60, 255] = value
    quantise = getattr(extension, f"quantize_{name}")
    with pytest.raises(IntegrityError, match=r"layer\.w: 3 elements"):
        quantise(weight.cuda(), name="layer.w", **options)
    bad = extension.new_counter("cuda")
    quantise(weight.cuda(), bad=bad, **options)
    assert int(bad) == 3


@pytest.mark.parametrize("case", FORMATS)
def test_no_rows_and_odd_columns(extension: ModuleType, case: str) -> None:
    name, options = FORMATS[case]
    quantise = getattr(extension, f"quantize_{name}")
    assert quantise(torch.empty(0, 256, device="cuda"), **options).codes.shape[0] == 0
    if name == "fp8":
        weight = torch.randn(130, 203)
        same(quantise(weight.cuda(), **options), formats.quantize_fp8(weight, **options))


@pytest.mark.parametrize("case", FORMATS)
@pytest.mark.parametrize("dtype", SOURCES)
def test_dequantise_is_bit_equal(extension: ModuleType, case: str, dtype: torch.dtype) -> None:
    name, options = FORMATS[case]
    made = getattr(formats, f"quantize_{name}")(odd_weights(200, 384), **options)
    there = type(made)(*(part.cuda() for part in made))
    found = getattr(extension, f"dequantize_{name}")(there, dtype)
    wanted = getattr(formats, f"dequantize_{name}")(made, dtype)
    assert torch.equal(found.cpu().view(torch.uint8), wanted.view(torch.uint8))


def test_more_than_two_to_the_31_elements(extension: ModuleType) -> None:
    row = torch.randn(1, 65536).bfloat16()
    tall = row.cuda().expand(32769 + 64, 65536)
    found = extension.quantize_nf4(tall)
    wanted = formats.quantize_nf4(row)
    assert torch.equal(found.codes[-1].cpu(), wanted.codes[0])
    assert torch.equal(found.scales[-1].cpu(), wanted.scales[0])
    assert bool((found.codes[-70000 // 64 :] == found.codes[0]).all())


def test_streams_and_graphs(extension: ModuleType) -> None:
    weight = torch.randn(64, 128, device="cuda").bfloat16()
    made = formats.Nf4(
        torch.empty(64, 64, dtype=torch.uint8, device="cuda"), torch.empty(64, 2, dtype=torch.bfloat16, device="cuda")
    )
    bad = extension.new_counter("cuda")
    extension.quantize_nf4(weight, out=made, bad=bad)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        extension.quantize_nf4(weight, out=made, bad=bad)
    fresh = torch.randn(64, 128).bfloat16()
    weight.copy_(fresh)
    graph.replay()
    same(made, formats.quantize_nf4(fresh))
