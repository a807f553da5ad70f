"""The CPU build of vLLM and the server are those of the KV cache's tests."""

from tests.integration.kv.conftest import Server, environment, site, vllm_python

__all__ = ["Server", "environment", "site", "vllm_python"]
