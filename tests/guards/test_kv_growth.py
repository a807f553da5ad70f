"""Guard of kv/growth-in-profiling: a neighbour that frees memory is neither fatal nor a bonus."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark import proc

pytestmark = pytest.mark.slow  # each imports vLLM anew

STOCK_WORKER = (Path(__file__).resolve().parents[1] / "data/kv/stock_worker.txt").read_text()
GIB = 1 << 30


def gib(value: float) -> str:
    return str(round(value * GIB))


def test_growth_is_neither_fatal_nor_a_bonus(tree: Path, vllm_python: Callable[..., proc.Finished]) -> None:
    # 82.94 GiB free before profiling, 90.17 after it; 20 GiB are this process's own.
    grown = [gib(121.69), gib(82.94), gib(90.17), gib(20), gib(3.6), "0.6", gib(0.26)]
    quiet = [gib(121.69), gib(82.94), gib(62.94), gib(20), gib(3.6), "0.6", gib(0.26)]
    sizes = []
    for numbers in (grown, quiet):
        done = vllm_python(tree, STOCK_WORKER, *numbers)
        assert done.status == 0, done.output
        sizes.append(int(done.text.rpartition("kv ")[2]))
    assert abs(sizes[0] - sizes[1]) <= 1
    assert sizes[1] > 0
