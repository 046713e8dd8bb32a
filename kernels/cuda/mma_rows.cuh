/* mma_rows.cuh: what rows.cu and conv_mma_turned.cu share. */
#ifndef NCT_CUDA_MMA_ROWS_CUH
#define NCT_CUDA_MMA_ROWS_CUH
#include "cuda.cuh"

struct turned_tile {
    int32_t wm, wn, mt; /* warps along channels and steps, m16 tiles of a warp; a warp has 64 steps */
};
enum { TURNED_PITCH = 68 }; /* floats: a row of 64 steps on its way to y */

int turned_fits(const row *row, const cuda_layer *l, const cuda_job *job);
int64_t turned_launches(const cuda_layer *l, const cuda_job *job, const row *row); /* of a fused row that fits */
cudaError_t turned_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);

/* One file a precision, so that they compile side by side. ret_places: CTAs that an SM holds; nothing is launched. */
cudaError_t turned_start_tf32(const cuda_job *job, const turned_tile *t, cudaStream_t s, int32_t *ret_places);
cudaError_t turned_start_bf16(const cuda_job *job, const turned_tile *t, cudaStream_t s, int32_t *ret_places);
cudaError_t turned_start_f32(const cuda_job *job, const turned_tile *t, cudaStream_t s, int32_t *ret_places);
#endif
