"""Packed weights on a GPU: vLLM's Marlin kernels over them compute with the numbers that the scheme defines."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_spark.runtime.quant import marlin
from vllm_spark.runtime.quant.marlin import Layout
from vllm_spark.runtime.quant.schemes import round_trip

pytestmark = pytest.mark.gpu

# Qwen3-MoE expert and attention, Gemma-4 (704), Nemotron-3-Nano (1856), a width that needs padding, a head.
SHAPES = [
    (1536, 2048),
    (2048, 768),
    (5120, 2048),
    (704, 2816),
    (2816, 704),
    (1856, 2688),
    (2688, 1856),
    (130, 192),
    (32768, 256),
]


@pytest.fixture(scope="module", autouse=True)
def config() -> Any:
    vllm: Any = importlib.import_module("vllm.config")
    with vllm.set_current_vllm_config(vllm.VllmConfig()):
        yield


def packed(layout: Layout, weight: torch.Tensor, tile: int) -> SimpleNamespace:
    """A layer with the packed tensors, made tile by tile."""
    final = {
        name: torch.zeros(*shape[:-1], shape[-1] * dtype.itemsize, dtype=torch.uint8, device="cuda").view(dtype)
        for name, (shape, dtype) in layout.shapes().items()
    }
    for first in range(0, layout.rows, tile):
        layout.place(layout.pack(weight[first : first + tile], search=True), final, first)
    return SimpleNamespace(**final, spark_workspace=marlin.workspace(weight.device))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("scheme", "tiled"), [("nvfp4", False), ("mxfp4", False), ("mxfp4", True), ("fp8", False), ("fp8", True)]
)
def test_the_kernel_computes_with_the_schemes_numbers(shape: tuple[int, int], scheme: str, tiled: bool) -> None:
    rows, columns = shape
    generator = torch.Generator(device="cuda").manual_seed(0)
    weight = (torch.randn(shape, generator=generator, device="cuda") * 0.02).to(torch.bfloat16)
    layout = Layout(scheme, rows, columns, torch.bfloat16)
    layer = packed(layout, weight, 128 if tiled else rows)
    x = torch.randn(5, columns, generator=generator, device="cuda").to(torch.bfloat16)
    bias = torch.randn(rows, generator=generator, device="cuda").to(torch.bfloat16)
    got = marlin.apply_linear(layer, layout, x, marlin.permuted_bias(bias, layout)).double()
    wanted = x.double() @ round_trip(scheme, weight.float(), search=True).double().T + bias.double()
    assert float((got - wanted).norm() / wanted.norm()) < 6e-3


def test_packed_tensors_take_the_bytes_that_the_table_promises() -> None:
    from vllm_spark.runtime.quant.policy import bits

    for scheme in ("nvfp4", "mxfp4", "fp8"):
        layout = Layout(scheme, 1536, 2048, torch.bfloat16)
        assert layout.nbytes() == pytest.approx(1536 * 2048 * bits(scheme) / 8, rel=2e-3)
