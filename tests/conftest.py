"""Fixtures of the whole suite."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

from vllm_spark.distro import profile
from vllm_spark.distro.ext import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

# The build that this machine's CPU, and its GPU if it has one, can load.
NATIVE = {"x86_64": "h100-cu130", "aarch64": "gb10-cu130"}


@pytest.fixture(scope="session")
def extension() -> Iterator[ModuleType]:
    """`vllm_spark.runtime.kernels` with the extension compiled from this checkout and loaded.

    Compiled once per content of `csrc`, into the cache; test processes that want it at once wait for one of them.
    """
    library = build.develop(profile.load(NATIVE[platform.machine()]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SPARK_LIBRARY", str(library))
        from vllm_spark.runtime import kernels

        kernels.load()
        yield kernels
