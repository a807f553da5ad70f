"""One release per test run: building it takes minutes, and several tests look at it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Released:
    """What `vllm-spark release build` left in `folder`, an empty working folder before; do not change it."""

    folder: Path
    done: subprocess.CompletedProcess[str]

    @property
    def dist(self) -> Path:
        """Both wheels, and the index."""
        assert self.done.returncode == 0, self.done.stderr
        return self.folder / "dist"


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    folder = tmp_path_factory.mktemp("release")
    command = [sys.executable, "-m", "vllm_spark", "release", "build"]
    return Released(folder, subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False))
