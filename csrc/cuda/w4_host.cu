// Checks of 4-bit weights, the way from a weight to a launch, and the expansion of a weight.

#include "w4_host.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>

#include <array>

#include "w4_instances.cuh"

namespace vllm_spark::w4 {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

struct FloatBook {
  float value[16];
};

// The scale of row g (+ 8 where `upper`) in half `j` of a tile whose scale words start at `tile`.
template <typename T>
__device__ __forceinline__ float scale_at(const Problem& p, Scales kind, int64_t tile, int j, int upper) {
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  if (kind == Scales::kE8m0) {
    const uint32_t e = static_cast<const uint8_t*>(p.scales)[tile * 32 + g * 4 + j * 2 + upper];
    return __uint_as_float(e == 0 ? 0x00400000u : e << 23);
  }
  if (kind == Scales::kE4m3) {
    const uint32_t byte = static_cast<const uint8_t*>(p.scales)[tile * 64 + (g * 2 + t / 2) * 4 + j * 2 + upper];
    return half_bits(e4m3_pair<__half>(byte) & 0xffffu);
  }
  const int64_t at = kind == Scales::kGroup32 ? tile * 32 + g * 4 + j * 2 + upper : tile * 16 + g * 2 + upper;
  return static_cast<float>(static_cast<const T*>(p.scales)[at]);
}

// One warp expands one tile; sixteen values lie in sixteen banks, so that looking them up never conflicts.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    expand_tiles(const __grid_constant__ Problem p, const __grid_constant__ FloatBook book, Scales kind, int first) {
  __shared__ float table[16];
  if (threadIdx.x < 16) {
    table[threadIdx.x] = book.value[threadIdx.x];
  }
  __syncthreads();
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  const int tile_k = static_cast<int>(at % p.tiles_k);
  const int64_t tile_n = at / p.tiles_k;
  if (tile_n * kTileRows >= p.rows) {
    return;
  }
  const int64_t source = first + tile_n;
  const uint4 q = load_once(p.weight + (source * p.tiles_k + tile_k) * 32 + lane);
  const uint32_t words[4] = {q.x, q.y, q.z, q.w};
  const float alpha = p.alpha == nullptr ? 1.0f : *p.alpha;
  const int64_t scale_tile = source * p.scale_columns + (kind == Scales::kGroup128 ? tile_k / 2 : tile_k);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = tile_n * kTileRows + lane / 4 + (i % 2) * 8;
    const int column = tile_k * kTileColumns + 32 * (i / 2) + (lane % 4) * 8;
    const float scale = alpha * scale_at<T>(p, kind, scale_tile, i / 2, i % 2);
    alignas(16) T values[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      values[c] = static_cast<T>(scale * table[(words[i] >> (4 * c)) & 15u]);
    }
    if (row < p.rows && column < p.k) {
      *reinterpret_cast<uint4*>(static_cast<T*>(p.out) + row * p.out_stride + column) =
          *reinterpret_cast<const uint4*>(values);
    }
  }
}

// The kind of scales follows from their shape: [tiles_n, columns, width].
Scales kind_of(Format format, const Tensor& scales, int64_t tiles_k) {
  if (format != Format::kNf4) {
    return format == Format::kMxfp4 ? Scales::kE8m0 : Scales::kE4m3;
  }
  if (scales.size(-1) == 4 * kScaleWords<Scales::kGroup32>) {
    return Scales::kGroup32;
  }
  return scales.size(-2) == tiles_k ? Scales::kGroup64 : Scales::kGroup128;
}

void check_scales(const Weight& w) {
  const Tensor& s = *w.scales;
  const int64_t d = s.dim();
  const bool word16 = w.scales_kind == Scales::kGroup64 || w.scales_kind == Scales::kGroup128;
  const int64_t width = w.scales_kind == Scales::kE4m3 ? 64 : word16 ? 16 : 32;
  const int64_t columns = w.scales_kind == Scales::kGroup128 ? ceil_div(w.tiles_k, 2) : w.tiles_k;
  STD_TORCH_CHECK(s.is_cuda() && s.is_contiguous() && s.get_device_index() == w.tiles->get_device_index(),
                  "scales must be contiguous and on the weight's device");
  STD_TORCH_CHECK(s.size(d - 1) == width && s.size(d - 2) == columns && s.size(d - 3) == w.tiles_n &&
                      (d == 3 || s.size(0) == w.experts),
                  "scales do not have the shape that belongs to this weight");
  const ScalarType dtype = s.scalar_type();
  const bool fits = w.format == Format::kMxfp4   ? dtype == ScalarType::Byte
                    : w.format == Format::kNvfp4 ? dtype == ScalarType::Float8_e4m3fn
                                                 : dtype == ScalarType::BFloat16 || dtype == ScalarType::Half;
  STD_TORCH_CHECK(fits, "scales must be uint8 (mxfp4), float8_e4m3fn (nvfp4), bfloat16 or float16 (nf4)");
}

}  // namespace

Weight weight_of(Format format, const Tensor& tiles, const Tensor& scales, const std::optional<Tensor>& global_scale,
                 int64_t n, int64_t k) {
  const int64_t d = tiles.dim();
  STD_TORCH_CHECK(d == 3 || d == 4, "weight must be [tiles_n, tiles_k, 128], or that per expert");
  STD_TORCH_CHECK(tiles.is_cuda() && tiles.is_contiguous() && tiles.scalar_type() == ScalarType::Int &&
                      tiles.size(d - 1) == kTileWords,
                  "weight must be contiguous int32 tiles of 128 words on a GPU");
  STD_TORCH_CHECK(scales.dim() == d, "scales must have as many dimensions as weight");
  Weight w;
  w.format = format;
  w.tiles = &tiles;
  w.scales = &scales;
  w.experts = d == 4 ? tiles.size(0) : 1;
  w.n = n;
  w.k = k;
  w.tiles_n = tiles.size(d - 3);
  w.tiles_k = tiles.size(d - 2);
  w.scales_kind = kind_of(format, scales, w.tiles_k);
  w.scale_columns = scales.size(d - 2);
  STD_TORCH_CHECK(ceil_div(n, kTileRows) == w.tiles_n, "weight has ", w.tiles_n, " tile rows, n = ", n, " needs ",
                  ceil_div(n, kTileRows));
  STD_TORCH_CHECK(ceil_div(k, kTileColumns) == w.tiles_k, "weight has ", w.tiles_k, " tile columns, x has ", k,
                  " columns");
  check_scales(w);
  w.alpha = nullptr;
  if (global_scale.has_value()) {
    check_vector(*global_scale, w.experts, ScalarType::Float, "global_scale");
    w.alpha = static_cast<const float*>(global_scale->const_data_ptr());
  }
  return w;
}

void check_activations(const Tensor& x, const Weight& weight) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::BFloat16 || x.scalar_type() == ScalarType::Half,
                  "x must be bfloat16 or float16");
  STD_TORCH_CHECK(weight.format != Format::kNf4 || weight.scales->scalar_type() == x.scalar_type(),
                  "scales of NF4 must have the dtype of x");
  STD_TORCH_CHECK(x.dim() == 2 && x.get_device_index() == weight.tiles->get_device_index(),
                  "x must be [rows, k] on the weight's device");
  STD_TORCH_CHECK(x.stride(1) == 1 && x.stride(0) % 8 == 0 && x.size(1) % 8 == 0 &&
                      reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0,
                  "rows of x must be contiguous and start at multiples of 16 bytes");
  STD_TORCH_CHECK(x.size(0) < (int64_t{1} << 31), "x has too many rows");
}

void check_vector(const Tensor& vector, int64_t size, ScalarType dtype, const char* name) {
  STD_TORCH_CHECK(vector.is_cuda() && vector.is_contiguous() && vector.numel() == size && vector.scalar_type() == dtype,
                  name, " must hold ", size, " contiguous elements of the right dtype on a GPU");
}

Launch launch_of(const Tensor& x, const Weight& weight, cudaStream_t stream) {
  Launch launch = {};
  launch.scales = weight.scales_kind;
  launch.fp16 = x.scalar_type() == ScalarType::Half;
  launch.e2m1 = weight.format != Format::kNf4;
  launch.stream = stream;
  Problem& p = launch.problem;
  p.x = x.const_data_ptr();
  p.x_stride = x.stride(0);
  p.weight = static_cast<const uint4*>(weight.tiles->const_data_ptr());
  p.scales = weight.scales->const_data_ptr();
  p.alpha = weight.alpha;
  p.expert_tiles = weight.tiles_n * weight.tiles_k;
  p.expert_words = weight.tiles_n * weight.scale_columns;
  p.n = static_cast<int>(weight.n);
  p.k = static_cast<int>(weight.k);
  p.tiles_n = static_cast<int>(weight.tiles_n);
  p.tiles_k = static_cast<int>(weight.tiles_k);
  p.scale_columns = static_cast<int>(weight.scale_columns);
  p.tile1 = 1;
  return launch;
}

void launch(const Launch& launch) {
  switch (launch.scales) {
    case Scales::kGroup32:
      return launch_group32(launch);
    case Scales::kGroup64:
      return launch_group64(launch);
    case Scales::kGroup128:
      return launch_group128(launch);
    case Scales::kE8m0:
      return launch_e8m0(launch);
    case Scales::kE4m3:
      return launch_e4m3(launch);
  }
}

void dequantize(const Weight& weight, int64_t first, const Tensor& out, cudaStream_t stream) {
  Launch launch = launch_of(out, weight, stream);
  Problem& p = launch.problem;
  p.out = out.mutable_data_ptr();
  p.out_stride = out.stride(0);
  p.rows = static_cast<int>(out.size(0));
  FloatBook book;
  for (int i = 0; i < 16; ++i) {
    book.value[i] = launch.e2m1 ? kE2m1[i] : kNf4[i];
  }
  const int64_t warps = ceil_div(p.rows, kTileRows) * p.tiles_k;
  const auto grid = static_cast<unsigned>(ceil_div(warps, kWarps));
  const int tile = static_cast<int>(first / kTileRows);
  if (launch.fp16) {
    expand_tiles<__half><<<grid, kThreads, 0, stream>>>(p, book, launch.scales, tile);
  } else {
    expand_tiles<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(p, book, launch.scales, tile);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

int multiprocessors(int32_t device) {
  int count = 0;
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

int split_for(int64_t warp_rows, int64_t tiles_k, int columns, int sms) {
  constexpr int64_t kPriceOfWave = 3;  // in tiles: filling the table and adding the parts
  int best = 1;
  int64_t least = -1;
  for (int split = 1; split <= kWarps; split *= 2) {
    const int64_t waves = ceil_div(ceil_div(warp_rows * split, kWarps), int64_t{blocks_per_sm(columns)} * sms);
    const int64_t cost = waves * (ceil_div(tiles_k, split) + kPriceOfWave);
    if (least < 0 || cost < least) {
      least = cost;
      best = split;
    }
  }
  return best;
}

Tensor dense_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(x), from(weight), from(bias)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace vllm_spark::w4
