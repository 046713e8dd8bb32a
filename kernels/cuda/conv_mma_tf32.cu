/* conv_mma_tf32.cu: the tf32 kernels of PLAN_MMA; see conv_mma.cuh. */
#include "conv_mma.cuh"

cudaError_t mma_start_tf32(const cuda_job *job, const mma_tile *t, bool sliced, bool packed, cudaStream_t s) {
    return start_low<NCT_PREC_TF32>(job, t, sliced, packed, s);
}
