// Quantisers to NF4, MXFP4 and NVFP4, and the largest magnitude that NVFP4's global scale needs.

#include <torch/csrc/stable/ops.h>

#include <cmath>

#include "codebooks.h"
#include "cuda_guard.h"
#include "quantize.h"
#include "quantize_host.h"

namespace vllm_spark::quant {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The policies below say what scales a block with the largest magnitude `most` can have: the plain one, candidates of
// the search (their reciprocals are approximate), and what a stored one stands for.

template <typename S, int kBlock>
struct Nf4Scale {
  using Stored = S;
  using Codes = Nf4Book;
  static constexpr int kLanes = kBlock / kUnit;
  static constexpr int kCandidates = 5;

  static __device__ __forceinline__ float limit() {
    return std::is_same_v<S, __half> ? 65504.0f : 3.3895313892515355e38f;
  }

  static __device__ __forceinline__ S plain(float most, float) { return static_cast<S>(most); }

  static __device__ __forceinline__ S candidate(S, float most, int i) {
    constexpr float kFactors[kCandidates] = {1.0f, 1.04f, 0.96f, 0.92f, 0.88f};
    return static_cast<S>(fminf(__fmul_rn(most, kFactors[i]), limit()));
  }

  static __device__ __forceinline__ float value(S stored, float) { return static_cast<float>(stored); }
};

struct Mxfp4Scale {
  using Stored = uint8_t;
  using Codes = E2m1Book;
  static constexpr int kLanes = 2;
  static constexpr int kCandidates = 2;

  static __device__ __forceinline__ float limit() { return 3.4028234663852886e38f; }

  static __device__ __forceinline__ uint8_t plain(float most, float) {
    return min(max(((__float_as_int(most) + 0x200000) >> 23) - 2, 0), 254);
  }

  static __device__ __forceinline__ uint8_t candidate(uint8_t, float most, int i) {
    return min(max((__float_as_int(most) >> 23) - 2, 0) + i, 254);
  }

  static __device__ __forceinline__ float value(uint8_t stored, float) {
    return __int_as_float(stored == 0 ? 0x00400000 : stored << 23);
  }
};

struct Nvfp4Scale {
  using Stored = uint8_t;
  using Codes = E2m1Book;
  static constexpr int kLanes = 1;
  static constexpr int kCandidates = 6;

  static __device__ __forceinline__ float limit() { return 3.4028234663852886e38f; }

  // A block that is not zero gets no zero: the smallest number still keeps its largest value.
  static __device__ __forceinline__ uint8_t plain(float most, float global) {
    const float wanted = fminf(__fmul_rn(most, __frcp_rn(__fmul_rn(6.0f, global))), 448.0f);
    const uint8_t code = __nv_cvt_float_to_fp8(wanted, __NV_SATFINITE, __NV_E4M3);
    return most > 0.0f && code == 0 ? 1 : code;
  }

  static __device__ __forceinline__ uint8_t candidate(uint8_t plain, float, int i) {
    constexpr int kSteps[kCandidates] = {0, -1, 1, 4, 5, 6};
    return plain == 0 ? 0 : min(max(plain + kSteps[i], 1), 126);
  }

  // E4M3 without sign is a float16 whose exponent lacks 8.
  static __device__ __forceinline__ float value(uint8_t stored, float global) {
    const float e4m3 = __half2float(__ushort_as_half(static_cast<unsigned short>(stored << 7))) * 256.0f;
    return __fmul_rn(e4m3, global);
  }
};

template <typename P>
__device__ __forceinline__ typename P::Stored choose(const char* fine, const float (&v)[kUnit], float most,
                                                     float global) {
  constexpr float kLargestInverse = 1.329227995784916e36f;  // 2^120: what multiplies it stays finite
  const typename P::Stored plain = P::plain(most, global);
  typename P::Stored best = plain;
  float least = __uint_as_float(kInfinity);
#pragma unroll
  for (int i = 0; i < P::kCandidates; ++i) {
    const typename P::Stored stored = P::candidate(plain, most, i);
    const float value = P::value(stored, global);
    const float inverse = fast_reciprocal(value);
    // Else the table does not reach; only scales near the subnormals do that.
    const bool inside = most * inverse <= P::Codes::kMost && inverse <= kLargestInverse;
    const float error = add_lanes<P::kLanes>(
        squared_error<typename P::Codes>(fine, v, inside ? inverse : 0.0f, inside ? value : 0.0f));
    if (inside && error < least) {
      least = error;
      best = stored;
    }
  }
  return best;
}

template <typename T, typename P, bool kSearch>
__global__ void __launch_bounds__(kThreads, 3)
    quantize(const __grid_constant__ Job job, const __grid_constant__ Book book) {
  using B = typename P::Codes;
  extern __shared__ __align__(256) char tables[];
  char* fine = tables + kExactBytes;
  fill_exact<B>(tables, book);
  if constexpr (kSearch) {
    fill_fine<B>(fine, book);
  }
  __syncthreads();
  const uint32_t per_row = job.columns / kUnit;
  const uint32_t units = static_cast<uint32_t>(job.rows) * per_row;
  const float global = job.global == nullptr ? 1.0f : *job.global;
  const uint32_t lane = threadIdx.x % 32;
  // Whole warps go on together, because lanes talk; a lane past the end repeats the last unit and stores nothing.
  for (uint32_t first = blockIdx.x * kThreads + threadIdx.x - lane; first < units; first += gridDim.x * kThreads) {
    const uint32_t unit = min(first + lane, units - 1);
    const uint32_t row = unit / per_row;
    const uint32_t column = unit % per_row * kUnit;
    float v[kUnit];
    read_unit<T>(job.source, row, column, v);
    uint32_t bits = largest_bits(v);
    if (bits > __float_as_uint(P::limit())) {
      take_out_bad(job, v, P::limit(), first + lane < units);
    }
    bits = agree_on_most<P::kLanes>(bits);
    const float most = __uint_as_float(min(bits, __float_as_uint(P::limit())));
    const typename P::Stored stored = kSearch ? choose<P>(fine, v, most, global) : P::plain(most, global);
    const float value = P::value(stored, global);
    const float inverse = value >= kLeastScale ? __frcp_rn(value) : 0.0f;
    if (most * inverse > B::kMost) {  // a subnormal scale, or a global scale that is too small: saturate
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        v[i] = fminf(fmaxf(v[i], -B::kMost * value), B::kMost * value);
      }
    }
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      words[i / 8] += encode<B>(tables, __fmul_rn(v[i], inverse)) * (1u << (4 * (i % 8)));
    }
    if (first + lane < units) {
      *reinterpret_cast<uint2*>(job.codes + row * job.codes_stride + column / 2) = make_uint2(words[0], words[1]);
      if (unit % P::kLanes == 0) {
        static_cast<typename P::Stored*>(job.scales)[row * job.scales_stride + column / (kUnit * P::kLanes)] = stored;
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) find_largest(const __grid_constant__ Job job, int* largest) {
  const uint32_t per_row = (job.columns + kUnit - 1) / kUnit;
  const uint32_t units = static_cast<uint32_t>(job.rows) * per_row;
  uint32_t most = 0;
  for (uint32_t unit = blockIdx.x * kThreads + threadIdx.x; unit < units; unit += gridDim.x * kThreads) {
    float v[kUnit];
    read_unit<T>(job.source, unit / per_row, unit % per_row * kUnit, v);
    const uint32_t bits = largest_bits(v);
    if (bits >= kInfinity) {
      take_out_bad(job, v, Nvfp4Scale::limit(), true);
    }
    most = max(most, bits);
  }
  most = agree_on_most<32>(min(most, kInfinity));
  if (threadIdx.x % 32 == 0) {
    atomicMax(largest, static_cast<int>(most));
  }
}

Book nf4_book() {
  Book book;
  for (int i = 0; i < 16; ++i) {
    book.level[i] = kNf4[i];
    if (i > 0) {
      book.threshold[i - 1] = (kNf4[i] + kNf4[i - 1]) / 2.0f;
    }
  }
  return book;
}

// Half-way belongs to the even code: a threshold that rounds up at itself is the number before it.
Book e2m1_book() {
  Book book = {};
  for (int i = 0; i < 8; ++i) {
    book.level[i] = kE2m1[i];
    if (i > 0) {
      const float middle = (kE2m1[i] + kE2m1[i - 1]) / 2.0f;
      book.threshold[i - 1] = i % 2 == 0 ? std::nextafterf(middle, 0.0f) : middle;
    }
  }
  return book;
}

template <typename T, typename P, bool kSearch>
void launch(const Job& job, const Tensor& x, cudaStream_t stream) {
  constexpr int kShared = kExactBytes + (kSearch ? P::Codes::kFineCells * kStride : 0);
  const auto kernel = quantize<T, P, kSearch>;
  STD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  int per_sm = 0;  // exactly as many blocks as run at once: each walks over its share
  STD_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, kThreads, kShared));
  const int64_t units = job.rows * (job.columns / kUnit);
  kernel<<<grid_of(x, units, per_sm), kThreads, kShared, stream>>>(
      job, std::is_same_v<typename P::Codes, Nf4Book> ? nf4_book() : e2m1_book());
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

Job job_of(const Tensor& x, const std::optional<Tensor>& x_scale, const Tensor& bad) {
  Job job = {};
  job.source = source_of(x, x_scale);
  check_counter(bad, x);
  job.rows = x.size(0);
  job.columns = static_cast<int>(x.size(1));
  job.bad = static_cast<unsigned long long*>(bad.mutable_data_ptr());
  STD_TORCH_CHECK(x.size(1) < (int64_t{1} << 31) && job.rows * ((job.columns + kUnit - 1) / kUnit) < (int64_t{1} << 31),
                  "x has too many elements");
  return job;
}

template <typename P>
void run(const Tensor& x, const std::optional<Tensor>& x_scale, const float* global, bool search, const Tensor& codes,
         const Tensor& scales, const Tensor& bad) {
  const DeviceScope scope(x);
  constexpr int kBlock = P::kLanes * kUnit;
  Job job = job_of(x, x_scale, bad);
  STD_TORCH_CHECK(x.size(1) % kBlock == 0, "the columns of x must be a multiple of ", kBlock);
  check_result(codes, x, x.size(0), x.size(1) / 2, 8, "codes");
  check_result(scales, x, x.size(0), x.size(1) / kBlock, 1, "scales");
  job.codes = static_cast<uint8_t*>(codes.mutable_data_ptr());
  job.codes_stride = codes.stride(0);
  job.scales = scales.mutable_data_ptr();
  job.scales_stride = scales.stride(0);
  job.global = global;
  if (x.numel() == 0) {
    return;
  }
  dispatch_source(x, [&](auto type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    if (search) {
      launch<T, P, true>(job, x, scope.stream());
    } else {
      launch<T, P, false>(job, x, scope.stream());
    }
  });
}

template <typename S>
void run_nf4(const Tensor& x, const std::optional<Tensor>& x_scale, bool search, const Tensor& codes,
             const Tensor& scales, const Tensor& bad) {
  const int64_t block = scales.size(1) == 0 ? 64 : x.size(1) / scales.size(1);
  switch (block) {
    case 32:
      return run<Nf4Scale<S, 32>>(x, x_scale, nullptr, search, codes, scales, bad);
    case 64:
      return run<Nf4Scale<S, 64>>(x, x_scale, nullptr, search, codes, scales, bad);
    case 128:
      return run<Nf4Scale<S, 128>>(x, x_scale, nullptr, search, codes, scales, bad);
    default:
      STD_TORCH_CHECK(false, "scales of NF4 stand for 32, 64 or 128 columns, not ", block);
  }
}

}  // namespace

}  // namespace vllm_spark::quant

namespace vllm_spark::cuda {

using torch::headeronly::ScalarType;

void quantize_nf4(const Tensor& x, const MaybeTensor& x_scale, bool search, const Tensor& codes, const Tensor& scales,
                  const Tensor& bad) {
  STD_TORCH_CHECK(x.dim() == 2 && scales.dim() == 2, "x and scales must be matrices");
  if (scales.scalar_type() == ScalarType::Half) {
    return quant::run_nf4<__half>(x, x_scale, search, codes, scales, bad);
  }
  STD_TORCH_CHECK(scales.scalar_type() == ScalarType::BFloat16, "scales must be bfloat16 or float16");
  quant::run_nf4<__nv_bfloat16>(x, x_scale, search, codes, scales, bad);
}

void quantize_mxfp4(const Tensor& x, const MaybeTensor& x_scale, bool search, const Tensor& codes,
                    const Tensor& scales, const Tensor& bad) {
  STD_TORCH_CHECK(scales.scalar_type() == ScalarType::Byte, "scales must be uint8");
  quant::run<quant::Mxfp4Scale>(x, x_scale, nullptr, search, codes, scales, bad);
}

void quantize_nvfp4(const Tensor& x, const MaybeTensor& x_scale, const Tensor& global_scale, bool search,
                    const Tensor& codes, const Tensor& scales, const Tensor& bad) {
  STD_TORCH_CHECK(scales.scalar_type() == ScalarType::Float8_e4m3fn, "scales must be float8_e4m3fn");
  STD_TORCH_CHECK(global_scale.is_cuda() && global_scale.numel() == 1 &&
                      global_scale.scalar_type() == ScalarType::Float,
                  "global_scale must be one float32 on the GPU");
  quant::run<quant::Nvfp4Scale>(x, x_scale, static_cast<const float*>(global_scale.const_data_ptr()), search, codes,
                                scales, bad);
}

void largest_magnitude(const Tensor& x, const MaybeTensor& x_scale, const Tensor& largest, const Tensor& bad) {
  const DeviceScope scope(x);
  const quant::Job job = quant::job_of(x, x_scale, bad);
  STD_TORCH_CHECK(largest.is_cuda() && largest.numel() == 1 && largest.scalar_type() == ScalarType::Float,
                  "largest must be one float32 on the GPU");
  if (x.numel() == 0) {
    return;
  }
  STD_TORCH_CHECK(x.size(1) % quant::kUnit == 0, "the columns of x must be a multiple of 16");
  quant::dispatch_source(x, [&](auto type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    quant::find_largest<T><<<quant::grid_of(x, x.numel() / quant::kUnit, 4), quant::kThreads, 0, scope.stream()>>>(
        job, static_cast<int*>(largest.mutable_data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace vllm_spark::cuda
