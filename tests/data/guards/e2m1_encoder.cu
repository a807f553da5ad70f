// Encodes the float32 words on standard input twice: with the software encoder of a vLLM tree, and with the host
// reference of CUDA's own cuda_fp4.h. Writes two bytes per word: ours, then the reference's. Runs on the CPU.

#include <cuda_fp4.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "quantization/fp4/nvfp4_utils.cuh"

int main() {
  std::vector<float> in(1 << 16);
  std::vector<uint8_t> out(2 * in.size());
  size_t count;
  while ((count = std::fread(in.data(), sizeof(float), in.size(), stdin)) > 0) {
    if (count % 8 != 0) return 2;
    for (size_t i = 0; i < count; ++i) {
      size_t const lane = i % 8;
      auto const& block = *reinterpret_cast<float const(*)[8]>(&in[i - lane]);
      out[2 * i] = (vllm::e2m1_pack_software(block) >> (4 * lane)) & 0xF;
      out[2 * i + 1] = __nv_cvt_float_to_fp4(in[i], __NV_E2M1, cudaRoundNearest) & 0xF;
    }
    std::fwrite(out.data(), 2, count, stdout);
  }
  return 0;
}
