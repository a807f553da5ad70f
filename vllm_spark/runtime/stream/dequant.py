"""From a checkpoint's bytes to 16-bit weights: dtypes, and FP8 with each kind of scale.

FP8 with block scales: w = q * s[row // 128, column // 128], as DeepSeek-V3's report and its `weight_scale_inv`
define it; per tensor and per channel: w = q * s, as compressed-tensors and ModelOpt write `weight_scale`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm_spark.runtime.quant.source import Source
    from vllm_spark.runtime.stream.plan import Block

__all__ = ["DTYPES", "as_tensor", "dequantise"]

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
_CHUNK = 4 << 20  # elements whose float32 copy exists at a time


def as_tensor(block: Block, view: memoryview) -> torch.Tensor:
    """A block's bytes as a tensor of its rows that shares their memory."""
    tensor = block.tensor
    shape = (block.last - block.first, *tensor.shape[1:]) if tensor.shape else ()
    return torch.frombuffer(view, dtype=torch.uint8).view(DTYPES[tensor.dtype]).view(shape)


def _rows(scale: torch.Tensor, source: Source, first: int, last: int, *, stacked: bool) -> torch.Tensor:
    """The part of a scale that belongs to leading rows `first` up to `last` of its weight."""
    if source.kind == "tensor":
        return scale[first:last] if stacked and scale.numel() > 1 else scale
    if source.kind == "block" and not stacked:
        return scale[first // source.block[0] : -(-last // source.block[0])]
    return scale[first:last]


def _expanded(scale: torch.Tensor, source: Source, shape: torch.Size) -> torch.Tensor:
    """The scale as something that multiplies a [..., rows, columns] weight by broadcasting."""
    outer, rows, columns = shape[:-2], shape[-2], shape[-1]
    if source.kind == "tensor":
        return scale.reshape(*outer, 1, 1) if scale.numel() > 1 else scale.reshape(())
    if source.kind == "channel":
        return scale.reshape(*outer, rows, 1)
    high, wide = source.block
    return scale.repeat_interleave(high, -2)[..., :rows, :].repeat_interleave(wide, -1)[..., :columns]


def dequantise(
    raw: torch.Tensor, source: Source, scale: torch.Tensor, dtype: torch.dtype, *, first: int = 0
) -> torch.Tensor:
    """16-bit weights from FP8.

    Args:
        raw: [rows, columns] or [experts, rows, columns], E4M3; leading rows `first` and on of the weight.
        source: how weight and scale belong together.
        scale: the whole weight's scale.
        dtype: of the result.
        first: a multiple of the block's rows for a two-dimensional weight.
    """
    scale = scale.float()
    out = torch.empty(raw.shape, dtype=dtype, device=raw.device)
    quantum = source.block[0] if source.kind == "block" and raw.dim() == 2 else 1
    per_row = max(1, raw[0].numel()) if len(raw) else 1
    step = max(quantum, _CHUNK // per_row // quantum * quantum)
    for at in range(0, len(raw), step):
        part = raw[at : at + step]
        rows = _rows(scale, source, first + at, first + at + len(part), stacked=raw.dim() == 3)
        out[at : at + step] = part.float() * _expanded(rows, source, part.shape)
    return out
