// What the operators of the quantisers check, and how tensors become kernel arguments. Include it in .cu files only.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "quantize4.cuh"

namespace vllm_spark::quant {

// The weight [N, K] with the scales of an FP8 source; raises where they do not fit.
Source source_of(const torch::stable::Tensor& x, const std::optional<torch::stable::Tensor>& x_scale);

// A result of the quantisers: on x's device, [rows, columns], its rows contiguous and aligned to `align` bytes.
void check_result(const torch::stable::Tensor& t, const torch::stable::Tensor& x, int64_t rows, int64_t columns,
                  int align, const char* name);

void check_counter(const torch::stable::Tensor& bad, const torch::stable::Tensor& x);

// Blocks of a kernel that walks over `units`, when `per_sm` fit on an SM.
unsigned grid_of(const torch::stable::Tensor& x, int64_t units, int per_sm);

// Call `f` with a null pointer of the type of the elements of x.
template <typename F>
void dispatch_source(const torch::stable::Tensor& x, F&& f) {
  using torch::headeronly::ScalarType;
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return f(static_cast<const float*>(nullptr));
    case ScalarType::BFloat16:
      return f(static_cast<const __nv_bfloat16*>(nullptr));
    case ScalarType::Half:
      return f(static_cast<const __half*>(nullptr));
    default:
      return f(static_cast<const __nv_fp8_e4m3*>(nullptr));  // source_of() refuses the rest
  }
}

}  // namespace vllm_spark::quant
