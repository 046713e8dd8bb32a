/* conv_mma_f32.cu: the 3xTF32 kernels of PLAN_MMA; see conv_mma.cuh. */
#include "conv_mma.cuh"

cudaError_t mma_start_f32(const cuda_job *job, const mma_tile *t, bool sliced, bool packed, cudaStream_t s) {
    constexpr int P = NCT_PREC_F32;
    if (t->wn == 2)
        return sliced ? start<P, 4, 2, 1, true, false>(job, t, s) : start<P, 4, 2, 1, false, false>(job, t, s);
    if (packed) return sliced ? start<P, 4, 1, 1, true, true>(job, t, s) : start<P, 4, 1, 1, false, true>(job, t, s);
    return sliced ? start<P, 4, 1, 1, true, false>(job, t, s) : start<P, 4, 1, 1, false, false>(job, t, s);
}
