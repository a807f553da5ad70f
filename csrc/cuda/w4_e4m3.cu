#include "w4_instances.cuh"

namespace vllm_spark::w4 {

void launch_e4m3(const Launch& launch) { launch_scales<Scales::kE4m3>(launch); }

}  // namespace vllm_spark::w4
