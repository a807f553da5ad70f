"""Prepares MXFP4 experts for Marlin, with a gate and without, and compares; prints one JSON object.

Runs in vLLM's Python on the CPU, through upstream's own conversion (oracle/mxfp4.py). The one compiled operator that
it calls, `_C::gptq_marlin_repack`, is given here as a CPU implementation made of upstream's reference for that layout.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig  # type: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import (  # type: ignore[import-not-found]
    Mxfp4MoeBackend,
    convert_weight_to_mxfp4_moe_kernel_format,
)
from vllm.model_executor.layers.quantization.utils.marlin_utils_test import (  # type: ignore[import-not-found]
    get_weight_perm,
    marlin_weights,
)

EXPERTS, HIDDEN, INNER = 3, 256, 128
SCHEMA = "(Tensor b_q_weight, SymInt size_k, SymInt size_n, int num_bits, bool is_a_8bit) -> Tensor"


def repack(weight: torch.Tensor, size_k: int, size_n: int, bits: int, a_8bit: bool) -> torch.Tensor:
    """GPTQ layout (eight rows to an int32) to Marlin's; raises on other sizes than the kernel takes."""
    if (bits, a_8bit) != (4, False) or size_k % 16 or size_n % 64:
        raise ValueError(f"bits {bits}, 8-bit activations {a_8bit}, {size_k} by {size_n}")
    if tuple(weight.shape) != (size_k // 8, size_n):
        raise ValueError(f"{tuple(weight.shape)} for {size_k} by {size_n}")
    nibbles = (weight[:, None, :] >> (4 * torch.arange(8, dtype=torch.int32))[None, :, None]) & 0xF
    made: torch.Tensor = marlin_weights(nibbles.reshape(size_k, size_n), size_k, size_n, 4, get_weight_perm(4))
    return made


def convert(shards: int, w13: list[torch.Tensor], w2: list[torch.Tensor]) -> tuple[Any, ...] | str:
    """Weight, scale and bias of both matrices in Marlin's form; or the error."""
    # Upstream's own property, so that a release without it is seen.
    count = FusedMoEConfig.w13_num_shards.fget(SimpleNamespace(is_act_and_mul=shards == 2))
    layer = SimpleNamespace(params_dtype=torch.bfloat16, moe_config=SimpleNamespace(w13_num_shards=count))
    try:
        made: tuple[Any, ...] = convert_weight_to_mxfp4_moe_kernel_format(
            Mxfp4MoeBackend.MARLIN, layer, *(t for pair in zip(w13, w2, strict=True) for t in pair)
        )
    except (AssertionError, RuntimeError, ValueError) as err:
        return f"{type(err).__name__}: {err}"
    return made


def random(rows: int, columns: int) -> list[torch.Tensor]:
    """Packed weight, block scales, bias of one matrix per expert."""
    return [
        torch.randint(0, 256, (EXPERTS, rows, columns // 2), dtype=torch.uint8),
        torch.randint(118, 126, (EXPERTS, rows, columns // 32), dtype=torch.uint8),
        torch.randn(EXPERTS, rows, dtype=torch.bfloat16),
    ]


def main() -> dict[str, Any]:
    """What the guard asserts on."""
    torch.manual_seed(0)
    gate, up, down = random(INNER, HIDDEN), random(INNER, HIDDEN), random(HIDDEN, INNER)
    gated = convert(2, [torch.cat(pair, 1) for pair in zip(gate, up, strict=True)], down)
    alone = convert(1, up, down)
    wrong = convert(1, [torch.cat(pair, 1) for pair in zip(gate, up, strict=True)], down)
    found: dict[str, Any] = {"gated": gated if isinstance(gated, str) else ""}
    found["alone"] = alone if isinstance(alone, str) else ""
    found["mismatch"] = wrong if isinstance(wrong, str) else "accepted"
    if not isinstance(gated, str) and not isinstance(alone, str):
        names = ("w13", "w2", "w13_scale", "w2_scale", "w13_bias", "w2_bias")
        found["shapes"] = {name: list(made.shape) for name, made in zip(names, alone, strict=True)}
        found["equal"] = {
            # Marlin keeps the order of 64-column tiles: what is made of `up` alone is the last half beside a gate
            name: torch.equal((whole.chunk(2, -1)[1] if name.startswith("w13") else whole).float(), made.float())
            for name, whole, made in zip(names, gated, alone, strict=True)
        }
    return found


if __name__ == "__main__":
    operators: Any = torch.library  # its classes have no types
    library = operators.Library("_C", "FRAGMENT")
    library.define("gptq_marlin_repack" + SCHEMA)  # as csrc/torch_bindings.cpp has it
    library.impl("gptq_marlin_repack", repack, "CPU")
    json.dump(main(), sys.stdout)
