"""NF4: sixteen quantiles of a normal distribution, one 16-bit scale per 32, 64 or 128 columns.

Source: QLoRA (Dettmers et al., 2023), section 3 and appendix E. The scale is the largest magnitude of the block, or
near it; it is not quantised a second time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant.formats.blocks import bad_elements, check, check_finite, chunks, least_error, reciprocal
from vllm_spark.runtime.quant.formats.codes import NF4, decode_nf4, nf4_codes, pack

__all__ = ["BLOCKS", "FACTORS", "Nf4", "dequantize_nf4", "quantize_nf4", "scale_dtype_of"]

BLOCKS = (32, 64, 128)
# Of the largest magnitude; the first one is the plain choice.
FACTORS = (1.0, 1.04, 0.96, 0.92, 0.88)


class Nf4(NamedTuple):
    """codes uint8 [N, K/2], scales bfloat16 or float16 [N, K/block]."""

    codes: torch.Tensor
    scales: torch.Tensor


def scale_dtype_of(weight: torch.Tensor, scale_dtype: torch.dtype | None) -> torch.dtype:
    """`scale_dtype`, or the weight's own where that has 16 bits, or bfloat16.

    Raises:
        ConfigError: another dtype.
    """
    chosen = scale_dtype or (torch.float16 if weight.dtype == torch.float16 else torch.bfloat16)
    if chosen not in (torch.bfloat16, torch.float16):
        raise ConfigError(f"scales of NF4 are bfloat16 or float16, not {chosen}")
    return chosen


def quantize_nf4(
    weight: torch.Tensor,
    *,
    block: int = 64,
    search: bool = False,
    scale_dtype: torch.dtype | None = None,
    source_scale: torch.Tensor | None = None,
    name: str = "weight",
) -> Nf4:
    """Quantise a matrix.

    Args:
        weight: float32, bfloat16, float16 or float8_e4m3fn [N, K], K a multiple of `block`, any strides.
        block: columns per scale: 32, 64 or 128.
        search: per block, the scale of least squared error among five around the largest magnitude.
        scale_dtype: bfloat16 or float16; None takes the weight's own, or bfloat16.
        source_scale: of an FP8 weight: one, [N] or [N, 1], or one per 128 x 128.
        name: for messages.

    Raises:
        ConfigError: shape, dtype or block do not fit.
        IntegrityError: NaN or infinity among the values, or values beyond what the scales can hold.
    """
    if block not in BLOCKS:
        raise ConfigError(f"blocks of NF4 are {', '.join(map(str, BLOCKS))} columns, not {block}", where=name)
    check(weight, source_scale, block, name)
    dtype = scale_dtype_of(weight, scale_dtype)
    rows, columns = weight.shape
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(rows, columns // block, dtype=dtype, device=weight.device)
    bad = 0
    for at, values in chunks(weight, source_scale):
        bad += bad_elements(values, torch.finfo(dtype).max)
        blocks = values.reshape(-1, block)
        stored = _scales(blocks, dtype, search=search)
        scale = stored.to(torch.float32)
        codes[at] = pack(nf4_codes(blocks * reciprocal(scale))).reshape(values.shape[0], -1)
        scales[at] = stored.reshape(values.shape[0], -1)
    check_finite(bad, name)
    return Nf4(codes, scales)


def _scales(blocks: torch.Tensor, dtype: torch.dtype, *, search: bool) -> torch.Tensor:
    amax = blocks.abs().amax(dim=1, keepdim=True)
    most = torch.finfo(dtype).max
    if not search:
        return amax.clamp(max=most).to(dtype)
    steps = [(amax * torch.tensor(factor, device=amax.device)).clamp(max=most).to(dtype) for factor in FACTORS]
    levels = torch.tensor(NF4, device=blocks.device)
    chosen = least_error(blocks, (s.to(torch.float32) for s in steps), lambda y: levels[nf4_codes(y).int()])
    return torch.cat(steps, dim=1).gather(1, chosen)


def dequantize_nf4(quantised: Nf4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K] in `dtype`."""
    block = quantised.codes.shape[1] * 2 // max(quantised.scales.shape[1], 1)
    scale = quantised.scales.to(torch.float32).repeat_interleave(block, dim=1)
    return (decode_nf4(quantised.codes) * scale).to(dtype)
