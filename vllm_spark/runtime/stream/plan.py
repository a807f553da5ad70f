"""Which bytes to read, in which order, so that no more than one destination unit is open at a time.

A *unit* is what is quantised at once: one expert's gate+up or down matrix, one (fused) linear weight, with the
scales that belong to it. Units are ordered by the place of their largest tensor on disk, so that a checkpoint
in any shard order is read front to back, and a unit's parts follow each other even when they lie in different
files. Nothing here needs torch: the whole plan of a 397B checkpoint is made and its peak proven from headers.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from vllm_spark.runtime.stream.headers import Checkpoint, Tensor

__all__ = ["Block", "Limits", "Plan", "Ranges", "Read", "Unit", "make_plan", "slice_ranges", "unit_name"]

Ranges = tuple[tuple[int, int], ...]
"""Byte ranges of one tensor, relative to its first byte, ascending and disjoint."""

SMALL = 64 << 10  # below it a tensor is read with its small neighbours, outside the staging ring
GAP = 64 << 10  # reading through a gap of this size costs less than a second request


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes: the staging ring, and the largest single read (a quarter of it, so that four fit)."""

    staging: int = 256 << 20

    def __post_init__(self) -> None:
        if self.staging < 4 << 20:
            raise ConfigError(f"{self.staging >> 20} MiB of staging", where="staging_mb", hint="give at least 4")

    @property
    def block(self) -> int:
        """Largest block: rows of a tensor that are staged and consumed together."""
        return self.staging // 4

    @property
    def read(self) -> int:
        """Neighbours are merged up to this size."""
        return min(16 << 20, self.block)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `first` up to `last` of a tensor's leading dimension, and the bytes of them that are needed."""

    tensor: Tensor
    first: int
    last: int
    start: int
    stop: int
    ranges: Ranges

    @property
    def whole(self) -> bool:
        """The block is the whole tensor."""
        return self.stop - self.start == self.tensor.nbytes


@dataclass(frozen=True, slots=True)
class Unit:
    """What is delivered and quantised together."""

    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """One staging region: file bytes `start` to `stop`, of which `ranges` are fetched.

    A side read holds small tensors (norms, scales) and lives on the heap, not in the ring, because its
    tensors are consumed one by one over many units.
    """

    path: Path
    start: int
    stop: int
    ranges: Ranges
    blocks: tuple[Block, ...]
    side: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Units in the order they are delivered and reads in the order they are issued."""

    units: tuple[Unit, ...]
    reads: tuple[Read, ...]
    limits: Limits

    @property
    def nbytes(self) -> int:
        """Bytes fetched from disk, without alignment."""
        return sum(stop - start for read in self.reads for start, stop in read.ranges)


_LEAF = re.compile(
    r"(?:[._](?:weight|bias|qweight|weight_packed|weight_shape|weight_scale_inv|weight_scale_2|weight_scale"
    r"|weight_global_scale|input_global_scale|scale_inv|input_scale|scales|scale))$"
)
_FUSED = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv") | dict.fromkeys(
    ("gate_proj", "up_proj", "w1", "w3"), "gate_up"
)


@lru_cache(maxsize=4096)
def _fused_leaf(leaf: str) -> str:
    return _FUSED.get(leaf, leaf)


def unit_name(key: str) -> str:
    """The destination unit of a checkpoint key: its module, with the parts that vLLM fuses under one name."""
    module = _LEAF.sub("", key)
    parent, dot, leaf = module.rpartition(".")
    return f"{parent}{dot}{_fused_leaf(leaf)}"


def slice_ranges(tensor: Tensor, dim: int, first: int, last: int) -> Ranges:
    """The bytes of `tensor[..., first:last, ...]` along `dim`; gaps too small to be worth a seek are read through."""
    shape = tensor.shape
    if not 0 <= first <= last <= shape[dim]:
        raise ConfigError(f"{first}:{last} of {shape[dim]} along {dim}", where=tensor.key, hint="check the split")
    inner = tensor.nbytes // max(1, math.prod(shape[: dim + 1]))
    outer, step = math.prod(shape[:dim]), shape[dim] * inner
    if first == last or not outer:
        return ()
    if step - (last - first) * inner <= GAP:
        return ((first * inner, (outer - 1) * step + last * inner),)
    return tuple((row * step + first * inner, row * step + last * inner) for row in range(outer))


def _clip(ranges: Ranges, start: int, stop: int) -> Iterator[tuple[int, int]]:
    for low, high in ranges:
        if low < stop and high > start:
            yield max(low, start), min(high, stop)


def _blocks(tensor: Tensor, ranges: Ranges | None, limit: int, row_quantum: int) -> Iterator[Block]:
    """Cut a tensor into blocks of whole rows that fit the limit, without the rows nobody needs."""
    begin, size = tensor.start, tensor.nbytes
    rows = tensor.shape[0] if tensor.shape else 1
    if size <= limit or rows == 1:
        absolute = ((begin, tensor.stop),) if ranges is None else tuple((a + begin, b + begin) for a, b in ranges)
        if size <= limit:
            yield Block(tensor, 0, rows, begin, tensor.stop, absolute)
            return
    row = size // rows
    count = max(1, limit // row // row_quantum * row_quantum) if limit // row >= row_quantum else limit // row
    if not count:
        raise ConfigError(
            f"one row of {row >> 20} MiB does not fit a staging block of {limit >> 20} MiB",
            where=tensor.key,
            hint=f"start with staging_mb of at least {4 * row // (1 << 20) + 1}",
        )
    for first in range(0, rows, count):
        last = min(rows, first + count)
        low, high = first * row, last * row
        part = ((low, high),) if ranges is None else tuple(_clip(ranges, low, high))
        if part:
            yield Block(tensor, first, last, begin + low, begin + high, tuple((a + begin, b + begin) for a, b in part))


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in ranges:
        if out and low - out[-1][1] <= GAP:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def _ring_reads(blocks: Iterable[Block], limit: int) -> Iterator[Read]:
    """Merge blocks that follow each other both in delivery and on disk."""
    run: list[Block] = []
    for block in blocks:
        if run and not (
            block.tensor.path == run[-1].tensor.path
            and 0 <= block.start - run[-1].stop <= GAP
            and block.stop - run[0].start <= limit
        ):
            yield _read(run, side=False)
            run = []
        run.append(block)
    if run:
        yield _read(run, side=False)


def _side_reads(blocks: Iterable[Block], limit: int) -> Iterator[Read]:
    """Merge small blocks by their place on disk, whatever unit they belong to."""
    run: list[Block] = []
    for block in sorted(blocks, key=lambda item: (item.tensor.path, item.start)):
        if run and not (
            block.tensor.path == run[-1].tensor.path
            and block.start - run[-1].stop <= GAP
            and block.stop - run[0].start <= limit
        ):
            yield _read(run, side=True)
            run = []
        run.append(block)
    if run:
        yield _read(run, side=True)


def _read(run: list[Block], *, side: bool) -> Read:
    ranges = _merged(pair for block in run for pair in block.ranges)
    return Read(run[0].tensor.path, run[0].start, run[-1].stop, ranges, tuple(run), side)


def _order(reads: list[Read], units: tuple[Unit, ...]) -> tuple[Read, ...]:
    place = {id(block): number for number, unit in enumerate(units) for block in unit.blocks}
    # Side reads first: a unit's scales have to be there when its weight is.
    return tuple(sorted(reads, key=lambda read: (min(place[id(b)] for b in read.blocks), not read.side)))


def make_plan(
    checkpoint: Checkpoint,
    limits: Limits | None = None,
    needs: Mapping[str, Ranges] | None = None,
    *,
    row_quantum: int = 128,
) -> Plan:
    """Order the reads of `checkpoint`.

    Args:
        limits: staging sizes; the default is a ring of 256 MiB.
        needs: the bytes of each key that this rank needs; keys that are not in it are not read. None means
            everything.
        row_quantum: rows of a block are a multiple of it, so that a scale block never straddles two.

    Raises:
        ConfigError: one row of a tensor is larger than a staging block.
    """
    limits = limits or Limits()
    groups: dict[str, list[Tensor]] = defaultdict(list)
    for key, tensor in checkpoint.tensors.items():
        if tensor.nbytes and (needs is None or needs.get(key)):
            groups[unit_name(key)].append(tensor)
    number = {shard.path: place for place, shard in enumerate(checkpoint.shards)}

    def on_disk(tensor: Tensor) -> tuple[int, int]:
        return number[tensor.path], tensor.start

    made: list[tuple[tuple[int, int], Unit]] = []
    small: list[Block] = []
    for name, tensors in groups.items():
        anchor = on_disk(max(tensors, key=lambda tensor: tensor.nbytes))
        # Scales before the weights that they belong to, whatever their size; then by place on disk.
        tensors.sort(key=lambda tensor: (tensor.nbytes >= SMALL, "scale" not in tensor.key, on_disk(tensor)))
        blocks: list[Block] = []
        for tensor in tensors:
            wanted = None if needs is None else needs[tensor.key]
            blocks += _blocks(tensor, wanted, limits.block, row_quantum)
        small += [block for block in blocks if block.tensor.nbytes < SMALL]
        made.append((anchor, Unit(name, tuple(blocks))))
    made.sort(key=lambda pair: pair[0])
    units = tuple(unit for _, unit in made)
    large = (block for unit in units for block in unit.blocks if block.tensor.nbytes >= SMALL)
    reads = [*_side_reads(small, limits.read), *_ring_reads(large, limits.read)]
    return Plan(units, _order(reads, units), limits)
