"""Quantisers and their inverses: `quant.formats` on the CPU, the kernels on a GPU, the same codes from both.

In plain mode the results are equal bit for bit. A search may settle ties and near ties differently; its errors agree.
All take weights as `quant.formats` says; results may go into slices of larger tensors (`out`), and the count of values
that cannot be quantised may be collected on the device (`bad`) instead of being waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vllm_spark.runtime.kernels.library import ensure
from vllm_spark.runtime.quant import formats
from vllm_spark.runtime.quant.formats import Fp8, Mxfp4, Nf4, Nvfp4
from vllm_spark.runtime.quant.formats.blocks import check, check_finite
from vllm_spark.runtime.quant.formats.nf4 import BLOCKS, scale_dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "dequantize_fp8",
    "dequantize_mxfp4",
    "dequantize_nf4",
    "dequantize_nvfp4",
    "new_counter",
    "quantize_fp8",
    "quantize_mxfp4",
    "quantize_nf4",
    "quantize_nvfp4",
]


def new_counter(device: torch.device | str) -> torch.Tensor:
    """A count of zero, for `bad`: look at it with `int(...)` when the device is waited for anyway."""
    return torch.zeros(1, dtype=torch.int64, device=device)


def _run(
    op: Callable[..., None],
    weight: torch.Tensor,
    source_scale: torch.Tensor | None,
    between: Sequence[object],
    results: Sequence[torch.Tensor],
    bad: torch.Tensor | None,
    name: str,
) -> None:
    scale = None if source_scale is None else source_scale.to(torch.float32).contiguous()
    counter = new_counter(weight.device) if bad is None else bad
    op(weight, scale, *between, *results, counter)
    if bad is None:
        check_finite(counter, name)


def _into(out: Sequence[torch.Tensor] | None, made: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """`made`, or `out` with its values."""
    if out is None:
        return made
    for to, value in zip(out, made, strict=True):
        to.copy_(value)
    return out


def quantize_nf4(
    weight: torch.Tensor,
    *,
    block: int = 64,
    search: bool = False,
    scale_dtype: torch.dtype | None = None,
    source_scale: torch.Tensor | None = None,
    name: str = "weight",
    out: Nf4 | None = None,
    bad: torch.Tensor | None = None,
) -> Nf4:
    """`formats.quantize_nf4` on either device; `out` and `bad` (int64 [1]) as this module says."""
    if not weight.is_cuda:
        options = {"block": block, "search": search, "scale_dtype": scale_dtype}
        made = formats.quantize_nf4(weight, **options, source_scale=source_scale, name=name)  # type: ignore[arg-type]
        return Nf4(*_into(out, made))
    check(weight, source_scale, block if block in BLOCKS else 1, name)
    ensure()
    rows, columns = weight.shape
    dtype = scale_dtype_of(weight, scale_dtype)
    result = out or Nf4(
        weight.new_empty((rows, columns // 2), dtype=torch.uint8),
        weight.new_empty((rows, columns // block), dtype=dtype),
    )
    _run(torch.ops.vllm_spark.quantize_nf4, weight, source_scale, (search,), result, bad, name)
    return result


def quantize_mxfp4(
    weight: torch.Tensor,
    *,
    search: bool = False,
    source_scale: torch.Tensor | None = None,
    name: str = "weight",
    out: Mxfp4 | None = None,
    bad: torch.Tensor | None = None,
) -> Mxfp4:
    """`formats.quantize_mxfp4` on either device; `out` and `bad` (int64 [1]) as this module says."""
    if not weight.is_cuda:
        made = formats.quantize_mxfp4(weight, search=search, source_scale=source_scale, name=name)
        return Mxfp4(*_into(out, made))
    check(weight, source_scale, 32, name)
    ensure()
    rows, columns = weight.shape
    result = out or Mxfp4(
        weight.new_empty((rows, columns // 2), dtype=torch.uint8),
        weight.new_empty((rows, columns // 32), dtype=torch.uint8),
    )
    _run(torch.ops.vllm_spark.quantize_mxfp4, weight, source_scale, (search,), result, bad, name)
    return result


def quantize_nvfp4(
    weight: torch.Tensor,
    *,
    search: bool = False,
    global_scale: torch.Tensor | None = None,
    source_scale: torch.Tensor | None = None,
    name: str = "weight",
    out: Nvfp4 | None = None,
    bad: torch.Tensor | None = None,
) -> Nvfp4:
    """`formats.quantize_nvfp4` on either device; `out` and `bad` (int64 [1]) as this module says.

    Without `global_scale` the weight is read twice. A count in `bad` then holds every bad value twice.
    """
    if not weight.is_cuda:
        made = formats.quantize_nvfp4(
            weight, search=search, global_scale=global_scale, source_scale=source_scale, name=name
        )
        return Nvfp4(*_into(out, made))
    check(weight, source_scale, 16, name)
    ensure()
    rows, columns = weight.shape
    scale = None if source_scale is None else source_scale.to(torch.float32).contiguous()
    glob = global_scale
    if glob is None:
        largest = torch.zeros(1, device=weight.device)
        ignored = new_counter(weight.device)
        torch.ops.vllm_spark.largest_magnitude(weight, scale, largest, ignored)
        glob = formats.global_scale_of(largest)
    codes, scales, kept = out or Nvfp4(
        weight.new_empty((rows, columns // 2), dtype=torch.uint8),
        weight.new_empty((rows, columns // 16), dtype=torch.float8_e4m3fn),
        glob,
    )
    _run(torch.ops.vllm_spark.quantize_nvfp4, weight, scale, (glob, search), (codes, scales), bad, name)
    if kept is not glob:
        kept.copy_(glob)
    return Nvfp4(codes, scales, kept)


def quantize_fp8(
    weight: torch.Tensor,
    *,
    blocks: bool = False,
    search: bool = False,
    source_scale: torch.Tensor | None = None,
    name: str = "weight",
    out: Fp8 | None = None,
    bad: torch.Tensor | None = None,
) -> Fp8:
    """`formats.quantize_fp8` on either device; `out` and `bad` (int64 [1]) as this module says."""
    if not weight.is_cuda:
        made = formats.quantize_fp8(weight, blocks=blocks, search=search, source_scale=source_scale, name=name)
        return Fp8(*_into(out, made))
    check(weight, source_scale, 1, name)
    ensure()
    rows, columns = weight.shape
    shape = (-(-rows // 128), -(-columns // 128)) if blocks else (rows, 1)
    result = out or Fp8(
        weight.new_empty((rows, columns), dtype=torch.float8_e4m3fn), weight.new_empty(shape, dtype=torch.float32)
    )
    _run(torch.ops.vllm_spark.quantize_fp8, weight, source_scale, (search,), result, bad, name)
    return result


def _expand(
    op: Callable[..., None], operands: Sequence[torch.Tensor], shape: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    ensure()
    out = operands[0].new_empty(shape, dtype=dtype)
    op(*operands, out)
    return out


def dequantize_nf4(quantised: Nf4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K] in `dtype`, on the device of the codes."""
    if not quantised.codes.is_cuda:
        return formats.dequantize_nf4(quantised, dtype)
    rows, half = quantised.codes.shape
    return _expand(torch.ops.vllm_spark.dequantize_nf4, quantised, (rows, 2 * half), dtype)


def dequantize_mxfp4(quantised: Mxfp4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K] in `dtype`, on the device of the codes."""
    if not quantised.codes.is_cuda:
        return formats.dequantize_mxfp4(quantised, dtype)
    rows, half = quantised.codes.shape
    return _expand(torch.ops.vllm_spark.dequantize_mxfp4, quantised, (rows, 2 * half), dtype)


def dequantize_nvfp4(quantised: Nvfp4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K] in `dtype`, on the device of the codes."""
    if not quantised.codes.is_cuda:
        return formats.dequantize_nvfp4(quantised, dtype)
    rows, half = quantised.codes.shape
    return _expand(torch.ops.vllm_spark.dequantize_nvfp4, quantised, (rows, 2 * half), dtype)


def dequantize_fp8(quantised: Fp8, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values [N, K] in `dtype`, on the device of the codes."""
    if not quantised.codes.is_cuda:
        return formats.dequantize_fp8(quantised, dtype)
    rows, columns = quantised.codes.shape
    return _expand(torch.ops.vllm_spark.dequantize_fp8, quantised, (rows, columns), dtype)
