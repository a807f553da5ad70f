"""Loading beside stock vLLM on one GPU: time, device peak, host memory, page cache; needs vLLM and no network.

    python -m benchmarks.loading plan                 a 397B header set: seconds and proven peak (no GPU)
    python -m benchmarks.loading {ordered,scattered,fp8} [--layers N] [--folder DIR]
                                                      makes that checkpoint, then: stock, ours, ours again

The checkpoint is a Qwen3-MoE shape with random weights: 16 layers are 18.8 GiB in BF16, 9.6 GiB in block-FP8. Every
start is a process of its own; the page cache is dropped for the checkpoint's files before each. Each part prints a
table and writes out/bench/loading-PART.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.common import Figure, report
from tests.fakes import checkpoints
from vllm_spark import console
from vllm_spark.errors import ResourceError
from vllm_spark.runtime.stream.headers import scan
from vllm_spark.runtime.stream.plan import make_plan
from vllm_spark.runtime.stream.simulate import simulate, tensor_parallel_needs

GIB = 1 << 30
HIDDEN, INTER, EXPERTS, VOCAB, SHARDS = 2048, 768, 128, 32768, 8
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": HIDDEN,
    "intermediate_size": 6144,
    "moe_intermediate_size": INTER,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
SPARK = {"load_format": "spark", "quantization": "spark"}


def parts(layers: int) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of the whole checkpoint."""
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(layers):
        p = f"model.layers.{layer}."
        sizes = {"q_proj": (4096, HIDDEN), "k_proj": (512, HIDDEN), "v_proj": (512, HIDDEN), "o_proj": (HIDDEN, 4096)}
        out |= {f"{p}self_attn.{name}.weight": shape for name, shape in sizes.items()}
        out |= {f"{p}self_attn.{name}.weight": (128,) for name in ("q_norm", "k_norm")}
        out |= {f"{p}{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
        out[f"{p}mlp.gate.weight"] = (EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            e = f"{p}mlp.experts.{expert}."
            out |= {f"{e}{name}.weight": (INTER, HIDDEN) for name in ("gate_proj", "up_proj")}
            out[f"{e}down_proj.weight"] = (HIDDEN, INTER)
    return out | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def make(folder: Path, layout: str, layers: int) -> None:
    """Write the checkpoint; `scattered` puts every eighth expert of all layers into one shard."""
    import torch

    safetensors: Any = importlib.import_module("safetensors.torch")
    config = CONFIG | {"num_hidden_layers": layers} | ({"quantization_config": FP8} if layout == "fp8" else {})
    (folder / "config.json").write_text(json.dumps(config))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    everything = list(parts(layers).items())
    files: dict[str, list[str]] = {}
    for shard in range(SHARDS):
        tensors: dict[str, torch.Tensor] = {}
        for number, (key, shape) in enumerate(everything):
            expert = int(key.split(".experts.")[1].split(".")[0]) if ".experts." in key else None
            home = number * SHARDS // len(everything) if layout != "scattered" or expert is None else expert % SHARDS
            if home == shard:
                tensors |= stored(key, shape, device, fp8=layout == "fp8")
        name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        safetensors.save_file(tensors, folder / name, metadata={"format": "pt"})
        files[name] = list(tensors)
    checkpoints.write_index(folder, files)


def stored(key: str, shape: tuple[int, ...], device: str, *, fp8: bool) -> dict[str, Any]:
    """A random weight in the checkpoint's format."""
    import torch

    if len(shape) == 1:
        return {key: torch.ones(shape, dtype=torch.bfloat16)}
    weight = (torch.randn(shape, device=device) * 0.02).to(torch.bfloat16)
    if not fp8 or "_proj" not in key:
        return {key: weight.cpu()}
    tiles = weight.float().view(shape[0] // 128, 128, shape[1] // 128, 128)
    scale = tiles.abs().amax((1, 3)) / 448
    codes = (tiles / scale[:, None, :, None]).to(torch.float8_e4m3fn).view(shape)
    return {key: codes.cpu(), f"{key}_scale_inv": scale.cpu()}


def drop_cache(folder: Path) -> None:
    """Take a folder's files out of the page cache."""
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _field(path: str, name: str) -> int:
    line = next(line for line in Path(path).read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) << 10


class Watch:
    """Highest use of device, process and page cache while a block runs."""

    def __enter__(self) -> Self:
        self._torch: Any = importlib.import_module("torch")
        self.start, self.most, self._stop = self._now(), self._now(), threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()
        self.began = time.monotonic()
        return self

    def _now(self) -> dict[str, int]:
        free, total = self._torch.cuda.mem_get_info()
        cached = _field("/proc/meminfo", "Cached")
        return {"device": total - free, "resident": _field("/proc/self/status", "VmRSS"), "page cache": cached}

    def _poll(self) -> None:
        while not self._stop.wait(0.02):
            for name, value in self._now().items():
                self.most[name] = max(self.most[name], value)

    def __exit__(self, *exc: object) -> None:
        self._torch.cuda.synchronize()
        self.seconds = time.monotonic() - self.began
        self._stop.set()
        self._thread.join()
        self.final = self._torch.cuda.memory_allocated()


def probe(model: str, arguments: str) -> None:
    """One start in this process; prints what it took and what it says."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    vllm: Any = importlib.import_module("vllm")
    worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
    load = worker.load_model
    seen: dict[str, Any] = {}

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - vLLM's worker
        torch: Any = importlib.import_module("torch")
        base = torch.cuda.memory_allocated()
        with Watch() as watch:
            out = load(self, *args, **kwargs)
        grown = {f"{name} GiB": (watch.most[name] - watch.start[name]) / GIB for name in watch.most}
        seen.update(grown, seconds=watch.seconds, **{"final GiB": (watch.final - base) / GIB})
        return out

    worker.load_model = watched
    fixed = {"skip_tokenizer_init": True, "max_model_len": 1024, "max_num_seqs": 4, "enforce_eager": True}
    llm = vllm.LLM(model, **fixed, disable_log_stats=True, **json.loads(arguments))
    sampling = vllm.SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)
    answer = llm.generate([{"prompt_token_ids": list(range(5, 69))}], sampling, use_tqdm=False)
    seen["tokens"] = list(answer[0].outputs[0].token_ids)
    time.sleep(float(os.environ.get("SPARK_LINGER", "0")))  # the cache's writer goes on after the load
    console.result("PROBE " + json.dumps(seen))


def start(folder: Path, arguments: dict[str, Any], **env: str) -> dict[str, Any]:
    """One start in a process of its own."""
    drop_cache(folder.parent)
    argv = [sys.executable, "-m", "benchmarks.loading", "probe", str(folder), json.dumps(arguments)]
    settings = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **settings, **env})
    line = next((line for line in done.stdout.splitlines() if line.startswith("PROBE ")), None)
    if line is None:
        raise ResourceError(f"a start failed\n{(done.stdout + done.stderr)[-6000:]}", where=json.dumps(arguments))
    found: dict[str, Any] = json.loads(line[6:])
    console.say(f"{arguments}: {line}")
    return found


def compare(layout: str, layers: int, where: Path) -> list[Figure]:
    """Stock, ours, and ours from kept weights."""
    folder = where / layout
    folder.mkdir(parents=True)
    make(folder, layout, layers)
    cache = {"VLLM_SPARK_CACHE": str(where / "cache")}
    base = {"attention_backend": "TRITON_ATTN"}
    stock = start(folder, base)
    first = start(folder, base | SPARK, **cache, SPARK_LINGER="60")
    second = start(folder, base | SPARK, **cache)
    if first["tokens"] != second["tokens"]:
        raise ResourceError("the second start says something else than the first", where=layout)
    shutil.rmtree(where)
    peak = first["device GiB"] - first["final GiB"]
    ratio, again = first["seconds"] / stock["seconds"], second["seconds"] / stock["seconds"]
    return [
        Figure("stock load", stock["seconds"], "s"),
        Figure("stock final", stock["final GiB"], "GiB"),
        Figure("load", first["seconds"], "s"),
        Figure("load against stock", ratio, "", "<= 1.1", ratio <= 1.1),
        Figure("final", first["final GiB"], "GiB"),
        Figure("device peak above final", peak, "GiB", "<= 0.3", peak <= 0.3),
        Figure("resident growth", first["resident GiB"], "GiB", "<= 0.6", first["resident GiB"] <= 0.6),
        Figure("page cache growth", first["page cache GiB"], "GiB", "<= 1", first["page cache GiB"] <= 1),
        Figure("second start", second["seconds"], "s"),
        Figure("second start against stock", again, "", "<= 0.5", again <= 0.5),
    ]


def plan_only() -> list[Figure]:
    """397B in block-FP8, one of two tensor-parallel ranks."""
    with tempfile.TemporaryDirectory() as name:
        checkpoints.write_moe(Path(name), 60, 512, 4096, 1024, vocab=248_320)
        began = time.process_time()
        found = scan(Path(name))
        read = time.process_time()
        plan = make_plan(found, needs=tensor_parallel_needs(found, 0, 2))
        planned = time.process_time()
        peak = simulate(plan, lambda _: 4.5, by_rows=lambda key: "head" in key or "embed" in key)
    extra = peak.extra / GIB
    return [
        Figure("read and validate headers, processor time", read - began, "s"),
        Figure("plan, processor time", planned - read, "s", "< 5", planned - read < 5),
        Figure("peak above final, proven", extra, "GiB", "<= 0.5", extra <= 0.5),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("plan", "ordered", "scattered", "fp8", "probe"))
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument(
        "--folder", type=Path, help="where the checkpoint is made; needs 26 GiB (default: a temporary one)"
    )
    args = parser.parse_args()
    if args.part == "probe":
        probe(*args.rest)
        return 0
    if args.part == "plan":
        return report("loading-plan", plan_only())
    where = Path(tempfile.mkdtemp(prefix="spark-loading-", dir=args.folder))
    try:
        return report(f"loading-{args.part}", compare(args.part, args.layers, where))
    finally:
        shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
