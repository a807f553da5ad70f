#include "w4_instances.cuh"

namespace vllm_spark::w4 {

void launch_group32(const Launch& launch) { launch_scales<Scales::kGroup32>(launch); }

}  // namespace vllm_spark::w4
