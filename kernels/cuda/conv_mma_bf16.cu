/* conv_mma_bf16.cu: the bf16 kernels of PLAN_MMA; see conv_mma.cuh. */
#include "conv_mma.cuh"

cudaError_t mma_start_bf16(const cuda_job *job, const mma_tile *t, bool sliced, bool packed, cudaStream_t s) {
    return start_low<NCT_PREC_BF16>(job, t, sliced, packed, s);
}
