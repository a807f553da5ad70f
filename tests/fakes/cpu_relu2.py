"""A plugin for tests: lets a CPU build of vLLM run experts without a gate (relu2), which upstream refuses there.

Upstream 0.33.0 has CPU kernels for gated experts only. What is tested with this is loading: how such experts get
from a checkpoint into a model. The arithmetic is plain torch.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

_MOE = "vllm.model_executor.layers.fused_moe."


class Relu2:
    """Mixed in front of vLLM's portable CPU experts."""

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_activation(_activation: Any) -> bool:
        return True

    def process_weights_after_loading(self, layer: Any) -> None:
        """Keep the weights as they are loaded."""

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        *_rest: Any,
        **_more: Any,
    ) -> None:
        total = torch.zeros_like(output, dtype=torch.float32)
        for expert in set(topk_ids.flatten().tolist()):
            token, slot = (topk_ids == expert).nonzero(as_tuple=True)
            inner = (hidden_states[token] @ w1[expert].T).relu().square() @ w2[expert].T
            total.index_add_(0, token, inner.float() * topk_weights[token, slot][:, None])
        output.copy_(total)


class Lenient:
    """vLLM's platform, but one that is not refused."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @staticmethod
    def is_xpu() -> bool:
        return True


def register() -> None:
    config: Any = importlib.import_module(_MOE + "config")
    oracle: Any = importlib.import_module(_MOE + "oracle.unquantized")
    base = importlib.import_module(_MOE + "experts.cpu_moe").CPUUnquantizedExperts
    checked = config.FusedMoEConfig.__post_init__
    made = type("Relu2Experts", (Relu2, base), {})

    def lenient(self: Any) -> None:
        real, config.current_platform = config.current_platform, Lenient(config.current_platform)
        try:
            checked(self)
        finally:
            config.current_platform = real

    config.FusedMoEConfig.__post_init__ = lenient
    oracle.backend_to_kernel_cls = lambda _backend: [made]
