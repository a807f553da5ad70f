"""What every quantiser does around its arithmetic: check, expand an FP8 source, cut, search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vllm_spark.errors import ConfigError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["check", "check_finite", "chunks", "least_error", "reciprocal", "source_values"]

_LEAST_SCALE = 2.0**-127
_CHUNK = 1 << 22  # elements in float32 at a time: the temporaries of a search stay below 100 MB


def check(weight: torch.Tensor, source_scale: torch.Tensor | None, block: int, name: str) -> None:
    """Refuse what no quantiser takes.

    Raises:
        ConfigError: not a matrix of a known dtype, its columns are no multiple of `block`, or an FP8 source without
            scales (or scales without one).
    """
    known = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
    if weight.dim() != 2 or weight.dtype not in known:
        raise ConfigError(f"a matrix of floats is needed, not {tuple(weight.shape)} {weight.dtype}", where=name)
    if weight.shape[1] % block:
        raise ConfigError(
            f"{weight.shape[1]} columns are no multiple of the block of {block}",
            where=name,
            hint="choose a format with a smaller block for it, or keep it in 16 bits",
        )
    if (weight.dtype == torch.float8_e4m3fn) != (source_scale is not None):
        raise ConfigError("FP8 weights come with their scales, others without", where=name)
    if source_scale is not None:
        _scale_shape(weight, source_scale, name)


def _scale_shape(weight: torch.Tensor, scale: torch.Tensor, name: str) -> tuple[int, int]:
    """Rows and columns of `weight` per element of `scale`: all of it, one row, or 128 x 128."""
    rows, columns = weight.shape
    if scale.numel() == 1:
        return max(rows, 1), max(columns, 1)
    if scale.numel() == rows and scale.shape[0] == rows:
        return 1, max(columns, 1)
    if tuple(scale.shape) == (-(-rows // 128), -(-columns // 128)):
        return 128, 128
    raise ConfigError(f"scales {tuple(scale.shape)} fit no FP8 weight {tuple(weight.shape)}", where=name)


def source_values(weight: torch.Tensor, source_scale: torch.Tensor | None, first: int, last: int) -> torch.Tensor:
    """Rows `first` to `last` in float32: exact, or one float32 product of an FP8 value and its scale."""
    values = weight[first:last].to(torch.float32)
    if source_scale is None:
        return values
    rows, columns = _scale_shape(weight, source_scale, "")
    scale = source_scale.to(torch.float32).reshape(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    at = torch.arange(first, last, device=weight.device) // rows
    return values * scale[at].repeat_interleave(columns, dim=1)[:, : weight.shape[1]]


def chunks(weight: torch.Tensor, source_scale: torch.Tensor | None) -> Iterator[tuple[slice, torch.Tensor]]:
    """Some rows at a time: which, and their values in float32."""
    rows, columns = weight.shape
    step = max(1, _CHUNK // max(columns, 1))
    for first in range(0, rows, step):
        last = min(first + step, rows)
        yield slice(first, last), source_values(weight, source_scale, first, last)


def check_finite(bad: int | torch.Tensor, name: str) -> None:
    """Refuse a weight of which `bad` elements cannot be quantised.

    Raises:
        IntegrityError: there are any; the message names the tensor and their number.
    """
    count = int(bad)
    if count:
        raise IntegrityError(
            f"{count} elements are NaN, infinite or out of range", where=name, hint="verify the checkpoint's files"
        )


def bad_elements(values: torch.Tensor, limit: float = float("inf")) -> int:
    """How many elements are not finite, or larger than `limit`."""
    return int((~(values.abs() <= limit) | values.isinf()).sum())


def reciprocal(scale: torch.Tensor) -> torch.Tensor:
    """1 / scale; 0 for a scale below 2^-127, whose reciprocal would not be finite."""
    return torch.where(scale >= _LEAST_SCALE, 1 / scale, 0.0)


def least_error(
    values: torch.Tensor,
    scales: Iterable[torch.Tensor],
    round_trip: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Per block the index of the scale with the least squared error, the first one of equals.

    Args:
        values: float32 [blocks, block].
        scales: candidates, each float32 [blocks, 1].
        round_trip: what becomes of values that a scale of one suits.

    Returns:
        int64 [blocks, 1].
    """
    best = torch.full((values.shape[0], 1), float("inf"), device=values.device)
    chosen = torch.zeros_like(best, dtype=torch.int64)
    for index, scale in enumerate(scales):
        error = (round_trip(values * reciprocal(scale)) * scale - values).square().sum(dim=1, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, index, chosen)
    return chosen
