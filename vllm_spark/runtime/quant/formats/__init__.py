"""The formats of quantised weights: what each value means, how it is rounded, in plain torch.

These are the definitions. On the CPU they do the work; on a GPU `vllm_spark.runtime.kernels` does the same, bit for bit
in plain mode. All matrices are row-major [N, K]; two 4-bit codes share a byte, the even column in the low half.
"""

from vllm_spark.runtime.quant.formats.fp8 import Fp8, dequantize_fp8, quantize_fp8
from vllm_spark.runtime.quant.formats.mxfp4 import Mxfp4, dequantize_mxfp4, quantize_mxfp4
from vllm_spark.runtime.quant.formats.nf4 import Nf4, dequantize_nf4, quantize_nf4
from vllm_spark.runtime.quant.formats.nvfp4 import Nvfp4, dequantize_nvfp4, global_scale_of, quantize_nvfp4

__all__ = [
    "Fp8",
    "Mxfp4",
    "Nf4",
    "Nvfp4",
    "dequantize_fp8",
    "dequantize_mxfp4",
    "dequantize_nf4",
    "dequantize_nvfp4",
    "global_scale_of",
    "quantize_fp8",
    "quantize_mxfp4",
    "quantize_nf4",
    "quantize_nvfp4",
]
