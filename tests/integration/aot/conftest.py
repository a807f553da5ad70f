import shutil
from pathlib import Path

import pytest

from vllm_spark.distro import profile
from vllm_spark.distro.aot.assembler import Assembler
from vllm_spark.distro.aot.store import Store
from vllm_spark.distro.aot.supply import CacheSupply
from vllm_spark.distro.ext import toolchain
from vllm_spark.distro.ext.toolchain import Toolchain

DATA = Path(__file__).resolve().parents[2] / "data" / "wheel"


@pytest.fixture(scope="session")
def tools() -> Toolchain:
    """The pinned CUDA tools, fetched from the index when the cache has none."""
    return toolchain.ensure(profile.load("gb10-cu130"))


@pytest.fixture(scope="session")
def assembler(tools: Toolchain) -> Assembler:
    return Assembler.of(tools)


@pytest.fixture
def supply(assembler: Assembler, tmp_path: Path) -> CacheSupply:
    """An empty cache."""
    folder = tmp_path / "cache" / f"sm_121-ptxas-{assembler.version}"
    folder.mkdir(parents=True)
    return CacheSupply(assembler, Store(folder))


@pytest.fixture
def extension(tmp_path: Path) -> Path:
    """A shared object with PTX for 8.0 beside code for 8.0, made by nvcc."""
    return Path(shutil.copy(DATA / "speed.so", tmp_path / "speed.so"))
