// Rounding to 4-bit codes: NF4 and E2M1 with the scales of NF4, MXFP4 and NVFP4, plain or searched.
//
// A thread takes 16 neighbouring values; the lanes of a block of 32, 64 or 128 values agree by shuffles. Codes come
// from a table of cells in shared memory, one copy per lane: a cell holds at most one rounding threshold, so that one
// look-up and one comparison are exact. The search compares candidates of the scale by a second table that gives each
// finer cell one level, which is off only within half a cell of a threshold; the codes are exact again.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace vllm_spark::quant {

inline constexpr int kUnit = 16;  // values per thread and step
inline constexpr int kThreads = 512;
inline constexpr int kStride = 256;  // bytes per cell: a byte permutation makes the address
inline constexpr int kExactCells = 96;
inline constexpr int kExactBytes = kExactCells * kStride;

// 2^-127: smaller scales have no finite reciprocal, and count as 0.
inline constexpr float kLeastScale = 5.877471754111438e-39f;
inline constexpr uint32_t kInfinity = 0x7f800000u;

// A weight to be quantised, row-major up to its strides, with the scales of an FP8 source.
struct Source {
  const void* data;
  int64_t row_stride;     // elements
  int64_t column_stride;
  const float* scale;     // null: none
  int64_t scale_stride;   // from one row of scales to the next
  int rows_per_scale;
  int columns_per_scale;
  bool vector;            // 16 values may be read at once
};

struct Job {
  Source source;
  int64_t rows;
  int columns;             // a multiple of the block
  uint8_t* codes;
  int64_t codes_stride;    // bytes
  void* scales;
  int64_t scales_stride;   // elements
  const float* global;     // NVFP4
  unsigned long long* bad; // values that are not finite, or too large for the type of the scales
};

// Levels by rising value, and the largest value that still rounds down to each. For E2M1 thresholds are those of
// magnitudes, of which there are seven.
struct Book {
  float threshold[15];
  float level[16];
};

__device__ __forceinline__ const float* scale_of(const Source& s, int64_t row, int column) {
  return s.scale + row / s.rows_per_scale * s.scale_stride + column / s.columns_per_scale;
}

// Exact values of 16 neighbouring elements.
template <typename T>
__device__ __forceinline__ void read_unit(const Source& s, int64_t row, int column, float (&v)[kUnit]) {
  const T* from = static_cast<const T*>(s.data) + row * s.row_stride + column * s.column_stride;
  alignas(16) T raw[kUnit];
  if (s.vector) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(raw) / 16); ++i) {
      reinterpret_cast<uint4*>(raw)[i] = __ldcs(reinterpret_cast<const uint4*>(from) + i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      raw[i] = from[i * s.column_stride];
    }
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    v[i] = static_cast<float>(raw[i]);
  }
  if (s.scale != nullptr) {
    const float scale = *scale_of(s, row, column);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      v[i] = __fmul_rn(v[i], scale);
    }
  }
}

// The bits of the largest magnitude; NaN counts as larger than infinity.
__device__ __forceinline__ uint32_t largest_bits(const float (&v)[kUnit]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
  }
  return most;
}

template <int kLanes>
__device__ __forceinline__ uint32_t agree_on_most(uint32_t most) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    most = max(most, __shfl_xor_sync(~0u, most, step));
  }
  return most;
}

template <int kLanes>
__device__ __forceinline__ float add_lanes(float sum) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    sum += __shfl_xor_sync(~0u, sum, step);
  }
  return sum;
}

// Counts the values that cannot be quantised, where `count` says so, and puts zeros in their place: nothing that
// follows may see a NaN, which would make an address of its own.
__device__ __forceinline__ void take_out_bad(const Job& job, float (&v)[kUnit], float limit, bool count) {
  int bad = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const bool good = fabsf(v[i]) <= limit;
    bad += !good;
    v[i] = good ? v[i] : 0.0f;
  }
  if (bad > 0 && count) {
    atomicAdd(job.bad, static_cast<unsigned long long>(bad));
  }
}

// A code book with its two tables. Exact: cell c covers (c - kExactFirst +- 1/2) / kExactPerOne and holds its threshold
// and the code below. Fine: cell c covers [c - kFineFirst, c - kFineFirst + 1) / kFinePerOne and holds one level.
struct Nf4Book {
  static constexpr int kThresholds = 15;
  static constexpr float kExactPerOne = 32.0f, kFinePerOne = 64.0f;
  static constexpr int kExactFirst = 48, kFineFirst = 96, kFineCells = 192;
  static constexpr float kMost = 1.45f;  // larger values lie outside of the tables
  static constexpr bool kSigned = false;
};

struct E2m1Book {
  static constexpr int kThresholds = 7;
  static constexpr float kExactPerOne = 4.0f, kFinePerOne = 4.0f;
  static constexpr int kExactFirst = 0, kFineFirst = 64, kFineCells = 128;
  static constexpr float kMost = 15.9f;
  static constexpr bool kSigned = true;  // codes are a sign and a magnitude
};

template <typename B>
__device__ __forceinline__ int count_below(const Book& book, float value) {
  int code = 0;
  for (int i = 0; i < B::kThresholds; ++i) {
    code += book.threshold[i] < value;
  }
  return code;
}

template <typename B>
__device__ __forceinline__ void fill_exact(char* table, const Book& book) {
  for (int at = threadIdx.x; at < kExactCells * 32; at += kThreads) {
    const float middle = static_cast<float>(at / 32 - B::kExactFirst);
    const int base = count_below<B>(book, (middle - 0.5f) / B::kExactPerOne);
    float threshold = __uint_as_float(kInfinity);
    if (base < B::kThresholds && book.threshold[base] <= (middle + 0.5f) / B::kExactPerOne) {
      threshold = book.threshold[base];
    }
    *reinterpret_cast<float2*>(table + at / 32 * kStride + at % 32 * 8) = make_float2(threshold, __int_as_float(base));
  }
}

template <typename B>
__device__ __forceinline__ void fill_fine(char* table, const Book& book) {
  for (int at = threadIdx.x; at < B::kFineCells * 32; at += kThreads) {
    const float middle = (static_cast<float>(at / 32 - B::kFineFirst) + 0.5f) / B::kFinePerOne;
    const float level = book.level[count_below<B>(book, B::kSigned ? fabsf(middle) : middle)];
    *reinterpret_cast<float*>(table + at / 32 * kStride + at % 32 * 4) = B::kSigned ? copysignf(level, middle) : level;
  }
}

// Exact code of y, which lies within the table.
template <typename B>
__device__ __forceinline__ uint32_t encode(const char* table, float y) {
  const float place = fmaf(B::kSigned ? fabsf(y) : y, B::kExactPerOne, 8388608.0f + B::kExactFirst);  // 2^23: byte 0
  const uint32_t at = __byte_perm(__float_as_uint(place), threadIdx.x % 32 * 8, 0x6504);
  const float2 cell = *reinterpret_cast<const float2*>(table + at);
  const uint32_t code = __float_as_int(cell.y) + ((B::kSigned ? fabsf(y) : y) > cell.x);
  return B::kSigned ? code | (__float_as_uint(y) >> 28 & 8u) : code;
}

// What a candidate of the search multiplies by; the codes use the exactly rounded reciprocal.
__device__ __forceinline__ float fast_reciprocal(float value) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
  return inverse;
}

// Squared error of 16 values with a scale, nearly: by the fine table.
template <typename B>
__device__ __forceinline__ float squared_error(const char* table, const float (&v)[kUnit], float inverse, float scale) {
  const float step = inverse * B::kFinePerOne;
  const uint32_t column = threadIdx.x % 32 * 4;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const float place = fmaf(v[i], step, 32768.0f + B::kFineFirst);  // 2^15: the whole part is in byte 1
    const uint32_t at = __byte_perm(__float_as_uint(place), column, 0x6514);
    const float left = fmaf(-scale, *reinterpret_cast<const float*>(table + at), v[i]);
    sum = fmaf(left, left, sum);
  }
  return sum;
}

}  // namespace vllm_spark::quant
