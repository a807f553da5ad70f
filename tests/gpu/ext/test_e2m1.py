"""E2M1 on a GPU: the same codes as the definition, whichever way the image converts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.integration.ext import oracle

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.gpu
REAL = (torch.float32, torch.bfloat16, torch.float16)


def test_the_path_is_that_of_the_device(extension: ModuleType) -> None:
    major, _ = torch.cuda.get_device_capability()
    assert extension.e2m1_path("cuda") == ("hardware" if major >= 10 else "software")
    assert extension.e2m1_path() == extension.e2m1_path("cuda")


def test_t01_table(extension: ModuleType) -> None:
    x = torch.tensor([float(text) for text in oracle.TABLE], dtype=torch.float32, device="cuda")
    packed = extension.e2m1_pack(x).cpu().tolist()
    assert [code for byte in packed for code in (byte & 15, byte >> 4)] == list(oracle.TABLE.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_pattern(extension: ModuleType, dtype: torch.dtype) -> None:
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert np.array_equal(extension.e2m1_pack(x.cuda()).cpu().numpy(), oracle.packed(x.float().numpy()))


@pytest.mark.parametrize("count", [0, 2, 6, 8, 10, 14, 4096, 4098, 3 << 20])
@pytest.mark.parametrize("offset", [0, 1, 2, 8])
@pytest.mark.parametrize("dtype", REAL)
def test_every_alignment_and_rest(extension: ModuleType, count: int, offset: int, dtype: torch.dtype) -> None:
    """Words where they are aligned, bytes for what is left; nothing is written beside the result."""
    x = (torch.randn(count + offset, generator=torch.Generator().manual_seed(count)) * 4).to(dtype)
    part = x.cuda()[offset:]
    packed = extension.e2m1_pack(part)
    assert np.array_equal(packed.cpu().numpy(), oracle.packed(x[offset:].float().numpy()))
    want = extension.e2m1_unpack(packed.cpu(), dtype)
    assert torch.equal(extension.e2m1_unpack(packed, dtype).cpu(), want)
    shifted = torch.cat([packed.new_zeros(1), packed])[1:]
    assert torch.equal(extension.e2m1_unpack(shifted, dtype).cpu(), want)


def test_current_stream_and_graph(extension: ModuleType) -> None:
    """Launched on torch's stream: a graph that is captured there replays with new input."""
    x = torch.zeros(4096, device="cuda", dtype=torch.bfloat16)
    extension.e2m1_pack(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packed = extension.e2m1_pack(x)
    x.fill_(-6.0)
    graph.replay()
    torch.cuda.synchronize()
    assert set(packed.tolist()) == {0xFF}


def test_errors_arrive_as_exceptions(extension: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="must be even"):
        extension.e2m1_pack(torch.zeros(3, device="cuda"))
