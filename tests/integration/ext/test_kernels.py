"""The Python face: where the library is looked for, and what is said when it does not fit."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from vllm_spark import proc
from vllm_spark.errors import ArtefactError, ConfigError, ToolMissing
from vllm_spark.runtime import kernels

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", ["2.9.1", "2.9.0+cu130", "1.13.1", "2.0"])
def test_old_torch(version: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kernels.require_torch(version)
    assert f"torch {version} is older than 2.10" in str(caught.value)


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0a0+gitabc", "2.14.0+cu130", "3.0.0"])
def test_new_torch(version: str) -> None:
    kernels.require_torch(version)


def test_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SPARK_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(ToolMissing) as caught:
        kernels.library_path()
    assert str(tmp_path / "absent.so") in str(caught.value)


def test_a_library_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "_C.abi3.so"
    path.write_bytes(b"not an ELF file")
    monkeypatch.setenv("VLLM_SPARK_LIBRARY", str(path))
    with pytest.raises(ArtefactError, match="does not load"):
        kernels.load.__wrapped__()


def test_importing_loads_nothing() -> None:
    """A machine without the library must still be able to say so: doctor imports this module."""
    code = "import vllm_spark.runtime.kernels, torch; print(hasattr(torch.ops.vllm_spark, 'e2m1_pack'))"
    assert proc.run([sys.executable, "-c", code]).text.strip() == "False"


def test_loading_twice_is_loading_once(extension: object) -> None:
    assert importlib.import_module("vllm_spark.runtime.kernels") is extension
    assert kernels.load() == kernels.load()
