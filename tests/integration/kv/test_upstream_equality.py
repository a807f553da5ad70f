"""With a number instead of `auto`, sizes are upstream's to the byte: its own functions against our formula."""

import subprocess
from pathlib import Path

import pytest

from vllm_spark.runtime.kv import sizing

pytestmark = pytest.mark.slow

GIB = 1 << 30
PROGRAM = (Path(__file__).resolve().parents[2] / "data/kv/stock_worker.txt").read_text()
# The program, once for each row of numbers: one import of vLLM for all of them.
MANY = f"""
import sys
rows = [row.split(",") for row in sys.argv[1:]]
source = {PROGRAM!r}
for row in rows:
    sys.argv = ["stock", *row]
    exec(compile(source, "stock_worker", "exec"), {{}})
"""
# total, free before, free after, peak in GiB · utilization · graphs in GiB
ROWS = [
    (121.69, 115.85, 28.92, 3.60, "0.87", 0.26),  # a GB10 owner's report: 15.08 GiB of KV
    (79.1, 78.6, 60.0, 2.5, "0.92", 0.5),
    (79.1, 78.6, 60.0, 2.5, "0.9", 0.0),
    (23.69, 23.0, 10.1, 1.0 / 3, "0.95", 0.1),
    (121.69, 121.0, 5.0, 7.0, "0.5", 1.0),  # negative: upstream reports it as it is
]


def test_stock_formula_is_upstreams_to_the_byte(vllm_python: Path, environment: dict[str, str]) -> None:
    numbers = [[round(x * GIB) for x in (t, b, a, p, g)] for t, b, a, p, _, g in ROWS]
    args = [
        ",".join(map(str, (total, before, after, before - after, peak, row[4], graphs)))
        for (total, before, after, peak, graphs), row in zip(numbers, ROWS, strict=True)
    ]
    done = subprocess.run(
        [vllm_python, "-P", "-c", MANY, *args], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    upstream = [int(line.removeprefix("kv ")) for line in done.stdout.splitlines() if line.startswith("kv ")]
    ours = [
        sizing.stock_kv_bytes(total, float(row[4]), before - after, peak, graphs)
        for (total, before, after, peak, graphs), row in zip(numbers, ROWS, strict=True)
    ]
    assert upstream == ours
    assert round(upstream[0] / GIB, 2) == 15.08
