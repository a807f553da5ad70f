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
