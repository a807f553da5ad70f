"""The library that holds the compiled operators: where it is, and how it comes into torch."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import torch

from vllm_spark.errors import ArtefactError, ConfigError, ToolMissing
from vllm_spark.runtime.kernels import fakes, reference

__all__ = ["TORCH_MIN", "ensure", "library_path", "load", "require_torch"]

TORCH_MIN = (2, 10)  # the stable ABI that the library is compiled for (`torch_min` of every profile)


def library_path() -> Path:
    """The library beside this package, or the one that `VLLM_SPARK_LIBRARY` names.

    Raises:
        ToolMissing: there is none.
    """
    given = os.environ.get("VLLM_SPARK_LIBRARY")
    path = Path(given) if given else Path(__file__).resolve().parents[2] / "_C.abi3.so"
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
    fakes.register()
    reference.register()
    return path


def ensure() -> None:
    """Load the library, unless torch.compile is tracing: then it is there already, or the operator has no name."""
    if not torch.compiler.is_compiling():
        load()
