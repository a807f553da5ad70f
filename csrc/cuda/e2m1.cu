// E2M1 on the GPU: eight values, which are one 32-bit word of codes, per thread and step.

#include "e2m1.h"

#include <cstdint>

#include "cuda_guard.h"
#include "dispatch.h"
#include "e2m1.cuh"
#include "e2m1_shapes.h"

namespace vllm_spark::cuda {

namespace {

constexpr int kThreads = 256;

template <typename T>
struct alignas(16) Eight {
  T v[8];
};

__device__ int64_t first() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ int64_t stride() { return int64_t(gridDim.x) * blockDim.x; }

// `words` whole words, source aligned to 16 and codes to 4 bytes.
template <typename T>
__global__ void pack_words(const Eight<T>* from, uint32_t* to, int64_t words) {
  for (int64_t i = first(); i < words; i += stride()) {
    const Eight<T> part = from[i];
    float v[8];
    for (int k = 0; k < 8; ++k) {
      v[k] = static_cast<float>(part.v[k]);
    }
    to[i] = e2m1::encode8(v);
  }
}

// `bytes` bytes of codes from any address.
template <typename T>
__global__ void pack_bytes(const T* from, uint8_t* to, int64_t bytes) {
  for (int64_t i = first(); i < bytes; i += stride()) {
    const float v[8] = {static_cast<float>(from[2 * i]), static_cast<float>(from[2 * i + 1])};
    to[i] = static_cast<uint8_t>(e2m1::encode8(v));
  }
}

template <typename T>
__global__ void unpack_words(const uint32_t* from, Eight<T>* to, int64_t words) {
  for (int64_t i = first(); i < words; i += stride()) {
    const uint32_t word = from[i];
    Eight<T> part;
    for (int k = 0; k < 8; ++k) {
      part.v[k] = static_cast<T>(e2m1::decode(word >> (4 * k)));
    }
    to[i] = part;
  }
}

template <typename T>
__global__ void unpack_bytes(const uint8_t* from, T* to, int64_t bytes) {
  for (int64_t i = first(); i < bytes; i += stride()) {
    to[2 * i] = static_cast<T>(e2m1::decode(from[i]));
    to[2 * i + 1] = static_cast<T>(e2m1::decode(from[i] >> 4));
  }
}

__global__ void tell_hardware(uint8_t* answer) { *answer = e2m1::hardware() ? 1 : 0; }

bool aligned(const void* pointer, uintptr_t to) { return reinterpret_cast<uintptr_t>(pointer) % to == 0; }

// A slice may start at any element; only aligned tensors can move in words. What is left of the last word, or all
// of an unaligned tensor, goes by bytes.
int64_t words_of(const void* values, const void* codes, int64_t bytes) {
  return aligned(values, 16) && aligned(codes, 4) ? bytes / 4 : 0;
}

template <typename T>
void launch_pack(const T* from, uint8_t* to, int64_t bytes, cudaStream_t stream) {
  const int64_t words = words_of(from, to, bytes);
  if (words > 0) {
    pack_words<T><<<grid_for(words, kThreads), kThreads, 0, stream>>>(
        reinterpret_cast<const Eight<T>*>(from), reinterpret_cast<uint32_t*>(to), words);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  const int64_t rest = bytes - 4 * words;
  if (rest > 0) {
    pack_bytes<T><<<grid_for(rest, kThreads), kThreads, 0, stream>>>(from + 8 * words, to + 4 * words, rest);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

template <typename T>
void launch_unpack(const uint8_t* from, T* to, int64_t bytes, cudaStream_t stream) {
  const int64_t words = words_of(to, from, bytes);
  if (words > 0) {
    unpack_words<T><<<grid_for(words, kThreads), kThreads, 0, stream>>>(
        reinterpret_cast<const uint32_t*>(from), reinterpret_cast<Eight<T>*>(to), words);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  const int64_t rest = bytes - 4 * words;
  if (rest > 0) {
    unpack_bytes<T><<<grid_for(rest, kThreads), kThreads, 0, stream>>>(from + 4 * words, to + 8 * words, rest);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

}  // namespace

torch::stable::Tensor e2m1_pack(const torch::stable::Tensor& x) {
  const DeviceScope scope(x);
  torch::stable::Tensor packed = new_packed(x);
  const torch::stable::Tensor source = torch::stable::contiguous(x);
  dispatch_real(x.scalar_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    launch_pack<T>(source.const_data_ptr<T>(), packed.mutable_data_ptr<uint8_t>(), packed.numel(), scope.stream());
  });
  return packed;
}

torch::stable::Tensor e2m1_unpack(const torch::stable::Tensor& packed, torch::headeronly::ScalarType dtype) {
  const DeviceScope scope(packed);
  torch::stable::Tensor values = new_unpacked(packed, dtype);
  const torch::stable::Tensor source = torch::stable::contiguous(packed);
  dispatch_real(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_unpack<T>(source.const_data_ptr<uint8_t>(), values.mutable_data_ptr<T>(), source.numel(), scope.stream());
  });
  return values;
}

// Asks the image that the driver chose, which the compute capability alone does not tell.
bool e2m1_hardware(const torch::stable::Tensor& like) {
  const DeviceScope scope(like);
  const torch::stable::Tensor answer = torch::stable::new_empty(like, {1}, torch::headeronly::ScalarType::Byte);
  tell_hardware<<<1, 1, 0, scope.stream()>>>(answer.mutable_data_ptr<uint8_t>());
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  uint8_t told = 0;
  STD_CUDA_CHECK(cudaMemcpyAsync(&told, answer.const_data_ptr<uint8_t>(), 1, cudaMemcpyDeviceToHost, scope.stream()));
  STD_CUDA_CHECK(cudaStreamSynchronize(scope.stream()));
  return told == 1;
}

}  // namespace vllm_spark::cuda
