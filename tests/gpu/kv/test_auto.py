"""Two-phase sizing on a real GPU: what stays free, and that it repeats. Needs vLLM beside this project."""

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))  # benchmarks/ is no installed package

from benchmarks import kv  # noqa: E402 - the line above makes it importable

pytestmark = pytest.mark.gpu

RESERVE = 4 << 30


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> kv.Bench:
    return kv.Bench(480, tmp_path_factory.mktemp("kv"))


@pytest.fixture(scope="module")
def starts(bench: kv.Bench) -> list[dict[str, float]]:
    settings: dict[str, Any] = {"worker_cls": kv.WORKER, "enforce_eager": True}
    return [bench.start(f"start-{i}", caches="c", reserve="4GiB", **settings) for i in range(2)]


def test_it_starts(starts: list[dict[str, float]]) -> None:
    assert all("error" not in found for found in starts), starts


def test_the_reserve_stays_free(starts: list[dict[str, float]]) -> None:
    # the largest step's transient is free as well while nothing runs
    assert all(found["free"] >= RESERVE * 0.97 for found in starts)


def test_a_second_start_gives_the_same(starts: list[dict[str, float]]) -> None:
    sizes = [found["tokens"] for found in starts]
    assert abs(sizes[0] - sizes[1]) <= 0.01 * max(sizes)


def test_the_first_request_compiles_nothing(starts: list[dict[str, float]]) -> None:
    assert [found["compiled"] for found in starts] == [0, 0]


def test_the_need_is_met_and_no_more(bench: kv.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SPARK_KV_TARGET", "need")
    found = bench.start("need", caches="c", worker_cls=kv.WORKER, enforce_eager=True, max_num_seqs=4)
    assert 4 * 32768 <= found["tokens"] <= 4 * 32768 * 1.1 + 64
