// From codes in rows back to values, 16 at a time.

#include <torch/csrc/stable/ops.h>

#include "codebooks.h"
#include "cuda_guard.h"
#include "quantize.h"
#include "quantize_host.h"

namespace vllm_spark::quant {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

enum class Stored : int { kBf16, kHalf, kE8m0, kE4m3, kFloat };

struct Expansion {
  const uint8_t* codes;
  int64_t codes_stride;
  const void* scales;
  int64_t scales_stride;
  Stored stored;
  int rows_per_scale;
  int columns_per_scale;
  const float* global;
  void* out;
  int64_t out_stride;
  int64_t rows;
  int columns;
  bool fp8;
  bool vector;
};

struct Levels {
  float value[16];
};

__device__ __forceinline__ float e4m3(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

__device__ __forceinline__ float scale_at(const Expansion& e, int64_t at) {
  switch (e.stored) {
    case Stored::kBf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(e.scales)[at]);
    case Stored::kHalf:
      return __half2float(static_cast<const __half*>(e.scales)[at]);
    case Stored::kE8m0: {
      const int exponent = static_cast<const uint8_t*>(e.scales)[at];
      return __int_as_float(exponent == 0 ? 0x00400000 : exponent << 23);
    }
    case Stored::kE4m3:
      return __fmul_rn(e4m3(static_cast<const uint8_t*>(e.scales)[at]), *e.global);
    default:
      return static_cast<const float*>(e.scales)[at];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    expand_rows(const __grid_constant__ Expansion e, const __grid_constant__ Levels levels) {
  __shared__ float table[16];  // sixteen values in sixteen banks: no conflicts
  if (threadIdx.x < 16) {
    table[threadIdx.x] = levels.value[threadIdx.x];
  }
  __syncthreads();
  const uint32_t per_row = (e.columns + kUnit - 1) / kUnit;
  const uint32_t units = static_cast<uint32_t>(e.rows) * per_row;
  for (uint32_t unit = blockIdx.x * kThreads + threadIdx.x; unit < units; unit += gridDim.x * kThreads) {
    const int64_t row = unit / per_row;
    const int column = unit % per_row * kUnit;
    const int count = min(kUnit, e.columns - column);
    const float scale = scale_at(e, row / e.rows_per_scale * e.scales_stride + column / e.columns_per_scale);
    const uint8_t* from = e.codes + row * e.codes_stride + (e.fp8 ? column : column / 2);
    alignas(16) uint8_t codes[kUnit] = {};
    const int bytes = e.fp8 ? count : count / 2;
    if (e.vector) {
      *reinterpret_cast<uint2*>(codes) = *reinterpret_cast<const uint2*>(from);
      if (e.fp8) {
        *reinterpret_cast<uint2*>(codes + 8) = *reinterpret_cast<const uint2*>(from + 8);
      }
    } else {
      for (int i = 0; i < bytes; ++i) {
        codes[i] = from[i];
      }
    }
    alignas(16) T values[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const float level = e.fp8 ? e4m3(codes[i]) : table[codes[i / 2] >> (4 * (i % 2)) & 15];
      values[i] = static_cast<T>(__fmul_rn(level, scale));
    }
    T* to = static_cast<T*>(e.out) + row * e.out_stride + column;
    if (e.vector) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(values) / 16); ++i) {
        reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(values)[i];
      }
    } else {
      for (int i = 0; i < count; ++i) {
        to[i] = values[i];
      }
    }
  }
}

Stored stored_of(const Tensor& scales) {
  switch (scales.scalar_type()) {
    case ScalarType::BFloat16:
      return Stored::kBf16;
    case ScalarType::Half:
      return Stored::kHalf;
    case ScalarType::Byte:
      return Stored::kE8m0;
    case ScalarType::Float8_e4m3fn:
      return Stored::kE4m3;
    case ScalarType::Float:
      return Stored::kFloat;
    default:
      STD_TORCH_CHECK(false, "scales have a dtype of no format");
  }
}

bool starts_at(const Tensor& t, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % bytes == 0 && t.stride(0) * t.element_size() % bytes == 0;
}

void expand(const Tensor& codes, const Tensor& scales, int rows_per_scale, int columns_per_scale, const float* global,
            const float* levels, const Tensor& out) {
  const DeviceScope scope(codes);
  Expansion e = {};
  e.fp8 = levels == nullptr;
  e.rows = codes.size(0);
  e.columns = static_cast<int>(codes.size(1) * (e.fp8 ? 1 : 2));
  check_result(out, codes, e.rows, e.columns, 1, "out");
  STD_TORCH_CHECK(codes.stride(1) == 1 && scales.stride(1) == 1, "rows of codes and scales must be contiguous");
  e.codes = static_cast<const uint8_t*>(codes.const_data_ptr());
  e.codes_stride = codes.stride(0);
  e.scales = scales.const_data_ptr();
  e.scales_stride = scales.stride(0);
  e.stored = stored_of(scales);
  e.rows_per_scale = rows_per_scale;
  e.columns_per_scale = columns_per_scale;
  e.global = global;
  e.out = out.mutable_data_ptr();
  e.out_stride = out.stride(0);
  e.vector = e.columns % kUnit == 0 && starts_at(codes, 8) && starts_at(out, 16);
  if (out.numel() == 0) {
    return;
  }
  Levels table = {};
  for (int i = 0; i < 16 && levels != nullptr; ++i) {
    table.value[i] = levels[i];
  }
  const int64_t units = e.rows * ((e.columns + kUnit - 1) / kUnit);
  STD_TORCH_CHECK(units < (int64_t{1} << 31), "codes has too many elements");
  const unsigned grid = grid_of(codes, units, 16);
  switch (out.scalar_type()) {
    case ScalarType::Float:
      expand_rows<float><<<grid, kThreads, 0, scope.stream()>>>(e, table);
      break;
    case ScalarType::BFloat16:
      expand_rows<__nv_bfloat16><<<grid, kThreads, 0, scope.stream()>>>(e, table);
      break;
    case ScalarType::Half:
      expand_rows<__half><<<grid, kThreads, 0, scope.stream()>>>(e, table);
      break;
    default:
      STD_TORCH_CHECK(false, "out must be float32, bfloat16 or float16");
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

int columns_per_scale(const Tensor& codes, const Tensor& scales) {
  STD_TORCH_CHECK(codes.dim() == 2 && scales.dim() == 2 && codes.scalar_type() == ScalarType::Byte,
                  "codes must be a uint8 matrix and scales a matrix");
  STD_TORCH_CHECK(scales.size(0) == codes.size(0) && scales.size(1) > 0 && codes.size(1) * 2 % scales.size(1) == 0,
                  "scales do not fit the codes");
  const int64_t block = codes.size(1) * 2 / scales.size(1);
  STD_TORCH_CHECK(block % kUnit == 0, "a scale must stand for a multiple of 16 columns");
  return static_cast<int>(block);
}

}  // namespace

}  // namespace vllm_spark::quant

namespace vllm_spark::cuda {

using torch::headeronly::ScalarType;

void dequantize_nf4(const Tensor& codes, const Tensor& scales, const Tensor& out) {
  quant::expand(codes, scales, 1, quant::columns_per_scale(codes, scales), nullptr, kNf4, out);
}

void dequantize_mxfp4(const Tensor& codes, const Tensor& scales, const Tensor& out) {
  quant::expand(codes, scales, 1, quant::columns_per_scale(codes, scales), nullptr, kE2m1, out);
}

void dequantize_nvfp4(const Tensor& codes, const Tensor& scales, const Tensor& global_scale, const Tensor& out) {
  STD_TORCH_CHECK(global_scale.is_cuda() && global_scale.numel() == 1, "global_scale must be one float32 on the GPU");
  quant::expand(codes, scales, 1, quant::columns_per_scale(codes, scales),
                static_cast<const float*>(global_scale.const_data_ptr()), kE2m1, out);
}

void dequantize_fp8(const Tensor& codes, const Tensor& scales, const Tensor& out) {
  STD_TORCH_CHECK(codes.dim() == 2 && scales.dim() == 2 && codes.scalar_type() == ScalarType::Float8_e4m3fn,
                  "codes must be a float8_e4m3fn matrix and scales a matrix");
  const bool by_rows = scales.size(0) == codes.size(0) && scales.size(1) == 1;
  STD_TORCH_CHECK(by_rows || (scales.size(0) == (codes.size(0) + 127) / 128 &&
                              scales.size(1) == (codes.size(1) + 127) / 128),
                  "scales do not fit the codes");
  quant::expand(codes, scales, by_rows ? 1 : 128, by_rows ? 1 << 30 : 128, nullptr, nullptr, out);
}

}  // namespace vllm_spark::cuda
