"""Weight-only 4-bit linear layers: 16-bit activations, weights in the kernels' tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from vllm_spark.runtime.kernels.library import ensure
from vllm_spark.runtime.kernels.tiles import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["mxfp4_linear", "nf4_linear", "nvfp4_linear"]


def _apply(
    op: Callable[..., torch.Tensor],
    x: torch.Tensor,
    qweight: torch.Tensor,
    operands: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None,
    n: int | None,
) -> torch.Tensor:
    rows = n if n is not None else qweight.shape[-3] * ROWS
    flat = x.reshape(-1, x.shape[-1])
    return op(flat, qweight, *operands, bias, rows).reshape(*x.shape[:-1], rows)


def nf4_linear(
    x: torch.Tensor,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    n: int | None = None,
) -> torch.Tensor:
    """Return x · Wᵀ + bias with an NF4 weight.

    Sums in float32, in an order that depends on the shape alone. Up to 128 rows of x a kernel decodes the weight in
    registers; above, the weight is expanded in pieces of at most 64 MB and multiplied by cuBLAS. Captures into graphs.

    Args:
        x: bfloat16 or float16 [..., K]; its rows start at multiples of 16 bytes.
        qweight: int32 [ceil(N/16), ceil(K/64), 128]: `tile(...).codes`.
        scales: `tile(...).scales`, with the dtype of x; blocks of 32, 64 or 128.
        bias: [N], with the dtype of x.
        n: N where it is no multiple of 16.

    Returns:
        [..., N], with the dtype of x.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.

    Source: QLoRA (Dettmers et al., 2023) for the format.
    """
    ensure()
    return _apply(torch.ops.vllm_spark.nf4_linear, x, qweight, (scales,), bias, n)


def mxfp4_linear(
    x: torch.Tensor,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    n: int | None = None,
) -> torch.Tensor:
    """Return x · Wᵀ + bias with an MXFP4 weight; `scales` are uint8, the rest as for `nf4_linear`.

    Source: OCP Microscaling Formats 1.0 for the format.
    """
    ensure()
    return _apply(torch.ops.vllm_spark.mxfp4_linear, x, qweight, (scales,), bias, n)


def nvfp4_linear(
    x: torch.Tensor,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    n: int | None = None,
) -> torch.Tensor:
    """Return x · Wᵀ + bias with an NVFP4 weight; `scales` are float8_e4m3fn, `global_scale` float32 [1].

    Source: NVIDIA's NVFP4 as ModelOpt stores it, for the format; the rest as for `nf4_linear`.
    """
    ensure()
    return _apply(
        cast("Callable[..., torch.Tensor]", torch.ops.vllm_spark.nvfp4_linear),
        x,
        qweight,
        (scales, global_scale),
        bias,
        n,
    )
