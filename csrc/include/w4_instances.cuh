// The kernels of one kind of scales, and the choice among them.
#pragma once

#include <torch/csrc/stable/macros.h>
#include <torch/headeronly/util/Exception.h>

#include "codebooks.h"
#include "w4_launch.h"

namespace vllm_spark::w4 {

inline Codebook codebook(bool e2m1, bool fp16) {
  Codebook book;
  for (int i = 0; i < 16; ++i) {
    const float value = e2m1 ? kE2m1[i] : kNf4[i];
    book.bits[i] = fp16 ? __half_as_ushort(__float2half_rn(value)) : __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
  return book;
}

template <typename T, Scales S, int kN, int kM, int kDepth, int kBlocks>
bool launch_if(const Launch& launch) {
  if (launch.tiles != kN || launch.columns != kM) {
    return false;
  }
  launch_early(w4_kernel<T, S, kN, kM, kDepth, kBlocks>, launch.grid, kTableBytes, launch.stream, launch.problem,
               codebook(launch.e2m1, launch.fp16));
  return true;
}

// Depth and blocks per SM are what measured best on an H100 without spilling (docs/kernels.md). Those of four and
// eight columns use most of the registers, so that one block fills an SM: blocks_per_sm() knows.
template <typename T, Scales S>
void launch_typed(const Launch& l) {
  const bool known = launch_if<T, S, 1, 1, 4, 2>(l) || launch_if<T, S, 2, 1, 2, 2>(l) ||
                     launch_if<T, S, 1, 2, 4, 2>(l) || launch_if<T, S, 2, 2, 2, 2>(l) ||
                     launch_if<T, S, 1, 4, 4, 1>(l) || launch_if<T, S, 2, 4, 2, 1>(l) ||
                     launch_if<T, S, 1, 8, 2, 1>(l) || launch_if<T, S, 2, 8, 2, 1>(l);
  STD_TORCH_CHECK(known, "no 4-bit kernel for ", l.tiles, " tiles and ", l.columns, " columns");
}

template <Scales S>
void launch_scales(const Launch& launch) {
  if (launch.fp16) {
    launch_typed<__half, S>(launch);
  } else {
    launch_typed<__nv_bfloat16, S>(launch);
  }
}

}  // namespace vllm_spark::w4
