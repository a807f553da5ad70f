"""Worker classes that size the KV cache by measurement; vLLM finds them by name (`--worker-cls`).

`AutoWorker` runs on CUDA, `AutoCPUWorker` on CPU builds. Both are made on first access, because their bases are
vLLM's. With `--gpu-memory-utilization auto` the plugin sets the name; naming the class works as well, without any
patch. A worker class is the rung for this: sizing and warm-up are methods of upstream's `Worker`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import TYPE_CHECKING, Any

from vllm_spark import console
from vllm_spark.errors import ConfigError, ResourceError
from vllm_spark.runtime.kv import guard, phases, settings, sizing, table
from vllm_spark.runtime.kv.memory import gib, read_host, room
from vllm_spark.runtime.kv.probe import CpuProbe, CudaProbe, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AutoSizing", "refuse_sleep"]

_BASES = {
    "AutoWorker": ("vllm.v1.worker.gpu_worker", "Worker"),
    "AutoCPUWorker": ("vllm.v1.worker.cpu_worker", "CPUWorker"),
}
# Upstream refuses to start, and a CPU worker to be made, when this share of the memory is not free. What is measured
# here decides instead, so the share is the smallest that its checks let through.
_NO_SHARE = 1e-9


@contextlib.contextmanager
def _share_ignored(cache_config: Any) -> Iterator[None]:  # noqa: ANN401 - vLLM's CacheConfig
    given = cache_config.gpu_memory_utilization
    cache_config.gpu_memory_utilization = _NO_SHARE
    try:
        yield
    finally:
        cache_config.gpu_memory_utilization = given


def refuse_sleep(*, enabled: bool, unified: bool) -> None:
    """Sleep mode moves the weights to host memory: on unified memory that is the same memory, twice.

    Raises:
        ConfigError: it is on, and memory is unified.
    """
    if enabled and unified:
        hint = "leave out --enable-sleep-mode, or give --gpu-memory-utilization a number"
        raise ConfigError("sleep mode would hold the weights twice in unified memory", where="auto", hint=hint)


class AutoSizing:
    """What both workers add to vLLM's; mixed in front of it."""

    if TYPE_CHECKING:
        cache_config: Any
        device: Any
        model_config: Any
        model_runner: Any
        parallel_config: Any
        randomize_dummy_inputs: bool
        rank: int
        vllm_config: Any

    spark_guard: guard.Guard
    spark_probe: CudaProbe | CpuProbe
    spark_start: Reading
    spark_settings: settings.Settings

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        with _share_ignored(vllm_config.cache_config):
            super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]

    def init_device(self) -> None:
        """Upstream's, without its demand for a share of the memory; then the readings at the start."""
        host = room(*read_host(), None)
        self.spark_guard = guard.watch(host.total)
        self.spark_guard.phase = "initialise the device"
        with _share_ignored(self.cache_config):
            super().init_device()  # type: ignore[misc]
        self.spark_probe = self._spark_make_probe()
        refuse_sleep(enabled=self.model_config.enable_sleep_mode, unified=self.spark_probe.unified)
        self.spark_start = self.spark_probe.read()
        self.spark_settings = settings.parse(os.environ, self.spark_start.total, unified=self.spark_probe.unified)
        if self.spark_probe.unified:
            self.spark_guard.limits = guard.Limits.of(host.total, self.spark_settings.reserve)
        self._spark_arm()

    def load_model(self, **kwargs: Any) -> None:  # noqa: ANN401
        """Upstream's, watched."""
        self.spark_guard.phase = "load the weights"
        super().load_model(**kwargs)  # type: ignore[misc]

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache, settled after everything else has taken its memory."""
        if self.cache_config.kv_cache_memory_bytes is not None:
            if self.rank == 0:
                size = gib(self.cache_config.kv_cache_memory_bytes)
                console.warn(f"--kv-cache-memory-bytes ({size}) is given and wins over auto")
            self.spark_guard.phase = "profile"
            return int(super().determine_available_memory())  # type: ignore[misc]
        cost = phases.cost(self)
        measured = self._spark_measure()
        plan = sizing.plan(measured, self.spark_settings, cost, taken=self._spark_taken())
        if getattr(self.model_config, "original_max_model_len", None) != -1:
            sizing.check_sequence(plan, cost, phases.largest_length(self, plan.kv - cost.block))
        if self.rank == 0:
            console.say(table.render(plan, cost, limit=self.spark_start.limit))
        return plan.kv

    def initialize_from_config(self, kv_cache_config: Any) -> None:  # noqa: ANN401
        """Upstream's, after a last look: what was free may have gone to a neighbour.

        Raises:
            ResourceError: the KV cache no longer fits.
        """
        size = max((tensor.size for tensor in kv_cache_config.kv_cache_tensors), default=0)
        available = self.spark_probe.room().available
        spare = self.spark_guard.limits.hard if self.spark_probe.unified else 0
        if size > 0 and available < size + spare:
            raise ResourceError(
                f"the KV cache of {gib(size)} no longer fits: {gib(available)} are free, and another process took "
                "memory since it was sized",
                where=self.spark_probe.name,
                hint="start again, with a larger VLLM_SPARK_HOST_RESERVE if the neighbour stays",
            )
        self.spark_guard.phase = "allocate the KV cache"
        super().initialize_from_config(kv_cache_config)  # type: ignore[misc]

    def compile_or_warm_up_model(self) -> Any:  # noqa: ANN401
        """Upstream's second pass, on the real cache: everything is compiled, so it only captures again."""
        self.spark_guard.phase = "capture graphs"
        times = super().compile_or_warm_up_model()  # type: ignore[misc]
        self.spark_guard.phase = "serve"
        if self.rank == 0:
            reserve = gib(self.spark_settings.reserve)
            console.say(f"{gib(self.spark_probe.room().available)} free after start-up, {reserve} of it reserved")
        return times

    def shutdown(self) -> None:
        """Stop the guard (there is none when the start failed early), then upstream's."""
        if "spark_guard" in vars(self):
            self.spark_guard.close()
        super().shutdown()  # type: ignore[misc]

    def _spark_taken(self) -> int:
        """Bytes that the API processes' video decoders will take from this device."""
        asked = importlib.import_module("vllm.multimodal.gpu_ipc_memory").reserve_mm_ipc_gpu_memory
        plenty = 1 << 50
        count = getattr(self.parallel_config, "_api_process_count", 1)
        return plenty - int(asked(plenty, self.model_config.multimodal_config, count))

    def _spark_profile(self) -> None:
        torch = importlib.import_module("torch")
        current = importlib.import_module("vllm.config").set_current_vllm_config
        with torch.inference_mode(), current(self.vllm_config):
            self.model_runner.profile_run(randomize_inputs=getattr(self, "randomize_dummy_inputs", False))

    def _spark_make_probe(self) -> CudaProbe | CpuProbe:
        raise NotImplementedError

    def _spark_measure(self) -> sizing.Measured:
        raise NotImplementedError

    def _spark_arm(self) -> None:
        """Tell the guard what it may release, and what no kernel file shows."""


class CudaSizing(AutoSizing):
    """Phase one on a GPU."""

    spark_probe: CudaProbe

    def _spark_make_probe(self) -> CudaProbe:
        if not self.model_config.enable_cumem_allocator:
            return CudaProbe(self.device)
        allocator = importlib.import_module("vllm.device_allocator").get_mem_allocator_instance()
        return CudaProbe(self.device, lambda: int(allocator.get_current_usage()))

    def _spark_arm(self) -> None:
        if not self.spark_probe.unified:
            return
        torch = importlib.import_module("torch")

        def release() -> None:
            # freeing device memory would break a capture that is under way
            if self.spark_guard.phase != "capture graphs":
                torch.cuda.empty_cache()

        self.spark_guard.release = release
        self.spark_guard.device_bytes = self.spark_probe.reserved

    def _spark_measure(self) -> sizing.Measured:
        self.spark_guard.phase = "compile and profile"
        with self._scoped_allocator_max_split(max_split_size_mb=20):  # type: ignore[attr-defined]
            self._spark_profile()
        self.spark_probe.release()
        self.spark_guard.phase = "warm up kernels"
        with phases.throwaway_kv(self):
            phases.warm_up(self)
        # The first pass compiled; only a second one shows what a step takes, the same with cold and warm caches.
        peak = self.spark_probe.peak(self._spark_profile)
        self.spark_guard.phase = "capture graphs"
        graphs = phases.captured(self, self.spark_probe)
        return sizing.Measured(
            total=self.spark_start.total,
            at_start=self.spark_start.available,
            now=graphs.live.available,
            own=graphs.live.own - self.spark_start.own,
            phase_one_kv=graphs.phase_one_kv,
            weights=int(self.model_runner.model_memory_usage),
            graphs=graphs.graphs,
            peak=peak,
        )


class CpuSizing(AutoSizing):
    """Phase one in host memory."""

    spark_probe: CpuProbe

    def _spark_make_probe(self) -> CpuProbe:
        return CpuProbe()

    def _spark_measure(self) -> sizing.Measured:
        self.spark_guard.phase = "compile and profile"
        self.model_runner.warming_up_model()
        self.spark_guard.phase = "warm up kernels"
        current = importlib.import_module("vllm.config").set_current_vllm_config
        with phases.throwaway_kv(self), current(self.vllm_config):
            phases.first_requests(self)
        peak = self.spark_probe.peak(self._spark_profile)
        after = self.spark_probe.read()
        weights = sum(one.numel() * one.element_size() for one in self.model_runner.get_model().parameters())
        own = after.own - self.spark_start.own
        return sizing.Measured(after.total, self.spark_start.available, after.available, own, 0, int(weights), 0, peak)


def __getattr__(name: str) -> type[AutoSizing]:
    """Make `AutoWorker` or `AutoCPUWorker` from vLLM's class of that device."""
    if name not in _BASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, base = _BASES[name]
    sizing_class = CudaSizing if name == "AutoWorker" else CpuSizing
    made = type(name, (sizing_class, getattr(importlib.import_module(module), base)), {"__module__": __name__})
    globals()[name] = made
    return made
