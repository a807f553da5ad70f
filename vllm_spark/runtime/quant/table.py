"""What a policy does to a checkpoint, layer group by layer group, from headers alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.runtime.quant.policy import bits
from vllm_spark.runtime.stream.headers import DTYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_spark.runtime.quant.policy import Policy
    from vllm_spark.runtime.quant.source import Source

__all__ = ["Row", "by_rows", "final_bits", "layer_table", "module_of", "quantisable", "scheme_of"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_NEVER = re.compile(r"(embed|embedding|norm|conv1d|rotary|position)")


@dataclass(frozen=True, slots=True)
class Row:
    """One group: layers that differ only in their numbers and share shape, type and scheme."""

    group: str
    count: int
    shape: tuple[int, ...]
    dtype: str
    scheme: str
    source_bytes: int
    bytes: int
    sample: Source


def module_of(key: str) -> str:
    """The module that a weight's key belongs to; fused expert tensors are their own module."""
    return key.removesuffix(".weight")


def quantisable(source: Source) -> bool:
    """Is it a matrix of a linear layer, a head or experts? Only these have a scheme; the rest stays as it is."""
    tensor = source.weight
    name = module_of(tensor.key)
    if _NEVER.search(name.rpartition(".")[2]) or tensor.dtype not in ("BF16", "F16", "F32", "F8_E4M3"):
        return False
    stacked = len(tensor.shape) == 3 and ".experts." in name + "."
    return stacked or (len(tensor.shape) == 2 and tensor.key.endswith(".weight"))


def scheme_of(source: Source, policy: Policy, *, tied: bool = False) -> str:
    """The scheme of one weight; `-` where none applies. A head tied to the embedding stays as the embedding is."""
    if not quantisable(source):
        return "-"
    name = module_of(source.weight.key)
    if tied and name.endswith("lm_head"):
        return "bf16"
    return policy.scheme(name)


def final_bits(source: Source, policy: Policy, *, tied: bool = False) -> float:
    """Bits that one element takes once it is loaded."""
    scheme = scheme_of(source, policy, tied=tied)
    if scheme == "-":
        return min(DTYPE_BITS[source.weight.dtype], 32) if source.kind == "plain" else 16
    return bits(scheme)


def by_rows(scheme: str) -> bool:
    """Can rows of such a layer be finished one by one? NVFP4 needs the whole matrix: it has one global scale."""
    return scheme != "nvfp4"


def layer_table(sources: Iterable[Source], policy: Policy, *, tied: bool = False) -> list[Row]:
    """Groups in the order in which the checkpoint names them."""
    groups: dict[tuple[str, tuple[int, ...], str, str], list[Source]] = {}
    for source in sources:
        tensor = source.weight
        scheme = scheme_of(source, policy, tied=tied)
        dtype = tensor.dtype if source.kind == "plain" else f"{tensor.dtype}/{source.kind}"
        name = _NUMBER.sub("*", module_of(tensor.key))
        groups.setdefault((name, tensor.shape, dtype, scheme), []).append(source)
    rows = []
    for (name, shape, dtype, scheme), members in groups.items():
        size = len(members) * math.prod(shape) * final_bits(members[0], policy, tied=tied) / 8
        held = sum(m.weight.nbytes + (m.scale.nbytes if m.scale else 0) for m in members)
        rows.append(Row(name, len(members), shape, dtype, scheme, held, int(size), members[0]))
    return rows
