"""`--quantization spark`: the configuration that vLLM sees (rung: plugin hook, `register_quantization_config`)."""

from __future__ import annotations

import importlib
from typing import Any

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant.policy import Policy, load_policy
from vllm_spark.runtime.quant.source import exclusions

__all__ = ["SparkQuantization", "register"]

NAME = "spark"
_LAYERS = "vllm.model_executor.layers."


def register() -> None:
    """Make `--quantization spark` known; safe to call again."""
    quantization: Any = importlib.import_module(_LAYERS + "quantization")
    base = importlib.import_module(_LAYERS + "quantization.base_config").QuantizationConfig
    if NAME not in quantization.QUANTIZATION_METHODS:
        quantization.register_quantization_config(NAME)(type("SparkConfig", (SparkQuantization, base), {}))


class SparkQuantization:
    """What our configuration adds to vLLM's QuantizationConfig; mixed in front of it.

    Args:
        checkpoint: the checkpoint's own quantisation section; its exclusions are honoured.
    """

    packed_modules_mapping: dict[str, list[str]]

    def __init__(self, checkpoint: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._excluded = exclusions(checkpoint or {})
        self._policy: Policy | None = None

    @property
    def policy(self) -> Policy:
        """What the user asked for, with the checkpoint's exclusions; read when the first layer is made."""
        if self._policy is None:
            return self.decide(importlib.import_module("vllm.config").get_current_vllm_config().additional_config)
        return self._policy

    def decide(self, additional_config: object) -> Policy:
        """Read the policy from vLLM's `--additional-config`, where `spark` is a file, a scheme or a table.

        Raises:
            ConfigError: it is malformed.
        """
        given = additional_config.get(NAME) if isinstance(additional_config, dict) else None
        self._policy = load_policy(given).excluding(self._excluded)
        return self._policy

    def get_name(self) -> str:
        """The name on the command line."""
        return NAME

    def get_supported_act_dtypes(self) -> list[Any]:
        """Activations stay in 16 bits."""
        import torch

        return [torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Marlin's smallest for FP4 and FP8 weights in bfloat16."""
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None: the policy comes from the command line."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SparkQuantization:
        """From the checkpoint's own quantisation section."""
        return cls(config)

    @classmethod
    def override_quantization_method(cls, _checkpoint: Any, user_quant: str | None, **_: Any) -> str | None:  # noqa: ANN401
        """Take a quantised checkpoint only when the user asks for it."""
        return NAME if user_quant == NAME else None

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:  # noqa: ANN401
        """Exclusions are in the checkpoint's names; layers ask in vLLM's."""
        self._excluded = (*self._excluded, *hf_to_vllm_mapper.apply_list(list(self._excluded)))

    def get_quant_method(self, layer: Any, prefix: str) -> Any:  # noqa: ANN401
        """The method of one layer, or None to leave it to vLLM."""
        kinds = {name: getattr(importlib.import_module(_LAYERS + module), name) for name, module in _KINDS.items()}
        if isinstance(layer, kinds["Attention"]):
            return kinds["BaseKVCacheMethod"](self)
        if isinstance(layer, kinds["RoutedExperts"]):
            projections = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
            names = [f"{prefix}.0.{name}" for name in projections if name]
            scheme = self.policy.common(names, prefix)
            return None if scheme == "bf16" else _methods().moe_method(scheme, self.policy.search, layer.moe_config)
        if isinstance(layer, kinds["LinearBase"]):
            scheme = self.policy.common(self._parts(prefix), prefix)
            if scheme == "bf16":
                return kinds["UnquantizedLinearMethod"]()
            return _methods().linear_method(scheme, self.policy.search)
        if isinstance(layer, kinds["ParallelLMHead"]):
            scheme = self.policy.scheme(prefix)
            return None if scheme == "bf16" else _methods().head_method(scheme, self.policy.search)
        return None

    def _parts(self, prefix: str) -> list[str]:
        """The checkpoint's names of what vLLM fuses into the layer `prefix`."""
        parent, dot, leaf = prefix.rpartition(".")
        return [f"{parent}{dot}{part}" for part in self.packed_modules_mapping.get(leaf, [leaf])]


_KINDS = {
    "Attention": "attention",
    "BaseKVCacheMethod": "quantization.kv_cache",
    "RoutedExperts": "fused_moe",
    "LinearBase": "linear",
    "UnquantizedLinearMethod": "linear",
    "ParallelLMHead": "vocab_parallel_embedding",
}


def _methods() -> Any:  # noqa: ANN401 - a module with linear_method, head_method and moe_method
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    if platform.is_cpu():
        return importlib.import_module("vllm_spark.runtime.quant.cpu")
    if platform.is_cuda():
        return importlib.import_module("vllm_spark.runtime.quant.cuda")
    raise ConfigError(
        f"no kernels for {platform.device_name}", where="--quantization spark", hint="run it on CUDA or a CPU build"
    )
