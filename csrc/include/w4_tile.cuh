// The layout of 4-bit weights that the kernels read, and how one tile of it meets the tensor cores.
//
// A tile is 16 rows (outputs) by 64 columns (inputs): 512 bytes, which one warp reads in one 16-byte load per lane.
// Lane 4g + t holds, for the rows g and g + 8, the columns 8t .. 8t + 7 and 32 + 8t .. 32 + 8t + 7. That is the A
// fragment of mma.m16n8k16 up to a permutation of the columns, which costs nothing as long as the activations take
// part in it: a lane reads eight neighbouring activations, again in one 16-byte load.
//
// Codes become values through a table in shared memory: a byte (two codes) selects a pair of values. Every lane has
// its own copy of the 256 pairs in its own bank, so that 32 arbitrary bytes never conflict. Entries lie 256 bytes
// apart: then one byte permutation makes the address, and half of the table's 64 KB stays unused. The table is data:
// NF4 and E2M1 share the kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace vllm_spark::w4 {

inline constexpr int kTileRows = 16;
inline constexpr int kTileColumns = 64;
inline constexpr int kTileWords = 128;    // of 32 bits
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kTableStride = 256;  // bytes between two entries
inline constexpr int kTableBytes = 256 * kTableStride;

// How the scales of a tile are stored; rows g and g + 8 lie side by side. 16-bit scales have the activations' type.
enum class Scales {
  kGroup32,   // 16-bit, one per 32 columns: [tile][8][2 groups][2]
  kGroup64,   // 16-bit, one per 64 columns: [tile][8][2]
  kGroup128,  // 16-bit, one per 128 columns: [pair of tiles][8][2]
  kE8m0,      // one byte per 32 columns: [tile][8][2 groups][2]
  kE4m3,      // one byte per 16 columns: [tile][8][2 of t][2 halves][2]
};

// Scale words per tile (or pair of tiles), as many as lanes that read different ones.
template <Scales S>
inline constexpr int kScaleWords = S == Scales::kE4m3 ? 16 : 8;

// The bits of 16 values in the type of the activations; travels as a kernel argument.
struct Codebook {
  uint16_t bits[16];
};

// The words of scales that one lane reads per tile.
template <Scales S>
using ScaleWord = std::conditional_t<S == Scales::kGroup32, uint2, uint32_t>;

// Weights pass by once: they should not push the activations out of L1.
__device__ __forceinline__ uint4 load_once(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ uint32_t load_once(const uint32_t* from) { return __ldg(from); }
__device__ __forceinline__ uint2 load_once(const uint2* from) { return __ldg(from); }

// The whole block fills the table; a barrier must follow.
__device__ __forceinline__ void fill_table(char* table, const Codebook& book) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const uint32_t mine = book.bits[threadIdx.x & 15] | (uint32_t(book.bits[threadIdx.x >> 4]) << 16);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int entry = 4 * i + lane / 8;
    const uint32_t v = __shfl_sync(~0u, mine, entry);
    *reinterpret_cast<uint4*>(table + (warp * 32 + entry) * kTableStride + (lane % 8) * 16) = make_uint4(v, v, v, v);
  }
}

// The pair of values that byte `kByte` of `word` stands for; `column` is 4 times the lane.
template <int kByte>
__device__ __forceinline__ uint32_t look_up(const char* table, uint32_t column, uint32_t word) {
  return *reinterpret_cast<const uint32_t*>(table + __byte_perm(word, column, 0x6504 | (kByte << 4)));
}

// d += a (16 x 16) times b (16 x 8), in float32.
template <typename T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ __forceinline__ float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// The scales of rows g and g + 8 for half `j` of the tile, in float32.
template <typename T, Scales S>
__device__ __forceinline__ float2 row_scales(const ScaleWord<S>& word, int j) {
  if constexpr (S == Scales::kE4m3) {
    return {1.0f, 1.0f};  // they are in the A fragments
  } else if constexpr (S == Scales::kE8m0) {
    // 2^(e - 127); e = 0 is 2^-127, which is the subnormal 0x00400000.
    const auto decode = [](uint32_t e) { return __uint_as_float(e == 0 ? 0x00400000u : e << 23); };
    return {decode((word >> (16 * j)) & 255u), decode((word >> (16 * j + 8)) & 255u)};
  } else {
    uint32_t pair;
    if constexpr (S == Scales::kGroup32) {
      pair = j == 0 ? word.x : word.y;
    } else {
      pair = word;
    }
    if constexpr (std::is_same_v<T, __half>) {
      return {half_bits(pair & 0xffffu), half_bits(pair >> 16)};
    } else {
      return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
    }
  }
}

// An E4M3 scale twice, in the type of the activations. Its product with an E2M1 value has 6 significant bits and
// lies in 2^-10 .. 2688: exact in both types.
template <typename T>
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t byte) {
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(byte | (byte << 8))));
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const float value = half_bits(pair & 0xffffu);
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(pair) : "f"(value));
  }
  return pair;
}

template <typename T>
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t product;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  } else {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  }
  return product;
}

// The A fragments of a tile: four steps of 16 columns. E4M3 scales are already in them.
template <typename T, Scales S>
__device__ __forceinline__ void decode_tile(uint32_t (&a)[4][4], const char* table, const uint4& q,
                                            const ScaleWord<S>& scales) {
  const uint32_t column = (threadIdx.x % 32) * 4;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t g = j == 0 ? q.x : q.z;   // row g
    const uint32_t g8 = j == 0 ? q.y : q.w;  // row g + 8
    a[2 * j][0] = look_up<0>(table, column, g);
    a[2 * j][1] = look_up<0>(table, column, g8);
    a[2 * j][2] = look_up<1>(table, column, g);
    a[2 * j][3] = look_up<1>(table, column, g8);
    a[2 * j + 1][0] = look_up<2>(table, column, g);
    a[2 * j + 1][1] = look_up<2>(table, column, g8);
    a[2 * j + 1][2] = look_up<3>(table, column, g);
    a[2 * j + 1][3] = look_up<3>(table, column, g8);
    if constexpr (S == Scales::kE4m3) {
      const uint32_t s[2] = {e4m3_pair<T>((scales >> (16 * j)) & 255u), e4m3_pair<T>((scales >> (16 * j + 8)) & 255u)};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        uint32_t& pair = a[2 * j + i / 4][i % 4];
        pair = multiply_pairs<T>(pair, s[i % 2]);
      }
    }
  }
}

// sum += tile (16 x 64) times activations (64 x 8), scales included. `x[j]` holds one row's activations in the lane's
// columns of half j.
template <typename T, Scales S>
__device__ __forceinline__ void multiply_tile(float (&sum)[4], const uint32_t (&a)[4][4], const float2 (&scale)[2],
                                              const uint4 (&x)[2]) {
  constexpr bool kInA = S == Scales::kE4m3;
  constexpr bool kPerTile = S == Scales::kGroup64 || S == Scales::kGroup128;
  float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    mma<T>(kInA ? sum : part, a[2 * j], x[j].x, x[j].y);
    mma<T>(kInA ? sum : part, a[2 * j + 1], x[j].z, x[j].w);
    if (!kInA && (!kPerTile || j == 1)) {
      sum[0] = fmaf(scale[j].x, part[0], sum[0]);
      sum[1] = fmaf(scale[j].x, part[1], sum[1]);
      sum[2] = fmaf(scale[j].y, part[2], sum[2]);
      sum[3] = fmaf(scale[j].y, part[3], sum[3]);
      part[0] = part[1] = part[2] = part[3] = 0.0f;
    }
  }
}

}  // namespace vllm_spark::w4
