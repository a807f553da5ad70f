"""The compiled operators, as Python functions, and the library that holds them.

Every function loads the library on first use. Code that calls `torch.ops.vllm_spark` itself calls `load()` before.
"""

from vllm_spark.runtime.kernels.e2m1 import e2m1_pack, e2m1_path, e2m1_unpack
from vllm_spark.runtime.kernels.library import TORCH_MIN, library_path, load, require_torch
from vllm_spark.runtime.kernels.linear import mxfp4_linear, nf4_linear, nvfp4_linear
from vllm_spark.runtime.kernels.moe import Routing, mxfp4_moe, nf4_moe, nvfp4_moe, pairs_suit
from vllm_spark.runtime.kernels.quantize import (
    dequantize_fp8,
    dequantize_mxfp4,
    dequantize_nf4,
    dequantize_nvfp4,
    new_counter,
    quantize_fp8,
    quantize_mxfp4,
    quantize_nf4,
    quantize_nvfp4,
)
from vllm_spark.runtime.kernels.tiles import Tiled, tile

__all__ = [
    "TORCH_MIN",
    "Routing",
    "Tiled",
    "dequantize_fp8",
    "dequantize_mxfp4",
    "dequantize_nf4",
    "dequantize_nvfp4",
    "e2m1_pack",
    "e2m1_path",
    "e2m1_unpack",
    "library_path",
    "load",
    "mxfp4_linear",
    "mxfp4_moe",
    "new_counter",
    "nf4_linear",
    "nf4_moe",
    "nvfp4_linear",
    "nvfp4_moe",
    "pairs_suit",
    "quantize_fp8",
    "quantize_mxfp4",
    "quantize_nf4",
    "quantize_nvfp4",
    "require_torch",
    "tile",
]
