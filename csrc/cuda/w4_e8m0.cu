#include "w4_instances.cuh"

namespace vllm_spark::w4 {

void launch_e8m0(const Launch& launch) { launch_scales<Scales::kE8m0>(launch); }

}  // namespace vllm_spark::w4
