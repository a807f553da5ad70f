"""KV cache by measurement beside stock sizing, on one GPU, with a model of random weights; needs vLLM and no network.

    python -m benchmarks.kv start    cold and warm starts, stock and auto: seconds, tokens, what first requests compile
    python -m benchmarks.kv load     the largest stock utilization that survives a load, by bisection, against auto
    python -m benchmarks.kv tenant   starts beside a process that takes and frees memory
    python -m benchmarks.kv soak     mixed load at the largest cache for --minutes

Every start is a process of its own. Each part prints a table and writes out/bench/kv-PART.json; a part stops starting
new processes after --limit seconds and fails, so that it ends well inside ten minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import Figure, report
from vllm_spark import console
from vllm_spark.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30
WORKER = "vllm_spark.runtime.kv.worker.AutoWorker"
# Many KV heads: 128 KiB of KV a token, so that a load fills the cache within a minute.
MODEL = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "vocab_size": 32768,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Lowest(threading.Thread):
    """The least free device memory ever seen, fifty times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.value = 1 << 62
        self.done = threading.Event()

    def run(self) -> None:
        """Sample until told to stop."""
        import torch

        while not self.done.wait(0.02):
            self.value = min(self.value, torch.cuda.mem_get_info()[0])


def batch(rng: random.Random, tokens: int) -> tuple[list[Any], list[Any]]:
    """Prompts and sampling parameters of a mixed load of about `tokens` tokens."""
    sampling_params = importlib.import_module("vllm").SamplingParams
    prompts, params = [], []
    while tokens > 0:
        length, output = rng.choice([64, 900, 4000, 15000, 28000]), rng.choice([16, 128, 512])
        prompts.append({"prompt_token_ids": [rng.randrange(3, 32000) for _ in range(length)]})
        sampling: dict[str, Any] = rng.choice(
            [{"temperature": 0}, {"top_p": 0.9, "top_k": 50}, {"repetition_penalty": 1.1}, {"logprobs": 5}]
        )
        params.append(sampling_params(max_tokens=output, ignore_eos=True, detokenize=False, **sampling))
        tokens -= length + output
    return prompts, params


def child(job: dict[str, Any]) -> None:
    """One start, its first request, and `seconds` of load; the last line of standard output is the result."""
    started = time.monotonic()
    import torch

    vllm = importlib.import_module("vllm")
    llm = vllm.LLM(job["model"], load_format="dummy", skip_tokenizer_init=True, max_model_len=32768, **job["engine"])
    found: dict[str, Any] = {"ready_s": time.monotonic() - started}
    config = llm.llm_engine.vllm_config.cache_config
    found["tokens"] = config.kv_cache_size_tokens
    found["free"] = torch.cuda.mem_get_info()[0]
    console.say("FIRST REQUEST")
    one = vllm.SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": list(range(5, 42))}], one, use_tqdm=False)
    console.say("FIRST ANSWER")
    rng, end = random.Random(0), time.monotonic() + job["seconds"]  # noqa: S311 - a load, not a secret
    lowest = Lowest()
    lowest.start()
    rounds = requests = 0
    while time.monotonic() < end:
        prompts, params = batch(rng, int(found["tokens"] * 1.3))
        llm.generate(prompts, params, use_tqdm=False)
        rounds, requests = rounds + 1, requests + len(prompts)
    lowest.done.set()
    metrics = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    found.update(rounds=rounds, requests=requests, preemptions=metrics.get("vllm:num_preemptions", 0))
    found["lowest_free"] = lowest.value if rounds else found["free"]
    console.result("RESULT " + json.dumps(found))


class Bench:
    """Starts children, one after the other, with caches of their own."""

    def __init__(self, limit: float, folder: Path) -> None:
        self.end = time.monotonic() + limit
        self.folder = folder
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(MODEL))

    def start(self, name: str, *, caches: str, seconds: float = 0, reserve: str = "", **engine: Any) -> dict[str, Any]:  # noqa: ANN401
        """Run one child; its result, or {"error": …}."""
        if time.monotonic() > self.end:
            raise ResourceError("no time left for another start", where=name, hint="a larger --limit, or fewer --steps")
        cache = self.folder / caches
        env = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        }
        if reserve:
            env["VLLM_SPARK_HOST_RESERVE"] = reserve
        settings = {"attention_backend": "TRITON_ATTN", "disable_log_stats": False, **engine}
        job = {"model": str(self.model), "engine": settings, "seconds": seconds}
        argv = [sys.executable, "-m", "benchmarks.kv", "child", json.dumps(job)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=540)
        output = done.stdout + done.stderr
        log = self.folder / f"{name}.log"
        log.write_text(output)
        kept = os.environ.get("OUT")
        if kept:
            (Path(kept) / log.name).write_text(output[-200_000:])
        result = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not result:
            lines = [line for line in output.splitlines() if "Error" in line] or [f"status {done.returncode}"]
            error = lines[-1]
            console.say(f"{name}: {error[:300]}")
            return {"error": error}
        found: dict[str, Any] = json.loads(result[-1].removeprefix("RESULT "))
        answered = done.stderr.partition("FIRST REQUEST")[2].partition("FIRST ANSWER")[0]
        found["compiled"] = answered.count("during inference")
        table = output.partition("KV cache sized by measurement")[2].splitlines()[:13]
        console.say(f"{name}: {json.dumps(found)}\n" + "\n".join(table))
        return found


def part_start(bench: Bench, _args: argparse.Namespace) -> list[Figure]:
    """Cold and warm starts of both."""
    workers = {"stock": "auto", "auto": WORKER}
    runs = {
        (kind, state): bench.start(f"{kind}-{state}", caches=kind, worker_cls=worker)
        for kind, worker in workers.items()
        for state in ("cold", "warm")
    }
    failed = {name: run["error"] for name, run in runs.items() if "error" in run}
    if failed:
        raise ResourceError(f"starts failed: {failed}", hint="read the logs in $OUT")
    figures = [
        Figure(f"{kind} {state}: {key}", run[key] / scale, unit)
        for (kind, state), run in runs.items()
        for key, scale, unit in (
            ("ready_s", 1, "s"),
            ("tokens", 1, "tokens"),
            ("free", GIB, "GiB"),
            ("compiled", 1, "kernels"),
        )
    ]
    for state in ("cold", "warm"):
        ratio = runs["auto", state]["ready_s"] / runs["stock", state]["ready_s"]
        figures.append(Figure(f"start-up, auto to stock, {state}", ratio, "x", "<= 1.25", holds=ratio <= 1.25))
    cold, warm = runs["auto", "cold"]["tokens"], runs["auto", "warm"]["tokens"]
    off = abs(cold - warm) / max(cold, warm)
    figures.append(Figure("tokens, cold to warm", off * 100, "%", "<= 1", holds=off <= 0.01))
    compiled = runs["auto", "warm"]["compiled"]
    figures.append(Figure("kernels compiled by the first request", compiled, "", "0", holds=compiled == 0))
    return figures


def part_load(bench: Bench, args: argparse.Namespace) -> list[Figure]:
    """Bisect stock's utilization under the load that auto must survive, and what is left with a reserve of 4 GiB."""
    eager: dict[str, Any] = {"enforce_eager": True}
    auto = bench.start("auto", caches="c", seconds=args.seconds, worker_cls=WORKER, **eager)
    reserve = 4 * GIB
    left = bench.start("auto-4gib", caches="c", seconds=args.seconds, reserve="4GiB", worker_cls=WORKER, **eager)
    low, high, tokens, step = 0.90, 1.0, 0, 0
    while step < args.steps and time.monotonic() < bench.end:
        tried = round((low + high) / 2, 4)
        run = bench.start(f"stock-{step}", caches="c", seconds=args.seconds, gpu_memory_utilization=tried, **eager)
        if "error" in run:
            high = tried
        else:
            low, tokens = tried, run["tokens"]
        step += 1
    survived = "error" not in auto and auto["preemptions"] > 0
    ratio = auto["tokens"] / tokens if tokens and "error" not in auto else 0.0
    share = left["lowest_free"] / reserve if "error" not in left else 0.0
    return [
        Figure("auto survives, with preemptions", auto.get("preemptions", 0), "", "> 0", holds=survived),
        Figure("largest stock utilization that survives", low, "", holds=tokens > 0),
        Figure("smallest that fails, or was not tried", high, ""),
        Figure("tokens, auto to the largest stock", ratio, "x", ">= 1.00", holds=ratio >= 1),
        Figure("least free under load, of 4 GiB reserved", share, "x", "0.97 to 1.03", holds=abs(share - 1) <= 0.03),
    ]


TENANT = """
import time, torch
while True:
    held = torch.zeros(3 << 30, dtype=torch.int8, device="cuda"); torch.cuda.synchronize(); time.sleep(2)
    del held; torch.cuda.empty_cache(); time.sleep(2)
"""


@contextlib.contextmanager
def tenant() -> Iterator[None]:
    """A neighbour that takes 3 GiB of the device for two seconds, and gives them back for two."""
    process = subprocess.Popen([sys.executable, "-c", TENANT])
    time.sleep(15)  # until it has its context
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def part_tenant(bench: Bench, args: argparse.Namespace) -> list[Figure]:
    """Both start beside a neighbour that breathes; alone first, for the size to compare with."""
    eager: dict[str, Any] = {"enforce_eager": True}
    alone = bench.start("alone", caches="c", reserve="4GiB", worker_cls=WORKER, **eager)
    with tenant():
        auto = bench.start("auto", caches="c", reserve="4GiB", seconds=args.seconds, worker_cls=WORKER, **eager)
        stock = bench.start("stock", caches="c", seconds=args.seconds, **eager)
    ratio = auto["tokens"] / alone["tokens"] if "error" not in {*auto, *alone} else 0.0
    return [
        Figure("auto starts beside a tenant", float("error" not in auto), "", "1", holds="error" not in auto),
        Figure("tokens beside a tenant, to alone", ratio, "x", "<= 1.00", holds=0 < ratio <= 1),
        Figure("stock starts beside a tenant", float("error" not in stock), ""),
    ]


def part_soak(bench: Bench, args: argparse.Namespace) -> list[Figure]:
    """The largest cache under mixed load."""
    run = bench.start("soak", caches="c", seconds=args.minutes * 60, worker_cls=WORKER)
    survived = "error" not in run
    return [
        Figure("minutes of mixed load without an error", args.minutes if survived else 0, "min", holds=survived),
        Figure("requests", run.get("requests", 0), "", holds=survived),
        Figure("preemptions", run.get("preemptions", 0), "", "> 0", holds=run.get("preemptions", 0) > 0),
        Figure("least free", run.get("lowest_free", 0) / GIB, "GiB", holds=survived),
    ]


def main() -> int:
    """Run one part."""
    parts = {"start": part_start, "load": part_load, "tenant": part_tenant, "soak": part_soak}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*parts, "child"])
    parser.add_argument("job", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=420, help="seconds after which nothing new is started")
    parser.add_argument("--seconds", type=float, default=25, help="load of each start of `load` and `tenant`")
    parser.add_argument("--steps", type=int, default=4, help="starts of the bisection")
    parser.add_argument("--minutes", type=float, default=7, help="length of `soak`")
    args = parser.parse_args()
    if args.part == "child":
        child(json.loads(args.job))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return report(f"kv-{args.part}", parts[args.part](Bench(args.limit, Path(folder)), args))


if __name__ == "__main__":
    sys.exit(main())
