"""Checkpoints written by hand: real shards, and headers without data behind them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from vllm_spark.runtime.stream.headers import DTYPE_BITS, INDEX_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Spec = tuple[str, tuple[int, ...]]


def header(tensors: Mapping[str, Spec]) -> tuple[dict[str, Any], int]:
    """A header for `tensors` laid out one after the other, and the bytes of their data."""
    entries, at = {}, 0
    for key, (dtype, shape) in tensors.items():
        size = math.prod(shape) * DTYPE_BITS[dtype] // 8
        entries[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return entries, at


def write_raw(path: Path, head: object, data: bytes = b"", *, sparse: int = 0) -> Path:
    """A shard from any header object (bytes stay as they are); `sparse` adds a hole of that many bytes."""
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw + data)
        file.truncate(8 + len(raw) + len(data) + sparse)
    return path


def write_shard(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """A whole shard with real data."""
    entries, _ = header({key: (dtype, shape) for key, (dtype, shape, _) in tensors.items()})
    return write_raw(path, entries, b"".join(data for _, _, data in tensors.values()))


def write_sparse(path: Path, tensors: Mapping[str, Spec]) -> Path:
    """A shard of the right size that takes no room on disk: all weights are zero."""
    entries, size = header(tensors)
    return write_raw(path, entries, sparse=size)


def write_index(folder: Path, files: Mapping[str, Iterable[str]]) -> Path:
    """The index for `files` (file name to keys)."""
    names = {key: name for name, keys in files.items() for key in keys}
    path = folder / INDEX_NAME
    path.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return path


def block_fp8(key: str, rows: int, columns: int) -> dict[str, Spec]:
    """A weight in block-FP8 with its 128 x 128 scales, as DeepSeek and Qwen release them."""
    scales = (-(-rows // 128), -(-columns // 128))
    return {f"{key}.weight": ("F8_E4M3", (rows, columns)), f"{key}.weight_scale_inv": ("F32", scales)}


def moe_layer(at: int, experts: int, hidden: int, inter: int) -> dict[str, Spec]:
    """Layer `at` of a Qwen-like MoE model in block-FP8."""
    p = f"model.layers.{at}."
    out: dict[str, Spec] = {
        f"{p}input_layernorm.weight": ("BF16", (hidden,)),
        f"{p}mlp.gate.weight": ("BF16", (experts, hidden)),
    }
    for name, rows in (("q_proj", 2 * hidden), ("k_proj", 512), ("v_proj", 512)):
        out |= block_fp8(f"{p}self_attn.{name}", rows, hidden)
    out |= block_fp8(f"{p}self_attn.o_proj", hidden, 2 * hidden)
    for expert in range(experts):
        for name in ("gate_proj", "up_proj"):
            out |= block_fp8(f"{p}mlp.experts.{expert}.{name}", inter, hidden)
        out |= block_fp8(f"{p}mlp.experts.{expert}.down_proj", hidden, inter)
    return out


def in_reference_order(tensors: Mapping[str, Spec]) -> dict[str, Spec]:
    """The order in which the reference implementation writes: wide types first, then by name."""
    return dict(sorted(tensors.items(), key=lambda item: (-DTYPE_BITS[item[1][0]], item[0])))


def write_moe(folder: Path, layers: int, experts: int, hidden: int, inter: int, *, vocab: int = 1024) -> None:
    """A whole block-FP8 MoE checkpoint, one shard per layer, without data on disk."""
    files = {}
    for at in range(layers):
        tensors = moe_layer(at, experts, hidden, inter)
        if at == 0:
            tensors["model.embed_tokens.weight"] = ("BF16", (vocab, hidden))
        if at == layers - 1:
            tensors |= {"model.norm.weight": ("BF16", (hidden,)), "lm_head.weight": ("BF16", (vocab, hidden))}
        name = f"model-{at + 1:05}-of-{layers:05}.safetensors"
        write_sparse(folder / name, in_reference_order(tensors))
        files[name] = list(tensors)
    write_index(folder, files)
