"""Phase one: everything that start-up allocates happens on a KV cache that is thrown away.

Upstream (0.33.0) runs its kernel warm-up, JIT and autotuning after the KV cache has taken everything
(v1/worker/gpu_worker.py, `_compile_or_warm_up_model`). Here the same upstream functions run before the size is
settled. Every decision depends on the configuration alone, never on this rank's memory, so that all ranks take the
same steps and their collectives meet.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_spark.runtime.kv.sizing import Cost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.runtime.kv.probe import CudaProbe, Reading

__all__ = [
    "Graphs",
    "captured",
    "cost",
    "first_requests",
    "largest_length",
    "throwaway_kv",
    "token_ladder",
    "warm_up",
    "warm_up_blocks",
]

# The longest step of the warm-up, in tokens: beyond it Triton's configurations no longer change.
_LONGEST = 2048
# Sequences of the decode warm-up; two blocks each.
_SEQUENCES = 64


def _upstream(name: str) -> Any:  # noqa: ANN401 - vLLM has no types here
    """Module or attribute `name` of vLLM, which is never imported before it runs us."""
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


@dataclass(frozen=True)
class Graphs:
    """The capture: `live` was read with graphs and phase-one KV alive; bytes."""

    live: Reading
    graphs: int
    phase_one_kv: int


def token_ladder(longest: int) -> list[int]:
    """Step sizes whose kernels the first requests would compile.

    Triton specialises integers that divide by 16 and picks tiles by size, so each octave comes odd and even.
    """
    sizes = [size for even in (16, 64, 256, 1024, _LONGEST) for size in (even, even + 1)]
    return [size for size in sizes if size <= longest]


def warm_up_blocks(groups: int, smallest_block: int, max_num_seqs: int, captured_size: int) -> int:
    """KV blocks that the warm-up needs: the decode step's, the longest step's, or one per captured sequence.

    In proportion to `groups`, so that ranks of a pipeline with other kinds of layers still run as many sequences.
    """
    sequences = 2 * min(max_num_seqs, _SEQUENCES)
    longest = -(-(_LONGEST + 1) // smallest_block) + 2
    return 1 + groups * max(sequences, longest, min(max_num_seqs, captured_size))


def _planned(worker: Any, blocks: int | None) -> Any:  # noqa: ANN401
    """Upstream's KV configuration for `blocks` blocks (None: what the warm-up needs)."""
    config, runner = worker.vllm_config, worker.model_runner
    builder = _upstream("vllm.v1.core.kv_cache_config_builder:get_kv_cache_config_builder")(config)
    grouped = _upstream("vllm.v1.core.kv_cache_planning:get_kv_cache_groups_from_builder")
    groups = grouped(builder, config, runner.get_kv_cache_spec())
    if blocks is None:
        smallest = min((group.kv_cache_spec.block_size for group in groups), default=1)
        size = config.compilation_config.max_cudagraph_capture_size or 1
        blocks = warm_up_blocks(len(groups), smallest, config.scheduler_config.max_num_seqs, size)
    return builder.get_kv_cache_config_from_groups(config, groups, num_blocks=blocks)


def cost(worker: Any) -> Cost:  # noqa: ANN401
    """What a full-length sequence takes, by upstream's capacity accounting."""
    config = worker.vllm_config
    many = 1 << 20  # blocks: enough that rounding to blocks does not matter
    planned = _planned(worker, many)
    capacity = _upstream("vllm.v1.core.kv_cache_utils:get_max_concurrency_for_kv_cache_config")
    block = max(tensor.size for tensor in planned.kv_cache_tensors) // planned.num_blocks
    sequence = block * round(planned.num_blocks / capacity(config, planned))
    return Cost(sequence, block, config.model_config.max_model_len, config.scheduler_config.max_num_seqs)


def largest_length(worker: Any, size: int) -> int:  # noqa: ANN401
    """The largest max_model_len that `size` bytes can hold, by upstream's estimate."""
    estimate = _upstream("vllm.v1.core.kv_cache_planning:estimate_max_model_len")
    return int(estimate(worker.vllm_config, worker.model_runner.get_kv_cache_spec(), size))


@contextlib.contextmanager
def throwaway_kv(worker: Any) -> Iterator[None]:  # noqa: ANN401
    """A KV cache just large enough for the warm-up, for the length of the block."""
    runner = worker.model_runner
    planned = _planned(worker, None)
    try:
        with _upstream("vllm.config:set_current_vllm_config")(worker.vllm_config):
            runner.initialize_kv_cache(planned, is_profiling=True)
        runner.cache_config.num_gpu_blocks = planned.num_blocks
        yield
    finally:
        if worker.use_v2_model_runner:
            _upstream("vllm.v1.worker.gpu.cudagraph_utils:_teardown_profiling_state")(runner)
        else:
            runner._cleanup_profiling_kv_cache()  # noqa: SLF001 - upstream's only way to drop it


def warm_up(worker: Any) -> None:  # noqa: ANN401
    """Compile and tune every kernel that serving uses: upstream's warm-up, then steps like the first requests'."""
    config, runner = worker.vllm_config, worker.model_runner
    quiet = runner.eplb.suppress() if worker.use_v2_model_runner else contextlib.nullcontext()
    with quiet, _upstream("vllm.config:set_current_vllm_config")(config):
        _upstream("vllm.model_executor.warmup.kernel_warmup:kernel_warmup")(worker)
        if not config.kernel_config.enable_jit_warmup:
            return
        if worker.use_v2_model_runner:
            _upstream("vllm.v1.worker.gpu.warmup:warmup_kernels")(runner, worker.execute_model, worker.sample_tokens)
        first_requests(worker)


def first_requests(worker: Any) -> None:  # noqa: ANN401
    """Steps of many sizes, each a prefill beside a decode.

    Left out where upstream's dummy steps do not reach: encoder-decoder and pooling models, and several kinds of
    attention in the first runner.
    """
    config, runner = worker.vllm_config, worker.model_runner
    if config.model_config.is_encoder_decoder or runner.is_pooling_model:
        return
    # the prompts count upwards, so a small vocabulary ends them
    bounds = (config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len)
    longest = min(_LONGEST + 1, *bounds, config.model_config.get_vocab_size())
    mixed = _upstream("vllm.v1.worker.gpu.warmup:run_mixed_prefill_decode_warmup")
    for size in token_ladder(longest):
        if worker.use_v2_model_runner:
            mixed(runner, worker.execute_model, worker.sample_tokens, size, req_id_prefix=f"_spark_warmup_{size}")
        elif len(runner.kv_cache_config.kv_cache_groups) == 1:
            runner._dummy_run(  # noqa: SLF001 - as upstream's attention_warmup does
                num_tokens=size, skip_eplb=True, is_profile=True, force_attention=True, create_mixed_batch=True
            )


def _wants_graphs(worker: Any) -> bool:  # noqa: ANN401
    """Will upstream capture graphs later? The condition of its own memory profile."""
    compilation = worker.vllm_config.compilation_config
    if worker.model_config.enforce_eager:
        return False
    mode = _upstream("vllm.config:CUDAGraphMode")
    encoder = worker.use_v2_model_runner and compilation.cudagraph_mm_encoder
    return bool(compilation.cudagraph_mode != mode.NONE or encoder)


def captured(worker: Any, probe: CudaProbe) -> Graphs:  # noqa: ANN401
    """Capture on a throw-away KV cache, read the memory while the graphs live, and drop both.

    The second model runner captures every graph, so nothing is estimated. The first one captures two per mode and
    extrapolates; its figure is taken from the reading instead.
    """
    if not _wants_graphs(worker):
        return Graphs(probe.read(), 0, 0)
    runner = worker.model_runner
    if not worker.use_v2_model_runner:
        estimate = max(0, int(runner.profile_cudagraph_memory()))
        rest = probe.read()
        live = type(rest)(rest.total, rest.available - estimate, rest.own + estimate, rest.limit)
        return Graphs(live, estimate, 0)
    seen: list[tuple[Reading, int]] = []
    capture = runner.capture_model

    def watched(*args: object, **kwargs: object) -> int:
        runner.cudagraph_manager._max_full_descs_to_capture = None  # noqa: SLF001 - all of them, not a sample of two
        probe.release()
        before = probe.reserved()
        taken = int(capture(*args, **kwargs))
        live = probe.read()
        seen.append((live, max(0, live.own - before)))
        return taken

    runner.capture_model = watched
    try:
        runner.profile_cudagraph_memory()
    finally:
        del runner.capture_model
    after = probe.read()
    if not seen:  # nothing to capture after all
        return Graphs(after, 0, 0)
    live, graphs = seen[0]
    return Graphs(live, graphs, max(0, live.own - graphs - after.own))
