// Registration only: every operator of the namespace `vllm_spark`, and which function does it where.

#include <torch/csrc/stable/library.h>

#include "e2m1.h"

STABLE_TORCH_LIBRARY(vllm_spark, m) {
  m.def("e2m1_pack(Tensor x) -> Tensor");
  m.def("e2m1_unpack(Tensor packed, ScalarType dtype) -> Tensor");
  m.def("e2m1_hardware(Tensor like) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(vllm_spark, CPU, m) {
  m.impl("e2m1_pack", TORCH_BOX(&vllm_spark::cpu::e2m1_pack));
  m.impl("e2m1_unpack", TORCH_BOX(&vllm_spark::cpu::e2m1_unpack));
  m.impl("e2m1_hardware", TORCH_BOX(&vllm_spark::cpu::e2m1_hardware));
}

STABLE_TORCH_LIBRARY_IMPL(vllm_spark, CUDA, m) {
  m.impl("e2m1_pack", TORCH_BOX(&vllm_spark::cuda::e2m1_pack));
  m.impl("e2m1_unpack", TORCH_BOX(&vllm_spark::cuda::e2m1_unpack));
  m.impl("e2m1_hardware", TORCH_BOX(&vllm_spark::cuda::e2m1_hardware));
}
