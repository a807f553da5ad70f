"""Loads every known layout of a Gemma 4 checkpoint; prints what became of each as one JSON object.

Runs in vLLM's Python. Real: `load_weights` and the key maps of Gemma4ForCausalLM and Gemma4Model, and all that
fake_experts.py makes. Left out: everything of the model that is neither router nor expert.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from fake_experts import (  # type: ignore[import-not-found]
    EXPERTS,
    HIDDEN,
    SHAPES,
    TENSORS,
    experts,
    fused,
    join_groups,
    load,
    per_expert,
    random,
    runner,
    state,
)
from vllm.model_executor.models import gemma4  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Iterator

    Weights = list[tuple[str, torch.Tensor]]


def gemma(scheme: str) -> Any:
    """Gemma4ForCausalLM with one layer that has a router and experts, and nothing else."""
    config = SimpleNamespace(num_hidden_layers=1, layer_types=["full_attention"], num_kv_shared_layers=0)
    layer, router = torch.nn.Module(), torch.nn.Module()
    router.proj = torch.nn.Linear(HIDDEN, EXPERTS, bias=False)
    router.per_expert_scale = torch.nn.Parameter(torch.ones(EXPERTS))
    layer.router, layer.experts = router, runner(experts(scheme, "model.layers.0.experts"))
    model, top = object.__new__(gemma4.Gemma4Model), object.__new__(gemma4.Gemma4ForCausalLM)
    for module in (model, top):
        torch.nn.Module.__init__(module)
        module.config = config
        module.quant_config = None
    model.hf_to_vllm_mapper = gemma4._gemma4_layer_weights_mapper(config)
    model.layers, top.model = torch.nn.ModuleList([layer]), model
    return top


def underscored() -> Weights:
    """compressed-tensors INT4 as exported from modules that are no Linear: `experts.0.down_proj_packed`."""
    return [(name.replace(".weight_", "_"), tensor) for name, tensor in per_expert("ct-int4")]


def paired() -> Weights:
    """ModelOpt with gate and up of each expert in one tensor, scalars included."""
    flat = dict(per_expert("modelopt"))
    made: Weights = []
    for n in range(EXPERTS):
        for suffix in TENSORS["modelopt"]:
            gate, up, down = (flat[f"experts.{n}.{proj}.{suffix}"] for proj in SHAPES)
            both = torch.cat([gate, up]) if gate.dim() else gate
            made += [(f"experts.{n}.gate_up_proj.{suffix}", both), (f"experts.{n}.down_proj.{suffix}", down)]
    return made


def layouts() -> dict[str, tuple[str, Weights]]:
    """Layout -> scheme and checkpoint, in the order of the table in docs/patches.md."""
    moe = "moe.experts.{n}.{proj}.{suffix}"
    scale = ("moe.per_expert_scale", random(torch.float32, (EXPERTS,), "scale"))
    return {
        "A": ("modelopt", per_expert("modelopt")),
        "B": ("modelopt", per_expert("modelopt", moe)),
        "C": ("ct-nvfp4", per_expert("ct-nvfp4")),
        "C2": ("ct-nvfp4", per_expert("ct-nvfp4", moe)),
        "D": ("bf16", fused("bf16", "experts.{proj}")),
        "D2": ("bf16", [*fused("bf16", "moe.{proj}"), scale]),
        "E": ("modelopt", fused("modelopt", "experts.{proj}_{suffix}")),
        "E2": ("modelopt", fused("modelopt", "experts.{proj}.{suffix}")),
        "F": ("bf16", per_expert("bf16")),
        "F2": ("bf16", per_expert("bf16", moe)),
        "G": ("ct-int4", underscored()),
        "G dotted": ("ct-int4", per_expert("ct-int4")),
        "H": ("modelopt", paired()),
        "router scale": ("modelopt", [("router.proj.weight_scale", torch.ones(()))]),
    }


def judge() -> Iterator[tuple[str, dict[str, Any]]]:
    """Per layout: the error; the parameters that kept a byte of the fill; the loaded bytes."""
    for layout, (scheme, short) in layouts().items():
        weights = [(f"model.language_model.layers.0.{name}", tensor) for name, tensor in short]
        one, error = load(lambda scheme=scheme: gemma(scheme), weights, 0x11)
        two, _ = load(lambda scheme=scheme: gemma(scheme), weights, 0x22)
        first, second = state(one), state(two)
        stale = sorted(name for name in first if "experts" in name and first[name] != second[name])
        content = {name: hash(tuple(data)) for name, data in first.items() if "experts" in name}
        scale = "model.layers.0.router.per_expert_scale"
        yield layout, {"error": error, "stale": stale, "content": content, "scale": first[scale] == second[scale]}


if __name__ == "__main__":
    join_groups()
    json.dump(dict(judge()), sys.stdout)
