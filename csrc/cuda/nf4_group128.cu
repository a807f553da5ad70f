#include "w4_instances.cuh"

namespace vllm_spark::w4 {

void launch_group128(const Launch& launch) { launch_scales<Scales::kGroup128>(launch); }

}  // namespace vllm_spark::w4
