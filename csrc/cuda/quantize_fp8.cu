// Quantiser to FP8, by rows or by blocks of 128 x 128: one thread block per scale.

#include <torch/csrc/stable/ops.h>

#include "cuda_guard.h"
#include "quantize.h"
#include "quantize_host.h"

namespace vllm_spark::quant {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int kFp8Threads = 256;
constexpr int kFp8Warps = kFp8Threads / 32;
constexpr int kCandidates = 8;

// What one thread block quantises.
struct Group {
  int64_t row;
  int rows;
  int column;
  int columns;
};

__device__ __forceinline__ float factor(int i) {
  return i < 5 ? 1.0f + 0.0625f * static_cast<float>(i) : i == 5 ? 1.375f : i == 6 ? 1.5f : 1.75f;
}

__device__ __forceinline__ __nv_fp8_storage_t to_e4m3(float v) {
  return __nv_cvt_float_to_fp8(fminf(fmaxf(v, -448.0f), 448.0f), __NV_SATFINITE, __NV_E4M3);
}

// 16 columns of the group: where, how many of them exist, and their values; what lies beyond is zero.
struct Unit {
  int64_t row;
  int column;
  int count;
  float v[kUnit];
};

template <typename T>
__device__ __forceinline__ void read_group_unit(const Source& source, const Group& g, int at, Unit& unit) {
  const int per_row = (g.columns + kUnit - 1) / kUnit;
  unit.row = g.row + at / per_row;
  unit.column = g.column + at % per_row * kUnit;
  unit.count = min(kUnit, g.column + g.columns - unit.column);
  if (unit.count == kUnit) {
    read_unit<T>(source, unit.row, unit.column, unit.v);
    return;
  }
  const float scale = source.scale == nullptr ? 1.0f : *scale_of(source, unit.row, unit.column);
  const T* from = static_cast<const T*>(source.data) + unit.row * source.row_stride;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    unit.v[i] = i < unit.count
                    ? __fmul_rn(static_cast<float>(from[(unit.column + i) * source.column_stride]), scale)
                    : 0.0f;
  }
}

// Call `f(unit)` for every unit of this thread. The first two stay in registers between calls: all of a row of
// 8192, and half of a group of 128 x 128.
template <typename T>
struct Units {
  static constexpr int kHeld = 2;
  Unit held[kHeld];
  int count;

  __device__ __forceinline__ Units(const Source& source, const Group& g)
      : count((g.columns + kUnit - 1) / kUnit * g.rows) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int at = threadIdx.x + i * kFp8Threads;
      if (at < count) {
        read_group_unit<T>(source, g, at, held[i]);
      }
    }
  }

  template <typename F>
  __device__ __forceinline__ void each(const Source& source, const Group& g, F&& f) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (static_cast<int>(threadIdx.x) + i * kFp8Threads < count) {
        f(held[i]);
      }
    }
    for (int at = threadIdx.x + kHeld * kFp8Threads; at < count; at += kFp8Threads) {
      Unit unit;
      read_group_unit<T>(source, g, at, unit);
      f(unit);
    }
  }
};

// The same value for all threads: `join` over them, in a fixed order.
template <typename V, typename F>
__device__ __forceinline__ V agree(V mine, V* shared, F&& join) {
  for (int step = 16; step > 0; step /= 2) {
    mine = join(mine, __shfl_xor_sync(~0u, mine, step));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32] = mine;
  }
  __syncthreads();
  V all = shared[0];
  for (int i = 1; i < kFp8Warps; ++i) {
    all = join(all, shared[i]);
  }
  return all;
}

// 16 values there and back, squared differences added up.
__device__ __forceinline__ float fp8_error(const float (&v)[kUnit], float inverse, float scale) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kUnit; i += 2) {
    // No clamp: the largest value of the group is the plain scale times 448, and candidates are larger.
    const __nv_fp8x2_storage_t codes =
        __nv_cvt_float2_to_fp8x2(make_float2(v[i] * inverse, v[i + 1] * inverse), __NV_SATFINITE, __NV_E4M3);
    const float2 back = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
    const float first = fmaf(back.x, scale, -v[i]);
    const float second = fmaf(back.y, scale, -v[i + 1]);
    sum = fmaf(first, first, fmaf(second, second, sum));
  }
  return sum;
}

template <typename T>
__device__ __forceinline__ float search_scale(const Source& source, const Group& g, const Units<T>& units, float plain,
                                              float* shared) {
  float error[kCandidates] = {};
  units.each(source, g, [&](const Unit& unit) {
#pragma unroll
    for (int c = 0; c < kCandidates; ++c) {
      const float scale = __fmul_rn(plain, factor(c));
      error[c] += fp8_error(unit.v, __frcp_rn(scale), scale);
    }
  });
  float best = plain;
  float least = __uint_as_float(kInfinity);
#pragma unroll
  for (int c = 0; c < kCandidates; ++c) {
    const float all = agree(error[c], shared, [](float a, float b) { return a + b; });
    if (all < least) {
      least = all;
      best = __fmul_rn(plain, factor(c));
    }
  }
  return best;
}

template <typename T>
__global__ void __launch_bounds__(kFp8Threads, 2)
    quantize_groups(const __grid_constant__ Job job, int side, int width, bool search) {
  __shared__ uint32_t shared[kFp8Warps];
  const int wide = (job.columns + width - 1) / width;
  const int64_t group = blockIdx.x;
  Group g;
  g.row = group / wide * side;
  g.rows = static_cast<int>(min(int64_t{side}, job.rows - g.row));
  g.column = static_cast<int>(group % wide) * width;
  g.columns = min(width, job.columns - g.column);
  const Units<T> units(job.source, g);
  uint32_t most = 0;
  units.each(job.source, g, [&](const Unit& unit) {
    const uint32_t bits = largest_bits(unit.v);
    if (bits >= kInfinity) {
      float v[kUnit];
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        v[i] = unit.v[i];
      }
      take_out_bad(job, v, 3.4028234663852886e38f, true);
    }
    most = max(most, bits);
  });
  most = agree(most, shared, [](uint32_t a, uint32_t b) { return max(a, b); });
  const float largest = __uint_as_float(min(most, kInfinity - 1));
  float scale = __fdiv_rn(fmaxf(largest, 7.888609052210118e-31f), 448.0f);  // 2^-100, so that no reciprocal overflows
  if (search) {
    scale = search_scale<T>(job.source, g, units, scale, reinterpret_cast<float*>(shared));
  }
  const float inverse = __frcp_rn(scale);
  units.each(job.source, g, [&](const Unit& unit) {
    alignas(16) uint8_t codes[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      codes[i] = to_e4m3(__fmul_rn(unit.v[i], inverse));
    }
    uint8_t* to = job.codes + unit.row * job.codes_stride + unit.column;
    if (unit.count == kUnit && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(codes);
    } else {
      for (int i = 0; i < unit.count; ++i) {
        to[i] = codes[i];
      }
    }
  });
  if (threadIdx.x == 0) {
    static_cast<float*>(job.scales)[group / wide * job.scales_stride + group % wide] = scale;
  }
}

}  // namespace

}  // namespace vllm_spark::quant

namespace vllm_spark::cuda {

using torch::headeronly::ScalarType;

void quantize_fp8(const Tensor& x, const MaybeTensor& x_scale, bool search, const Tensor& codes, const Tensor& scales,
                  const Tensor& bad) {
  const DeviceScope scope(x);
  quant::Job job = {};
  job.source = quant::source_of(x, x_scale);
  quant::check_counter(bad, x);
  const int64_t rows = x.size(0);
  const int64_t columns = x.size(1);
  STD_TORCH_CHECK(columns < (int64_t{1} << 31), "x has too many columns");
  STD_TORCH_CHECK(scales.dim() == 2 && scales.scalar_type() == ScalarType::Float, "scales must be a float32 matrix");
  STD_TORCH_CHECK(codes.scalar_type() == ScalarType::Float8_e4m3fn, "codes must be float8_e4m3fn");
  const bool by_rows = scales.size(0) == rows && scales.size(1) == 1 && rows != 1;
  const bool one_row = rows == 1 && scales.size(0) == 1 && scales.size(1) == 1 && columns > 128;
  const int side = by_rows || one_row ? 1 : 128;
  const int width = side == 1 ? static_cast<int>(columns) : 128;
  quant::check_result(codes, x, rows, columns, 1, "codes");
  quant::check_result(scales, x, (rows + side - 1) / side, side == 1 ? 1 : (columns + 127) / 128, 1, "scales");
  job.rows = rows;
  job.columns = static_cast<int>(columns);
  job.codes = static_cast<uint8_t*>(codes.mutable_data_ptr());
  job.codes_stride = codes.stride(0);
  job.scales = scales.mutable_data_ptr();
  job.scales_stride = scales.stride(0);
  job.bad = static_cast<unsigned long long*>(bad.mutable_data_ptr());
  if (x.numel() == 0) {
    return;
  }
  const auto groups = static_cast<unsigned>(scales.size(0) * scales.size(1));
  quant::dispatch_source(x, [&](auto type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    quant::quantize_groups<T><<<groups, quant::kFp8Threads, 0, scope.stream()>>>(job, side, width, search);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace vllm_spark::cuda
