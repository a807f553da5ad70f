// Between the operators and the kernels: what is launched, and for which format.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "cuda_guard.h"
#include "w4_kernel.cuh"

namespace vllm_spark::w4 {

enum class Format : int { kNf4 = 0, kMxfp4 = 1, kNvfp4 = 2 };

// Blocks that an SM holds at once, by eights of rows of x per block.
constexpr int blocks_per_sm(int columns) { return columns <= 2 ? 2 : 1; }

struct Launch {
  Problem problem;
  Scales scales;
  int tiles;    // tile rows of W per warp: 1 or 2
  int columns;  // rows of x per block, in eights: 1, 2, 4 or 8
  bool fp16;  // activations: float16, else bfloat16
  bool e2m1;  // codes: E2M1, else NF4
  dim3 grid;
  cudaStream_t stream;
};

// Programmatic launch: the kernel starts while the one before it ends, and waits for it with wait_for_inputs().
template <typename... Parameters, typename... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, int shared_bytes, cudaStream_t stream,
                  Arguments&&... arguments) {
  if (shared_bytes > 48 << 10) {
    STD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  }
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  STD_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

// Each translation unit holds the kernels of one kind of scales.
void launch_group32(const Launch& launch);
void launch_group64(const Launch& launch);
void launch_group128(const Launch& launch);
void launch_e8m0(const Launch& launch);
void launch_e4m3(const Launch& launch);

}  // namespace vllm_spark::w4
