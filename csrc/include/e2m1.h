// The operators of the E2M1 family; docs of each in vllm_spark/runtime/kernels.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

namespace vllm_spark {

namespace cpu {
torch::stable::Tensor e2m1_pack(const torch::stable::Tensor& x);
torch::stable::Tensor e2m1_unpack(const torch::stable::Tensor& packed, torch::headeronly::ScalarType dtype);
bool e2m1_hardware(const torch::stable::Tensor& like);
}  // namespace cpu

namespace cuda {
torch::stable::Tensor e2m1_pack(const torch::stable::Tensor& x);
torch::stable::Tensor e2m1_unpack(const torch::stable::Tensor& packed, torch::headeronly::ScalarType dtype);
bool e2m1_hardware(const torch::stable::Tensor& like);
}  // namespace cuda

}  // namespace vllm_spark
