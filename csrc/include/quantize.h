// Quantisers, their inverses, and the largest magnitude of a weight; vllm_spark/runtime/kernels says what each takes.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>

namespace vllm_spark::cuda {

using Tensor = torch::stable::Tensor;
using MaybeTensor = std::optional<torch::stable::Tensor>;

void quantize_nf4(const Tensor& x, const MaybeTensor& x_scale, bool search, const Tensor& codes, const Tensor& scales,
                  const Tensor& bad);
void quantize_mxfp4(const Tensor& x, const MaybeTensor& x_scale, bool search, const Tensor& codes,
                    const Tensor& scales, const Tensor& bad);
void quantize_nvfp4(const Tensor& x, const MaybeTensor& x_scale, const Tensor& global_scale, bool search,
                    const Tensor& codes, const Tensor& scales, const Tensor& bad);
void quantize_fp8(const Tensor& x, const MaybeTensor& x_scale, bool search, const Tensor& codes, const Tensor& scales,
                  const Tensor& bad);
void largest_magnitude(const Tensor& x, const MaybeTensor& x_scale, const Tensor& largest, const Tensor& bad);

void dequantize_nf4(const Tensor& codes, const Tensor& scales, const Tensor& out);
void dequantize_mxfp4(const Tensor& codes, const Tensor& scales, const Tensor& out);
void dequantize_nvfp4(const Tensor& codes, const Tensor& scales, const Tensor& global_scale, const Tensor& out);
void dequantize_fp8(const Tensor& codes, const Tensor& scales, const Tensor& out);

}  // namespace vllm_spark::cuda
