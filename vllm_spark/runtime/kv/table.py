"""The start-up table: where the memory goes, and what a number instead of `auto` would have given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_spark.runtime.kv.memory import gib

if TYPE_CHECKING:
    from vllm_spark.runtime.kv.sizing import Cost, Plan

__all__ = ["render", "rows"]


def rows(plan: Plan) -> list[tuple[str, int]]:
    """(what, bytes) of every part; all but the first add up to the first, whatever was measured."""
    measured = plan.measured
    parts = [
        ("weights", measured.weights),
        ("CUDA graphs", measured.graphs),
        ("JIT, workspaces and other", measured.consumed - measured.weights - measured.graphs),
        ("largest step (transient)", measured.peak),
        ("reserve", plan.settings.reserve),
        ("KV cache", plan.kv),
        ("left free beside the reserve", plan.left - plan.settings.reserve),
    ]
    before = measured.total - sum(size for _, size in parts)
    return [("total", measured.total), ("in use before the start", before), *parts]


def render(plan: Plan, cost: Cost, *, limit: str, default: float = 0.92) -> str:
    """The table as text, one row a line.

    Args:
        limit: what decides how much memory there is (`Room.limit`).
        default: the utilization that `plan.stock` stands for.
    """
    lines = [f"KV cache sized by measurement (target {plan.settings.target}, memory from {limit})"]
    lines += [f"  {name:30}{gib(size):>12}" for name, size in rows(plan)]
    tokens = cost.tokens(plan.kv)
    lines.append(f"  {tokens} tokens, {tokens / cost.max_model_len:.2f} sequences of {cost.max_model_len} tokens")
    if plan.stock is None:
        lines.append(f"  --gpu-memory-utilization {default} would have refused to start: less than that is free")
    else:
        lines.append(
            f"  --gpu-memory-utilization {default} would have given {gib(plan.stock)} "
            f"({cost.tokens(plan.stock)} tokens)"
        )
    return "\n".join(lines)
