/* conv_mma_turned_bf16.cu: the bf16 kernels of conv_mma_turned.cuh. */
#include "conv_mma_turned_low.cuh"

cudaError_t turned_start_bf16(const cuda_job *job, const turned_tile *t, cudaStream_t s, int32_t *ret_places) {
    return turned_start_low<NCT_PREC_BF16>(job, t, s, ret_places);
}
