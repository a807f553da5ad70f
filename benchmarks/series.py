"""How long the series takes to apply to the pinned release: checked in memory, and written as a tree."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Figure, report
from vllm_spark.distro.series import store
from vllm_spark.distro.series.apply import apply_series, push_all, stack
from vllm_spark.distro.upstream import mirror, pins

ROUNDS = 5


def main() -> int:
    upstream, series = pins.load(), store.load()
    source, _ = mirror.open_mirror(upstream)
    checked, written = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        with stack(source, upstream.version) as onto:
            push_all(onto, series)
        checked.append(time.perf_counter() - start)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            apply_series(series, source, upstream.version, Path(folder) / "tree")
            written.append(time.perf_counter() - start)
    count = len(series.patches)
    return report(
        "series",
        [
            Figure(
                f"apply {count} patches in the index, best of {ROUNDS}", min(checked), "s", "< 2 s", min(checked) < 2
            ),
            Figure(f"apply and write the tree, best of {ROUNDS}", min(written), "s"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
