// Mixtures of experts with 4-bit weights: two launches of the linear kernel, and a sum over slots where it is needed.

#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "cuda_guard.h"
#include "w4.h"
#include "w4_host.h"

namespace vllm_spark::cuda {

using torch::headeronly::ScalarType;
using w4::Format;

namespace {

enum class Activation : int { kSilu = 0, kGelu = 1, kRelu2 = 2 };

// out[token] = sum of its slots, in their order, in float32.
template <typename T>
__global__ void __launch_bounds__(w4::kThreads)
    sum_slots(const T* pairs, T* out, int64_t tokens, int64_t width, int top_k) {
  constexpr int kEach = 8;
  w4::wait_for_inputs();
  const int64_t at = (int64_t{blockIdx.x} * w4::kThreads + threadIdx.x) * kEach;
  if (at >= tokens * width) {
    return;
  }
  const int64_t token = at / width;
  const int64_t column = at % width;
  float sum[kEach] = {};
  for (int slot = 0; slot < top_k; ++slot) {
    alignas(16) T v[kEach];
    *reinterpret_cast<uint4*>(v) =
        *reinterpret_cast<const uint4*>(pairs + (token * top_k + slot) * width + column);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      sum[i] += static_cast<float>(v[i]);
    }
  }
  alignas(16) T result[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    result[i] = static_cast<T>(sum[i]);
  }
  *reinterpret_cast<uint4*>(out + at) = *reinterpret_cast<const uint4*>(result);
}

template <typename T>
void launch_sum(const Tensor& pairs, const Tensor& out, int top_k, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(w4::ceil_div(out.numel(), 8 * w4::kThreads));
  w4::launch_early(sum_slots<T>, dim3(blocks), 0, stream, static_cast<const T*>(pairs.const_data_ptr()),
                   static_cast<T*>(out.mutable_data_ptr()), out.size(0), out.size(1), top_k);
}

// How pairs of tokens and slots are spread over blocks.
struct Routing {
  const Tensor& weights;
  const Tensor& experts;
  const MaybeTensor& sorted;
  const MaybeTensor& padded;
  int top_k;
  int block;  // 0: every pair by itself

  int64_t pairs() const { return weights.numel(); }
  int64_t blocks() const { return experts.numel(); }
};

void check_routing(const Tensor& x, const Routing& r) {
  STD_TORCH_CHECK(r.weights.dim() == 2 && r.weights.size(0) == x.size(0), "weights must be [tokens, top_k]");
  w4::check_vector(r.weights, r.pairs(), ScalarType::Float, "weights");
  w4::check_vector(r.experts, r.blocks(), ScalarType::Int, "experts");
  STD_TORCH_CHECK(r.sorted.has_value() == (r.block > 0) && r.padded.has_value() == (r.block > 0),
                  "sorted and padded come with a block size, and only then");
  if (r.block == 0) {
    STD_TORCH_CHECK(r.blocks() == r.pairs(), "experts must hold one expert per pair");
    return;
  }
  STD_TORCH_CHECK(r.block == 8 || r.block == 16 || r.block == 32 || r.block == 64, "block must be 8, 16, 32 or 64");
  w4::check_vector(*r.sorted, r.sorted->numel(), ScalarType::Int, "sorted");
  w4::check_vector(*r.padded, 1, ScalarType::Int, "padded");
}

w4::Launch layer(const Tensor& x, const w4::Weight& weight, const Routing& r, int64_t tile_rows, w4::Rows mode,
                 int tiles, cudaStream_t stream) {
  w4::Launch launch = w4::launch_of(x, weight, stream);
  launch.tiles = tiles;
  launch.columns = std::max(r.block, 8) / 8;
  w4::Problem& p = launch.problem;
  p.rows = static_cast<int>(r.pairs());
  p.mode = mode;
  p.top_k = r.top_k;
  p.block = r.block;
  p.experts = static_cast<const int32_t*>(r.experts.const_data_ptr());
  p.sorted = r.block > 0 ? static_cast<const int32_t*>(r.sorted->const_data_ptr()) : nullptr;
  p.padded = r.block > 0 ? static_cast<const int32_t*>(r.padded->const_data_ptr()) : nullptr;
  p.pair_weight = static_cast<const float*>(r.weights.const_data_ptr());
  const int64_t groups = w4::ceil_div(tile_rows, tiles);
  const int64_t columns = mode == w4::Rows::kToken ? x.size(0) / r.top_k : r.blocks();
  p.split = mode == w4::Rows::kToken ? w4::kWarps
                                     : w4::split_for(groups * columns, weight.tiles_k, launch.columns,
                                                     w4::multiprocessors(x.get_device_index()));
  launch.grid = dim3(static_cast<unsigned>(columns),
                     static_cast<unsigned>(w4::ceil_div(groups, w4::kWarps / p.split)));
  return launch;
}

// hidden [pairs, inner] = activation(x · w13ᵀ)
void first_layer(const Tensor& x, const w4::Weight& w13, const Routing& r, Activation activation, const Tensor& hidden,
                 cudaStream_t stream) {
  const bool gated = activation != Activation::kRelu2;
  const int64_t inner = hidden.size(1);
  const auto mode = r.block > 0 ? w4::Rows::kAligned : w4::Rows::kPair;
  // A gated warp holds a tile of the gate and the same tile of the up projection.
  w4::Launch launch = layer(x, w13, r, w13.tiles_n, mode, gated ? 2 : 1, stream);
  w4::Problem& p = launch.problem;
  p.n = static_cast<int>(inner);
  p.tile1 = gated ? static_cast<int>(inner / w4::kTileRows) : 1;
  p.x_div = r.top_k;
  p.finish = activation == Activation::kSilu   ? w4::Finish::kSiluMul
             : activation == Activation::kGelu ? w4::Finish::kGeluMul
                                               : w4::Finish::kRelu2;
  p.out = hidden.mutable_data_ptr();
  p.out_stride = inner;
  w4::launch(launch);
}

void second_layer(const Tensor& hidden, const w4::Weight& w2, const Routing& r, bool partial, const Tensor& out,
                  cudaStream_t stream) {
  if (r.block == 0) {
    w4::Launch launch = layer(hidden, w2, r, w2.tiles_n, w4::Rows::kToken, 1, stream);
    launch.problem.finish = w4::Finish::kStore;
    launch.problem.out = out.mutable_data_ptr();
    launch.problem.out_stride = out.size(1);
    return w4::launch(launch);
  }
  w4::Launch launch = layer(hidden, w2, r, w2.tiles_n, w4::Rows::kAligned, 2, stream);
  Tensor pairs = torch::stable::new_empty(out, {r.pairs(), out.size(1)});
  if (partial) {
    torch::stable::zero_(pairs);  // pairs of experts that live elsewhere
  }
  launch.problem.x_div = 1;
  launch.problem.finish = w4::Finish::kWeighted;
  launch.problem.out = pairs.mutable_data_ptr();
  launch.problem.out_stride = out.size(1);
  w4::launch(launch);
  if (launch.fp16) {
    launch_sum<__half>(pairs, out, r.top_k, stream);
  } else {
    launch_sum<__nv_bfloat16>(pairs, out, r.top_k, stream);
  }
}

}  // namespace

Tensor w4_moe(const Tensor& x, const Tensor& w13, const Tensor& w13_scales, const MaybeTensor& w13_global,
              const Tensor& w2, const Tensor& w2_scales, const MaybeTensor& w2_global, const Tensor& weights,
              const Tensor& experts, const MaybeTensor& sorted, const MaybeTensor& padded, int64_t format,
              int64_t activation, int64_t block, bool partial) {
  const DeviceScope scope(x);
  STD_TORCH_CHECK(format >= 0 && format <= 2 && activation >= 0 && activation <= 2, "unknown format or activation");
  STD_TORCH_CHECK(w13.dim() == 4 && w2.dim() == 4 && w13.size(0) == w2.size(0), "w13 and w2 hold the same experts");
  const auto kind = static_cast<Activation>(activation);
  const int64_t hidden_size = x.size(1);
  const int64_t n13 = w13.size(1) * w4::kTileRows;
  const int64_t inner = kind == Activation::kRelu2 ? n13 : n13 / 2;
  STD_TORCH_CHECK(hidden_size % w4::kTileRows == 0 && inner % w4::kTileRows == 0,
                  "hidden and inner sizes must be multiples of 16");
  const auto first = w4::weight_of(static_cast<Format>(format), w13, w13_scales, w13_global, n13, hidden_size);
  const auto second = w4::weight_of(static_cast<Format>(format), w2, w2_scales, w2_global, hidden_size, inner);
  w4::check_activations(x, first);
  const Routing routing{weights, experts, sorted, padded, static_cast<int>(weights.size(1)), static_cast<int>(block)};
  check_routing(x, routing);
  Tensor out = torch::stable::new_empty(x, {x.size(0), hidden_size});
  if (x.size(0) == 0) {
    return out;
  }
  Tensor hidden = torch::stable::new_empty(x, {routing.pairs(), inner});
  first_layer(x, first, routing, kind, hidden, scope.stream());
  second_layer(hidden, second, routing, partial, out, scope.stream());
  return out;
}

}  // namespace vllm_spark::cuda
