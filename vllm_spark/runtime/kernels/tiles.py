"""The layout in which the 4-bit kernels read weights: chosen once, when a weight is loaded.

A tile is 16 rows by 64 columns, 512 bytes, and one warp reads it in one 16-byte load per lane. Lane 4g + t holds rows g
and g + 8, columns 8t to 8t + 7 and 32 + 8t to 32 + 8t + 7: a permutation of 32-bit words of the row-major codes. Scales
follow their tile, those of rows g and g + 8 side by side. `csrc/include/w4_tile.cuh` is the other side of this.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant.formats import Mxfp4, Nf4, Nvfp4

__all__ = ["COLUMNS", "ROWS", "Tiled", "tile", "tile_codes", "tile_scales", "untile_codes", "untile_scales"]

ROWS, COLUMNS, WORDS = 16, 64, 128


class Tiled(NamedTuple):
    """codes int32 [..., ceil(N/16), ceil(K/64), 128]; scales [..., ceil(N/16), columns, width]; NVFP4 has one more."""

    codes: torch.Tensor
    scales: torch.Tensor
    global_scale: torch.Tensor | None = None


def tile(quantised: Nf4 | Mxfp4 | Nvfp4) -> Tiled:
    """A quantised weight, or all experts of a layer (one more dimension in front), in the kernels' layout.

    Rows and columns that the last tiles lack are filled with codes and scales of zero.
    """
    codes = tile_codes(quantised.codes)
    per_tile = quantised.scales.shape[-1] * COLUMNS / (quantised.codes.shape[-1] * 2)
    glob = quantised.global_scale if isinstance(quantised, Nvfp4) else None
    return Tiled(codes, tile_scales(quantised.scales, per_tile), glob)


def tile_codes(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [..., N, K/2] to int32 [..., ceil(N/16), ceil(K/64), 128]."""
    *lead, rows, half = codes.shape
    padded = torch.nn.functional.pad(codes, (0, -half % 32, 0, -rows % ROWS))
    high, wide = padded.shape[-2] // ROWS, padded.shape[-1] // 32
    words = padded.contiguous().view(torch.int32).view(*lead, high, 2, 8, wide, 2, 4)  # h g | tile j t
    d = len(lead)
    order = [*range(d), d, d + 3, d + 2, d + 5, d + 4, d + 1]  # tile: g t j h
    return words.permute(order).reshape(*lead, high, wide, WORDS).contiguous()


def untile_codes(tiles: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The inverse of `tile_codes`: uint8 [..., rows, columns/2]."""
    *lead, high, wide, _ = tiles.shape
    d = len(lead)
    words = tiles.reshape(*lead, high, wide, 8, 4, 2, 2)  # g t j h
    order = [*range(d), d, d + 5, d + 2, d + 1, d + 4, d + 3]
    flat = words.permute(order).reshape(*lead, high * ROWS, wide * 8).contiguous().view(torch.uint8)
    return flat[..., :rows, : columns // 2]


def _bits(scales: torch.Tensor) -> torch.Tensor:
    return scales.view(torch.uint8 if scales.element_size() == 1 else torch.int16)


def tile_scales(scales: torch.Tensor, per_tile: float) -> torch.Tensor:
    """[..., N, K/block] to [..., ceil(N/16), columns, width]; `per_tile` is 64 / block.

    Raises:
        ConfigError: no kernel has such blocks.
    """
    if per_tile not in (0.5, 1, 2, 4):
        raise ConfigError(f"no kernel reads {per_tile} scales per {COLUMNS} columns")
    group = max(int(per_tile), 1)
    *lead, rows, count = scales.shape
    padded = torch.nn.functional.pad(_bits(scales), (0, -count % group, 0, -rows % ROWS))
    high, wide = padded.shape[-2] // ROWS, padded.shape[-1] // group
    d = len(lead)
    front = list(range(d))
    if group == 4:  # [2 j][2 t]: lanes t and t + 1 share a scale
        split = padded.reshape(*lead, high, 2, 8, wide, 2, 2).permute([*front, d, d + 3, d + 2, d + 5, d + 4, d + 1])
    else:
        split = padded.reshape(*lead, high, 2, 8, wide, group).permute([*front, d, d + 3, d + 2, d + 4, d + 1])
    return split.reshape(*lead, high, wide, ROWS * group).contiguous().view(scales.dtype)


def untile_scales(tiled: torch.Tensor, rows: int, count: int) -> torch.Tensor:
    """The inverse of `tile_scales`: [..., rows, count]."""
    *lead, high, wide, width = tiled.shape
    group = width // ROWS
    d = len(lead)
    front = list(range(d))
    bits = _bits(tiled)
    if group == 4:
        split = bits.reshape(*lead, high, wide, 8, 2, 2, 2).permute([*front, d, d + 5, d + 2, d + 1, d + 4, d + 3])
    else:
        split = bits.reshape(*lead, high, wide, 8, group, 2).permute([*front, d, d + 4, d + 2, d + 1, d + 3])
    flat = split.reshape(*lead, high * ROWS, wide * group)[..., :rows, :count]
    return flat.contiguous().view(tiled.dtype)
