"""E2M1 on the CPU against the definition: every bfloat16 and float16, and every float32 near a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.integration.ext import oracle

if TYPE_CHECKING:
    from types import ModuleType

REAL = (torch.float32, torch.bfloat16, torch.float16)


def codes_of(packed: torch.Tensor) -> list[int]:
    return [code for byte in packed.flatten().tolist() for code in (byte & 15, byte >> 4)]


def test_t01_table(extension: ModuleType) -> None:
    x = torch.tensor([float(text) for text in oracle.TABLE], dtype=torch.float32)
    assert codes_of(extension.e2m1_pack(x)) == list(oracle.TABLE.values())


def test_t01_table_is_what_the_oracle_says() -> None:
    x = np.array([float(text) for text in oracle.TABLE], np.float32)
    assert oracle.codes(x).tolist() == list(oracle.TABLE.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_pattern(extension: ModuleType, dtype: torch.dtype) -> None:
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert extension.e2m1_pack(x).numpy().tolist() == oracle.packed(x.float().numpy()).tolist()


def test_every_float_near_a_bound(extension: ModuleType) -> None:
    bounds = np.array([0.0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, np.inf], np.float32)
    near = bounds.view(np.uint32)[:, None] + np.arange(-4096, 4096).astype(np.uint32)
    both = np.concatenate([near, near ^ np.uint32(1 << 31)]).view(np.float32)
    assert np.array_equal(extension.e2m1_pack(torch.from_numpy(both)).numpy(), oracle.packed(both))


@pytest.mark.parametrize("dtype", REAL)
def test_unpack_gives_every_value(extension: ModuleType, dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8)
    values = extension.e2m1_unpack(every, dtype)
    signed = [*oracle.MAGNITUDES, *(-value for value in oracle.MAGNITUDES)]
    assert values.dtype is dtype
    assert values.tolist() == [signed[code] for byte in range(256) for code in (byte & 15, byte >> 4)]
    assert torch.signbit(values).tolist() == [code >= 8 for byte in range(256) for code in (byte & 15, byte >> 4)]
    assert torch.equal(extension.e2m1_pack(values), every)


@pytest.mark.parametrize("shape", [(2,), (0,), (3, 0), (0, 8), (5, 6), (2, 3, 10), (7, 16), (1, 1, 1, 2)])
@pytest.mark.parametrize("dtype", REAL)
def test_shapes(extension: ModuleType, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    packed = extension.e2m1_pack(x)
    assert packed.shape == (*shape[:-1], shape[-1] // 2)
    assert np.array_equal(packed.numpy(), oracle.packed(x.float().numpy()))
    assert extension.e2m1_unpack(packed, dtype).shape == shape


def test_any_strides(extension: ModuleType) -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(2)) * 4
    for view in (x.t(), x[:, 1:95:3], x[::2, 3:9], x.expand(3, 64, 96), x.flatten()[1:-1]):
        assert torch.equal(extension.e2m1_pack(view), extension.e2m1_pack(view.contiguous()))
    packed = extension.e2m1_pack(x)
    assert torch.equal(extension.e2m1_unpack(packed.t(), x.dtype), extension.e2m1_unpack(packed.t().clone(), x.dtype))


def test_more_than_one_task(extension: ModuleType) -> None:
    x = torch.randn(1 << 10, 1 << 10, generator=torch.Generator().manual_seed(3)) * 4
    assert np.array_equal(extension.e2m1_pack(x).numpy(), oracle.packed(x.numpy()))


def test_flushing_subnormals_changes_nothing(extension: ModuleType) -> None:
    x = torch.tensor([1e-45, -1e-45, 0.25, -0.5], dtype=torch.float32)
    before = extension.e2m1_pack(x)
    torch.set_flush_denormal(True)
    try:
        assert torch.equal(extension.e2m1_pack(x), before)
        assert extension.e2m1_unpack(before, torch.float32).tolist() == [0.0, 0.0, 0.0, -0.5]
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.zeros(3), "must be even"),
        (torch.zeros(4, 5), "must be even"),
        (torch.tensor(1.0), "must be even"),
        (torch.zeros(4, dtype=torch.float64), "float32, bfloat16 or float16"),
        (torch.zeros(4, dtype=torch.int8), "float32, bfloat16 or float16"),
    ],
)
def test_pack_refuses(extension: ModuleType, x: torch.Tensor, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        extension.e2m1_pack(x)


@pytest.mark.parametrize(
    ("packed", "dtype", "said"),
    [
        (torch.zeros(4, dtype=torch.int8), torch.float32, "must be uint8"),
        (torch.zeros(4), torch.float32, "must be uint8"),
        (torch.zeros(4, dtype=torch.uint8), torch.float64, "float32, bfloat16 or float16"),
        (torch.zeros(4, dtype=torch.uint8), torch.int32, "float32, bfloat16 or float16"),
        (torch.tensor(1, dtype=torch.uint8), torch.float32, "must have a dimension"),
    ],
)
def test_unpack_refuses(extension: ModuleType, packed: torch.Tensor, dtype: torch.dtype, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        extension.e2m1_unpack(packed, dtype)


def test_the_cpu_converts_in_software(extension: ModuleType) -> None:
    assert extension.e2m1_path("cpu") == "software"


@pytest.mark.parametrize("dtype", REAL)
def test_torch_accepts_the_registration(extension: ModuleType, dtype: torch.dtype) -> None:
    """Schema, fake implementation and tracing, checked by torch itself."""
    ops: Any = torch.ops.vllm_spark
    x = torch.randn(3, 8).to(dtype)
    torch.library.opcheck(ops.e2m1_pack.default, (x,))
    torch.library.opcheck(ops.e2m1_unpack.default, (ops.e2m1_pack(x), dtype))
