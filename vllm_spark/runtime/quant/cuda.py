"""Layers on CUDA: weights are quantised on arrival into Marlin's layout; no 16-bit copy of a layer ever exists."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

import torch

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant import marlin
from vllm_spark.runtime.quant.arriving import attach, detach, make_sink, require_streamed
from vllm_spark.runtime.quant.marlin import Layout

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PackedExperts", "PackedWeight", "head_method", "linear_method", "moe_method"]

_LAYERS = "vllm.model_executor.layers."


def _class(module: str, name: str) -> Any:  # noqa: ANN401
    return getattr(importlib.import_module(_LAYERS + module), name)


def _placeholder(layer: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype, attrs: dict[str, Any]) -> None:  # noqa: ANN401
    """The parameter that vLLM's loader thinks it writes to; it has no memory."""
    param = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)
    for key, value in attrs.items():
        setattr(param, key, value)
    layer.register_parameter(name, param)


def _allocate(layer: Any, prefix: str, layout: Layout, device: torch.device, *outer: int) -> dict[str, torch.Tensor]:  # noqa: ANN401
    """Final tensors, zero so that padding is zero."""
    made = {}
    for name, (shape, dtype) in layout.shapes().items():
        whole = outer if outer and name == "global_scale" else (*outer, *shape)
        nbytes = torch.zeros(*whole[:-1], whole[-1] * dtype.itemsize, dtype=torch.uint8, device=device)
        param = torch.nn.Parameter(nbytes.view(dtype), requires_grad=False)
        layer.register_parameter(prefix + name, param)
        made[name] = param.data
    return made


class PackedWeight:
    """A linear layer or head; mixed in front of vLLM's LinearMethodBase or QuantizeMethodBase."""

    scheme: str
    search: bool

    def create_weights(
        self,
        layer: Any,  # noqa: ANN401 - a vLLM layer
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,  # noqa: ARG002 - vLLM passes it by name
        output_size: int,  # noqa: ARG002
        params_dtype: torch.dtype,
        **attrs: Any,  # noqa: ANN401
    ) -> None:
        """Final tensors on the device, and a placeholder for the loader."""
        layout = Layout(self.scheme, sum(output_partition_sizes), input_size_per_partition, params_dtype)
        device = torch.get_default_device()
        _placeholder(
            layer, "weight", (layout.rows, layout.columns), params_dtype, {"input_dim": 1, "output_dim": 0, **attrs}
        )
        final = _allocate(layer, "", layout, device)

        def finish(_unit: int, first: int, buffer: torch.Tensor) -> None:
            layout.place(layout.pack(buffer, search=self.search), final, first)

        layer.spark_layout = layout
        attach(layer, self.scheme, [make_sink(layer, "weight", self.scheme, device, finish)], tuple(final))

    def process_weights_after_loading(self, layer: Any) -> None:  # noqa: ANN401
        """Drop the placeholder; prepare bias and locks."""
        if not hasattr(layer, "spark_layout"):
            return
        require_streamed(layer)
        del layer.weight
        bias = getattr(layer, "bias", None)
        layer.spark_bias = None if bias is None else marlin.permuted_bias(bias, layer.spark_layout)
        layer.spark_workspace = marlin.workspace(layer.qweight.device)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ANN401
        """The product x @ W.T + bias."""
        return marlin.apply_linear(layer, layer.spark_layout, x, None if bias is None else layer.spark_bias)

    def tie_weights(self, layer: Any, embed_tokens: Any) -> Any:  # noqa: ANN401
        """A head that shares the embedding stays as the embedding is."""
        for name in ("weight", *layer.spark_kept):
            delattr(layer, name)
        detach(layer)
        del layer.spark_layout
        layer.quant_method = _class("vocab_parallel_embedding", "UnquantizedEmbeddingMethod")()
        return layer.quant_method.tie_weights(layer, embed_tokens)


class PackedExperts:
    """Routed experts; mixed in front of vLLM's FusedMoEMethodBase."""

    scheme: str
    search: bool
    if TYPE_CHECKING:
        moe: Any
        moe_kernel: Any
        moe_quant_config: Any

    def maybe_roundup_sizes(self, hidden: int, inter: int, *rest: Any) -> tuple[int, int]:  # noqa: ANN401
        """Sizes that both of an expert's matrices can be packed with; upstream pads what is smaller."""
        hidden, inter = super().maybe_roundup_sizes(hidden, inter, *rest)  # type: ignore[misc]
        if hidden % 64:
            raise ConfigError(
                f"experts of hidden size {hidden}: the kernel needs a multiple of 64",
                where="--quantization spark",
                hint="give the experts bf16 in the policy",
            )
        quantum = 64 if hidden % 128 == 0 else 128
        return hidden, -(-inter // quantum) * quantum

    def create_weights(
        self,
        layer: Any,  # noqa: ANN401 - vLLM's RoutedExperts
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **attrs: Any,  # noqa: ANN401
    ) -> None:
        """Final tensors on the device, and placeholders for the loader."""
        if self.moe.has_bias:
            hint = "give the experts bf16 in the policy"
            raise ConfigError("experts with biases have no kernel here", where="--quantization spark", hint=hint)
        shards = 2 if self.moe.is_act_and_mul else 1
        real = self.moe.hidden_dim_unpadded * self.moe.intermediate_size_per_partition_unpadded * num_experts
        device, sinks, kept = torch.get_default_device(), [], []
        shapes = {
            "w13": (shards * intermediate_size_per_partition, hidden_size, shards * real),
            "w2": (hidden_size, intermediate_size_per_partition, real),
        }
        for part, (rows, columns, numel) in shapes.items():
            layout = Layout(self.scheme, rows, columns, params_dtype)
            placeholder = {**attrs, "weight_loader_numel": numel}
            _placeholder(layer, f"{part}_weight", (num_experts, rows, columns), params_dtype, placeholder)
            final = _allocate(layer, f"{part}_", layout, device, num_experts)
            sinks.append(make_sink(layer, f"{part}_weight", self.scheme, device, self._finisher(layout, final)))
            kept += [f"{part}_{name}" for name in final]
        attach(layer, self.scheme, sinks, kept)

    def _finisher(self, layout: Layout, final: dict[str, torch.Tensor]) -> Callable[[int, int, torch.Tensor], None]:
        def finish(expert: int, _first: int, buffer: torch.Tensor) -> None:
            made = layout.pack(buffer, search=self.search)
            for name, value in made.items():
                place = final[name][expert : expert + 1]
                place.view(torch.uint8).copy_(value.reshape(place.shape).view(torch.uint8))

        return finish

    def process_weights_after_loading(self, layer: Any) -> None:  # noqa: ANN401
        """Drop the placeholders and build vLLM's Marlin kernel over the final tensors."""
        require_streamed(layer)
        del layer.w13_weight, layer.w2_weight
        self.moe_quant_config = self.get_fused_moe_quant_config(layer)
        prepare = _class("fused_moe.all2all_utils", "maybe_make_prepare_finalize")(
            moe=self.moe,
            quant_config=self.moe_quant_config,
            routing_tables=layer._expert_routing_tables(),  # noqa: SLF001 - as vLLM's own methods ask
            allow_new_interface=True,
        )
        experts = _class("fused_moe.experts.marlin_moe", "MarlinExperts")(
            moe_config=self.moe, quant_config=self.moe_quant_config
        )
        self.moe_kernel = _class("fused_moe.modular_kernel", "FusedMoEKernel")(prepare, experts)

    def get_fused_moe_quant_config(self, layer: Any) -> Any:  # noqa: ANN401
        """Scales and activation parameters of the layer, for vLLM's kernel."""
        gate = {
            "gemm1_alpha": getattr(layer, "swiglu_alpha", None),
            "gemm1_beta": getattr(layer, "swiglu_beta", None),
            "gemm1_clamp_limit": getattr(layer, "swiglu_limit", None),
        }
        scales = {"w1_scale": layer.w13_scales, "w2_scale": layer.w2_scales}
        if self.scheme == "nvfp4":
            scales |= {"g1_alphas": layer.w13_global_scale, "g2_alphas": layer.w2_global_scale}
        make = _class("fused_moe.config", f"{_CONFIGS[self.scheme]}_moe_quant_config")
        return make(**scales, **gate)

    def apply(
        self,
        layer: Any,  # noqa: ANN401
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,  # noqa: ANN401
        shared_experts_input: torch.Tensor | None,
    ) -> Any:  # noqa: ANN401
        """The experts' output for routed tokens."""
        return self.moe_kernel.apply(
            x,
            layer.w13_qweight,
            layer.w2_qweight,
            topk_weights,
            topk_ids,
            activation=layer.activation,
            global_num_experts=layer.global_num_experts,
            expert_map=layer.expert_map,
            apply_router_weight_on_input=layer.apply_router_weight_on_input,
            shared_experts=shared_experts,
            shared_experts_input=shared_experts_input,
        )


_CONFIGS = {"nvfp4": "nvfp4_w4a16", "mxfp4": "mxfp4_w4a16", "fp8": "fp8_w8a16"}


@functools.cache
def _mixed(mixin: type, module: str, name: str) -> Any:  # noqa: ANN401
    return type(f"Spark{mixin.__name__}", (mixin, _class(module, name)), {})


def _made(method: Any, scheme: str, search: bool) -> Any:  # noqa: ANN401
    if scheme not in marlin.GROUP:
        hint = f"choose one of {', '.join(marlin.GROUP)} or bf16"
        raise ConfigError(f"the scheme {scheme} has no kernel in this build", where="--quantization spark", hint=hint)
    method.scheme, method.search = scheme, search
    return method


def linear_method(scheme: str, search: bool) -> Any:  # noqa: ANN401
    """For a linear layer."""
    return _made(_mixed(PackedWeight, "linear", "LinearMethodBase")(), scheme, search)


def head_method(scheme: str, search: bool) -> Any:  # noqa: ANN401
    """For lm_head."""
    return _made(_mixed(PackedWeight, "quantization.base_config", "QuantizeMethodBase")(), scheme, search)


def moe_method(scheme: str, search: bool, moe_config: Any) -> Any:  # noqa: ANN401
    """For routed experts."""
    base = "fused_moe.fused_moe_method_base"
    return _made(_mixed(PackedExperts, base, "FusedMoEMethodBase")(moe_config), scheme, search)
