"""`vllm serve --gpu-memory-utilization auto` on a CPU build: the patched literal, the plugin, the worker, the table."""

import json
import re
from collections.abc import Callable
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
