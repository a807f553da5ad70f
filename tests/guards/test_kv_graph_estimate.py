"""Guard of kv/graph-estimate: no negative sample, and no page cache in the estimate on unified memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark import proc

pytestmark = pytest.mark.slow  # each imports vLLM anew

FREE = """
from types import SimpleNamespace
import psutil, torch
from vllm.utils import mem_utils
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu import cudagraph_utils, model_runner
torch.accelerator.get_memory_info = lambda device=None: (7, 100)
torch.accelerator.current_device_index = lambda: 0
psutil.virtual_memory = lambda: SimpleNamespace(available=50)
for integrated in (True, False):
    mem_utils.current_platform = SimpleNamespace(is_integrated_gpu=lambda index: integrated)
    names = [module.get_free_memory() for module in (gpu_model_runner, cudagraph_utils, model_runner)
             if hasattr(module, "get_free_memory")]
    print("free", integrated, *names)
"""
SAMPLES = """
import contextlib
from types import SimpleNamespace
import torch
from vllm.v1.worker import gpu_model_runner as v1
from vllm.utils import mem_utils
free = iter([10, 60] * 9)  # memory that a neighbour or the page cache gives back during each capture
torch.accelerator.get_memory_info = lambda device=None: (next(free) << 30, 100 << 30)
torch.accelerator.current_device_index = lambda: 0
torch.accelerator.synchronize = torch.accelerator.empty_cache = lambda *a: None
mem_utils.current_platform = SimpleNamespace(is_integrated_gpu=lambda index: False)
v1.current_platform = SimpleNamespace(graph_pool_handle=lambda: None)
v1.graph_capture = lambda device: contextlib.nullcontext()
v1.set_current_vllm_config = lambda config: contextlib.nullcontext()
v1.set_cudagraph_capturing_enabled = lambda enabled: None
runner = object.__new__(v1.GPUModelRunner)
descs = [SimpleNamespace(num_tokens=8), SimpleNamespace(num_tokens=4)]
vars(runner).update(
    vllm_config=None, lora_config=None, device=None, max_model_len=8, max_num_tokens=8,
    _init_minimal_kv_cache_for_profiling=lambda: None, _cleanup_profiling_kv_cache=lambda: None,
    _create_encoder_cudagraph_manager=lambda: None, _warmup_and_capture=lambda *a, **k: None,
    maybe_remove_all_loras=lambda config: None, _freeze_gc=contextlib.nullcontext,
    cudagraph_dispatcher=SimpleNamespace(
        get_capture_descs=lambda: [(v1.CUDAGraphMode.FULL, descs)], cudagraph_keys={}, keys_initialized=True),
)
print("estimate", runner.profile_cudagraph_memory())
"""


def test_page_cache_is_free_on_unified_memory(tree: Path, vllm_python: Callable[..., proc.Finished]) -> None:
    done = vllm_python(tree, FREE)
    assert "free True 50 50 50\n" in done.text, done.output
    assert "free False 7 7 7\n" in done.text, done.output


def test_no_sample_is_negative(tree: Path, vllm_python: Callable[..., proc.Finished]) -> None:
    done = vllm_python(tree, SAMPLES)
    assert done.status == 0, done.output
    assert int(done.text.rpartition("estimate ")[2]) == 1 << 20, "one graph's floor, and nothing below zero"
