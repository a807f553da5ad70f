"""What the operators return, for torch.compile: shapes and dtypes without the work."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["register"]


def _pack(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2), dtype=torch.uint8)


def _unpack(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return packed.new_empty((*packed.shape[:-1], packed.shape[-1] * 2), dtype=dtype)


def _nothing(*_arguments: Any) -> None:  # noqa: ANN401 - any operator that only writes into its arguments
    return None


def _linear(position: int) -> Callable[..., torch.Tensor]:
    """`n` comes after so many other arguments."""

    def linear(x: torch.Tensor, *rest: Any, **_options: Any) -> torch.Tensor:  # noqa: ANN401 - only n matters
        return x.new_empty((x.shape[0], rest[position]))

    return linear


def _moe(x: torch.Tensor, *_arguments: Any) -> torch.Tensor:  # noqa: ANN401 - the rest does not matter here
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@functools.cache
def register() -> None:
    """Tell torch, once, after the library is loaded."""
    fakes: dict[str, Callable[..., Any]] = {"e2m1_pack": _pack, "e2m1_unpack": _unpack, "w4_moe": _moe}
    fakes |= {"nf4_linear": _linear(3), "mxfp4_linear": _linear(3), "nvfp4_linear": _linear(4)}
    for name in ("nf4", "mxfp4", "nvfp4", "fp8"):
        fakes[f"quantize_{name}"] = _nothing
        fakes[f"dequantize_{name}"] = _nothing
    fakes["largest_magnitude"] = _nothing
    for name, fake in fakes.items():
        torch.library.register_fake(f"vllm_spark::{name}", fake)
