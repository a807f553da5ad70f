"""MXFP4: E2M1 codes, one E8M0 scale (a power of two) per 32 columns.

Source: OCP Microscaling Formats 1.0, sections 5.3.3 and 5.4.1. Its conversion (section 6.3) takes the exponent of the
largest magnitude less two, which clips up to a quarter of it; ours goes one higher from a significand of 1.75 on, where
clipping would cost more than the coarser grid.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vllm_spark.runtime.quant.formats.blocks import bad_elements, check, check_finite, chunks, least_error
from vllm_spark.runtime.quant.formats.codes import E2M1, decode_e2m1, e2m1_codes, pack

__all__ = ["BLOCK", "Mxfp4", "dequantize_mxfp4", "quantize_mxfp4"]

BLOCK = 32
_ROUND = 0x200000  # a quarter of a float32's significand


class Mxfp4(NamedTuple):
    """codes uint8 [N, K/2], scales uint8 [N, K/32]: the exponent plus 127."""

    codes: torch.Tensor
    scales: torch.Tensor


def quantize_mxfp4(
    weight: torch.Tensor, *, search: bool = False, source_scale: torch.Tensor | None = None, name: str = "weight"
) -> Mxfp4:
    """Quantise a matrix.

    Args:
        weight: float32, bfloat16, float16 or float8_e4m3fn [N, K], K a multiple of 32, any strides.
        search: per block, the better of the two powers of two that can be best.
        source_scale: of an FP8 weight: one, [N] or [N, 1], or one per 128 x 128.
        name: for messages.

    Raises:
        ConfigError: shape or dtype do not fit.
        IntegrityError: NaN or infinity among the values.
    """
    check(weight, source_scale, BLOCK, name)
    rows, columns = weight.shape
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(rows, columns // BLOCK, dtype=torch.uint8, device=weight.device)
    bad = 0
    for at, values in chunks(weight, source_scale):
        bad += bad_elements(values)
        blocks = values.reshape(-1, BLOCK)
        stored = _exponents(blocks, search=search)
        codes[at] = pack(e2m1_codes(blocks * _power(254 - stored))).reshape(values.shape[0], -1)
        scales[at] = stored.to(torch.uint8).reshape(values.shape[0], -1)
    check_finite(bad, name)
    return Mxfp4(codes, scales)


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """2^(e - 127) in float32; e = 0 is a subnormal."""
    bits = torch.where(exponent == 0, 0x00400000, exponent.int() << 23)
    return bits.to(torch.int32).view(torch.float32)


def _exponents(blocks: torch.Tensor, *, search: bool) -> torch.Tensor:
    """Biased exponents, int32 [blocks, 1]."""
    bits = blocks.abs().amax(dim=1, keepdim=True).view(torch.int32)
    plain = ((bits + _ROUND) >> 23) - 2
    if not search:
        return plain.clamp(0, 254)
    low = ((bits >> 23) - 2).clamp(0, 254)
    steps = [low, (low + 1).clamp(max=254)]
    levels = torch.tensor(E2M1, device=blocks.device)
    chosen = least_error(blocks, (_power(e) for e in steps), lambda y: levels[e2m1_codes(y).int()])
    return torch.cat(steps, dim=1).gather(1, chosen)


def dequantize_mxfp4(quantised: Mxfp4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K] in `dtype`."""
    scale = _power(quantised.scales.int())
    return (decode_e2m1(quantised.codes) * scale.repeat_interleave(BLOCK, dim=1)).to(dtype)
