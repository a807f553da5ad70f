"""The `vllm.general_plugins` entry: vLLM calls `register` in every one of its processes, possibly more than once."""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Announce every feature to vLLM."""
    _kv()
    _weights()


def _kv() -> None:
    from vllm_spark.runtime.kv import resolve

    resolve.limit_jit_jobs()
    resolve.register_auto()


def _weights() -> None:
    from vllm_spark.runtime.quant import config
    from vllm_spark.runtime.stream import loader

    loader.register()
    config.register()
