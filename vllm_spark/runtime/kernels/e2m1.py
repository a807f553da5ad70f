"""E2M1 codes without scales."""

from __future__ import annotations

from typing import Literal, cast

import torch

from vllm_spark.runtime.kernels.library import ensure

__all__ = ["e2m1_pack", "e2m1_path", "e2m1_unpack"]

Real = torch.dtype  # one of torch.float32, torch.bfloat16, torch.float16


def e2m1_pack(x: torch.Tensor) -> torch.Tensor:
    """Round to E2M1 and pack two codes per byte, the one of the even index in the low four bits.

    Nearest, ties to the even code, saturating at 6; NaN becomes +6 and zero keeps its sign: what the instruction
    `cvt.rn.satfinite.e2m1x2.f32` does, on every device. Scaling is the caller's.

    Args:
        x: float32, bfloat16 or float16 [..., K], K even, any strides; CPU or CUDA.

    Returns:
        uint8 [..., K/2], contiguous, on the device of `x`.

    Raises:
        RuntimeError: another dtype, no dimension, or an odd K.

    Source: OCP Microscaling Formats 1.0, section 5.3.3 (FP4); PTX ISA 9.0, `cvt`.
    """
    ensure()
    return cast("torch.Tensor", torch.ops.vllm_spark.e2m1_pack(x))


def e2m1_unpack(packed: torch.Tensor, dtype: Real) -> torch.Tensor:
    """The values of packed E2M1 codes; exact in each of the three types.

    Args:
        packed: uint8 [..., K], any strides, as `e2m1_pack` makes it.
        dtype: torch.float32, torch.bfloat16 or torch.float16.

    Returns:
        `dtype` [..., 2K], contiguous, on the device of `packed`.

    Raises:
        RuntimeError: another dtype of `packed` or of the result, or no dimension.
    """
    ensure()
    return cast("torch.Tensor", torch.ops.vllm_spark.e2m1_unpack(packed, dtype))


def e2m1_path(device: torch.device | str | None = None) -> Literal["hardware", "software"]:
    """How `e2m1_pack` converts on `device`: asked of the code that runs there, not guessed from its capability.

    Args:
        device: None is the current CUDA device where there is one, else the CPU.
    """
    ensure()
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    like = torch.empty(0, dtype=torch.uint8, device=chosen)
    return "hardware" if torch.ops.vllm_spark.e2m1_hardware(like) else "software"
