"""A model that loads as vLLM's do: fused projections, stacked experts, tensor-parallel slices, `copy_` at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vllm_spark.runtime.quant.arriving import attach, make_sink
from vllm_spark.runtime.quant.schemes import round_trip

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN, INTER, EXPERTS, VOCAB = 256, 128, 4, 512


def empty(*shape: int, meta: bool = False) -> torch.nn.Parameter:
    device = "meta" if meta else "cpu"
    fill = torch.full(shape, float("nan"), dtype=torch.bfloat16, device=device)
    return torch.nn.Parameter(fill, requires_grad=False)


class Layer(torch.nn.Module):
    """Holds one or two weights; `sunk` gives it sinks that write to parameters `*_final`, rounded or as they are."""

    def __init__(self, prefix: str, *, sunk: str = "", rounded: bool = False, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.prefix, self.rounded = prefix, rounded
        for name, shape in shapes.items():
            self.register_parameter(name, empty(*shape, meta=bool(sunk)))
        if sunk:
            self._sink(sunk, shapes)

    def _sink(self, scheme: str, shapes: dict[str, tuple[int, ...]]) -> None:
        sinks = []
        for name, shape in shapes.items():
            final = torch.nn.Parameter(torch.full(shape, float("nan"), dtype=torch.bfloat16), requires_grad=False)
            self.register_parameter(f"{name}_final", final)
            flat = final.data.view(-1, shape[-1])

            def finish(_unit: int, first: int, buffer: torch.Tensor, flat: torch.Tensor = flat) -> None:
                made = round_trip(scheme, buffer, search=False) if self.rounded else buffer
                flat[first : first + len(buffer)] = made

            sinks.append(make_sink(self, name, scheme, torch.device("cpu"), finish))
        attach(self, scheme, sinks, [f"{name}_final" for name in shapes])


class Model(torch.nn.Module):
    """One attention layer, routed experts (per expert or stacked in the checkpoint), embedding and head."""

    def __init__(self, scheme: str = "", *, rank: int = 0, size: int = 1, rounded: bool = False) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.embed = Layer("embed", weight=(VOCAB // size, HIDDEN))
        self.norm = Layer("norm", weight=(HIDDEN,))
        self.qkv = Layer("qkv", sunk=scheme, rounded=rounded, weight=(3 * HIDDEN // size, HIDDEN))
        self.o = Layer("o", sunk=scheme, rounded=rounded, weight=(HIDDEN, HIDDEN // size))
        shapes = {"w13_weight": (EXPERTS, 2 * INTER // size, HIDDEN), "w2_weight": (EXPERTS, HIDDEN, INTER // size)}
        self.experts = Layer("experts", sunk=scheme, rounded=rounded, **shapes)
        self.head = Layer("head", sunk=scheme, rounded=rounded, weight=(VOCAB // size, HIDDEN))

    def _mine(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        step = tensor.shape[dim] // self.size
        return tensor.narrow(dim, self.rank * step, step)

    def _expert(self, index: int, name: str, tensor: torch.Tensor) -> None:
        experts: Any = self.experts
        if name == "down_proj":
            experts.w2_weight.data[index].copy_(self._mine(tensor, 1))
        else:
            step = INTER // self.size
            experts.w13_weight.data[index].narrow(0, step * (name == "up_proj"), step).copy_(self._mine(tensor, 0))

    def load_weights(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded = set()
        for key, tensor in pairs:
            name = key.removesuffix(".weight")
            if name in ("q", "k", "v"):
                step = HIDDEN // self.size
                part: Any = self.qkv.weight
                part.data.narrow(0, "qkv".index(name) * step, step).copy_(self._mine(tensor, 0))
                loaded.add("qkv.weight")
            elif name.startswith("experts."):
                index, leaf = name.split(".")[1:]
                self._expert(int(index), leaf, tensor)
                loaded |= {"experts.w13_weight", "experts.w2_weight"}
            elif name == "experts_gate_up":
                for leaf, half in zip(("gate_proj", "up_proj"), tensor.chunk(2, 1), strict=True):
                    for number, one in enumerate(half.unbind()):
                        self._expert(number, leaf, one)
                loaded.add("experts.w13_weight")
            elif name == "experts_down":
                for number, one in enumerate(tensor.unbind()):
                    self._expert(number, "down_proj", one)
                loaded.add("experts.w2_weight")
            else:
                target: Any = getattr(self, name).weight
                whole = tensor if name == "norm" else self._mine(tensor, 1 if name == "o" else 0)
                target.data.copy_(whole)
                loaded.add(f"{name}.weight")
        return loaded


def checkpoint(*, stacked: bool = False, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under the keys that `Model` reads."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    out = {"embed.weight": random(VOCAB, HIDDEN), "norm.weight": random(HIDDEN), "head.weight": random(VOCAB, HIDDEN)}
    out |= {f"{name}.weight": random(HIDDEN, HIDDEN) for name in "qkvo"}
    if stacked:
        return out | {
            "experts_gate_up.weight": random(EXPERTS, 2 * INTER, HIDDEN),
            "experts_down.weight": random(EXPERTS, HIDDEN, INTER),
        }
    for expert in range(EXPERTS):
        for name, shape in (
            ("gate_proj", (INTER, HIDDEN)),
            ("up_proj", (INTER, HIDDEN)),
            ("down_proj", (HIDDEN, INTER)),
        ):
            out[f"experts.{expert}.{name}.weight"] = random(*shape)
    return out


def expected(weights: dict[str, torch.Tensor], *, rank: int = 0, size: int = 1) -> dict[str, torch.Tensor]:
    """What every weight of rank `rank` has to hold, computed in another way than the model does."""

    def part(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return tensor.chunk(size, dim)[rank]

    def expert(name: str, index: int) -> torch.Tensor:
        if "experts_down.weight" not in weights:
            return weights[f"experts.{index}.{name}.weight"]
        if name == "down_proj":
            return weights["experts_down.weight"][index]
        return weights["experts_gate_up.weight"][index].chunk(2)[name == "up_proj"]

    gate_up = [torch.cat([part(expert(n, e), 0) for n in ("gate_proj", "up_proj")]) for e in range(EXPERTS)]
    return {
        "embed.weight": part(weights["embed.weight"], 0),
        "norm.weight": weights["norm.weight"],
        "head.weight": part(weights["head.weight"], 0),
        "qkv.weight": torch.cat([part(weights[f"{name}.weight"], 0) for name in "qkv"]),
        "o.weight": part(weights["o.weight"], 1),
        "experts.w13_weight": torch.stack(gate_up),
        "experts.w2_weight": torch.stack([part(expert("down_proj", e), 1) for e in range(EXPERTS)]),
    }


def block_fp8(weight: torch.Tensor, block: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a weight whose sides are multiples of the block."""
    *outer, rows, columns = weight.shape
    tiles = weight.float().view(*outer, rows // block, block, columns // block, block)
    scale = tiles.abs().amax((-3, -1)) / 448
    codes = (tiles / scale[..., :, None, :, None]).to(torch.float8_e4m3fn)
    return codes.view(weight.shape), scale
