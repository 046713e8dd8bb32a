/* conv_mma_turned.cu: which rows of conv_mma_turned.cuh fit, and their launches. */
#include "mma_rows.cuh"
#include "mma_tile.cuh"

static cudaError_t start_any(
    const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s, int32_t *ret_places) {
    const turned_tile *t = (const turned_tile *)row->tile;
    return l->precision == NCT_PREC_F32    ? turned_start_f32(job, t, s, ret_places)
           : l->precision == NCT_PREC_TF32 ? turned_start_tf32(job, t, s, ret_places)
                                           : turned_start_bf16(job, t, s, ret_places);
}

/* Short frames whose norm groups lie in one CTA need nobody else. */
static int meets_inside(const row *row, const cuda_layer *l, const cuda_job *job) {
    return job->max_t_out <= MMA_LEAF && row->tile_c % l->g.cg == 0 && l->g.cog % l->g.cg == 0;
}

/* Frames that meet in one launch; 0: not even one. A uniform job goes in as many launches as it takes. */
static int64_t frames_together(const cuda_layer *l, const cuda_job *job, const row *row) {
    const int64_t blocks = (job->g.cog + row->tile_c - 1) / row->tile_c * job->g.groups;
    int32_t each_sm = 0;
    if (start_any(l, job, row, NULL, &each_sm)) return 0;
    const int64_t most = (int64_t)each_sm * l->sms / blocks; /* tiles */
    if (job->tiles <= most) return job->n_frames;
    if (!job->uniform || job->max_t_out <= MMA_LEAF) return 0;
    const int64_t frames = most / (job->tiles / job->n_frames);
    if (!frames) return 0;
    const int64_t launches = (job->n_frames + frames - 1) / frames;
    return (job->n_frames + launches - 1) / launches;
}

int turned_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    const turned_tile *t = (const turned_tile *)row->tile;
    const int low = l->precision != NCT_PREC_F32;
    if (low ? job_sliced(job) || (t->wm == 4 && t->wn == 2) : t->mt == 4 || (t->wm == 2 && t->mt == 2)) return 0;
    if (job->n_frames > 65535) return 0;
    int32_t places = 0;
    if (start_any(l, job, row, NULL, &places) || !places) return 0;
    if (row->pass != PASS_FUSED) return 1;
    return meets_inside(row, l, job) || frames_together(l, job, row) > 0;
}

int64_t turned_launches(const cuda_layer *l, const cuda_job *job, const row *row) {
    if (meets_inside(row, l, job)) return 1;
    const int64_t frames = frames_together(l, job, row);
    return frames ? (job->n_frames + frames - 1) / frames : 1;
}

cudaError_t turned_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    if (!(job->what & DO_MEET) || meets_inside(row, l, job)) return start_any(l, job, row, s, NULL);
    const int64_t frames = frames_together(l, job, row), each = job->tiles / job->n_frames;
    cudaError_t err = frames ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
    for (int64_t n = 0; !err && n < job->n_frames; n += frames) {
        cuda_job part = *job;
        if (frames < job->n_frames) { /* uniform: the leaves' room is used again */
            part.n_frames = (int32_t)(job->n_frames - n < frames ? job->n_frames - n : frames);
            part.tiles = (int32_t)(part.n_frames * each);
            part.row0.x_off += n * job->x_step;
            part.row0.y_off += n * job->y_step;
            if (job->frames) part.frames += n;
            if (job->flags) part.flags += n;
        }
        err = start_any(l, &part, row, s, NULL);
    }
    return err;
}
