"""Refuses NaN and infinity in weights without waiting for the device at each of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from vllm_spark.runtime.stream.dequant import DTYPES
from vllm_spark.runtime.stream.headers import DTYPE_BITS, CheckpointError

if TYPE_CHECKING:
    from vllm_spark.runtime.stream.headers import Checkpoint, Tensor

__all__ = ["FiniteCheck"]

_CHUNK = 16 << 20
_MANY = 4096  # each takes an allocator's smallest block of 512 bytes on the device


class FiniteCheck:
    """Collects smallest and largest value of what is copied, on the device, and looks at thousands of them at once.

    Args:
        checkpoint: where the weights come from, to name the place of the first bad one.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._keys: list[str] = []
        self._limits: list[torch.Tensor] = []

    def add(self, key: str, values: torch.Tensor) -> None:
        """Watch what is copied from `key`."""
        if values.is_floating_point() and values.numel() and values.element_size() > 1:
            low, high = torch.aminmax(values)  # both are NaN when any element is
            self._keys.append(key)
            self._limits.append(torch.stack((low, high)).float())
            if len(self._limits) >= _MANY:
                self.settle()

    def settle(self) -> None:
        """Wait for the device and look.

        Raises:
            CheckpointError: a weight is NaN or infinite; file, key and offset of the first one.
        """
        if not self._limits:
            return
        good = torch.isfinite(torch.stack(self._limits)).all(1).tolist()
        bad = next((key for key, fine in zip(self._keys, good, strict=True) if not fine), None)
        if bad is not None:
            tensor = self._checkpoint.tensors[bad]
            raise CheckpointError(
                "NaN or infinity in the weights", file=tensor.path, key=bad, offset=_first_bad(tensor)
            )
        self._keys.clear()
        self._limits.clear()


def _first_bad(tensor: Tensor) -> int:
    """The byte of the first element that is not finite; the tensor's first byte when only its scale is bad."""
    width = DTYPE_BITS[tensor.dtype] // 8
    with tensor.path.open("rb") as file:
        for at in range(tensor.start, tensor.stop, _CHUNK):
            raw = os.pread(file.fileno(), min(_CHUNK, tensor.stop - at), at)
            values = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(DTYPES[tensor.dtype])
            bad = (~torch.isfinite(values.float())).nonzero()
            if len(bad):
                return at + int(bad[0]) * width
    return tensor.start
