"""Marlin's layouts, one unit at a time (rung: upstream's own packing functions, called per expert or tile).

Upstream packs a whole layer of experts at once and only gated ones; its function for one linear weight does the
same work for any matrix, so an expert is packed as one. Columns of a packed tensor follow rows of the weight in
tiles of 64, which is why tiles can be packed by themselves and put side by side.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vllm_spark.runtime.quant.schemes import quantise

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GROUP", "Layout", "apply_linear", "permuted_bias"]

_UTILS = "vllm.model_executor.layers.quantization.utils."
_NAMES = ("weight", "weight_scale", "weight_global_scale")
_OURS = ("qweight", "scales", "global_scale")
GROUP = {"nvfp4": 16, "mxfp4": 32, "fp8": -1}


def _fp4() -> Any:  # noqa: ANN401 - a vLLM module
    return importlib.import_module(_UTILS + "marlin_utils_fp4")


def _fp8() -> Any:  # noqa: ANN401
    return importlib.import_module(_UTILS + "marlin_utils_fp8")


def _common() -> Any:  # noqa: ANN401
    return importlib.import_module(_UTILS + "marlin_utils")


@dataclass(frozen=True)
class Layout:
    """What a [rows, columns] weight becomes under a scheme.

    Attributes:
        scheme: nvfp4, mxfp4 or fp8.
        rows: output features.
        columns: input features.
        dtype: of the activations.
    """

    scheme: str
    rows: int
    columns: int
    dtype: torch.dtype

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns rounded up to what the kernel's tiles need."""
        rows, columns = _common().marlin_padded_nk(self.rows, self.columns, GROUP[self.scheme])
        return int(rows), int(columns)

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Names, shapes and dtypes of the packed tensors."""
        n, k = self.padded
        width = 4 if self.scheme == "fp8" else 2  # int32 words per row and 16 columns
        made: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"qweight": ((k // 16, n * width), torch.int32)}
        if self.scheme == "fp8":
            made["scales"] = (1, n), self.dtype
        elif self.scheme == "mxfp4":
            made["scales"] = (k // 32, n), torch.float8_e8m0fnu
        else:
            made |= {"scales": ((k // 16, n), torch.float8_e4m3fn), "global_scale": ((1,), torch.float32)}
        return made

    def pack(self, weight: torch.Tensor, *, search: bool) -> dict[str, torch.Tensor]:
        """Quantise and pack some of the rows.

        Args:
            weight: [some rows, columns]; unless they are the last ones, a multiple of 128 of them.
            search: look for better scales.
        """
        n, k = self.padded
        rows = len(weight)
        rows = rows if rows % 128 == 0 and rows < self.rows else rows + n - self.rows
        weight = torch.nn.functional.pad(weight, (0, k - weight.shape[1], 0, rows - len(weight)))
        parts = dict(zip(_NAMES, quantise(self.scheme, weight, search=search), strict=False))
        one: Any = torch.nn.Module()  # what upstream's functions take for a layer
        one.output_size_per_partition, one.input_size_per_partition = rows, k
        one.params_dtype = one.orig_dtype = self.dtype
        for name, value in parts.items():
            one.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        if self.scheme == "fp8":
            _fp8().prepare_fp8_layer_for_marlin(one, size_k_first=False)
        else:
            _fp4().prepare_fp4_layer_for_marlin(one)
        return {ours: getattr(one, name).data for ours, name in zip(_OURS, parts, strict=False)}

    def place(self, made: Mapping[str, torch.Tensor], into: Mapping[str, torch.Tensor], first: int) -> None:
        """Put the packed rows that begin at row `first` of the weight into the whole packed tensors."""
        for name, part in made.items():
            whole = into[name]
            if name == "global_scale":
                whole.copy_(part.reshape(1))
                continue
            per_row = whole.shape[1] // self.padded[0]
            _raw(whole)[:, first * per_row * whole.element_size() :][:, : part.shape[1] * whole.element_size()].copy_(
                _raw(part)
            )

    def nbytes(self) -> int:
        """Bytes of the packed tensors."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.shapes().values())


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes: not every dtype has copy kernels."""
    return tensor.view(torch.uint8)


def apply_linear(layer: Any, layout: Layout, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ANN401
    """The product x @ W.T + bias with the packed tensors of `layer`."""
    shared = (layer.qweight, layer.scales)
    sizes = {"size_n": layout.rows, "size_k": layout.columns, "bias": bias, "workspace": layer.spark_workspace}
    if layout.scheme == "fp8":
        return _fp8().apply_fp8_marlin_linear(x, *shared, **sizes)  # type: ignore[no-any-return]
    scale = layer.global_scale if layout.scheme == "nvfp4" else None
    return _fp4().apply_fp4_marlin_linear(x, *shared, scale, **sizes)  # type: ignore[no-any-return]


def permuted_bias(bias: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A bias as the kernel wants it."""
    utils = _common()
    return utils.marlin_permute_bias(utils.marlin_pad_dim(bias.data, layout.rows, layout.padded[0]))  # type: ignore[no-any-return]


def workspace(device: torch.device) -> torch.Tensor:
    """The kernel's locks."""
    return _common().marlin_make_workspace_new(device)  # type: ignore[no-any-return]
