/* conv_mma_turned_tf32.cu: the tf32 kernels of conv_mma_turned.cuh. */
#include "conv_mma_turned_low.cuh"

cudaError_t turned_start_tf32(const cuda_job *job, const turned_tile *t, cudaStream_t s, int32_t *ret_places) {
    return turned_start_low<NCT_PREC_TF32>(job, t, s, ret_places);
}
