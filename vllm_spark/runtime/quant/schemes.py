"""Schemes by name, on top of the formats' quantisers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from vllm_spark.runtime import kernels
from vllm_spark.runtime.quant import formats
from vllm_spark.runtime.stream.dequant import DTYPES, dequantise

if TYPE_CHECKING:
    from vllm_spark.runtime.quant.source import Source
    from vllm_spark.runtime.stream.headers import Tensor

__all__ = ["quantise", "relative_error", "round_trip"]

_SAMPLE = 4 << 20  # elements of a layer that its error is measured on
_WIDTH = 64  # every format's block divides it


def _function(name: str, weight: torch.Tensor) -> Any:  # noqa: ANN401 - a quantiser or its inverse
    """The operator on a GPU where the extension has it, else the definition in plain torch."""
    fast = getattr(kernels, name, None) if weight.is_cuda else None
    return fast or getattr(formats, name)


def quantise(scheme: str, weight: torch.Tensor, *, search: bool) -> tuple[torch.Tensor, ...]:
    """Codes and scales of a weight, and for nvfp4 the global scale, in the formats' row-major layout.

    Args:
        scheme: one of `policy.SCHEMES` but bf16.
        weight: [rows, columns], columns a multiple of 64.
        search: look for the scale of least squared error per block.

    Raises:
        IntegrityError: NaN or infinity in the weight.
    """
    return tuple(_function(f"quantize_{scheme}", weight)(weight, search=search))


def round_trip(scheme: str, weight: torch.Tensor, *, search: bool) -> torch.Tensor:
    """The values that `scheme` makes of a weight.

    Args:
        scheme: one of `policy.SCHEMES`.
        weight: [rows, columns], 16 or 32 bits.
        search: look for the scale of least squared error per block.

    Returns:
        Same shape and dtype.
    """
    if scheme == "bf16":
        return weight
    columns = weight.shape[1]
    padded = torch.nn.functional.pad(weight, (0, -columns % _WIDTH))
    made = _function(f"quantize_{scheme}", padded)(padded, search=search)
    values: torch.Tensor = _function(f"dequantize_{scheme}", padded)(made, weight.dtype)
    return values[:, :columns]


def _read(tensor: Tensor, limit: int) -> torch.Tensor:
    """Leading rows of a tensor, about `limit` elements; of stacked experts the first."""
    shape = tensor.shape
    rows = min(shape[0], max(128, limit // max(1, tensor.nbytes // max(1, shape[0])))) if shape else 1
    rows = 1 if len(shape) == 3 else rows
    size = tensor.nbytes // (shape[0] if shape else 1) * rows
    with tensor.path.open("rb") as file:
        raw = os.pread(file.fileno(), size, tensor.start)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(DTYPES[tensor.dtype]).view(rows, *shape[1:])


def relative_error(source: Source, scheme: str, *, search: bool) -> float:
    """Frobenius norm of the error over that of the weight, on a sample of one layer."""
    weight = _read(source.weight, _SAMPLE)
    if source.scale is not None:
        with source.scale.path.open("rb") as file:
            raw = bytearray(os.pread(file.fileno(), source.scale.nbytes, source.scale.start))
        scale = torch.frombuffer(raw, dtype=torch.uint8).view(DTYPES[source.scale.dtype]).view(source.scale.shape)
        weight = dequantise(weight, source, scale, torch.float32)
    exact = weight.reshape(-1, weight.shape[-1]).float()
    norm = exact.norm()
    return float((round_trip(scheme, exact, search=search) - exact).norm() / norm) if norm else 0.0
