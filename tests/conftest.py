"""Fixtures of the whole suite."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

import pytest

from vllm_spark import proc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
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


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`tmpfs("2m")` is a file system of that size; mounting needs root, which CI has."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"tmpfs-{size}"
        folder.mkdir()
        proc.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder])
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        proc.run(["umount", folder])
