// Weight-only 4-bit linear layers and mixtures of experts; vllm_spark/runtime/kernels says what each operator takes.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

namespace vllm_spark::cuda {

using Tensor = torch::stable::Tensor;
using MaybeTensor = std::optional<torch::stable::Tensor>;

Tensor nf4_linear(const Tensor& x, const Tensor& weight, const Tensor& scales, const MaybeTensor& bias, int64_t n,
                  bool expand);
Tensor mxfp4_linear(const Tensor& x, const Tensor& weight, const Tensor& scales, const MaybeTensor& bias, int64_t n,
                    bool expand);
Tensor nvfp4_linear(const Tensor& x, const Tensor& weight, const Tensor& scales, const Tensor& global_scale,
                    const MaybeTensor& bias, int64_t n, bool expand);

Tensor w4_moe(const Tensor& x, const Tensor& w13, const Tensor& w13_scales, const MaybeTensor& w13_global,
              const Tensor& w2, const Tensor& w2_scales, const MaybeTensor& w2_global, const Tensor& weights,
              const Tensor& experts, const MaybeTensor& sorted, const MaybeTensor& padded, int64_t format,
              int64_t activation, int64_t block, bool partial);

}  // namespace vllm_spark::cuda
