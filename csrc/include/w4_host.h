// A 4-bit weight as the operators see it, and what they do around a launch. Include it in .cu files only.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <optional>

#include "w4_launch.h"

namespace vllm_spark::w4 {

// Rows of x from which expanding the weight and multiplying with cuBLAS is the faster way (docs/kernels.md).
inline constexpr int64_t kMostRows = 128;

// The tiles of one weight, or of all experts of a layer, with their scales.
struct Weight {
  Format format;
  Scales scales_kind;
  const torch::stable::Tensor* tiles;
  const torch::stable::Tensor* scales;
  const float* alpha;
  int64_t experts;  // 1 for a linear layer
  int64_t n, k;
  int64_t tiles_n, tiles_k;
  int64_t scale_columns;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Raises where the tensors do not make a weight of `n` x `k`.
Weight weight_of(Format format, const torch::stable::Tensor& tiles, const torch::stable::Tensor& scales,
                 const std::optional<torch::stable::Tensor>& global_scale, int64_t n, int64_t k);

void check_activations(const torch::stable::Tensor& x, const Weight& weight);
void check_vector(const torch::stable::Tensor& vector, int64_t size, torch::headeronly::ScalarType dtype,
                  const char* name);

// What `weight` says of a launch; the caller adds rows, result and grid.
Launch launch_of(const torch::stable::Tensor& x, const Weight& weight, cudaStream_t stream);
void launch(const Launch& launch);

// `out` [rows, k] = rows `first` and following of expert 0.
void dequantize(const Weight& weight, int64_t first, const torch::stable::Tensor& out, cudaStream_t stream);

int multiprocessors(int32_t device);

// Warps along k. Blocks run in waves of as many as the GPU holds; the time is that of the tiles which one warp reads
// in all waves, plus a fixed price per wave. `warp_rows`: warps that would be needed without any split.
int split_for(int64_t warp_rows, int64_t tiles_k, int columns, int sms);

// x · weightᵀ + bias, by torch.
torch::stable::Tensor dense_linear(const torch::stable::Tensor& x, const torch::stable::Tensor& weight,
                                   const std::optional<torch::stable::Tensor>& bias);

}  // namespace vllm_spark::w4
