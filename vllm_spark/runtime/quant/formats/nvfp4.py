"""NVFP4: E2M1 codes, one E4M3 scale per 16 columns, one float32 scale for the whole tensor.

Source: NVIDIA, "Introducing NVFP4" (2025); layout and meaning as ModelOpt and vLLM 0.33.0 (`weight_scale_2`) have it:
value = code * scale * global_scale.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vllm_spark.runtime.quant.formats.blocks import bad_elements, check, check_finite, chunks, least_error, reciprocal
from vllm_spark.runtime.quant.formats.codes import E2M1, E2M1_MAX, decode_e2m1, e2m1_codes, pack

__all__ = ["BLOCK", "Nvfp4", "dequantize_nvfp4", "global_scale_of", "quantize_nvfp4"]

BLOCK = 16
E4M3_MAX = 448.0
_MOST_CODE = 126  # of E4M3: 448; 127 is NaN
_TINY = 2.0**-100  # below it a tensor counts as this large, so that no reciprocal overflows
# Steps of the E4M3 code from the plain one. Half-way up to twice the scale, 4 instead of 6 holds the largest value.
SEARCH = (0, -1, 1, 4, 5, 6)


class Nvfp4(NamedTuple):
    """codes uint8 [N, K/2], scales float8_e4m3fn [N, K/16], global_scale float32 [1]."""

    codes: torch.Tensor
    scales: torch.Tensor
    global_scale: torch.Tensor


def global_scale_of(amax: torch.Tensor) -> torch.Tensor:
    """The scale that gives the block of the largest magnitude `amax` the largest E4M3 number; float32 [1]."""
    largest = amax.to(torch.float32).clamp(min=_TINY).reshape(1)
    return largest / torch.full_like(largest, E2M1_MAX * E4M3_MAX)  # by a number, a GPU multiplies with its reciprocal


def quantize_nvfp4(
    weight: torch.Tensor,
    *,
    search: bool = False,
    global_scale: torch.Tensor | None = None,
    source_scale: torch.Tensor | None = None,
    name: str = "weight",
) -> Nvfp4:
    """Quantise a matrix.

    Args:
        weight: float32, bfloat16, float16 or float8_e4m3fn [N, K], K a multiple of 16, any strides.
        search: per block, the scale of least squared error among six E4M3 numbers around the plain one.
        global_scale: float32 [1], to share one among tensors; None makes it from the largest magnitude.
        source_scale: of an FP8 weight: one, [N] or [N, 1], or one per 128 x 128.
        name: for messages.

    Raises:
        ConfigError: shape or dtype do not fit.
        IntegrityError: NaN or infinity among the values.
    """
    check(weight, source_scale, BLOCK, name)
    amax = torch.zeros(1, device=weight.device)
    bad = 0
    for _, values in chunks(weight, source_scale):
        bad += bad_elements(values)
        amax = torch.maximum(amax, values.abs().amax() if values.numel() else amax)
    check_finite(bad, name)
    scale = global_scale_of(amax) if global_scale is None else global_scale.to(torch.float32).reshape(1)
    rows, columns = weight.shape
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(rows, columns // BLOCK, dtype=torch.uint8, device=weight.device)
    for at, values in chunks(weight, source_scale):
        blocks = values.reshape(-1, BLOCK)
        stored = _scales(blocks, scale, search=search)
        codes[at] = pack(e2m1_codes(blocks * _inverse(stored, scale))).reshape(values.shape[0], -1)
        scales[at] = stored.reshape(values.shape[0], -1)
    return Nvfp4(codes, scales.view(torch.float8_e4m3fn), scale)


def _values(stored: torch.Tensor) -> torch.Tensor:
    return stored.view(torch.float8_e4m3fn).to(torch.float32)


def _inverse(stored: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return reciprocal(_values(stored) * scale)


def _scales(blocks: torch.Tensor, scale: torch.Tensor, *, search: bool) -> torch.Tensor:
    """E4M3 bits [blocks, 1]. A block that is not zero gets no zero: the smallest number still keeps its largest."""
    amax = blocks.abs().amax(dim=1, keepdim=True)
    wanted = (amax * (1 / (E2M1_MAX * scale))).clamp(max=E4M3_MAX)
    plain = wanted.to(torch.float8_e4m3fn).view(torch.uint8)
    plain = torch.where(amax > 0, plain.clamp(min=1), plain)
    if not search:
        return plain
    steps = [torch.where(plain > 0, (plain.int() + d).clamp(1, _MOST_CODE), 0).to(torch.uint8) for d in SEARCH]
    levels = torch.tensor(E2M1, device=blocks.device)
    chosen = least_error(blocks, (_values(s) * scale for s in steps), lambda y: levels[e2m1_codes(y).int()])
    return torch.cat(steps, dim=1).gather(1, chosen)


def dequantize_nvfp4(quantised: Nvfp4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K] in `dtype`."""
    scale = quantised.scales.to(torch.float32) * quantised.global_scale
    return (decode_e2m1(quantised.codes) * scale.repeat_interleave(BLOCK, dim=1)).to(dtype)
