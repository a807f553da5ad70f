"""Loads expert weights with good and bad keys; prints what became of each case as one JSON object.

Runs in vLLM's Python, on what fake_experts.py makes, and with upstream's AutoWeightsLoader around it.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from fake_experts import (  # type: ignore[import-not-found]
    EXPERTS,
    SHAPES,
    experts,
    fused,
    load,
    per_expert,
    random,
    runner,
    state,
)
from vllm.model_executor.models.utils import AutoWeightsLoader, PPMissingLayer  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Weights = list[tuple[str, torch.Tensor]]
    Cases = dict[str, tuple[Callable[[], Any], Weights]]

MATRIX = random(torch.bfloat16, SHAPES["gate_proj"], "x")
GOOD = [(name.removeprefix("experts."), tensor) for name, tensor in per_expert("bf16")]


def case(weights: Weights, **how: Any) -> tuple[Callable[[], Any], Weights]:
    """A layer alone, and what is loaded into it."""
    return (lambda: runner(experts("bf16", "layers.0.experts", **how))), weights


def bad() -> Cases:
    """Keys that nothing takes."""
    return {
        "bad: joined name": case([*GOOD, ("0.down_proj_packed", MATRIX)]),
        "bad: unknown projection": case([("0.w4.weight", MATRIX)]),
        "bad: expert beyond the last": case([(f"{EXPERTS}.up_proj.weight", MATRIX)]),
        "bad: vLLM's own name": case([("routed_experts.w13_weight", MATRIX)]),
        "bad: fused under another name": case([("gate_and_up_proj", torch.stack([MATRIX] * EXPERTS))]),
        "bad: gate of experts without one": case([("0.gate_proj.weight", MATRIX)], gated=False),
        "bad: a router's parameter": case([("e_score_correction_bias", torch.ones(EXPERTS))]),
        "bad: beside another rank": case([*GOOD, ("0.w4.weight", MATRIX)], ranks=2, rank=1),
        "bad: that suffix elsewhere": (scaled, [*GOOD, ("k_scale.attn", torch.ones(()))]),
    }


def good() -> Cases:
    """Whole checkpoints, with what belongs to another rank, stage or module, or is ignored on purpose."""
    biases = [("0.up_proj.bias", MATRIX[:, 0]), ("shared.bias", MATRIX[:, 0])]
    both = torch.cat([MATRIX, MATRIX])
    return {
        "good: every expert": case(GOOD),
        "good: last of two ranks": case(GOOD, ranks=2, rank=1),
        "good: replicas": case(GOOD, spare=2),
        "good: without a gate": case([(n, t) for n, t in GOOD if "gate_proj" not in n], gated=False),
        "good: bias without a parameter": case([*GOOD, *biases]),
        "good: gate and up of one expert together": case([*GOOD, ("0.gate_up_proj.weight", both)]),
        "good: fused": case(fused("bf16", "{proj}")),
        "good: a suffix that the format ignores": (scaled, [*GOOD, ("attn.k_scale", torch.ones(()))]),
        "good: other stage, other modules, rotary tables": (staged, model_weights()),
    }


def scaled() -> Any:
    """A layer of a quantisation format that passes over `.k_scale`."""
    made = experts("bf16", "layers.0.experts")
    made.quant_config = SimpleNamespace(_ignore_unexpected_suffixes=(".k_scale",), get_name=lambda: "fp8")
    return runner(made)


def staged() -> Any:
    """The first stage of a model of two layers: experts and another module, loaded by AutoWeightsLoader."""

    class Model(torch.nn.Module):
        def load_weights(self, weights: Weights) -> set[str]:
            found: set[str] = AutoWeightsLoader(self).load_weights(weights)
            return found

    layer, top = torch.nn.Module(), Model()
    layer.experts = runner(experts("bf16", "layers.0.experts"))
    layer.other = torch.nn.Linear(2, 2, bias=False)
    top.layers = torch.nn.ModuleList([layer, PPMissingLayer()])
    return top


def model_weights() -> Weights:
    """A checkpoint of both layers."""
    here = [(f"layers.0.experts.{name}", tensor) for name, tensor in GOOD]
    gone = [(f"layers.1.experts.{name}", tensor) for name, tensor in GOOD]
    odd = [("layers.1.experts.0.w4.weight", MATRIX), ("layers.0.experts.rotary_emb.inv_freq", MATRIX)]
    return [*here, ("layers.0.other.weight", torch.ones(2, 2)), *gone, *odd]


def judge() -> Iterator[tuple[str, dict[str, Any]]]:
    """Per case: the error, and the parameters that kept a byte of what their memory held."""
    for name, (make, weights) in {**bad(), **good()}.items():
        one, error = load(make, weights, 0x11)
        first, second = state(one), state(load(make, weights, 0x22)[0])
        yield name, {"error": error, "stale": sorted(key for key in first if first[key] != second[key])}


if __name__ == "__main__":
    json.dump(dict(judge()), sys.stdout)
