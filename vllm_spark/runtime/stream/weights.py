"""Turns the reader's blocks into the (name, tensor) pairs that a vLLM model's `load_weights` takes.

Every tensor that is handed out owns its memory, so a model may keep it. A tensor that fits a block is handed out
whole; of a larger one the model gets a tensor without data, and the copies it asks for are made block by block.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from vllm_spark.runtime.stream.dequant import DTYPES, as_tensor, dequantise
from vllm_spark.runtime.stream.plan import slice_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vllm_spark.runtime.quant.source import Source
    from vllm_spark.runtime.stream.capture import Copies, Request
    from vllm_spark.runtime.stream.plan import Block, Ranges
    from vllm_spark.runtime.stream.reader import Reader

__all__ = ["Mover", "rehearse", "weights"]

_KV_SCALES = (".k_scale", ".v_scale", ".q_scale", ".kv_scale")


class Mover:
    """Brings staged bytes to the device, on a stream of its own so that it never waits for quantisation.

    Args:
        device: where tensors go; on a CPU they are copied to the heap.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def pin(self, memory: memoryview) -> Callable[[], None]:
        """Register the staging ring with the driver, so that copies from it run asynchronously.

        Returns:
            What undoes it.
        """
        if self._stream is None:
            return lambda: None
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        torch.cuda.check_error(runtime.cudaHostRegister(address, len(memory), 0))
        return lambda: torch.cuda.check_error(runtime.cudaHostUnregister(address))

    def __call__(self, staged: torch.Tensor) -> torch.Tensor:
        """A copy of `staged` on the device; its memory may be reused when this returns."""
        if self._stream is None:
            return staged.clone()
        with torch.cuda.stream(self._stream):
            moved = staged.to(self.device, non_blocking=True)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        moved.record_stream(current)
        self._stream.synchronize()
        return moved


def weights(
    reader: Reader,
    sources: Mapping[str, Source] | None,
    copies: Copies,
    move: Mover,
    dtype: torch.dtype,
    step: Callable[[str, int], None],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Pairs in plan order.

    Args:
        reader: an open reader.
        sources: how each weight is stored; None hands everything out as it is stored.
        copies: watches what the model does with each.
        move: brings bytes to the device.
        dtype: of weights that were FP8.
        step: called with (unit name, bytes) for every block that was consumed.
    """
    scales = {s.scale.key: s for s in (sources or {}).values() if s.scale is not None}
    held: dict[str, torch.Tensor] = {}
    pending: tuple[str, list[Request]] = ("", [])
    for unit, block, view in reader:
        key = copies.key = block.tensor.key
        if key in scales:
            held[key] = move(as_tensor(block, view))
        elif sources is None or key in sources or key.endswith(_KV_SCALES):
            source = (sources or {}).get(key)
            if block.whole:
                tensor = _rows(block, view, source, held, move, dtype)
                with copies:
                    yield key, tensor
                del tensor
            else:
                if pending[0] != key:
                    kind = dtype if source is not None and source.scale is not None else DTYPES[block.tensor.dtype]
                    absent = copies.absent(block.tensor.shape, kind)
                    with copies:
                        yield key, absent
                    copies.key = key
                    pending = key, copies.requests(absent)
                if pending[1]:
                    _answer(pending[1], block, _rows(block, view, source, held, move, dtype), copies)
            if source is not None and source.scale is not None and block.last == (block.tensor.shape or (1,))[0]:
                held.pop(source.scale.key, None)
        step(unit.name, block.stop - block.start)


def _rows(
    block: Block,
    view: memoryview,
    source: Source | None,
    held: dict[str, torch.Tensor],
    move: Mover,
    dtype: torch.dtype,
) -> torch.Tensor:
    raw = move(as_tensor(block, view))
    if source is None or source.scale is None:
        return raw
    return dequantise(raw, source, held[source.scale.key], dtype, first=block.first)


def _answer(requests: list[Request], block: Block, rows: torch.Tensor, copies: Copies) -> None:
    """Make the part of each copy whose rows are there."""
    per_row = rows[0].numel()
    for request in requests:
        first, last, dim = request.rows(per_row)
        low, high = max(first, block.first), min(last, block.last)
        if low >= high:
            continue
        target, size = request.target, list(request.size)
        if dim is not None:
            target, size[dim] = target.narrow(dim, low - first, high - low), high - low
        offset = request.offset + (low - first - block.first) * per_row
        copies.copy(target, rows.as_strided(size, request.stride, offset))


def rehearse(
    keys: Mapping[str, Source], copies: Copies, load: Callable[[Iterator[tuple[str, torch.Tensor]]], object]
) -> dict[str, Ranges]:
    """Which bytes of each key this rank's model copies; keys it leaves alone are missing.

    Vectors and scalars, whose loaders may look at values, are not asked about and count as needed.

    Args:
        keys: the checkpoint's weights.
        copies: a watcher of its own.
        load: the model's `load_weights`.
    """
    needs: dict[str, Ranges] = {
        key: ((0, source.weight.nbytes),) for key, source in keys.items() if len(source.weight.shape) < 2
    }
    copies.changed = set()

    def pairs() -> Iterator[tuple[str, torch.Tensor]]:
        for key, source in keys.items():
            if key in needs:
                continue
            copies.key = key
            absent = copies.absent(source.weight.shape, torch.bfloat16)
            with copies:
                yield key, absent
            ranges = _ranges(copies.requests(absent), source)
            if ranges:
                needs[key] = ranges

    load(pairs())
    for key in copies.changed:
        needs[key] = ((0, keys[key].weight.nbytes),)
    for key in list(needs):
        scale = keys[key].scale
        if scale is not None:
            needs[scale.key] = ((0, scale.nbytes),)
    return needs


def _ranges(requests: list[Request], source: Source) -> Ranges:
    out: list[tuple[int, int]] = []
    shape = source.weight.shape
    per_row, width = source.weight.nbytes // shape[0], source.weight.nbytes // math.prod(shape)
    for request in requests:
        first, last, _ = request.rows(math.prod(shape[1:]))
        low = request.offset % shape[-1]
        wide = 1 + sum((n - 1) * s for n, s in zip(request.size, request.stride, strict=True) if s < shape[-1])
        if len(shape) == 2 and low + wide <= shape[1]:
            columns = slice_ranges(source.weight, 1, low, low + wide)
            out += [
                (max(a, first * per_row), min(b, last * per_row))
                for a, b in columns
                if b > first * per_row and a < last * per_row
            ]
        else:
            end = 1 + sum((n - 1) * s for n, s in zip(request.size, request.stride, strict=True))
            out.append((request.offset * width, (request.offset + end) * width))
    return _union(out)


def _union(ranges: list[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)
