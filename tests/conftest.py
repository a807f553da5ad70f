"""Fixtures of the whole suite."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

# The build that this machine's CPU, and its GPU if it has one, can load.
NATIVE = {"x86_64": "h100-cu130", "aarch64": "gb10-cu130"}


@pytest.fixture(scope="session")
def extension() -> Iterator[ModuleType]:
    """`vllm_spark.runtime.kernels` with the extension loaded: that of `VLLM_SPARK_LIBRARY`, else of this checkout.

    Compiled once per content of `csrc`, into the cache; test processes that want it at once wait for one of them.
    A GPU machine without a network gets its library by the variable.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("VLLM_SPARK_LIBRARY"):
            from vllm_spark.distro import profile
            from vllm_spark.distro.ext import library

            patch.setenv(
                "VLLM_SPARK_LIBRARY", str(library.compiled(profile.load(NATIVE[platform.machine()]), strict=True))
            )
        from vllm_spark.runtime import kernels

        kernels.load()
        yield kernels
