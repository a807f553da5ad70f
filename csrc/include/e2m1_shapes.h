// What both devices check of E2M1 operands, and the results they allocate.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <vector>

#include "dispatch.h"

namespace vllm_spark {

// Uninitialised uint8 [..., K/2] for x [..., K].
inline torch::stable::Tensor new_packed(const torch::stable::Tensor& x) {
  STD_TORCH_CHECK(is_real(x.scalar_type()), "e2m1_pack: x must be float32, bfloat16 or float16");
  STD_TORCH_CHECK(x.dim() >= 1 && x.size(-1) % 2 == 0, "e2m1_pack: the last dimension of x must be even");
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() /= 2;
  return torch::stable::new_empty(x, shape, torch::headeronly::ScalarType::Byte);
}

// Uninitialised `dtype` [..., 2K] for packed [..., K].
inline torch::stable::Tensor new_unpacked(const torch::stable::Tensor& packed, torch::headeronly::ScalarType dtype) {
  STD_TORCH_CHECK(packed.scalar_type() == torch::headeronly::ScalarType::Byte, "e2m1_unpack: packed must be uint8");
  STD_TORCH_CHECK(packed.dim() >= 1, "e2m1_unpack: packed must have a dimension");
  STD_TORCH_CHECK(is_real(dtype), "e2m1_unpack: dtype must be float32, bfloat16 or float16");
  std::vector<int64_t> shape(packed.sizes().begin(), packed.sizes().end());
  shape.back() *= 2;
  return torch::stable::new_empty(packed, shape, dtype);
}

}  // namespace vllm_spark
