"""float64 truth for the kernels, from the formats' definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vllm_spark.runtime.quant import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = ("nf4-32", "nf4-64", "nf4-128", "mxfp4", "nvfp4")


def quantised(kind: str, shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> tuple[Any, torch.Tensor]:
    """A random weight [.., N, K] in `kind`, and its values in float64; NF4 scales have `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(*shape, generator=generator).reshape(-1, shape[-1]) * 0.05
    name, _, block = kind.partition("-")
    if name == "nf4":
        made: Any = formats.quantize_nf4(dense, block=int(block), scale_dtype=dtype)
    else:
        made = getattr(formats, f"quantize_{name}")(dense)
    values = getattr(formats, f"dequantize_{name}")(made).double().reshape(*shape)
    lead = shape[:-1]
    parts = [part.reshape(*lead, -1) if part.numel() > 1 else part for part in made]
    if name == "nvfp4" and len(shape) == 3:
        parts[2] = parts[2].expand(shape[0]).contiguous()
    return type(made)(*parts), values


def mixture(  # the definition, pair by pair
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, activation: str
) -> torch.Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for slot in range(weights.shape[1]):
            expert = int(experts[token, slot])
            if expert < 0:
                continue
            hidden = w13[expert] @ x[token].double()
            if activation == "relu2":
                hidden = torch.relu(hidden).square()
            else:
                gate, up = hidden.chunk(2)
                curve = torch.nn.functional.silu(gate)
                if activation == "gelu":
                    curve = torch.nn.functional.gelu(gate, approximate="tanh")
                hidden = curve * up
            out[token] += weights[token, slot].double() * (w2[expert] @ hidden)
    return out


def align(experts: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """sorted ids, experts of blocks and padded count as vLLM's `moe_align_block_size` makes them; -1 is left out."""
    flat = experts.flatten().tolist()
    ids: list[int] = []
    of_block: list[int] = []
    for expert in sorted(set(flat) - {-1}):
        mine = [pair for pair, chosen in enumerate(flat) if chosen == expert]
        mine += [len(flat)] * (-len(mine) % block)
        ids += mine
        of_block += [expert] * (len(mine) // block)
    padded = len(ids)
    ids += [len(flat)] * (2 * block)  # the real one is longer than what it holds, too
    of_block += [-1, 0]
    return tuple(torch.tensor(values, dtype=torch.int32) for values in (ids, of_block, [padded]))  # type: ignore[return-value]


def relative(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double().cpu() - truth).norm() / truth.norm())
