"""Guard of model/unmatched-expert-weights: a key that no expert parameter takes stops the load, and no other does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_spark.proc import Finished

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent.parent / "data" / "guards"
# Case -> the key that the message must name.
BAD = {
    "bad: joined name": "layers.0.experts.0.down_proj_packed",
    "bad: unknown projection": "layers.0.experts.0.w4.weight",
    "bad: expert beyond the last": "layers.0.experts.4.up_proj.weight",
    "bad: vLLM's own name": "layers.0.experts.routed_experts.w13_weight",
    "bad: fused under another name": "layers.0.experts.gate_and_up_proj",
    "bad: gate of experts without one": "layers.0.experts.0.gate_proj.weight",
    "bad: a router's parameter": "layers.0.experts.e_score_correction_bias",
    "bad: beside another rank": "layers.0.experts.0.w4.weight",
    "bad: that suffix elsewhere": "layers.0.experts.k_scale.attn",
}
GOOD = (
    "good: every expert",
    "good: last of two ranks",
    "good: replicas",
    "good: without a gate",
    "good: bias without a parameter",
    "good: gate and up of one expert together",
    "good: fused",
    "good: a suffix that the format ignores",
    "good: other stage, other modules, rotary tables",
)


@pytest.fixture(scope="module")
def cases(tree: Path, vllm_python: Callable[..., Finished]) -> dict[str, dict[str, Any]]:
    done = vllm_python(tree, DATA / "routed_cases.py", env={"PYTHONPATH": f"{tree}:{DATA}"})
    assert done.status == 0, done.output[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(done.text)
    assert set(found) == {*BAD, *GOOD}
    return found


@pytest.mark.parametrize("case", BAD)
def test_unmatched_key_raises(cases: dict[str, dict[str, Any]], case: str) -> None:
    error = cases[case]["error"]
    assert f"ValueError: Layer layers.0.experts has no parameter for checkpoint weight {BAD[case]!r}" in error
    assert "experts.0.up_proj." in error  # a name that would have been taken
    assert "w13_weight" in error  # the parameters that there are


@pytest.mark.parametrize("case", GOOD)
def test_everything_legitimate_loads(cases: dict[str, dict[str, Any]], case: str) -> None:
    assert not cases[case]["error"]
    assert not cases[case]["stale"]
