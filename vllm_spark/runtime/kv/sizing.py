"""The arithmetic of the KV cache's size: pure, in bytes.

Upstream (v1/worker/gpu_worker.py, 0.33.0) takes a share of the device's total and subtracts what it saw before its
kernel warm-up. Here the size follows from what is really free once everything that start-up allocates is there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.kv.memory import gib
from vllm_spark.runtime.kv.settings import RESERVE, TARGET, Settings

__all__ = ["PREFIX_SLACK", "Cost", "Measured", "Plan", "check_sequence", "plan", "stock_kv_bytes"]

# Target `need`: room for prefixes that outlive their request, as a share of the sequences' own need.
PREFIX_SLACK = 0.1


@dataclass(frozen=True)
class Measured:
    """What phase one saw.

    Attributes:
        total: memory that could ever be used.
        at_start: available before the model was loaded.
        now: available with warm-up done, and phase one's KV cache and graphs still alive.
        own: what this process's allocator took from the system since the start (weights, KV and graphs included).
        phase_one_kv: the KV cache that is given back before phase two.
        weights: the model's parameters.
        graphs: CUDA graphs, alive when `now` was read.
        peak: transient memory of the largest step, on top of what stays.
    """

    total: int
    at_start: int
    now: int
    own: int
    phase_one_kv: int
    weights: int
    graphs: int
    peak: int

    @property
    def free(self) -> int:
        """Free once phase one's KV is dropped, without what neighbours gave back meanwhile: they may want it again."""
        return min(self.now, self.at_start - self.own) + self.phase_one_kv

    @property
    def consumed(self) -> int:
        """What this start took for good: weights, graphs, JIT modules, workspaces, libraries."""
        return max(0, self.at_start - self.free)

    @property
    def other(self) -> int:
        """The part of `consumed` that is neither weights nor graphs."""
        return max(0, self.consumed - self.weights - self.graphs)


@dataclass(frozen=True)
class Cost:
    """What sequences cost in KV, from upstream's own accounting (hybrid and sliding-window layers included).

    Attributes:
        sequence: bytes of one sequence of `max_model_len` tokens.
        block: bytes of one block; the pool keeps one back for itself.
        max_model_len: tokens.
        max_num_seqs: sequences at once.
    """

    sequence: int
    block: int
    max_model_len: int
    max_num_seqs: int

    @property
    def need(self) -> int:
        """Bytes for all sequences at full length, and the slack for prefixes."""
        return math.ceil(self.sequence * self.max_num_seqs * (1 + PREFIX_SLACK)) + self.block

    def tokens(self, size: int) -> int:
        """Tokens of full-length sequences that `size` bytes hold."""
        return max(0, size) // self.block * self.block * self.max_model_len // self.sequence


@dataclass(frozen=True)
class Plan:
    """The decision: `kv` bytes; `left` stays free beside it when the largest step runs."""

    measured: Measured
    settings: Settings
    kv: int
    stock: int | None

    @property
    def left(self) -> int:
        """Free memory at the peak of the largest step: the reserve, and more where the target needs less."""
        return self.measured.free - self.measured.peak - self.kv


def stock_kv_bytes(total: int, utilization: float, consumed: int, peak: int, graphs: int) -> int:
    """Upstream's formula: share of the total, less consumption, transient peak and the graphs' estimate."""
    return math.ceil(total * utilization) - (consumed + peak) - graphs


def _stock(measured: Measured, utilization: float) -> int | None:
    """What `--gpu-memory-utilization` as a number would have given; None where upstream refuses to start."""
    if measured.at_start < math.ceil(measured.total * utilization):
        return None
    return stock_kv_bytes(measured.total, utilization, measured.consumed, measured.peak, 0)


def plan(measured: Measured, settings: Settings, cost: Cost, *, taken: int = 0, default: float = 0.92) -> Plan:
    """The KV cache's size.

    Args:
        measured: phase one's readings.
        settings: the target and the host's reserve.
        cost: what sequences take.
        taken: bytes that others of this server will still take (decoders of the API processes).
        default: upstream's utilization, for the comparison only.

    Raises:
        ConfigError: nothing is left for KV; the message says what takes how much.
    """
    most = measured.free - measured.peak - settings.reserve - taken
    if most <= 0:
        others = f", {gib(taken)} for others" if taken else ""
        raise ConfigError(
            f"no memory is left for the KV cache: {gib(measured.at_start)} were free at the start, "
            f"{gib(measured.consumed)} are taken by the model and its warm-up, {gib(measured.peak)} by the largest "
            f"step, {gib(settings.reserve)} are reserved for the host{others}",
            where="--gpu-memory-utilization auto",
            hint=f"a smaller model or quantisation, a smaller --max-num-batched-tokens, or a smaller {RESERVE}",
        )
    kv = min(most, cost.need) if settings.target == "need" else most
    return Plan(measured, settings, kv, _stock(measured, default))


def check_sequence(plan: Plan, cost: Cost, largest: int) -> None:
    """Refuse a length that the cache cannot hold even once.

    Args:
        largest: the largest max_model_len that fits, from upstream's estimate.

    Raises:
        ConfigError: one sequence needs more than the whole cache.
    """
    if cost.sequence + cost.block <= plan.kv:
        return
    where = f"--max-model-len {cost.max_model_len}"
    hint = f"--max-model-len {largest}" if largest > 0 else f"a smaller model, or a smaller {RESERVE}"
    hint += f" ({TARGET} and {RESERVE} decide the cache's size)"
    what = f"one sequence needs {gib(cost.sequence)} of KV cache, {gib(plan.kv)} are free for it"
    raise ConfigError(what, where=where, hint=hint)
