/* conv_mma_turned_f32.cu: the 3xTF32 kernels of conv_mma_turned.cuh. */
#include "conv_mma_turned.cuh"

cudaError_t turned_start_f32(const cuda_job *job, const turned_tile *t, cudaStream_t s, int32_t *ret_places) {
    constexpr int P = NCT_PREC_F32;
    const bool sliced = job_sliced(job);
    if (t->wm == 4 && t->mt == 2)
        return sliced ? turned_start<P, 4, 2, 2, true, 2, 1>(job, t, s, ret_places)
                      : turned_start<P, 4, 2, 2, false, 2, 1>(job, t, s, ret_places);
    if (t->wm == 1)
        return sliced ? turned_start<P, 1, 4, 2, true, 2, 1>(job, t, s, ret_places)
                      : turned_start<P, 1, 4, 2, false, 2, 2>(job, t, s, ret_places);
    return sliced ? turned_start<P, 4, 1, 1, true, 3, 2>(job, t, s, ret_places)
                  : turned_start<P, 4, 1, 1, false, 3, 2>(job, t, s, ret_places);
}
