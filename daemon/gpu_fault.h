/* gpu_fault.h: GPU faults on demand, in builds with FAULTS=1. The environment variable NCTD_GPU_FAULT holds one of
 *
 *     call=K[,code=C]   the K-th CUDA call (counted from the first batch; with ",start" behind it, from the first of all) fails with error C
 *     from=K[,code=C]   it and all later ones do, as after a sticky error: the device first ends what it has
 *     register=C        every cudaHostRegister fails with error C
 *     trap=K            a kernel that traps follows the K-th launch
 *     hang=K[,ms=N]     one that runs for N ms (default: an hour) does
 *
 * C is a cudaError_t as a number, 719 (launch failure) if not given. */
#ifndef NCTD_GPU_FAULT_H
#define NCTD_GPU_FAULT_H
#include <cuda_runtime_api.h>

/* cudaSuccess: make the call; else its result. Any thread. */
cudaError_t gpu_fault_next(const char *call);
/* After a layer's kernels were enqueued on `s`. Loop thread. */
cudaError_t gpu_fault_kernel(cudaStream_t s);
/* The first batch begins. */
void gpu_fault_arm(void);
#endif
