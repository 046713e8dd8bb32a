/* conv_mma_turned_low.cuh: the tiles of tf32 and bf16. */
#ifndef NCT_CUDA_CONV_MMA_TURNED_LOW_CUH
#define NCT_CUDA_CONV_MMA_TURNED_LOW_CUH
#include "conv_mma_turned.cuh"

template <int PREC>
static cudaError_t turned_start_low(const cuda_job *job, const turned_tile *t, cudaStream_t s, int32_t *ret_places) {
    if (t->wm == 1) return turned_start<PREC, 1, 4, 2, false, 3, 2>(job, t, s, ret_places);
    if (t->wn == 4) return turned_start<PREC, 2, 4, 4, false, 2, 1>(job, t, s, ret_places);
    if (t->mt == 4) return turned_start<PREC, 2, 2, 4, false, 3, 2>(job, t, s, ret_places);
    if (t->mt == 2) return turned_start<PREC, 2, 2, 2, false, 4, 2>(job, t, s, ret_places);
    return turned_start<PREC, 4, 1, 1, false, 4, 2>(job, t, s, ret_places);
}
#endif
