"""Runs attention cases with one build of FlashAttention 2 and prints one JSON line for each.

    python3 -m tests.gpu.aot.worker LIBRARY FOLDER first|steady CASE…

A process of its own for each build, for both register the same operators. Outputs are written to FOLDER.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.gpu.aot.cases import ALL, Case, prepare, reference

CALLS = 20  # between two events, so that their resolution does not matter
ROUNDS = 15


def timed(arguments: tuple[Any, ...]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    started = time.perf_counter()
    result = torch.ops._vllm_fa2_C.varlen_fwd(*arguments)
    torch.cuda.synchronize()
    return time.perf_counter() - started, result


def first(case: Case, folder: Path) -> dict[str, Any]:
    """First and second call, and how far the first is from the reference."""
    inputs = prepare(case)
    try:
        seconds, result = timed(inputs.arguments)
    except RuntimeError as err:  # what is expected of the stock file when the driver may not compile
        return {"failed": str(err).splitlines()[0][:200]}
    out, lse = (one.clone() for one in result[:2])
    again, _ = timed(inputs.arguments)
    torch.save((out.cpu(), lse.cpu()), folder / f"{case.name}.pt")
    expected = reference(case, inputs)
    error = ((out.double() - expected).norm() / expected.norm()).item()
    return {"first_s": seconds, "second_s": again, "error": error}


def steady(case: Case, folder: Path) -> dict[str, Any]:
    """Median time of a call, by events around many."""
    inputs = prepare(case)
    loading, _ = timed(inputs.arguments)
    rounds = []
    for index in range(ROUNDS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(CALLS):
            torch.ops._vllm_fa2_C.varlen_fwd(*inputs.arguments)
        end.record()
        end.synchronize()
        if index >= 3:
            rounds.append(begin.elapsed_time(end) / CALLS / 1e3)
    return {"first_s": loading, "steady_s": statistics.median(rounds)}


def main() -> int:
    library, folder, mode, *names = sys.argv[1:]
    torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    torch.randn(8, device="cuda").sum().item()  # context and torch's own code are not what is measured
    for name in names:
        result = {"first": first, "steady": steady}[mode](ALL[name], Path(folder))
        print(json.dumps({"case": name, **result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
