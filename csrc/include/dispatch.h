// From a tensor's dtype to a C++ type.
#pragma once

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

namespace vllm_spark {

// The dtypes of unquantised weights and activations.
inline bool is_real(torch::headeronly::ScalarType dtype) {
  using torch::headeronly::ScalarType;
  return dtype == ScalarType::Float || dtype == ScalarType::BFloat16 || dtype == ScalarType::Half;
}

template <typename T>
struct Type {
  using type = T;
};

// Call `f(Type<T>{})` with the C++ type of `dtype`.
template <typename F>
void dispatch_real(torch::headeronly::ScalarType dtype, F&& f) {
  using torch::headeronly::ScalarType;
  switch (dtype) {
    case ScalarType::Float:
      return f(Type<float>{});
    case ScalarType::BFloat16:
      return f(Type<c10::BFloat16>{});
    case ScalarType::Half:
      return f(Type<c10::Half>{});
    default:
      STD_TORCH_CHECK(false, "dtype must be float32, bfloat16 or float16");
  }
}

}  // namespace vllm_spark
