"""The release wheel of the extension, built once for the tests that look into it or run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vllm_spark.distro import profile
from vllm_spark.distro.ext import build

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def gb10_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(profile.load("gb10-cu130"), tmp_path_factory.mktemp("gb10"))
