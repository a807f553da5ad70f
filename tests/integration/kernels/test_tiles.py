"""The kernels' layout: every code and scale where the kernels look for it, and back again."""

import pytest
import torch

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.kernels.tiles import tile, tile_codes, tile_scales, untile_codes, untile_scales
from vllm_spark.runtime.quant import formats


@pytest.mark.parametrize("shape", [(16, 64), (1, 32), (40, 192), (17, 96), (3, 48, 128)])
def test_codes_come_back(shape: tuple[int, ...]) -> None:
    codes = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8)
    tiles = tile_codes(codes)
    assert tiles.shape == (*shape[:-2], -(-shape[-2] // 16), -(-shape[-1] // 64), 128)
    assert torch.equal(untile_codes(tiles, shape[-2], shape[-1]), codes)


def test_a_lane_holds_what_the_kernels_expect() -> None:
    """Word 4 (4g + t) + 2j + h of a tile: row g + 8h, columns 32j + 8t and seven more."""
    codes = torch.randint(0, 256, (32, 64), dtype=torch.uint8)
    tiles = tile_codes(codes)
    words = codes.contiguous().view(torch.int32)  # [32, 16], eight columns each
    for g in range(8):
        for t in range(4):
            for j in range(2):
                for h in range(2):
                    found = tiles[1, 1, 4 * (4 * g + t) + 2 * j + h]
                    assert found == words[16 + g + 8 * h, 8 + 4 * j + t]


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (40, 384), (7, 256)])
def test_scales_come_back(block: int, rows: int, columns: int) -> None:
    scales = torch.randint(1, 255, (2, rows, columns // block), dtype=torch.uint8)
    tiled = tile_scales(scales, 64 / block)
    assert tiled.shape[-1] == 16 * max(1, 64 // block)
    assert torch.equal(untile_scales(tiled, rows, columns // block), scales)


def test_other_blocks_have_no_kernel() -> None:
    with pytest.raises(ConfigError, match=r"0\.25 scales"):
        tile_scales(torch.ones(16, 1, dtype=torch.uint8), 0.25)


def test_experts_are_tiled_together() -> None:
    parts = [formats.quantize_nvfp4(torch.randn(32, 128)) for _ in range(3)]
    stacked = formats.Nvfp4(*(torch.stack(list(part)) for part in zip(*parts, strict=True)))
    tiled = tile(stacked)
    assert all(torch.equal(tiled.codes[e], tile(part).codes) for e, part in enumerate(parts))
    assert tiled.global_scale is not None
    assert tiled.global_scale.shape == (3, 1)
