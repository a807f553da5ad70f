"""Walks a plan without reading anything and says how much memory each moment takes.

The model is the loader's own accounting: final tensors exist from the start, the staging ring is full, side
reads live until their last tensor is consumed, and an open unit holds its source in 16 bits on the device
until its last block has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.runtime.stream.headers import DTYPE_BITS
from vllm_spark.runtime.stream.plan import slice_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_spark.runtime.stream.headers import Checkpoint, Tensor
    from vllm_spark.runtime.stream.plan import Block, Plan, Ranges, Read

__all__ = ["WORKSPACE", "Peak", "simulate", "tensor_parallel_needs"]

WORKSPACE = 96 << 20  # the quantiser's temporaries for one chunk: float32 copy, candidates, codes, scales

_COLUMN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3", "lm_head", "embed_tokens")
_ROW = ("o_proj", "down_proj", "w2", "out_proj")


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes: final tensors, and the most that exists beside them, with the unit at which it does."""

    final: int
    extra: int
    at: str

    @property
    def total(self) -> int:
        """Peak of host and device together, as on unified memory."""
        return self.final + self.extra


def _wanted(tensor: Tensor, rank: int, size: int) -> Ranges:
    parts = tensor.key.split(".")
    for names, dim in ((_COLUMN, 0), (_ROW, 1)):
        if len(tensor.shape) > dim and any(part in names for part in parts):
            share = -(-tensor.shape[dim] // size)
            first = min(rank * share, tensor.shape[dim])
            return slice_ranges(tensor, dim, first, min(first + share, tensor.shape[dim]))
    return ((0, tensor.nbytes),)


def tensor_parallel_needs(checkpoint: Checkpoint, rank: int, size: int) -> dict[str, Ranges]:
    """The bytes that one of `size` tensor-parallel ranks needs, by the usual names of projections.

    Only for planning without vLLM: the loader asks the model itself.
    """
    return {key: _wanted(tensor, rank, size) for key, tensor in checkpoint.tensors.items()}


def _elements(block: Block) -> int:
    return sum(stop - start for start, stop in block.ranges) * 8 // DTYPE_BITS[block.tensor.dtype]


class _SideReads:
    """Bytes of the side reads that are alive."""

    def __init__(self, plan: Plan) -> None:
        self.owner: dict[int, Read] = {id(block): read for read in plan.reads if read.side for block in read.blocks}
        self.left = {id(read): len(read.blocks) for read in plan.reads if read.side}
        self.alive: set[int] = set()
        self.nbytes = 0

    def use(self, block: Block) -> None:
        """The block's read is there from now on."""
        read = self.owner.get(id(block))
        if read is not None and id(read) not in self.alive:
            self.alive.add(id(read))
            self.nbytes += read.stop - read.start

    def drop(self, block: Block) -> None:
        """The block is consumed."""
        read = self.owner.get(id(block))
        if read is not None:
            self.left[id(read)] -= 1
            if not self.left[id(read)]:
                self.nbytes -= read.stop - read.start


def simulate(plan: Plan, final_bits: Callable[[str], float], *, by_rows: Callable[[str], bool]) -> Peak:
    """Peak memory of a load that follows `plan`.

    Args:
        plan: what is read, in order.
        final_bits: bits that one element of a key takes once loaded; 0 for scales that are folded in.
        by_rows: whether a key's blocks are finished one by one (copied, or quantised row by row) rather than
            when the whole unit has arrived.
    """
    final, extra, at = 0.0, 0, ""
    side = _SideReads(plan)
    for unit in plan.units:
        held = largest = 0
        for block in unit.blocks:
            elements = _elements(block)
            final += elements * final_bits(block.tensor.key) / 8
            largest = max(largest, 2 * elements)
            held += 0 if by_rows(block.tensor.key) else 2 * elements
            side.use(block)
        now = plan.limits.staging + side.nbytes + max(held, largest) + WORKSPACE
        if now > extra:
            extra, at = now, unit.name
        for block in unit.blocks:
            side.drop(block)
    return Peak(int(final), extra, at)
