"""Sees every copy that vLLM's weight loaders make, and decides what really happens.

vLLM's loaders end in `parameter_slice.copy_(checkpoint_slice)`, whatever model, sharding or fusion led there.
Watching that one operation gives, for every model and without knowing any: where bytes go (to a sink that
quantises them), which part of a tensor too large for staging is wanted (its copies are put off until those rows
have been read), and which bytes a rank needs at all (a rehearsal with tensors that hold no data).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_spark.runtime.stream.sink import Sink

__all__ = ["Copies", "Request"]


@dataclass(frozen=True)
class Request:
    """A copy from a tensor whose bytes are not there yet: the view of it, in elements."""

    target: torch.Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def rows(self, row: int) -> tuple[int, int, int | None]:
        """First and last leading row of the source that it touches, and the view's dimension that walks them.

        Args:
            row: elements of one leading row.
        """
        first = self.offset // row
        for dim, (size, stride) in enumerate(zip(self.size, self.stride, strict=True)):
            if stride == row and size > 1:
                return first, first + size, dim
        return first, first + 1, None


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, `copy_` goes through `copy`.

    Args:
        sinks: those who take the copies into their parameters, by storage.
        check: called with (key, source) before every copy whose bytes are there.
    """

    def __init__(self, sinks: list[Sink], check: Callable[[str, torch.Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sinks = {storage_id(sink.param): sink for sink in sinks}
        self._check = check
        self._absent: dict[int, list[Request]] = {}
        self._kept: dict[int, torch.Tensor] = {}
        self.key = ""
        self.sunk: set[str] = set()
        self.changed: set[str] | None = None

    def absent(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor without data whose copies are put off until `requests`."""
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        self._absent[storage_id(tensor)] = []
        self._kept[storage_id(tensor)] = tensor
        return tensor

    def requests(self, tensor: torch.Tensor) -> list[Request]:
        """The copies that were asked for from `tensor`, in the order of its bytes; forgets it."""
        del self._kept[storage_id(tensor)]
        return sorted(self._absent.pop(storage_id(tensor)), key=lambda request: request.offset)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Make one copy whose bytes are there."""
        self._check(self.key, source)
        sink = self._sinks.get(storage_id(target))
        if sink is None:
            target.copy_(source)
        else:
            self.sunk.add(self.key)
            sink.put(target, source, self.key)

    def __torch_dispatch__(self, func: object, types: object, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's signature
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))  # type: ignore[operator]
        target, source = args[0], args[1]
        waiting = self._absent.get(storage_id(source))
        if waiting is not None:
            # copy_ broadcasts; the view says what each element of the target reads.
            view = source.expand(target.shape)
            waiting.append(Request(target, tuple(view.shape), tuple(view.stride()), int(view.storage_offset())))
        elif not source.is_meta:
            self.copy(target, source)
        elif self.changed is not None:
            self.changed.add(self.key)
        else:
            raise ConfigError(
                "the model changes this tensor before it copies it, so it cannot be read in pieces",
                where=self.key,
                hint="start with a staging_mb of five times its size",
            )
        return target


def storage_id(tensor: torch.Tensor) -> int:
    """Identifies the storage that a tensor and all its views share, with data or without."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the only name torch gives it
