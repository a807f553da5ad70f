from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vllm_spark.distro.elf.source import FileSource

DATA = Path(__file__).resolve().parents[2] / "data" / "wheel"


@pytest.fixture
def data() -> Path:
    """Small fat binaries; `build.sh` beside them says how they were made."""
    return DATA


@pytest.fixture
def opened() -> Iterator[Callable[[Path], FileSource]]:
    """Open files that are closed after the test."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(FileSource(path))


@pytest.fixture
def from_bytes(tmp_path: Path, opened: Callable[[Path], FileSource]) -> Callable[[bytes], FileSource]:
    """A source with these bytes."""

    def make(content: bytes) -> FileSource:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.bin"
        path.write_bytes(content)
        return opened(path)

    return make
