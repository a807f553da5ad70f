// What a CUDA operator does around its launch. Include it in .cu files only.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>

// A torch without CUDA has none of these; weak, so that the library loads there for its CPU operators. No CUDA
// operator can be reached without a CUDA tensor.
#pragma weak aoti_torch_get_current_cuda_stream
#pragma weak torch_c10_cuda_check_msg
#pragma weak torch_c10_cuda_free_error_msg

namespace vllm_spark {

// Makes the tensor's device current while it lives, and knows torch's current stream there.
class DeviceScope {
 public:
  explicit DeviceScope(const torch::stable::Tensor& tensor)
      : guard_(tensor.get_device_index()), index_(tensor.get_device_index()) {}

  cudaStream_t stream() const {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream));
    return static_cast<cudaStream_t>(stream);
  }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  int32_t index_;
};

// Blocks for `items` threads of a grid-stride kernel: enough to fill any GPU, and a valid grid for any size.
inline unsigned grid_for(int64_t items, int threads) {
  constexpr int64_t kMost = 1 << 16;
  return static_cast<unsigned>(std::clamp<int64_t>((items + threads - 1) / threads, 1, kMost));
}

}  // namespace vllm_spark
