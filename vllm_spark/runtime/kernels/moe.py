"""Mixtures of experts with 4-bit weights, routed by vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import torch

from vllm_spark.runtime.kernels.library import ensure
from vllm_spark.runtime.kernels.reference import ACTIVATIONS, FORMATS

if TYPE_CHECKING:
    from vllm_spark.runtime.kernels.tiles import Tiled

__all__ = ["Activation", "Routing", "mxfp4_moe", "nf4_moe", "nvfp4_moe", "pairs_suit"]

Activation = Literal["silu", "gelu", "relu2"]


class Routing(NamedTuple):
    """Which experts take which tokens.

    Without the last four every pair of token and slot goes by itself (see `pairs_suit`). With them, pairs of one expert
    go together in blocks, as vLLM's `moe_align_block_size` arranges them.

    Attributes:
        weights: float32 [tokens, top_k], the routing weights.
        experts: int32 [tokens, top_k], or one per block; -1 is an expert of another rank.
        sorted_ids: int32, `sorted_token_ids`.
        padded: int32 [1], `num_tokens_post_padded`.
        block: the block size: 8, 16, 32 or 64.
        partial: some experts are on other ranks, and `sorted_ids` leaves out their pairs.

    Source: vLLM 0.33.0, `fused_moe/moe_align_block_size.py`.
    """

    weights: torch.Tensor
    experts: torch.Tensor
    sorted_ids: torch.Tensor | None = None
    padded: torch.Tensor | None = None
    block: int = 0
    partial: bool = False


def pairs_suit(tokens: int, top_k: int, experts: int) -> bool:
    """Whether pairs do better by themselves than aligned: few experts are drawn twice then (docs/kernels.md)."""
    return 2 * tokens * top_k <= experts


def _moe(
    name: str, x: torch.Tensor, layers: tuple[Tiled, Tiled], routing: Routing, activation: Activation
) -> torch.Tensor:
    ensure()
    w13, w2 = layers
    route = routing.weights, routing.experts.flatten(), routing.sorted_ids, routing.padded
    numbers = FORMATS.index(name), list(ACTIVATIONS).index(activation), routing.block, routing.partial
    return cast("torch.Tensor", torch.ops.vllm_spark.w4_moe(x, *w13, *w2, *route, *numbers))


def nf4_moe(
    x: torch.Tensor, w13: Tiled, w2: Tiled, routing: Routing, *, activation: Activation = "silu"
) -> torch.Tensor:
    """Sum over the experts of each token of weight · w2(activation(w13(x))), with NF4 weights.

    Two launches where pairs go by themselves, three where they are aligned. Sums in float32, in an order that depends
    on the shapes alone. Captures into graphs.

    Args:
        x: bfloat16 or float16 [tokens, hidden].
        w13: `tile` of all experts: the gate's rows over those of the up projection [experts, 2 inner, hidden]; for
            relu2 [experts, inner, hidden].
        w2: `tile` of [experts, hidden, inner]. hidden and inner are multiples of 16.
        routing: which experts take which tokens.
        activation: silu and gelu (tanh form) multiply gate and up; relu2 is not gated.

    Returns:
        [tokens, hidden], with the dtype of x.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.

    Source: QLoRA (Dettmers et al., 2023) for the format.
    """
    return _moe("nf4", x, (w13, w2), routing, activation)


def mxfp4_moe(
    x: torch.Tensor, w13: Tiled, w2: Tiled, routing: Routing, *, activation: Activation = "silu"
) -> torch.Tensor:
    """`nf4_moe` with MXFP4 weights."""
    return _moe("mxfp4", x, (w13, w2), routing, activation)


def nvfp4_moe(
    x: torch.Tensor, w13: Tiled, w2: Tiled, routing: Routing, *, activation: Activation = "silu"
) -> torch.Tensor:
    """`nf4_moe` with NVFP4 weights; their `global_scale` is float32 [experts]."""
    return _moe("nvfp4", x, (w13, w2), routing, activation)
