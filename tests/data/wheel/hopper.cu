// A kernel for one device only: in many.so its fat binary has nothing that a GB10 could use.
extern "C" __global__ void hopper_only(float* x) { x[threadIdx.x] = 0.0f; }
