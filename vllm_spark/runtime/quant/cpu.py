"""Layers on a CPU: weights are rounded to their scheme on arrival and kept in 16 bits.

For checking models and policies without a GPU: the numbers are exactly those that the scheme can represent, the
memory is that of the 16-bit model, and vLLM's own CPU kernels run it.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from vllm_spark.runtime.quant.arriving import WEIGHTS, attach, detach, make_sink, require_streamed
from vllm_spark.runtime.quant.schemes import round_trip

if TYPE_CHECKING:
    import torch

__all__ = ["RoundedWeights", "head_method", "linear_method", "moe_method"]

_LAYERS = "vllm.model_executor.layers."


class RoundedWeights:
    """Mixed in front of vLLM's unquantised methods."""

    scheme: str
    search: bool

    def create_weights(self, layer: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - a vLLM layer
        """Make the 16-bit parameters, and sinks in front of them."""
        super().create_weights(layer, *args, **kwargs)  # type: ignore[misc]
        names = [name for name in WEIGHTS if hasattr(layer, name)]
        attach(layer, self.scheme, [self._sink(layer, name) for name in names], names)

    def _sink(self, layer: Any, name: str) -> Any:  # noqa: ANN401
        param = getattr(layer, name)
        flat = param.data.view(-1, param.shape[-1])

        def finish(_unit: int, first: int, buffer: torch.Tensor) -> None:
            flat[first : first + len(buffer)] = round_trip(self.scheme, buffer, search=self.search)

        return make_sink(layer, name, self.scheme, param.device, finish)

    def process_weights_after_loading(self, layer: Any) -> None:  # noqa: ANN401
        """Let vLLM prepare the rounded weights as it prepares any."""
        require_streamed(layer)
        super().process_weights_after_loading(layer)  # type: ignore[misc]

    def tie_weights(self, layer: Any, embed_tokens: Any) -> Any:  # noqa: ANN401
        """A head that shares the embedding stays as the embedding is."""
        detach(layer)
        layer.quant_method = _class("vocab_parallel_embedding", "UnquantizedEmbeddingMethod")()
        return layer.quant_method.tie_weights(layer, embed_tokens)


def _class(module: str, name: str) -> Any:  # noqa: ANN401
    return getattr(importlib.import_module(_LAYERS + module), name)


@functools.cache
def _mixed(module: str, name: str) -> Any:  # noqa: ANN401
    made = type(f"SparkRounded{name}", (RoundedWeights, _class(module, name)), {})
    # Its parameters are those of the class beneath, so the loader for those fits.
    supported = importlib.import_module(_LAYERS + "linear").WEIGHT_LOADER_V2_SUPPORTED
    if name in supported:
        supported.append(made.__name__)
    return made


def _made(method: Any, scheme: str, search: bool) -> Any:  # noqa: ANN401
    method.scheme, method.search = scheme, search
    return method


def linear_method(scheme: str, search: bool) -> Any:  # noqa: ANN401
    """For a linear layer."""
    return _made(_mixed("linear", "UnquantizedLinearMethod")(), scheme, search)


def head_method(scheme: str, search: bool) -> Any:  # noqa: ANN401
    """For lm_head."""
    return _made(_mixed("vocab_parallel_embedding", "UnquantizedEmbeddingMethod")(), scheme, search)


def moe_method(scheme: str, search: bool, moe_config: Any) -> Any:  # noqa: ANN401
    """For routed experts."""
    module = "fused_moe.unquantized_fused_moe_method"
    return _made(_mixed(module, "UnquantizedFusedMoEMethod")(moe_config), scheme, search)
