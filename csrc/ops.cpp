// Registration only: every operator of the namespace `vllm_spark`, and which function does it where.

#include <torch/csrc/stable/library.h>

#include "e2m1.h"
#include "quantize.h"
#include "w4.h"

STABLE_TORCH_LIBRARY(vllm_spark, m) {
  m.def("e2m1_pack(Tensor x) -> Tensor");
  m.def("e2m1_unpack(Tensor packed, ScalarType dtype) -> Tensor");
  m.def("e2m1_hardware(Tensor like) -> bool");

  m.def(
      "quantize_nf4(Tensor x, Tensor? x_scale, bool search, Tensor(a!) codes, Tensor(b!) scales, Tensor(c!) bad) -> ()");
  m.def(
      "quantize_mxfp4(Tensor x, Tensor? x_scale, bool search, Tensor(a!) codes, Tensor(b!) scales, Tensor(c!) bad)"
      " -> ()");
  m.def(
      "quantize_nvfp4(Tensor x, Tensor? x_scale, Tensor global_scale, bool search, Tensor(a!) codes,"
      " Tensor(b!) scales, Tensor(c!) bad) -> ()");
  m.def(
      "quantize_fp8(Tensor x, Tensor? x_scale, bool search, Tensor(a!) codes, Tensor(b!) scales, Tensor(c!) bad) -> ()");
  m.def("largest_magnitude(Tensor x, Tensor? x_scale, Tensor(a!) largest, Tensor(b!) bad) -> ()");
  m.def("dequantize_nf4(Tensor codes, Tensor scales, Tensor(a!) out) -> ()");
  m.def("dequantize_mxfp4(Tensor codes, Tensor scales, Tensor(a!) out) -> ()");
  m.def("dequantize_nvfp4(Tensor codes, Tensor scales, Tensor global_scale, Tensor(a!) out) -> ()");
  m.def("dequantize_fp8(Tensor codes, Tensor scales, Tensor(a!) out) -> ()");

  m.def("nf4_linear(Tensor x, Tensor weight, Tensor scales, Tensor? bias, int n, bool expand=False) -> Tensor");
  m.def("mxfp4_linear(Tensor x, Tensor weight, Tensor scales, Tensor? bias, int n, bool expand=False) -> Tensor");
  m.def(
      "nvfp4_linear(Tensor x, Tensor weight, Tensor scales, Tensor global_scale, Tensor? bias, int n,"
      " bool expand=False) -> Tensor");
  m.def(
      "w4_moe(Tensor x, Tensor w13, Tensor w13_scales, Tensor? w13_global, Tensor w2, Tensor w2_scales,"
      " Tensor? w2_global, Tensor weights, Tensor experts, Tensor? sorted, Tensor? padded, int format, int activation,"
      " int block, bool partial=False) -> Tensor");
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
  m.impl("quantize_nf4", TORCH_BOX(&vllm_spark::cuda::quantize_nf4));
  m.impl("quantize_mxfp4", TORCH_BOX(&vllm_spark::cuda::quantize_mxfp4));
  m.impl("quantize_nvfp4", TORCH_BOX(&vllm_spark::cuda::quantize_nvfp4));
  m.impl("quantize_fp8", TORCH_BOX(&vllm_spark::cuda::quantize_fp8));
  m.impl("largest_magnitude", TORCH_BOX(&vllm_spark::cuda::largest_magnitude));
  m.impl("dequantize_nf4", TORCH_BOX(&vllm_spark::cuda::dequantize_nf4));
  m.impl("dequantize_mxfp4", TORCH_BOX(&vllm_spark::cuda::dequantize_mxfp4));
  m.impl("dequantize_nvfp4", TORCH_BOX(&vllm_spark::cuda::dequantize_nvfp4));
  m.impl("dequantize_fp8", TORCH_BOX(&vllm_spark::cuda::dequantize_fp8));
  m.impl("nf4_linear", TORCH_BOX(&vllm_spark::cuda::nf4_linear));
  m.impl("mxfp4_linear", TORCH_BOX(&vllm_spark::cuda::mxfp4_linear));
  m.impl("nvfp4_linear", TORCH_BOX(&vllm_spark::cuda::nvfp4_linear));
  m.impl("w4_moe", TORCH_BOX(&vllm_spark::cuda::w4_moe));
}
