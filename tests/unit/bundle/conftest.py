"""A bundle of stand-in wheels, resolved by the real uv from an index folder, with nothing fetched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.index import wheels
from vllm_spark.distro.bundle import make
from vllm_spark.distro.bundle.target import Target
from vllm_spark.distro.index import tree


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("index")
    arm = "cp312-cp312-manylinux_2_28_aarch64"
    made = [
        wheels.make(tmp_path / "in", "vllm-spark", "1.0", requires=["vllm==1.0+spark.1"]),
        wheels.make(tmp_path / "in", "vllm", "1.0+spark.1", tag=arm, content=b"#" * 5000),
        wheels.make(tmp_path / "in", "vllm", "1.0+spark.1", tag="cp312-cp312-manylinux_2_39_aarch64"),
        wheels.make(tmp_path / "in", "vllm", "1.0+spark.1", tag="cp312-cp312-manylinux_2_28_x86_64"),
        wheels.make(tmp_path / "in", "pip", "1.0"),
    ]
    tree.build(tmp_path / "index", made)
    return tmp_path / "index"


@pytest.fixture
def index(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "index"))


@pytest.fixture(scope="session")
def planned(pristine: Path) -> make.Plan:
    return make.plan(["vllm-spark"], str(pristine), Target())
