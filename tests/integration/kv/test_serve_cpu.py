"""`vllm serve --gpu-memory-utilization auto` on a CPU build: the patched literal, the plugin, the worker, the table."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.runtime.kv.memory import MIB

pytestmark = pytest.mark.slow


def test_auto_serves_what_is_needed(serve: Callable[..., Any]) -> None:
    server = serve("--gpu-memory-utilization", "auto", env={"VLLM_LOGGING_LEVEL": "DEBUG"})
    assert server.wait(), server.text
    assert "Cleaned up profiling KV cache" in server.text, "phase one's cache must be dropped"
    body = {"model": "tiny", "prompt": "hello world", "max_tokens": 8, "temperature": 0}
    status, text = server.ask("POST", "/v1/completions", json.dumps(body))
    assert status == 200, text
    assert json.loads(text)["usage"]["completion_tokens"] == 8
    table = server.text
    assert "KV cache sized by measurement (target need" in table
    # 4 sequences of 256 tokens, a tenth on top, and the pool's own block of 128 tokens
    tokens = int(re.search(r"(\d+) tokens, [\d.]+ sequences of 256 tokens", table)[1])  # type: ignore[index]
    assert 4 * 256 <= tokens <= 4 * 256 * 1.1 + 256
    stock = re.search(r"CPU KV cache size: ([\d,]+) tokens", table)
    assert stock is not None
    assert int(stock[1].replace(",", "")) == tokens, "upstream's own count of what was allocated"


def test_max_in_a_container_leaves_the_reserve_every_time(
    serve: Callable[..., Any], limited: Callable[[int], Path]
) -> None:
    # Unified memory as a container sees it: host and device share 6 GiB, page cache included.
    group, sizes = limited(6 << 30), []
    settings = {"VLLM_SPARK_KV_TARGET": "max", "VLLM_SPARK_HOST_RESERVE": "2GiB"}
    for _ in range(2):  # the second start finds the first one's files in the page cache
        server = serve("--gpu-memory-utilization", "auto", env=settings, group=group)
        assert server.wait(), server.text
        assert f"memory from {group}" in server.text
        free, reserve = re.search(r"([\d.]+) GiB free after start-up, ([\d.]+) GiB", server.text).groups()  # type: ignore[union-attr]
        assert float(reserve) == 2
        assert float(free) == pytest.approx(2, rel=0.03)
        sizes.append(int(re.search(r"(\d+) tokens, ", server.text)[1]))  # type: ignore[index]
        server.close()
    assert abs(sizes[0] - sizes[1]) <= 0.01 * max(sizes)


def test_a_reserve_that_is_no_size_stops_before_loading(serve: Callable[..., Any]) -> None:
    server = serve("--gpu-memory-utilization", "auto", env={"VLLM_SPARK_HOST_RESERVE": "-4GiB"})
    assert not server.wait()
    assert "VLLM_SPARK_HOST_RESERVE: no size: '-4GiB'. Next: set VLLM_SPARK_HOST_RESERVE to a size" in server.text
    assert "Loading weights took" not in server.text


def test_explicit_bytes_win_and_are_named_once(serve: Callable[..., Any]) -> None:
    server = serve("--gpu-memory-utilization", "auto", "--kv-cache-memory-bytes", str(64 * MIB))
    assert server.wait(), server.text
    assert server.text.count("wins over auto") == 1
    assert "KV cache sized by measurement" not in server.text


def test_another_worker_class_is_refused(serve: Callable[..., Any]) -> None:
    server = serve("--gpu-memory-utilization", "auto", "--worker-cls", "vllm.v1.worker.cpu_worker.CPUWorker")
    assert not server.wait()
    assert "leave out --worker-cls" in server.text
