"""The compiled operators, as Python functions, and the library that holds them.

Every function loads the library on first use. Code that calls `torch.ops.vllm_spark` itself calls `load()` before.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Literal, cast

import torch

from vllm_spark.errors import ArtefactError, ConfigError, ToolMissing

__all__ = ["TORCH_MIN", "e2m1_pack", "e2m1_path", "e2m1_unpack", "library_path", "load", "require_torch"]

TORCH_MIN = (2, 10)  # the stable ABI that the library is compiled for (`torch_min` of every profile)

Real = torch.dtype  # one of torch.float32, torch.bfloat16, torch.float16


def library_path() -> Path:
    """The library beside this package, or the one that `VLLM_SPARK_LIBRARY` names.

    Raises:
        ToolMissing: there is none.
    """
    given = os.environ.get("VLLM_SPARK_LIBRARY")
    path = Path(given) if given else Path(__file__).resolve().parent.parent / "_C.abi3.so"
    if not path.is_file():
        hint = "install the vllm-spark wheel, or set VLLM_SPARK_LIBRARY to a library that you built"
        raise ToolMissing("the compiled extension is not there", where=str(path), hint=hint)
    return path


def require_torch(version: str) -> None:
    """Refuse a torch that lacks what the library calls; loading it there would name a symbol, not the reason.

    Raises:
        ConfigError: `version` is older than `TORCH_MIN`.
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < TORCH_MIN:
        wanted = ".".join(map(str, TORCH_MIN))
        hint = f"pip install 'torch>={wanted}'"
        raise ConfigError(f"torch {version} is older than {wanted}", where="vllm_spark extension", hint=hint)


@functools.cache
def load() -> Path:
    """Load the library into torch, once per process, and return its path.

    Raises:
        ConfigError: torch is too old.
        ToolMissing: there is no library.
        ArtefactError: it is for another machine, or broken.
    """
    require_torch(torch.__version__)
    path = library_path()
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]  # torch annotates nothing here
    except OSError as err:
        hint = "install the wheel for this machine, or build one: vllm-spark ext build"
        raise ArtefactError(f"does not load: {err}", where=str(path), hint=hint) from err
    torch.library.register_fake("vllm_spark::e2m1_pack", _pack_fake)
    torch.library.register_fake("vllm_spark::e2m1_unpack", _unpack_fake)
    return path


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
    load()
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
    load()
    return cast("torch.Tensor", torch.ops.vllm_spark.e2m1_unpack(packed, dtype))


def e2m1_path(device: torch.device | str | None = None) -> Literal["hardware", "software"]:
    """How `e2m1_pack` converts on `device`: asked of the code that runs there, not guessed from its capability.

    Args:
        device: None is the current CUDA device where there is one, else the CPU.
    """
    load()
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    like = torch.empty(0, dtype=torch.uint8, device=chosen)
    return "hardware" if torch.ops.vllm_spark.e2m1_hardware(like) else "software"


def _pack_fake(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2), dtype=torch.uint8)


def _unpack_fake(packed: torch.Tensor, dtype: Real) -> torch.Tensor:
    return packed.new_empty((*packed.shape[:-1], packed.shape[-1] * 2), dtype=dtype)
