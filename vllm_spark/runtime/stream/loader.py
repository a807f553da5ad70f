"""`--load-format spark`: the loader that vLLM sees (rung: plugin hook, `register_model_loader`)."""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_spark import console
from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant.source import find_sources, read_config
from vllm_spark.runtime.stream.headers import scan
from vllm_spark.runtime.stream.options import Options

if TYPE_CHECKING:
    import torch

    from vllm_spark.runtime.quant.policy import Policy
    from vllm_spark.runtime.quant.source import Source
    from vllm_spark.runtime.stream.headers import Checkpoint

__all__ = ["StreamLoading", "register"]

NAME = "spark"


def register() -> None:
    """Make `--load-format spark` known; safe to call again."""
    loaders: Any = importlib.import_module("vllm.model_executor.model_loader")
    base = importlib.import_module("vllm.model_executor.model_loader.base_loader").BaseModelLoader
    if NAME not in loaders._LOAD_FORMAT_TO_MODEL_LOADER:  # noqa: SLF001 - upstream has no question for it
        loaders.register_model_loader(NAME)(type("SparkModelLoader", (StreamLoading, base), {}))


class StreamLoading:
    """What our loader adds to vLLM's BaseModelLoader; mixed in front of it."""

    if TYPE_CHECKING:
        load_config: Any

    def __init__(self, load_config: Any) -> None:  # noqa: ANN401 - vLLM's LoadConfig
        super().__init__(load_config)  # type: ignore[call-arg]
        self.options = Options.parse(load_config.model_loader_extra_config or {})
        self._policy: Policy | None = None
        self._found: tuple[Checkpoint, dict[str, Source] | None] | None = None

    def download_model(self, model_config: Any) -> None:  # noqa: ANN401 - vLLM's ModelConfig
        """Fetch the checkpoint if it is not a folder of this machine."""
        self._folder(model_config)

    def _folder(self, model_config: Any) -> Path:  # noqa: ANN401
        model = getattr(model_config, "model_weights", "") or model_config.model
        if Path(model).is_dir():
            return Path(model)
        default = importlib.import_module("vllm.model_executor.model_loader.default_loader").DefaultModelLoader
        plain = dataclasses.replace(self.load_config, load_format="safetensors", model_loader_extra_config={})
        return Path(default(plain)._prepare_weights(model, None, model_config.revision, False, None)[0])  # noqa: SLF001

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:  # noqa: ANN401
        """Validate the whole checkpoint, and only then let vLLM build the model and load it."""
        self._inspect(model_config)
        if model_config.quantization == NAME:
            self._policy = vllm_config.quant_config.decide(vllm_config.additional_config)
        return super().load_model(vllm_config, model_config, prefix)  # type: ignore[misc]

    def _inspect(self, model_config: Any) -> tuple[Checkpoint, dict[str, Source] | None]:  # noqa: ANN401
        if self._found is None:
            folder = self._folder(model_config)
            checkpoint = scan(folder)
            ours = model_config.quantization == NAME
            self._found = checkpoint, find_sources(checkpoint, read_config(folder)) if ours else None
        return self._found

    def load_weights(self, model: Any, model_config: Any) -> None:  # noqa: ANN401
        """Stream the checkpoint into a model that vLLM has built."""
        from vllm_spark.runtime.quant.resume import load_or_resume

        for name in ("secondary_weights", "allow_patterns_overrides"):
            if getattr(model, name, None):
                raise ConfigError(
                    f"{type(model).__name__} reads weights from other places ({name})",
                    where="--load-format spark",
                    hint="start it with --load-format auto",
                )
        checkpoint, sources = self._inspect(model_config)
        load = load_or_resume(
            model, checkpoint, sources, self.options, policy=self._policy, dtype=model_config.dtype, **_placement(model)
        )
        schemes = Counter(getattr(module, "spark_scheme", None) for module in model.modules())
        del schemes[None]
        console.say(load.summary({str(scheme): count for scheme, count in schemes.items()}))


def _placement(model: Any) -> dict[str, Any]:  # noqa: ANN401
    parallel: Any = importlib.import_module("vllm.distributed.parallel_state")
    ranks: list[int] = []
    for name in ("_TP", "_PP", "_EP"):
        group = getattr(parallel, name)  # the getters fail where a group does not exist
        ranks += [group.world_size, group.rank_in_group] if group is not None else [1, 0]
    device: torch.device = next(iter(p.device for p in model.parameters() if not p.is_meta))
    return {"device": device, "ranks": tuple(ranks)}
