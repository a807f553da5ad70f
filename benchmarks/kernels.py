"""Kernels on a GPU: time, bandwidth and share of copy bandwidth, beside vLLM's Marlin where its extension is at hand.

    VLLM_SPARK_LIBRARY=_C.abi3.so python3 benchmarks/kernels.py [--peer FOLDER] [--json FILE] [--only PREFIX]

Every operation runs inside a CUDA graph, over as many sets of weights as exceed the L2 cache. FOLDER holds
`_C_stable_libtorch.abi3.so` and `_moe_C_stable_libtorch.abi3.so` of the official vLLM wheel; they load beside torch
2.11 and later without vLLM's Python. Offline: the script needs this checkout, torch and the two libraries.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vllm_spark import console, paths
from vllm_spark.runtime import kernels
from vllm_spark.runtime.kernels.tiles import Tiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CUDA = torch.device("cuda")
ROTATE = 400e6  # bytes of weights to go through: several times the L2 cache of any GPU here
LINEAR = ((16384, 8192), (8192, 8192), (4096, 4096), (2048, 2048))
ROWS = (1, 2, 4, 8, 16, 32, 64)
PREFILL = (256, 2048)
MIXTURES = ((128, 2048, 768, 8), (256, 3072, 1024, 8))  # experts, hidden, inner, top-k
TOKENS = (1, 2, 4, 8, 16, 64)
FLOAT4_E2M1 = 562949953487106  # vLLM's number of the type


Pair = tuple[torch.Tensor, torch.Tensor]  # codes and scales


@dataclass(frozen=True)
class Line:
    """One row of the table. `share` is of copy bandwidth, `ratio` the peer's time over ours."""

    op: str
    shape: str
    microseconds: float
    gigabytes_per_second: float
    share: float
    peer: str = ""
    peer_microseconds: float = 0.0

    @property
    def ratio(self) -> float:
        """How many times faster than the peer."""
        return self.peer_microseconds / self.microseconds


def timed(act: Callable[[], object], count: int = 1, repeats: int = 30) -> float:
    """Median microseconds of one of the `count` operations of `act`, replayed from a graph."""
    torch.cuda.synchronize()  # what `act` reads was made on another stream
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        act()
        act()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        act()
    graph.replay()
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        times.append(float(first.elapsed_time(last)))
    return statistics.median(times) / count * 1e3


def copy_speed(size: float) -> float:
    """GB/s, read plus written, of a copy that moves `size` bytes in all."""
    source = torch.empty(int(size) // 2, dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    return size / timed(lambda: target.copy_(source)) / 1e3


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device=CUDA)


def tiled(kind: str, *shape: int) -> Tiled:
    """Random weights [.., n, k] as the kernels read them."""
    *lead, n, k = shape
    grid = (*lead, n // 16, k // 64)
    if kind == "nf4":
        return Tiled(words(*grid, 128), (torch.rand(*grid, 16, device=CUDA) * 0.02).bfloat16())
    if kind == "mxfp4":
        return Tiled(words(*grid, 128), torch.randint(115, 120, (*grid, 32), dtype=torch.uint8, device=CUDA))
    scales = torch.rand(*grid, 64, device=CUDA).mul(10).to(torch.float8_e4m3fn)
    return Tiled(words(*grid, 128), scales, torch.full((lead[0] if lead else 1,), 1e-3, device=CUDA))


def size_of(weight: Tiled) -> int:
    return sum(part.numel() * part.element_size() for part in weight if part is not None)


def marlin_weight(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    *lead, n, k = shape
    scales = torch.randint(110, 120, (*lead, k // 32, n), dtype=torch.uint8, device=CUDA)
    return words(*lead, k // 16, n * 2), scales.view(torch.float8_e8m0fnu)


class Marlin:
    """vLLM's Marlin for MXFP4, called as vLLM 0.33.0 calls it."""

    def __init__(self, folder: Path) -> None:
        for name in ("_C_stable_libtorch", "_moe_C_stable_libtorch"):
            torch.ops.load_library(folder / f"{name}.abi3.so")  # type: ignore[no-untyped-call]
        self.locks = torch.zeros(1024, dtype=torch.int32, device=CUDA)

    def linear(self, x: torch.Tensor, weight: Pair, n: int) -> object:
        """One layer."""
        q, s = weight
        sizes = x.shape[0], n, x.shape[1]
        gemm = torch.ops._C.marlin_gemm  # noqa: SLF001 - upstream's namespace
        options = False, True, False
        return gemm(x, None, q, None, s, None, None, None, self.locks, FLOAT4_E2M1, *sizes, *options)

    def mixture(self, x: torch.Tensor, w13: Pair, w2: Pair, weights: torch.Tensor, ids: torch.Tensor) -> object:
        """Alignment, both layers, activation and sum, as `fused_marlin_moe` does them."""
        experts, hidden, inner = w13[0].shape[0], x.shape[1], w13[0].shape[2] // 4
        tokens, top_k = weights.shape
        block = next((b for b in (8, 16, 32, 48) if tokens * top_k / experts / b < 0.9), 64)
        aligned = align(ids, block, experts)
        first, half, second = (x.new_empty(tokens * top_k, w) for w in (2 * inner, inner, hidden))
        out = torch.empty_like(x)

        def gemm(a: torch.Tensor, c: torch.Tensor, w: Pair, k: int, scaled: bool, *sizes: int) -> None:
            tail = FLOAT4_E2M1, *sizes, False, True, False, -1, -1, -1
            head = a, c, w[0], None, w[1], None, None, None, self.locks, *aligned, weights, block, k, scaled
            torch.ops._moe_C.moe_wna16_marlin_gemm(*head, *tail)  # noqa: SLF001 - upstream's namespace

        gemm(x, first, w13, top_k, False, tokens, 2 * inner, hidden)
        torch.ops._C.silu_and_mul(half, first)  # noqa: SLF001 - upstream's namespace
        gemm(half, second, w2, 1, True, tokens * top_k, hidden, inner)
        torch.ops._moe_C.moe_sum(second.view(tokens, top_k, hidden), out, None, None)  # noqa: SLF001 - see above
        return out


def align(ids: torch.Tensor, block: int, experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """VLLM's `moe_align_block_size`: sorted ids, experts of blocks, padded count."""
    most = ids.numel() + experts * (block - 1)
    if ids.numel() < experts:
        most = min(ids.numel() * block, most)
    made = tuple(torch.empty(size, dtype=torch.int32, device=CUDA) for size in (most, -(-most // block), 1))
    torch.ops._moe_C.moe_align_block_size(ids, experts, block, *made, None, None)  # noqa: SLF001 - see above
    return made  # type: ignore[return-value]


def linears(copy: float, marlin: Marlin | None, kind: str) -> Iterator[Line]:
    for n, k in LINEAR:
        count = max(2, int(ROTATE / (n * k / 2)))
        ours = [tiled(kind, n, k) for _ in range(count)]
        theirs = [marlin_weight(n, k) for _ in range(count)] if marlin else []
        for rows in ROWS + (PREFILL if kind == "nf4" else ()):
            x = torch.randn(rows, k, device=CUDA).bfloat16()
            run = getattr(kernels, f"{kind}_linear")
            some = ours if rows <= max(ROWS) else ours[:2]
            mine = timed(lambda: [run(x, *[p for p in w if p is not None]) for w in some], len(some))  # noqa: B023
            peer = 0.0
            if marlin:
                rest = theirs[: len(some)]
                peer = timed(lambda: [marlin.linear(x, w, n) for w in rest], len(rest))  # noqa: B023
            speed = (size_of(ours[0]) + rows * (n + k) * 2) / mine / 1e3
            yield Line(f"{kind}_linear", f"{n}x{k} M={rows}", mine, speed, speed / copy, "marlin mxfp4", peer)


def mixtures(copy: float, marlin: Marlin | None) -> Iterator[Line]:
    for experts, hidden, inner, top_k in MIXTURES:
        w13, w2 = tiled("nf4", experts, 2 * inner, hidden), tiled("nf4", experts, hidden, inner)
        theirs = (marlin_weight(experts, 2 * inner, hidden), marlin_weight(experts, hidden, inner)) if marlin else None
        for tokens in TOKENS:
            x = torch.randn(tokens, hidden, device=CUDA).bfloat16()
            weights = torch.full((tokens, top_k), 1 / top_k, device=CUDA)
            draws = [
                torch.stack([torch.randperm(experts, device=CUDA)[:top_k] for _ in range(tokens)]).int()
                for _ in range(8)
            ]

            def ours(ids: torch.Tensor) -> object:
                if marlin is None or kernels.pairs_suit(tokens, top_k, experts):  # noqa: B023 - within the iteration
                    return kernels.nf4_moe(x, w13, w2, kernels.Routing(weights, ids))  # noqa: B023
                sorted_ids, of_block, padded = align(ids, 8, experts)  # noqa: B023
                routing = kernels.Routing(weights, of_block, sorted_ids, padded, 8)  # noqa: B023
                return kernels.nf4_moe(x, w13, w2, routing)  # noqa: B023

            mine = timed(lambda: [ours(ids) for ids in draws], len(draws))  # noqa: B023
            peer = 0.0
            if marlin and theirs:
                peer = timed(lambda: [marlin.mixture(x, *theirs, weights, ids) for ids in draws], len(draws))  # noqa: B023
            used = sum(len(set(ids.flatten().tolist())) for ids in draws) / len(draws) / experts
            speed = used * (size_of(w13) + size_of(w2)) / mine / 1e3
            shape = f"E={experts} H={hidden} I={inner} top-{top_k} M={tokens}"
            yield Line("nf4_moe", shape, mine, speed, speed / copy, "marlin mxfp4", peer)


def quantisers() -> Iterator[Line]:
    n, k = 16384, 8192
    weight = (torch.randn(n, k, device=CUDA) * 0.02).bfloat16()
    fp8, scale = (weight * 500).to(torch.float8_e4m3fn), torch.rand(n // 128, k // 128, device=CUDA)
    bad = kernels.new_counter(CUDA)
    options: dict[str, dict[str, Any]] = {"nvfp4": {"global_scale": torch.full((1,), 4e-5, device=CUDA)}}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("nf4", {"block": 64}),
        ("nf4", {"block": 128}),
        ("mxfp4", {}),
        ("nvfp4", {}),
        ("fp8", {}),
        ("fp8", {"blocks": True}),
    ]
    for name, chosen in cases:
        fixed = {**chosen, **options.get(name, {}), "bad": bad}
        act = getattr(kernels, f"quantize_{name}")
        out = act(weight, **fixed)
        sources: list[tuple[str, torch.Tensor, dict[str, Any]]] = [
            ("bf16", weight, {}),
            ("fp8", fp8, {"source_scale": scale}),
        ]
        for source, x, extra in sources:
            for search in (False, True):
                mine = timed(lambda: act(x, search=search, out=out, **fixed, **extra))  # noqa: B023
                moved = sum(t.numel() * t.element_size() for t in (x, out.codes, out.scales))
                label = " ".join([source, "searched" if search else "plain", *map(str, chosen.values())])
                speed = moved / mine / 1e3
                yield Line(f"quantize_{name}", f"{n}x{k} {label}", mine, speed, speed / copy_speed(moved))
        back = getattr(kernels, f"dequantize_{name}")
        mine = timed(lambda: back(out, torch.bfloat16))  # noqa: B023
        moved = weight.numel() * 2 + sum(t.numel() * t.element_size() for t in (out.codes, out.scales))
        yield Line(
            f"dequantize_{name}", f"{n}x{k} bf16", mine, moved / mine / 1e3, moved / mine / 1e3 / copy_speed(moved)
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    kernels.load()
    marlin = Marlin(args.peer) if args.peer else None
    copy = copy_speed(2**31)
    parts: dict[str, Callable[[], Iterator[Line]]] = {
        "quantize": quantisers,
        "nf4_linear": lambda: linears(copy, marlin, "nf4"),
        "mxfp4_linear": lambda: linears(copy, marlin, "mxfp4"),
        "nvfp4_linear": lambda: linears(copy, marlin, "nvfp4"),
        "nf4_moe": lambda: mixtures(copy, marlin),
    }
    lines = [line for name, part in parts.items() if name.startswith(args.only) for line in part()]
    rows = []
    for line in lines:
        shown = (f"{line.peer_microseconds:.1f}", f"{line.ratio:.2f}") if line.peer_microseconds else ("", "")
        speed = f"{line.microseconds:.1f}", f"{line.gigabytes_per_second:.0f}", f"{100 * line.share:.0f}"
        rows.append((line.op, line.shape, *speed, line.peer, *shown))
    title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {copy:.0f} GB/s read + write"
    console.table(title, ("op", "shape", "us", "GB/s", "% of copy", "peer", "peer us", "ratio"), rows)
    if args.json:
        record = {"device": title, "copy": copy, "lines": [asdict(line) for line in lines]}
        paths.atomic_write(args.json, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
