"""The operators on the CPU: the formats' definitions and plain matrix products, for tests and for reference.

They take what the kernels take, tiles included, so that a model runs unchanged on either device.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from vllm_spark.runtime.kernels.tiles import untile_codes, untile_scales
from vllm_spark.runtime.quant.formats import Mxfp4, Nf4, Nvfp4, dequantize_mxfp4, dequantize_nf4, dequantize_nvfp4

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ACTIVATIONS", "FORMATS", "dense", "register"]

FORMATS = ("nf4", "mxfp4", "nvfp4")  # by their number in the operators
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda y: torch.nn.functional.silu(y.chunk(2, -1)[0]) * y.chunk(2, -1)[1],
    "gelu": lambda y: torch.nn.functional.gelu(y.chunk(2, -1)[0], approximate="tanh") * y.chunk(2, -1)[1],
    "relu2": lambda y: torch.relu(y).square(),
}


def dense(
    name: str, tiles: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | None, n: int, k: int
) -> torch.Tensor:
    """float32 [n, k] of a tiled weight."""
    codes = untile_codes(tiles, n, k)
    if name == "mxfp4":
        return dequantize_mxfp4(Mxfp4(codes, untile_scales(scales, n, k // 32)))
    if name == "nvfp4":
        glob = torch.ones(1, device=tiles.device) if global_scale is None else global_scale
        return dequantize_nvfp4(Nvfp4(codes, untile_scales(scales, n, k // 16), glob))
    per_tile = 2 if scales.shape[-1] == 32 else 1
    block = 64 // per_tile if scales.shape[-2] == tiles.shape[-2] else 128
    return dequantize_nf4(Nf4(codes, untile_scales(scales, n, -(-k // block))))


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = x.to(torch.float32) @ weight.T
    return (y if bias is None else y + bias).to(x.dtype)


def _linear(
    name: str,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, int, bool], torch.Tensor]:
    def linear(
        x: torch.Tensor,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        n: int,
        expand: bool = False,  # noqa: ARG001 - a choice among kernels
    ) -> torch.Tensor:
        return _product(x, dense(name, weight, scales, None, n, x.shape[1]), bias)

    return linear


def _nvfp4_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor,
    bias: torch.Tensor | None,
    n: int,
    expand: bool = False,  # noqa: ARG001 - a choice among kernels
) -> torch.Tensor:
    return _product(x, dense("nvfp4", weight, scales, global_scale, n, x.shape[1]), bias)


def experts_of_pairs(
    experts: torch.Tensor, sorted_ids: torch.Tensor | None, padded: torch.Tensor | None, pairs: int, block: int
) -> list[int]:
    """The expert of every (token, slot) pair; -1 where none here takes it."""
    if sorted_ids is None or padded is None:
        return [int(expert) for expert in experts]
    found = [-1] * pairs
    for index in range(int(padded) // block):
        for pair in sorted_ids[index * block : (index + 1) * block].tolist():
            if pair < pairs:
                found[pair] = int(experts[index])
    return found


def _moe(  # noqa: PLR0913, PLR0917 - the operator's schema
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scales: torch.Tensor,
    w13_global: torch.Tensor | None,
    w2: torch.Tensor,
    w2_scales: torch.Tensor,
    w2_global: torch.Tensor | None,
    weights: torch.Tensor,
    experts: torch.Tensor,
    sorted_ids: torch.Tensor | None,
    padded: torch.Tensor | None,
    form: int,
    activation: int,
    block: int,
    partial: bool = False,  # noqa: ARG001 - the sum below starts from zero anyway
) -> torch.Tensor:
    name = FORMATS[form]
    kind = list(ACTIVATIONS)[activation]
    rows = w13.shape[1] * 16
    inner = rows if kind == "relu2" else rows // 2
    top_k = weights.shape[1]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for pair, expert in enumerate(experts_of_pairs(experts, sorted_ids, padded, weights.numel(), block)):
        if expert < 0:
            continue
        token = pair // top_k
        first = dense(name, w13[expert], w13_scales[expert], _one(w13_global, expert), rows, x.shape[1])
        hidden = ACTIVATIONS[kind](x[token].to(torch.float32) @ first.T).to(x.dtype).to(torch.float32)
        second = dense(name, w2[expert], w2_scales[expert], _one(w2_global, expert), x.shape[1], inner)
        out[token] += weights.flatten()[pair] * (hidden @ second.T)
    return out.to(x.dtype)


def _one(global_scale: torch.Tensor | None, expert: int) -> torch.Tensor | None:
    return None if global_scale is None else global_scale[expert : expert + 1]


@functools.cache
def register() -> None:
    """Give the operators to torch for CPU tensors, once, after the library is loaded."""
    for name in ("nf4", "mxfp4"):
        torch.library.impl(f"vllm_spark::{name}_linear", "CPU", _linear(name))
    torch.library.impl("vllm_spark::nvfp4_linear", "CPU", _nvfp4_linear)
    torch.library.impl("vllm_spark::w4_moe", "CPU", _moe)
