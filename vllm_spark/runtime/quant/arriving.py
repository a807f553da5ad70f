"""What a layer that quantises on arrival carries, and what its methods share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant.table import by_rows
from vllm_spark.runtime.stream.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

__all__ = ["attach", "detach", "make_sink", "require_streamed"]

TILE = 32 << 20  # bytes of 16-bit rows that are finished together in a large layer
WEIGHTS = ("weight", "w13_weight", "w2_weight")


def attach(layer: Any, scheme: str, sinks: Sequence[Sink], kept: Sequence[str]) -> None:  # noqa: ANN401 - a vLLM layer
    """Mark `layer` as one whose weights go through `sinks` into the parameters named `kept`."""
    layer.spark_scheme, layer.spark_sinks, layer.spark_kept = scheme, list(sinks), tuple(kept)


def detach(layer: Any) -> None:  # noqa: ANN401
    """The layer shares another one's weights after all."""
    for name in ("spark_scheme", "spark_sinks", "spark_kept"):
        delattr(layer, name)


def require_streamed(layer: Any) -> None:  # noqa: ANN401
    """Refuse a layer that no stream has filled: another loader wrote to its placeholders, and nothing was quantised.

    Raises:
        ConfigError: the model was loaded in another way.
    """
    for sink in layer.spark_sinks:
        if sink.missing():
            raise ConfigError(
                "--quantization spark quantises while it streams, but another loader ran",
                where=sink.name,
                hint="add --load-format spark",
            )


def _real_rows(layer: Any, rows: int) -> int:  # noqa: ANN401
    """Rows of a head that the checkpoint fills; the vocabulary is padded after them."""
    indices = getattr(layer, "shard_indices", None)
    return rows if indices is None else int(indices.num_org_elements)


def make_sink(
    layer: Any,  # noqa: ANN401
    name: str,
    scheme: str,
    device: torch.device,
    finish: Callable[[int, int, torch.Tensor], None],
) -> Sink:
    """A sink for parameter `name`: one unit per expert, per linear weight, or per tile of a large one.

    Args:
        layer: has the parameter.
        name: weight, w13_weight or w2_weight.
        scheme: decides whether rows can be finished in tiles.
        device: where units are assembled.
        finish: called with (unit, first row of the unit in the parameter, buffer).
    """
    param = getattr(layer, name)
    label = f"{getattr(layer, 'prefix', '') or getattr(layer, 'layer_name', '') or type(layer).__name__}.{name}"
    columns, width = param.shape[-1], param.element_size()
    if param.dim() == 3:
        experts, rows = param.shape[:2]
        total = getattr(param, "weight_loader_numel", experts * rows * columns) // experts
        return Sink(label, param, unit=rows, expected=lambda _: total, device=device, finish=_shift(finish, rows))
    rows, columns = int(param.shape[0]), int(columns)
    real = _real_rows(layer, rows)
    tile = rows
    if by_rows(scheme) and rows * columns * width > 2 * TILE:
        tile = max(128, TILE // (columns * width) // 128 * 128)

    def expected(unit: int) -> int:
        first = unit * tile
        return max(0, min(first + tile, real) - first) * columns

    return Sink(label, param, unit=tile, expected=expected, device=device, finish=_shift(finish, tile))


def _shift(finish: Callable[[int, int, torch.Tensor], None], rows: int) -> Callable[[int, torch.Tensor], None]:
    return lambda unit, buffer: finish(unit, unit * rows, buffer)
