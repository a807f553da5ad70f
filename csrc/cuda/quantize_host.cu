// Checks that all quantisers share.

#include "quantize_host.h"

#include <torch/headeronly/util/Exception.h>

#include <algorithm>

#include "cuda_guard.h"

namespace vllm_spark::quant {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

bool aligned(const Tensor& x) {
  const int64_t bytes = x.element_size();
  return x.stride(1) == 1 && x.stride(0) * bytes % 16 == 0 && x.size(1) % kUnit == 0 &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

}  // namespace

Source source_of(const Tensor& x, const std::optional<Tensor>& x_scale) {
  const ScalarType dtype = x.scalar_type();
  const bool fp8 = dtype == ScalarType::Float8_e4m3fn;
  STD_TORCH_CHECK(x.is_cuda() && x.dim() == 2, "x must be a matrix on a GPU");
  STD_TORCH_CHECK(fp8 || dtype == ScalarType::Float || dtype == ScalarType::BFloat16 || dtype == ScalarType::Half,
                  "x must be float32, bfloat16, float16 or float8_e4m3fn");
  STD_TORCH_CHECK(fp8 == x_scale.has_value(), "FP8 weights come with their scales, others without");
  Source source = {};
  source.data = x.const_data_ptr();
  source.row_stride = x.stride(0);
  source.column_stride = x.stride(1);
  source.vector = aligned(x);
  if (x_scale.has_value()) {
    const Tensor& s = *x_scale;
    STD_TORCH_CHECK(s.is_cuda() && s.scalar_type() == ScalarType::Float && s.is_contiguous(),
                    "x_scale must be contiguous float32 on the GPU");
    const int64_t rows = x.size(0);
    const int64_t wide = (x.size(1) + 127) / 128;
    source.scale = static_cast<const float*>(s.const_data_ptr());
    source.rows_per_scale = 1 << 30;
    source.columns_per_scale = 1 << 30;
    if (s.numel() == rows && s.numel() != 1) {
      source.rows_per_scale = 1;
      source.scale_stride = 1;
    } else if (s.numel() != 1) {
      STD_TORCH_CHECK(s.dim() == 2 && s.size(0) == (rows + 127) / 128 && s.size(1) == wide,
                      "x_scale must be one number, one per row, or one per 128 x 128");
      source.rows_per_scale = source.columns_per_scale = 128;
      source.scale_stride = wide;
    }
  }
  return source;
}

void check_result(const Tensor& t, const Tensor& x, int64_t rows, int64_t columns, int align, const char* name) {
  STD_TORCH_CHECK(t.is_cuda() && t.get_device_index() == x.get_device_index() && t.dim() == 2 && t.size(0) == rows &&
                      t.size(1) == columns,
                  name, " must be [", rows, ", ", columns, "] on the device of x");
  STD_TORCH_CHECK((t.stride(1) == 1 || columns <= 1) && t.stride(0) * t.element_size() % align == 0 &&
                      reinterpret_cast<uintptr_t>(t.const_data_ptr()) % align == 0,
                  "rows of ", name, " must be contiguous and aligned to ", align, " bytes");
}

void check_counter(const Tensor& bad, const Tensor& x) {
  STD_TORCH_CHECK(bad.is_cuda() && bad.get_device_index() == x.get_device_index() && bad.numel() == 1 &&
                      bad.scalar_type() == ScalarType::Long,
                  "bad must be one int64 on the device of x");
}

unsigned grid_of(const Tensor& x, int64_t units, int per_sm) {
  int sms = 0;
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, x.get_device_index()));
  return static_cast<unsigned>(std::clamp<int64_t>((units + kThreads - 1) / kThreads, 1, int64_t{per_sm} * sms));
}

}  // namespace vllm_spark::quant
