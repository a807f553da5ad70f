"""Guard of kv/explicit-bytes-beside-tenant: a given KV size needs no share of the memory to be free."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark import proc

pytestmark = pytest.mark.slow  # each imports vLLM anew

START = """
import torch
from types import SimpleNamespace
from vllm.utils.mem_utils import MemorySnapshot
from vllm.v1.worker.utils import request_memory
GIB = 1 << 30
found = MemorySnapshot(device=torch.device("cpu"), auto_measure=False)
found.total_memory, found.free_memory = int(121.69 * GIB), 52 * GIB
for explicit in (4 * GIB, None):
    config = SimpleNamespace(gpu_memory_utilization=0.92, kv_cache_memory_bytes=explicit)
    try:
        request_memory(found, config)
        print("started", explicit)
    except ValueError:
        print("refused", explicit)
"""


def test_explicit_bytes_start_beside_a_tenant(tree: Path, vllm_python: Callable[..., proc.Finished]) -> None:
    done = vllm_python(tree, START)
    assert f"started {4 << 30}\n" in done.text, done.output
    assert "refused None\n" in done.text, "without a size the share must still be free"
