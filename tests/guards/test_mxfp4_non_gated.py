"""Guard of quant/mxfp4-non-gated: upstream's conversion to Marlin's layout, on the CPU, with and without a gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_spark.proc import Finished

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent.parent / "data" / "guards" / "marlin_experts.py"
EXPERTS, HIDDEN, INNER = 3, 256, 128  # as in the script


@pytest.fixture(scope="module")
def found(tree: Path, vllm_python: Callable[..., Finished]) -> dict[str, Any]:
    done = vllm_python(tree, SCRIPT)
    assert done.status == 0, done.output[-4000:]
    read: dict[str, Any] = json.loads(done.text)
    return read


def test_experts_without_a_gate(found: dict[str, Any]) -> None:
    assert not found["alone"]
    # Marlin: 16 rows to a line, eight 4-bit values to an int32; one scale per 32 rows
    assert found["shapes"] == {
        "w13": [EXPERTS, HIDDEN // 16, INNER * 2],
        "w2": [EXPERTS, INNER // 16, HIDDEN * 2],
        "w13_scale": [EXPERTS, HIDDEN // 32, INNER],
        "w2_scale": [EXPERTS, INNER // 32, HIDDEN],
        "w13_bias": [EXPERTS, INNER],
        "w2_bias": [EXPERTS, HIDDEN],
    }
    assert all(found["equal"].values()), found["equal"]


def test_experts_with_a_gate_still_convert(found: dict[str, Any]) -> None:
    assert not found["gated"]


def test_rows_that_fit_no_shard_count_are_refused(found: dict[str, Any]) -> None:
    assert found["mismatch"].startswith("AssertionError")
