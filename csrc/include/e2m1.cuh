// E2M1, the 4-bit float of OCP Microscaling Formats 1.0 section 5.3.3: one sign, two exponent, one mantissa bit; the magnitudes
// 0 0.5 1 1.5 2 3 4 6. Encoding rounds to nearest, ties to the even code, and saturates; NaN becomes +6 and the sign
// of zero is kept, as `cvt.rn.satfinite.e2m1x2.f32` does (PTX ISA 9.0, section cvt).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SPARK_HD __host__ __device__ __forceinline__
#else
#define SPARK_HD inline
#endif

// The instruction exists on architecture-specific (a) and family-specific (f) targets from 10.0 on. The macros alone
// are not enough: sm_90a sets one of them and has no such instruction.
#if defined(__CUDA_ARCH__) && (defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__))
#if __CUDA_ARCH__ >= 1000
#define SPARK_E2M1_HARDWARE 1
#endif
#endif

namespace vllm_spark::e2m1 {

// The code of x in software. A bound that is a tie belongs to the even code: the lower one for `<=`, the upper one
// for `<`. The comparisons are written so that NaN fails all of them and counts to 7.
SPARK_HD uint32_t encode(float x) {
  const float a = x < 0.0f ? -x : x;
  const uint32_t magnitude = uint32_t(!(a <= 0.25f)) + uint32_t(!(a < 0.75f)) + uint32_t(!(a <= 1.25f)) +
                             uint32_t(!(a < 1.75f)) + uint32_t(!(a <= 2.5f)) + uint32_t(!(a < 3.5f)) +
                             uint32_t(!(a <= 5.0f));
  const bool negative = x == x && __builtin_signbit(x) != 0;
  return magnitude | (negative ? 8u : 0u);
}

// The value of the low four bits of `code`; exact in float32, bfloat16 and float16.
SPARK_HD float decode(uint32_t code) {
  const uint32_t exponent = (code >> 1) & 3u;
  const float mantissa = 0.5f * static_cast<float>(code & 1u);
  const float magnitude = exponent == 0 ? mantissa : (1.0f + mantissa) * static_cast<float>(1u << (exponent - 1));
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

// Eight codes in one word, v[0] in the lowest four bits.
SPARK_HD uint32_t encode8(const float (&v)[8]) {
#ifdef SPARK_E2M1_HARDWARE
  uint32_t word;
  asm("{\n"
      "  .reg .b8 p0, p1, p2, p3;\n"
      "  cvt.rn.satfinite.e2m1x2.f32 p0, %2, %1;\n"
      "  cvt.rn.satfinite.e2m1x2.f32 p1, %4, %3;\n"
      "  cvt.rn.satfinite.e2m1x2.f32 p2, %6, %5;\n"
      "  cvt.rn.satfinite.e2m1x2.f32 p3, %8, %7;\n"
      "  mov.b32 %0, {p0, p1, p2, p3};\n"
      "}"
      : "=r"(word)
      : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
  return word;
#else
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    word |= encode(v[i]) << (4 * i);
  }
  return word;
#endif
}

// Whether encode8 is the hardware's on this target.
SPARK_HD constexpr bool hardware() {
#ifdef SPARK_E2M1_HARDWARE
  return true;
#else
  return false;
#endif
}

}  // namespace vllm_spark::e2m1
