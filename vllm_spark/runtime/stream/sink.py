"""Collects what arrives for one parameter, and hands each unit over as soon as it is whole.

A parameter is seen as rows: experts one below the other, or the rows of a linear weight. A unit is a fixed
number of rows: one expert, a whole linear weight, or a tile of a large one. Pieces may come in any order and
size; a unit's buffer exists from its first piece to its last.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Sink"]


class Sink:
    """Where one parameter's bytes go.

    Args:
        name: module and parameter, for messages.
        param: the parameter that vLLM's loader believes it writes to, [rows, columns] or [experts, rows, columns];
            on the meta device where no 16-bit copy may exist.
        unit: rows of one unit.
        expected: elements that must arrive for a unit, padding not counted.
        device: where buffers live.
        finish: called with (unit, buffer [rows of the unit, columns]); padding in the buffer is zero.
    """

    def __init__(
        self,
        name: str,
        param: torch.Tensor,
        *,
        unit: int,
        expected: Callable[[int], int],
        device: torch.device,
        finish: Callable[[int, torch.Tensor], None],
    ) -> None:
        self.name, self.param, self.device = name, param, device
        self.columns = param.shape[-1]
        self.rows = math.prod(param.shape[:-1])
        self.unit = unit
        self.units = -(-self.rows // unit)
        self.finished: set[int] = set()
        self.peak = 0
        self.on_whole: Callable[[], None] = lambda: None
        self._expected, self._finish = expected, finish
        self._open: dict[int, tuple[torch.Tensor, int]] = {}
        self._spare: list[torch.Tensor] = []

    def put(self, target: torch.Tensor, source: torch.Tensor, key: str) -> None:
        """Take the copy `target.copy_(source)`, where `target` is a view of the parameter.

        Raises:
            ArtefactError: the view is no rectangle of whole rows' parts, shapes differ, or the place was filled
                before.
        """
        if target.shape != source.shape:
            source = source.expand(target.shape)
        if target.dim() == 3:
            for index in range(target.shape[0]):
                self.put(target[index], source[index], key)
            return
        if target.dim() != 2 or target.stride(1) != 1 or (target.stride(0) != self.columns and target.shape[0] > 1):
            raise ArtefactError(
                f"the model writes a view of shape {list(target.shape)}, strides {list(target.stride())} into it",
                where=f"{self.name} from {key!r}",
                hint="give this layer the scheme bf16 in the policy, and report the model",
            )
        row, column = divmod(int(target.storage_offset() - self.param.storage_offset()), self.columns)
        at = 0
        while at < target.shape[0]:
            unit, inside = divmod(row + at, self.unit)
            count = min(self.unit - inside, target.shape[0] - at)
            self._piece(unit, inside, column, source[at : at + count], key)
            at += count

    def _piece(self, unit: int, row: int, column: int, source: torch.Tensor, key: str) -> None:
        if unit in self.finished:
            raise ArtefactError(
                "it is already complete", where=f"{self.name} from {key!r}", hint="check for duplicate keys"
            )
        buffer, filled = self._open.get(unit) or (self._buffer(unit), 0)
        buffer[row : row + source.shape[0], column : column + source.shape[1]].copy_(source, non_blocking=True)
        filled += source.numel()
        self._open[unit] = buffer, filled
        self.peak = max(self.peak, len(self._open))
        if filled >= self._expected(unit):
            del self._open[unit]
            self.finished.add(unit)
            self._finish(unit, buffer)
            self._spare = [buffer]
            if not self.missing():
                self.on_whole()

    def _buffer(self, unit: int) -> torch.Tensor:
        rows = min(self.unit, self.rows - unit * self.unit)
        spare = self._spare.pop() if self._spare else None
        if spare is not None and spare.shape[0] == rows:
            return spare.zero_()
        return torch.zeros(rows, self.columns, dtype=self.param.dtype, device=self.device)

    def missing(self) -> list[int]:
        """Units that have not become whole; those that are all padding need nothing."""
        if len(self.finished) == self.units:
            return []
        return [unit for unit in range(self.units) if unit not in self.finished and self._expected(unit)]

    def close(self) -> None:
        """Give the buffers back."""
        self._open.clear()
        self._spare.clear()
