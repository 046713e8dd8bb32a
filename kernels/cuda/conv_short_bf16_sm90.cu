/* conv_short_bf16_sm90.cu: the kernels of conv_short.cuh in bf16. Called by conv_short_sm90.cu. */
#include "conv_short.cuh"

cudaError_t short_start_bf16(
    const cuda_job *job, const short_tile *t, const short_shape *sh, size_t bytes, cudaStream_t s) {
    return start_tile<NCT_PREC_BF16>(job, t, sh, bytes, s);
}
