from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_spark.runtime.quant.source import Source
from vllm_spark.runtime.stream.dequant import dequantise
from vllm_spark.runtime.stream.headers import Tensor


def source(shape: tuple[int, ...], kind: str, block: tuple[int, int] = (0, 0)) -> Source:
    return Source(Tensor("w", "F8_E4M3", shape, 0, 0, Path("x")), kind, None, block)


def codes(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)


def by_hand(raw: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Element by element, as the definition reads."""
    out = raw.float().clone()
    for row in range(raw.shape[0]):
        for column in range(raw.shape[1]):
            out[row, column] *= scale[row // block[0], column // block[1]]
    return out.to(torch.bfloat16)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_blocks_may_be_cut_off_at_both_edges(rows: int, columns: int, high: int, wide: int) -> None:
    raw, scale = codes(rows, columns), torch.rand(-(-rows // high), -(-columns // wide))
    got = dequantise(raw, source((rows, columns), "block", (high, wide)), scale, torch.bfloat16)
    assert torch.equal(got, by_hand(raw, scale, (high, wide)))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.data())
def test_rows_from_the_middle_get_their_own_scales(blocks: int, data: st.DataObject) -> None:
    raw, scale = codes(4 * blocks, 6), torch.rand(blocks, 2)
    whole = dequantise(raw, source((4 * blocks, 6), "block", (4, 3)), scale, torch.bfloat16)
    first = 4 * data.draw(st.integers(0, blocks - 1))
    last = data.draw(st.integers(first + 1, 4 * blocks))
    got = dequantise(raw[first:last], source((4 * blocks, 6), "block", (4, 3)), scale, torch.bfloat16, first=first)
    assert torch.equal(got, whole[first:last])


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 22])
@pytest.mark.parametrize("kind", ["block", "channel", "tensor", "expert"])
def test_stacked_experts_in_any_chunking(monkeypatch: pytest.MonkeyPatch, chunk: int, kind: str) -> None:
    from vllm_spark.runtime.stream import dequant

    monkeypatch.setattr(dequant, "_CHUNK", chunk)
    raw = codes(3, 8, 6)
    scale = {
        "block": torch.rand(3, 2, 2),
        "channel": torch.rand(3, 8, 1),
        "tensor": torch.rand(1),
        "expert": torch.rand(3, 1),
    }[kind]
    held = source((3, 8, 6), "tensor" if kind == "expert" else kind, (4, 3))
    got = dequantise(raw, held, scale, torch.bfloat16)
    for expert in range(3):
        own = scale if kind == "tensor" else scale[expert]
        spread = own.repeat_interleave(4, 0).repeat_interleave(3, 1) if kind == "block" else own
        assert torch.equal(got[expert], (raw[expert].float() * spread).to(torch.bfloat16))
    part = dequantise(raw[1:], held, scale, torch.bfloat16, first=1)
    assert torch.equal(part, got[1:])
