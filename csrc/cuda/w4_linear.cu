// The operators of 4-bit linear layers: what they accept, and how a shape becomes a launch.

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>

#include "cuda_guard.h"
#include "w4.h"
#include "w4_host.h"

namespace vllm_spark::cuda {

using torch::headeronly::ScalarType;
using w4::Format;

namespace {

constexpr int64_t kPieceElements = int64_t{32} << 20;  // of an expanded weight: 64 MB

// Eights of rows of x per block.
int columns_for(int64_t rows) { return rows <= 8 ? 1 : rows <= 16 ? 2 : rows <= 32 ? 4 : 8; }

// Two tile rows per warp halve the reading of x; one suffices where that is little, or where W has few tile rows.
int tiles_for(int columns, int64_t tiles_n, int sms) { return columns > 1 && tiles_n > 2 * sms ? 2 : 1; }

// Expand the weight, in pieces of bounded size, and multiply with cuBLAS.
Tensor expand_and_multiply(const Tensor& x, const w4::Weight& weight, const MaybeTensor& bias,
                           const DeviceScope& scope) {
  const int64_t piece = std::max<int64_t>(w4::kTileRows, kPieceElements / weight.k / w4::kTileRows * w4::kTileRows);
  const bool whole = piece >= weight.n;
  Tensor dense = torch::stable::new_empty(x, {std::min(piece, weight.n), weight.k});
  Tensor out = torch::stable::new_empty(x, {whole ? 0 : x.size(0), weight.n});
  for (int64_t at = 0; at < weight.n; at += piece) {
    const int64_t rows = std::min(piece, weight.n - at);
    Tensor part = torch::stable::narrow(dense, 0, 0, rows);
    w4::dequantize(weight, at, part, scope.stream());
    MaybeTensor part_bias;
    if (bias.has_value()) {
      Tensor all = *bias;
      part_bias = torch::stable::narrow(all, 0, at, rows);
    }
    const Tensor result = w4::dense_linear(x, part, part_bias);
    if (whole) {
      return result;
    }
    Tensor target = torch::stable::narrow(out, 1, at, rows);
    torch::stable::copy_(target, result);
  }
  return out;
}

Tensor linear(const Tensor& x, const w4::Weight& weight, const MaybeTensor& bias, bool expand) {
  const DeviceScope scope(x);
  w4::check_activations(x, weight);
  if (bias.has_value()) {
    w4::check_vector(*bias, weight.n, x.scalar_type(), "bias");
  }
  const int64_t rows = x.size(0);
  if (rows == 0 || weight.n == 0) {
    return torch::stable::new_empty(x, {rows, weight.n});
  }
  if (expand || rows > w4::kMostRows) {
    return expand_and_multiply(x, weight, bias, scope);
  }
  const int sms = w4::multiprocessors(x.get_device_index());
  w4::Launch launch = w4::launch_of(x, weight, scope.stream());
  launch.columns = columns_for(rows);
  launch.tiles = tiles_for(launch.columns, weight.tiles_n, sms);
  Tensor out = torch::stable::new_empty(x, {rows, weight.n});
  w4::Problem& p = launch.problem;
  p.bias = bias.has_value() ? bias->const_data_ptr() : nullptr;
  p.out = out.mutable_data_ptr();
  p.out_stride = weight.n;
  p.rows = static_cast<int>(rows);
  p.split = w4::split_for(w4::ceil_div(weight.tiles_n, launch.tiles), weight.tiles_k, launch.columns, sms);
  p.mode = w4::Rows::kDense;
  p.finish = w4::Finish::kStore;
  const int64_t tiles_per_block = w4::kWarps / p.split * launch.tiles;
  launch.grid = dim3(static_cast<unsigned>(w4::ceil_div(rows, 8 * launch.columns)),
                     static_cast<unsigned>(w4::ceil_div(weight.tiles_n, tiles_per_block)));
  w4::launch(launch);
  return out;
}

}  // namespace

Tensor nf4_linear(const Tensor& x, const Tensor& weight, const Tensor& scales, const MaybeTensor& bias, int64_t n,
                  bool expand) {
  return linear(x, w4::weight_of(Format::kNf4, weight, scales, std::nullopt, n, x.size(-1)), bias, expand);
}

Tensor mxfp4_linear(const Tensor& x, const Tensor& weight, const Tensor& scales, const MaybeTensor& bias, int64_t n,
                    bool expand) {
  return linear(x, w4::weight_of(Format::kMxfp4, weight, scales, std::nullopt, n, x.size(-1)), bias, expand);
}

Tensor nvfp4_linear(const Tensor& x, const Tensor& weight, const Tensor& scales, const Tensor& global_scale,
                    const MaybeTensor& bias, int64_t n, bool expand) {
  return linear(x, w4::weight_of(Format::kNvfp4, weight, scales, global_scale, n, x.size(-1)), bias, expand);
}

}  // namespace vllm_spark::cuda
