"""Whole models on GPUs through the stream loader, each start in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import tiny_models

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu

PROGRAM = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(sys.argv[1], max_model_len=256, max_num_seqs=4, enforce_eager=True, attention_backend="TRITON_ATTN",
              gpu_memory_utilization=0.3, **json.loads(sys.argv[2]))
    sampling = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(range(5, 5 + n))} for n in (3, 17, 40)]
    print("TOKENS", json.dumps([list(o.outputs[0].token_ids) for o in llm.generate(prompts, sampling, use_tqdm=False)]))
"""
SPARK = {"load_format": "spark", "quantization": "spark"}


def tokens(model: Path, **arguments: Any) -> tuple[list[list[int]], str]:
    """Greedy tokens, and what the start said."""
    program = model.parent / "generate.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, str(program), str(model), json.dumps({"skip_tokenizer_init": True, **arguments})]
    more = {
        "VLLM_SPARK_CACHE": str(model.parent / "cache"),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **more})
    said = done.stdout + done.stderr
    assert "TOKENS " in said, said[-6000:]
    found: list[list[int]] = json.loads(said.rpartition("TOKENS ")[2].splitlines()[0])
    return found, said


@pytest.fixture(params=["qwen3_moe", "gemma4", "nemotron_h"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / str(request.param)
    subprocess.run([sys.executable, tiny_models.__file__, str(request.param), str(folder)], check=True)
    return folder


def test_sixteen_bits_through_the_stream_give_the_stock_tokens(model: Path) -> None:
    stock, _ = tokens(model)
    ours, _ = tokens(model, **SPARK, additional_config={"spark": "bf16"})
    assert ours == stock


@pytest.mark.parametrize("policy", ["default", "nvfp4", "mxfp4", "fp8"])
def test_a_second_start_gives_the_same_tokens_from_kept_weights(model: Path, policy: str) -> None:
    first, said = tokens(model, **SPARK, additional_config={"spark": policy})
    assert "kept weights" not in said
    second, said = tokens(model, **SPARK, additional_config={"spark": policy})
    assert "kept weights" in said
    assert second == first


@pytest.mark.parametrize("policy", ["bf16", "fp8"])
@pytest.mark.parametrize("experts", [False, True])
def test_two_ranks_give_the_tokens_of_one(model: Path, policy: str, experts: bool) -> None:
    import torch

    assert torch.cuda.device_count() >= 2, "run this on a machine with two GPUs"
    one, _ = tokens(model, **SPARK, additional_config={"spark": policy})
    two, _ = tokens(
        model, **SPARK, additional_config={"spark": policy}, tensor_parallel_size=2, enable_expert_parallel=experts
    )
    assert two == one
