/* conv_mma.cu: which rows of PLAN_MMA fit, and their launch; the kernels are in conv_mma.cuh. */
#include "conv_mma.cuh"

int mma_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    const mma_tile *t = (const mma_tile *)row->tile;
    int sliced = job_sliced(job);
    if (l->precision == NCT_PREC_F32 ? t->mt != 1 : (t->mt == 1 && t->wn > 1)) return 0;
    int packed = job->max_t_out <= MMA_LEAF, low = l->precision != NCT_PREC_F32;
    if ((sliced || packed) && (t->mt == 4 || t->wm == 1)) return 0;
    if (packed ? !low && t->wn == 2 : low && sliced && t->mt == 1) return 0;
    if (row->pass == PASS_SPLIT && !(sliced && job->max_t_out <= MMA_LEAF)) return 0;
    mma_shape sh = shape_of(job, tile_c(t), 64 * t->wn);
    return shared_bytes(t, &l->m, &sh, 0) <= MMA_SHARED;
}

cudaError_t mma_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    const mma_tile *t = (const mma_tile *)row->tile;
    const bool sliced = job_sliced(job), packed = job->max_t_out <= MMA_LEAF;
    if (l->precision == NCT_PREC_TF32) return mma_start_tf32(job, t, sliced, packed, s);
    if (l->precision == NCT_PREC_BF16) return mma_start_bf16(job, t, sliced, packed, s);
    return mma_start_f32(job, t, sliced, packed, s);
}
