"""FP8: E4M3 values, one float32 scale per row, or per 128 x 128.

Source: OCP 8-bit Floating Point Specification 1.0 (E4M3, 448 the largest); the scales as DeepSeek-V3 and vLLM 0.33.0
(`weight_scale_inv`) have them: value = code * scale.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vllm_spark.runtime.quant.formats.blocks import bad_elements, check, check_finite, source_values

__all__ = ["FACTORS", "Fp8", "dequantize_fp8", "quantize_fp8"]

E4M3_MAX = 448.0
_TINY = 2.0**-100
_SIDE = 128
# Rounding errors repeat with every doubling of the scale but for what falls below the smallest exponent.
FACTORS = (1.0, 1.0625, 1.125, 1.1875, 1.25, 1.375, 1.5, 1.75)


class Fp8(NamedTuple):
    """codes float8_e4m3fn [N, K], scales float32 [N, 1] or [ceil(N/128), ceil(K/128)]."""

    codes: torch.Tensor
    scales: torch.Tensor


def quantize_fp8(
    weight: torch.Tensor,
    *,
    blocks: bool = False,
    search: bool = False,
    source_scale: torch.Tensor | None = None,
    name: str = "weight",
) -> Fp8:
    """Quantise a matrix.

    Args:
        weight: float32, bfloat16, float16 or float8_e4m3fn [N, K], any strides.
        blocks: one scale per 128 x 128, the last ones smaller, instead of one per row.
        search: the scale of least squared error among eight from the plain one up to 1.75 times it.
        source_scale: of an FP8 weight: one, [N] or [N, 1], or one per 128 x 128.
        name: for messages.

    Raises:
        ConfigError: shape or dtype do not fit.
        IntegrityError: NaN or infinity among the values.
    """
    check(weight, source_scale, 1, name)
    rows, columns = weight.shape
    side = _SIDE if blocks else 1
    wide = -(-columns // _SIDE) if blocks else 1
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(-(-rows // side), wide, dtype=torch.float32, device=weight.device)
    step = max(side, (1 << 22) // max(columns, 1) // side * side)
    bad = 0
    for first in range(0, rows, step):
        values = source_values(weight, source_scale, first, min(first + step, rows))
        bad += bad_elements(values)
        groups = _groups(values, side, wide)
        scale = _scales(groups, search=search)
        scales[first // side : first // side + groups.shape[0] // wide] = scale.reshape(-1, wide)
        codes[first : first + values.shape[0]] = _round(values * _spread(1 / scale, side, wide, values))
    check_finite(bad, name)
    return Fp8(codes, scales)


def _groups(values: torch.Tensor, side: int, wide: int) -> torch.Tensor:
    """The elements of each scale as one row; what a last group lacks is zero."""
    rows, columns = values.shape
    width = _SIDE * wide if side > 1 else columns
    padded = torch.nn.functional.pad(values, (0, width - columns, 0, -rows % side))
    high = padded.shape[0] // side
    return padded.reshape(high, side, wide, width // wide).transpose(1, 2).reshape(high * wide, side * width // wide)


def _spread(scale: torch.Tensor, side: int, wide: int, values: torch.Tensor) -> torch.Tensor:
    """The scale of every element."""
    grid = scale.reshape(-1, wide).repeat_interleave(side, dim=0)[: values.shape[0]]
    return grid if wide == 1 and side == 1 else grid.repeat_interleave(_SIDE, dim=1)[:, : values.shape[1]]


def _round(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def _scales(groups: torch.Tensor, *, search: bool) -> torch.Tensor:
    if groups.shape[1] == 0:
        return torch.full((groups.shape[0], 1), _TINY, device=groups.device)
    plain = groups.abs().amax(dim=1, keepdim=True).clamp(min=_TINY) / E4M3_MAX
    if not search:
        return plain
    best = torch.full_like(plain, float("inf"))
    chosen = plain
    for factor in FACTORS:
        scale = plain * factor
        error = (_round(groups * (1 / scale)).to(torch.float32) * scale - groups).square().sum(dim=1, keepdim=True)
        chosen = torch.where(error < best, scale, chosen)
        best = torch.minimum(error, best)
    return chosen


def dequantize_fp8(quantised: Fp8, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K] in `dtype`."""
    values = quantised.codes.to(torch.float32)
    rows, wide = quantised.scales.shape
    side = 1 if wide == 1 and rows == values.shape[0] else _SIDE
    return (values * _spread(quantised.scales.reshape(-1, 1), side, wide, values)).to(dtype)
