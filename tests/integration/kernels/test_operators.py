"""The operators on the CPU: right against float64, and honest to torch.compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.integration.kernels import reference
from vllm_spark.errors import IntegrityError
from vllm_spark.runtime.quant import formats

if TYPE_CHECKING:
    from types import ModuleType

TYPES = (torch.bfloat16, torch.float16)


def linear(extension: ModuleType, kind: str, x: torch.Tensor, weight: Any, bias: Any, n: int) -> Any:
    name = kind.partition("-")[0]
    tiled = extension.tile(weight)
    operands = [part for part in tiled if part is not None]
    return getattr(extension, f"{name}_linear")(x, *operands, bias, n=n)


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_linear(extension: ModuleType, kind: str, dtype: torch.dtype) -> None:
    for rows, n, k in ((1, 16, 128), (3, 40, 384), (5, 33, 256)):
        weight, values = reference.quantised(kind, (n, k), dtype, seed=n)
        x = torch.randn(rows, k).to(dtype)
        bias = torch.randn(n).to(dtype)
        found = linear(extension, kind, x, weight, bias, n)
        assert found.dtype == dtype
        assert reference.relative(found, x.double() @ values.T + bias.double()) < 4e-3


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu2"])
@pytest.mark.parametrize("kind", ["nf4-64", "mxfp4", "nvfp4"])
def test_moe(extension: ModuleType, kind: str, activation: str) -> None:
    experts, hidden, inner, tokens, top_k = 4, 64, 128, 5, 2
    rows = inner * (1 if activation == "relu2" else 2)
    w13, first = reference.quantised(kind, (experts, rows, hidden), torch.bfloat16)
    w2, second = reference.quantised(kind, (experts, hidden, inner), torch.bfloat16, seed=1)
    x = torch.randn(tokens, hidden).bfloat16()
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).int()
    chosen[1, 0] = -1
    weights = torch.rand(tokens, top_k)
    truth = reference.mixture(x, first, second, weights, chosen, activation)
    run = getattr(extension, f"{kind.partition('-')[0]}_moe")
    layers = extension.tile(w13), extension.tile(w2)
    by_pair = run(x, *layers, extension.Routing(weights, chosen), activation=activation)
    ids, of_block, padded = reference.align(chosen, 8)
    routing = extension.Routing(weights, of_block, ids, padded, 8, partial=True)
    assert reference.relative(by_pair, truth) < 1e-2
    assert torch.equal(run(x, *layers, routing, activation=activation), by_pair)


@pytest.mark.parametrize("kind", ["nf4-64", "mxfp4", "nvfp4"])
def test_torch_compile_and_schemas(extension: ModuleType, kind: str) -> None:
    """opcheck: schema, aliasing, fake implementation; compile: one graph without breaks, for any number of rows."""
    weight, _ = reference.quantised(kind, (32, 128), torch.bfloat16)
    tiled = extension.tile(weight)
    name = kind.partition("-")[0]
    operands = [part for part in tiled if part is not None]
    x = torch.randn(3, 128).bfloat16()
    op = getattr(torch.ops.vllm_spark, f"{name}_linear").default
    checks = ["test_faketensor", "test_aot_dispatch_dynamic"]
    if name != "nvfp4":  # that check multiplies the arguments, and the CPU cannot multiply FP8
        checks.append("test_schema")
    torch.library.opcheck(op, (x, *operands, None, 32), test_utils=checks)
    run = torch.compile(
        lambda x: getattr(extension, f"{name}_linear")(x, *operands) * 2, backend="eager", fullgraph=True, dynamic=True
    )
    for rows in (3, 7):
        x = torch.randn(rows, 128).bfloat16()
        assert torch.equal(run(x), getattr(extension, f"{name}_linear")(x, *operands) * 2)


def test_moe_schema(extension: ModuleType) -> None:
    w13, _ = reference.quantised("nf4-64", (2, 64, 64), torch.bfloat16)
    w2, _ = reference.quantised("nf4-32", (2, 64, 32), torch.bfloat16)
    x = torch.randn(2, 64).bfloat16()
    arguments = (x, *extension.tile(w13), *extension.tile(w2), torch.rand(2, 1), torch.tensor([0, 1]).int())
    op = torch.ops.vllm_spark.w4_moe.default
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(op, (*arguments, None, None, 0, 0, 0), test_utils=checks)


def test_quantisers_face_on_the_cpu(extension: ModuleType) -> None:
    """Into slices of a larger tensor, and refusing by name."""
    weight = torch.randn(32, 128) * 0.02
    for name in ("nf4", "mxfp4", "nvfp4", "fp8"):
        made = getattr(formats, f"quantize_{name}")(weight)
        wide = [torch.zeros((3, *part.shape), dtype=part.dtype) for part in made]
        out = type(made)(*(part[1] for part in wide))
        getattr(extension, f"quantize_{name}")(weight, out=out)
        for part, want in zip(wide, made, strict=True):
            assert torch.equal(part[1].view(torch.uint8), want.view(torch.uint8))
            assert not part[0].view(torch.uint8).any()
        back = getattr(extension, f"dequantize_{name}")(made, torch.float32)
        assert torch.equal(back, getattr(formats, f"dequantize_{name}")(made))
        weight[0, 0] = float("nan")
        with pytest.raises(IntegrityError, match=r"w: 1 elements"):
            getattr(extension, f"quantize_{name}")(weight, name="w")
        weight[0, 0] = 0
