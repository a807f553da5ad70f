"""`vllm serve` with the stream loader on a CPU build of the patched vLLM, asked through the OpenAI API."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fakes import cpu_relu2, smollm, tiny_models
from tests.integration.stream.conftest import Server
from vllm_spark.runtime.quant import cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # every server takes half a minute to start

SPARK = ("--load-format", "spark", "--quantization", "spark")
PROMPTS = ("hello world", "hello", "world world hello")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def experts_without_a_gate(folder: Path) -> Path:
    """A folder for PYTHONPATH whose plugin lets a CPU run them."""
    info = folder / "plugin" / "relu2-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: relu2\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nrelu2 = cpu_relu2:register\n")
    shutil.copy(cpu_relu2.__file__, info.parent)
    return info.parent


@pytest.fixture
def start(vllm_python: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []
    more = {"VLLM_SPARK_CACHE": str(tmp_path / "cache"), "VLLM_CPU_KVCACHE_SPACE": "1"}

    def run(model: Path, *args: str) -> Server:
        port = free_port()
        if model.name == "nemotron_h":
            more["PYTHONPATH"] = f"{experts_without_a_gate(tmp_path)}:{environment['PYTHONPATH']}"
        argv = [str(vllm_python), "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        argv += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m", "--dtype", "bfloat16"]
        argv += ["--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager", *args]
        log = tmp_path / f"{len(started)}.log"
        started.append(Server(argv, port, {**environment, **more}, log))
        return started[-1]

    yield run
    for server in started:
        server.close()


@pytest.fixture
def tiny(tmp_path: Path, vllm_python: Path, environment: dict[str, str]) -> Callable[[str], Path]:
    def make(kind: str) -> Path:
        folder = tmp_path / kind
        argv = [str(vllm_python), "-P", tiny_models.__file__, kind, str(folder)]
        subprocess.run(argv, check=True, env=environment, capture_output=True)
        return folder

    return make


def say(server: Server, prompt: str, tokens: int = 12) -> str:
    assert server.wait(400), server.text[-4000:]
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    status, answer = server.ask("POST", "/v1/completions", json.dumps(body))
    assert status == 200, answer
    return str(json.loads(answer)["choices"][0]["text"])


@pytest.mark.parametrize("kind", ["qwen3_moe", "gemma4", "nemotron_h"])
def test_sixteen_bits_through_the_stream_give_the_stock_text(
    start: Callable[..., Server], tiny: Callable[[str], Path], kind: str
) -> None:
    model = tiny(kind)
    stock = start(model)
    ours = start(model, *SPARK, "--additional-config", '{"spark": "bf16"}')
    for prompt in PROMPTS:
        assert say(ours, prompt) == say(stock, prompt)


def test_a_second_start_serves_the_same_text_from_kept_weights(
    start: Callable[..., Server], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tiny("qwen3_moe")
    first = start(model, *SPARK)
    texts = [say(first, prompt) for prompt in PROMPTS]
    first.close()
    second = start(model, *SPARK)
    assert [say(second, prompt) for prompt in PROMPTS] == texts
    assert "nvfp4" in first.text
    assert "kept weights" not in first.text
    (entry,) = cache.entries(tmp_path / "cache" / "weights")
    assert cache.verify(entry) == []
    assert "kept weights" in second.text


def test_a_real_model_answers_with_the_default_policy(start: Callable[..., Server], tmp_path: Path) -> None:
    folder = tmp_path / "smollm2"
    folder.mkdir()
    smollm.write(folder)
    ours = start(folder, *SPARK, "--additional-config", '{"spark": {"base": "default", "search": false}}')
    assert "Paris" in say(ours, "The capital of France is", 8)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--quantization", "spark"), "add --load-format spark"),
        ((*SPARK, "--additional-config", '{"spark": "nvfp5"}'), "cannot be read"),
        ((*SPARK, "--model-loader-extra-config", '{"stage_mb": 3}'), "did you mean staging_mb"),
    ],
)
def test_a_wrong_command_line_ends_with_the_way_out(
    start: Callable[..., Server], tiny: Callable[[str], Path], args: tuple[str, ...], message: str
) -> None:
    server = start(tiny("qwen3_moe"), *args)
    assert not server.wait(400), "it serves"
    assert message in server.text


def test_a_cut_shard_ends_the_start_before_anything_is_loaded(
    start: Callable[..., Server], tiny: Callable[[str], Path]
) -> None:
    model = tiny("qwen3_moe")
    shard = model / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    server = start(model, *SPARK)
    assert not server.wait(400), "it serves"
    assert "cut short" in server.text
    assert "Initializing model took" not in server.text
