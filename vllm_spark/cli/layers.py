"""`vllm-spark layers MODEL`: what the policy does to each layer, without loading vLLM or a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant.policy import load_policy
from vllm_spark.runtime.quant.source import exclusions, find_sources, quantization_config, read_config
from vllm_spark.runtime.quant.table import Row, by_rows, final_bits, layer_table, scheme_of
from vllm_spark.runtime.stream.headers import scan
from vllm_spark.runtime.stream.plan import make_plan
from vllm_spark.runtime.stream.simulate import Peak, simulate, tensor_parallel_needs

if TYPE_CHECKING:
    import argparse

    from vllm_spark.runtime.quant.policy import Policy
    from vllm_spark.runtime.quant.source import Source
    from vllm_spark.runtime.stream.headers import Checkpoint

__all__ = ["configure", "run"]

Errors = dict[tuple[str, tuple[int, ...]], float]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("model", type=Path, help="folder of the checkpoint")
    parser.add_argument("--policy", help="TOML or JSON file, or one scheme for everything; default: the shipped one")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="plan for one of N tensor-parallel ranks")
    parser.add_argument("--error", action="store_true", help="also quantise one layer of each group and show its error")


def run(args: argparse.Namespace) -> int:
    """Print the table and the peak that the plan proves."""
    if not args.model.is_dir():
        raise ConfigError("no such folder", where=str(args.model), hint="give the folder that holds config.json")
    if args.tp < 1:
        raise ConfigError(f"{args.tp} ranks", where="--tp", hint="give at least 1")
    config = read_config(args.model)
    checkpoint = scan(args.model)
    sources = find_sources(checkpoint, config)
    policy = load_policy(args.policy).excluding(exclusions(quantization_config(config)))
    tied = bool(config.get("tie_word_embeddings", (config.get("text_config") or {}).get("tie_word_embeddings", False)))
    rows = layer_table(sources.values(), policy, tied=tied)
    errors = _errors(rows, policy) if args.error else None
    console.table(str(args.model), _columns(errors), [_cells(row, errors) for row in rows])
    total, source = sum(row.bytes for row in rows), sum(row.source_bytes for row in rows)
    console.result(f"{source / 2**30:.2f} GiB on disk, {total / 2**30:.2f} GiB loaded")
    peak = _peak(checkpoint, sources, policy, args.tp, tied=tied)
    rank = f" per rank of {args.tp}" if args.tp > 1 else ""
    console.result(f"peak while loading{rank}: {peak.extra / 2**20:.0f} MiB above the final size, at {peak.at}")
    return 0


def _columns(errors: Errors | None) -> list[str]:
    return ["layers", "count", "shape", "source", "scheme", "MiB", *(["error %"] if errors is not None else [])]


def _cells(row: Row, errors: Errors | None) -> list[str]:
    shape = " x ".join(str(size) for size in row.shape) or "scalar"
    cells = [row.group, str(row.count), shape, row.dtype, row.scheme, f"{row.bytes / 2**20:.1f}"]
    if errors is not None:
        cells.append(f"{100 * errors[row.group, row.shape]:.2f}" if (row.group, row.shape) in errors else "")
    return cells


def _errors(rows: list[Row], policy: Policy) -> Errors:
    from vllm_spark.runtime.quant.schemes import relative_error  # needs torch, the rest does not

    return {
        (row.group, row.shape): relative_error(row.sample, row.scheme, search=policy.search)
        for row in rows
        if row.scheme not in ("-", "bf16")
    }


def _peak(checkpoint: Checkpoint, sources: dict[str, Source], policy: Policy, ranks: int, *, tied: bool) -> Peak:
    needs = tensor_parallel_needs(checkpoint, 0, ranks) if ranks > 1 else None

    def bits(key: str) -> float:
        return final_bits(sources[key], policy, tied=tied) if key in sources else 0

    def rowwise(key: str) -> bool:
        return key not in sources or by_rows(scheme_of(sources[key], policy, tied=tied))

    return simulate(make_plan(checkpoint, needs=needs), bits, by_rows=rowwise)
