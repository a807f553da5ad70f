"""What the plugin does for `--gpu-memory-utilization auto`, and the limit on compiler jobs."""

from __future__ import annotations

import importlib
import os
from typing import Any

from vllm_spark import console
from vllm_spark.errors import ConfigError, ResourceError
from vllm_spark.runtime.kv.memory import read_host, room
from vllm_spark.runtime.kv.settings import jit_jobs

__all__ = ["limit_jit_jobs", "register_auto", "resolve"]

_WORKERS = "vllm_spark.runtime.kv.worker"


def limit_jit_jobs() -> None:
    """Set MAX_JOBS for FlashInfer's, torch's and DeepGEMM's compilers where the user has not.

    Fifty nvcc processes at 4 to 8 GiB each take a machine of 128 GB down before a single request.
    """
    if "MAX_JOBS" in os.environ:
        return
    try:
        available = room(*read_host(), None).available
    except ResourceError as err:  # stock sizing must not depend on files that only auto needs
        console.warn(f"compiler jobs are not limited: {err}")
        return
    os.environ["MAX_JOBS"] = str(jit_jobs(available, len(os.sched_getaffinity(0))))


def resolve(engine_args: Any) -> None:  # noqa: ANN401 - vLLM's EngineArgs
    """Replace "auto" by upstream's default and name the worker class that ignores it.

    Raises:
        ConfigError: another worker class is asked for, or the platform has none of ours.
    """
    if engine_args.worker_cls != "auto":
        hint = "leave out --worker-cls, or give --gpu-memory-utilization a number"
        raise ConfigError(
            "auto sizes the KV cache in a worker class of its own",
            where=f"--worker-cls {engine_args.worker_cls}",
            hint=hint,
        )
    platform = importlib.import_module("vllm.platforms").current_platform
    if platform.is_cpu():
        name = "AutoCPUWorker"
    elif platform.is_cuda():
        name = "AutoWorker"
    else:
        hint = "give --gpu-memory-utilization a number"
        raise ConfigError(f"auto knows CUDA and CPU, not {platform.device_name}", where="auto", hint=hint)
    engine_args.worker_cls = f"{_WORKERS}.{name}"
    engine_args.gpu_memory_utilization = importlib.import_module("vllm.config").CacheConfig.gpu_memory_utilization


def register_auto() -> None:
    """Offer `resolve` to a vLLM that knows the literal (patch kv/auto-literal)."""
    cache: Any = importlib.import_module("vllm.config.cache")
    if hasattr(cache, "auto_memory_resolver"):
        cache.auto_memory_resolver = resolve
