"""Attention cases, their inputs, and a reference in float64. Needs torch, and nothing of this project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# varlen_fwd is called with plain tensors; 16 is vLLM's default block size.
BLOCK = 16


@dataclass(frozen=True)
class Case:
    """One call of `torch.ops._vllm_fa2_C.varlen_fwd`.

    Attributes:
        lengths: of query and keys, by sequence.
        window: keys to the left and right, -1 for all.
        block: tokens per page of the KV cache, 0 for contiguous keys.
        splits: as the caller asks; with pages, 1 has kernels of its own, and 0 splits where few heads meet long keys.
    """

    name: str
    head: int = 128
    dtype: torch.dtype = torch.bfloat16
    heads: tuple[int, int] = (16, 4)  # of queries, of keys
    lengths: tuple[tuple[int, int], ...] = ((1024, 1024),)
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    block: int = 0
    splits: int = 0


DECODE = ((1, 6000), (1, 1500), (1, 333))
RAGGED = ((64, 1000), (1, 77), (300, 300), (17, 4096))
F16 = torch.float16
# One case for each image that is carried, so that each of them is compiled from nothing in a process of its own.
FIRST = (
    Case("128 bf16 causal"),
    Case("128 bf16 full", causal=False),
    Case("128 f16 causal", dtype=F16),
    Case("128 f16 full", dtype=F16, causal=False),
    Case("64 bf16 causal", head=64),
    Case("64 bf16 window", head=64, window=(200, 0)),
    Case("256 bf16 causal", head=256),
    Case("256 bf16 window softcap", head=256, window=(300, 0), softcap=20.0),
    Case("128 bf16 paged prefill", block=BLOCK, lengths=RAGGED),
    Case("128 bf16 paged decode", heads=(8, 8), block=BLOCK, lengths=DECODE),
    Case("128 bf16 paged prefill one split", block=BLOCK, lengths=RAGGED, splits=1),
    Case("128 bf16 paged decode one split", heads=(8, 8), block=BLOCK, lengths=DECODE, splits=1),
    Case("128 f16 paged prefill", dtype=F16, block=BLOCK, lengths=RAGGED),
    Case("128 f16 paged decode", dtype=F16, heads=(8, 8), block=BLOCK, lengths=DECODE),
    Case("64 bf16 paged prefill", head=64, block=BLOCK, lengths=RAGGED),
    Case("64 bf16 paged decode", head=64, heads=(8, 8), block=BLOCK, lengths=DECODE),
)
MORE = (
    Case("128 bf16 ragged GQA 8", heads=(32, 4), lengths=((5, 5), (700, 700), (129, 129))),
    Case("128 bf16 MHA", heads=(8, 8)),
    Case("128 bf16 window", window=(256, 0)),
    Case("128 bf16 window both sides", causal=False, window=(64, 32)),
    Case("128 bf16 softcap", softcap=30.0),
    Case("112 bf16 causal", head=112),
    Case("128 bf16 paged window softcap", block=BLOCK, lengths=RAGGED, window=(500, 0), softcap=50.0),
    Case("128 bf16 paged GQA decode", block=BLOCK, lengths=DECODE),
    Case("128 bf16 paged MQA decode split", heads=(8, 1), block=BLOCK, lengths=((1, 30000),)),
    Case("128 bf16 pages of 128", block=128, lengths=RAGGED),
    Case("64 bf16 paged window decode", head=64, block=BLOCK, lengths=DECODE, window=(300, 0)),
    Case("64 bf16 paged softcap decode", head=64, heads=(8, 8), block=BLOCK, lengths=DECODE, softcap=30.0),
)
# Images that the driver compiles in less than a minute.
SPEED = (
    *("128 bf16 causal", "128 bf16 full", "128 f16 causal", "64 bf16 causal", "256 bf16 causal"),
    *("128 bf16 paged prefill one split", "128 bf16 paged decode one split"),
)
ALL = {case.name: case for case in (*FIRST, *MORE)}


@dataclass
class Inputs:
    """Tensors of a case; keys and values contiguous, and in pages as well where the case wants it."""

    arguments: tuple[Any, ...]
    out: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def prepare(case: Case) -> Inputs:
    """Random inputs, the same in every process."""
    torch.manual_seed(len(case.name))
    hq, hk = case.heads
    lengths_q, lengths_k = zip(*case.lengths, strict=True)
    options: Any = {"device": "cuda", "dtype": case.dtype}
    q = torch.randn(sum(lengths_q), hq, case.head, **options)
    k, v = (torch.randn(sum(lengths_k), hk, case.head, **options) for _ in range(2))
    out = torch.full_like(q, float("nan"))
    starts_q, starts_k = (cumulative(lengths) for lengths in (lengths_q, lengths_k))
    used = table = None
    keys, values = k, v
    if case.block:
        keys, values, table = pages(k, v, lengths_k, case.block)
        used, starts_k = torch.tensor(lengths_k, device="cuda", dtype=torch.int32), torch.zeros_like(starts_q)
    arguments = (q, keys, values, out, starts_q, starts_k, used, None, table, None, max(lengths_q), max(lengths_k))
    scale = case.head**-0.5
    options_of_call = (0.0, scale, False, case.causal, *case.window, case.softcap, False, case.splits, None)
    return Inputs((*arguments, *options_of_call), out, q, k, v)


def cumulative(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor((0, *lengths), device="cuda").cumsum(0).to(torch.int32)


def pages(
    k: torch.Tensor, v: torch.Tensor, lengths: tuple[int, ...], block: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values in shuffled pages, and the table that finds them; what no key fills stays random."""
    counts = [-(-length // block) for length in lengths]
    order = torch.randperm(sum(counts)).tolist()
    cache_k, cache_v = (
        torch.randn(sum(counts), block, *one.shape[1:], device=one.device, dtype=one.dtype) for one in (k, v)
    )
    table = torch.zeros(len(lengths), max(counts), device="cuda", dtype=torch.int32)
    start = 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        mine = [order.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(mine, device="cuda", dtype=torch.int32)
        for index, page in enumerate(mine):
            size = min(block, length - index * block)
            at = start + index * block
            cache_k[page, :size], cache_v[page, :size] = k[at : at + size], v[at : at + size]
        start += length
    return cache_k, cache_v, table


def reference(case: Case, inputs: Inputs) -> torch.Tensor:
    """Attention in float64, masks aligned at the end of the keys."""
    parts = []
    q_at = k_at = 0
    group = case.heads[0] // case.heads[1]
    for length_q, length_k in case.lengths:
        q = inputs.q[q_at : q_at + length_q].double().transpose(0, 1)
        k, v = (
            one[k_at : k_at + length_k].double().repeat_interleave(group, 1).transpose(0, 1)
            for one in (inputs.k, inputs.v)
        )
        scores = q @ k.transpose(1, 2) * case.head**-0.5
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        distance = torch.arange(length_k, device="cuda") - torch.arange(length_q, device="cuda")[:, None]
        distance -= length_k - length_q  # above zero: keys to the right
        left, right = case.window
        right = 0 if case.causal else right
        hidden = ((distance > right) & (right >= 0)) | ((distance < -left) & (left >= 0))
        parts.append((scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1))
        q_at, k_at = q_at + length_q, k_at + length_k
    return torch.cat(parts)
