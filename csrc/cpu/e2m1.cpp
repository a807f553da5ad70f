// E2M1 on the CPU: always software.

#include "e2m1.h"

#include <array>
#include <cstdint>

#include "dispatch.h"
#include "e2m1.cuh"
#include "e2m1_shapes.h"

namespace vllm_spark::cpu {

namespace {

constexpr int64_t kGrain = 1 << 15;  // bytes of codes per task: some 100 us of work

}  // namespace

torch::stable::Tensor e2m1_pack(const torch::stable::Tensor& x) {
  torch::stable::Tensor packed = new_packed(x);
  const torch::stable::Tensor source = torch::stable::contiguous(x);
  dispatch_real(x.scalar_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* from = source.const_data_ptr<T>();
    uint8_t* to = packed.mutable_data_ptr<uint8_t>();
    torch::stable::parallel_for(0, packed.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t low = e2m1::encode(static_cast<float>(from[2 * i]));
        const uint32_t high = e2m1::encode(static_cast<float>(from[2 * i + 1]));
        to[i] = static_cast<uint8_t>(low | (high << 4));
      }
    });
  });
  return packed;
}

torch::stable::Tensor e2m1_unpack(const torch::stable::Tensor& packed, torch::headeronly::ScalarType dtype) {
  torch::stable::Tensor values = new_unpacked(packed, dtype);
  const torch::stable::Tensor source = torch::stable::contiguous(packed);
  dispatch_real(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    std::array<T, 16> table;
    for (uint32_t code = 0; code < 16; ++code) {
      table[code] = static_cast<T>(e2m1::decode(code));
    }
    const uint8_t* from = source.const_data_ptr<uint8_t>();
    T* to = values.mutable_data_ptr<T>();
    torch::stable::parallel_for(0, source.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[2 * i] = table[from[i] & 15];
        to[2 * i + 1] = table[from[i] >> 4];
      }
    });
  });
  return values;
}

bool e2m1_hardware(const torch::stable::Tensor&) { return e2m1::hardware(); }

}  // namespace vllm_spark::cpu
