#include "w4_instances.cuh"

namespace vllm_spark::w4 {

void launch_group64(const Launch& launch) { launch_scales<Scales::kGroup64>(launch); }

}  // namespace vllm_spark::w4
