from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark import proc
from vllm_spark.distro import profile
from vllm_spark.distro.ext import toolchain
from vllm_spark.distro.ext.toolchain import Toolchain

Extract = Callable[[Path, str], dict[str, bytes]]


@pytest.fixture(scope="session")
def tools() -> Toolchain:
    """The pinned CUDA tools, fetched from the index when the cache has none."""
    return toolchain.ensure(profile.load("gb10-cu130"))


@pytest.fixture
def extract(tools: Toolchain, tmp_path: Path) -> Extract:
    """Images of a file as `cuobjdump` sees them, by the name that it gives: `elf` or `ptx`."""

    def run(file: Path, form: str) -> dict[str, bytes]:
        folder = tmp_path / f"{file.name}.{form}"
        folder.mkdir()
        proc.run([tools.cuobjdump, f"--extract-{form}", "all", file.resolve()], cwd=folder, env=tools.env)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    return run
