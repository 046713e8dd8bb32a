/* launch.cu: one job: the workspace's layout, the frames as the kernels see them, and the kernels in their order. Called
 * by layer.c through cuda_backend on any thread; allocates and synchronises nothing. */
#include "backend.cuh"
#include "mma_tile.cuh"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- workspace ---- */

static int needs_scratch(const cuda_layer *l) {
    if (plan_again(l->plan)) return 0;
    if (l->forced && l->forced->launch) return l->forced->pass != PASS_AGAIN;
    return !again_by_default(l);
}

/* Grows with each argument. A frame takes whole tiles of at most 256 steps (short frames: one leaf). */
room room_of(const cuda_layer *l, int64_t frames, int64_t max_t, int64_t sum_t) {
    int64_t leaf = plan_leaf(l->plan), unit = leaf < 256 ? 256 / leaf : 1;
    if (sum_t > frames * max_t) sum_t = frames * max_t;
    int64_t most = ((max_t + leaf - 1) / leaf + unit - 1) / unit * unit;
    int64_t columns = max_t <= leaf ? frames : sum_t / leaf + frames * unit;
    if (max_t > leaf && columns > frames * most) columns = frames * most;
    room r;
    r.leaf_start = 0;
    r.coef = aligned((size_t)(frames + 1) * 4);
    r.counters = r.coef + aligned((size_t)(frames * l->g.co) * 16);
    r.leaves = r.counters + aligned((size_t)(frames * l->g.groups * ((l->g.cog + 63) / 64 * 2)) * 4);
    r.scratch = r.leaves + aligned((size_t)(columns * l->g.co) * 16);
    r.partial = r.scratch + (needs_scratch(l) ? aligned((size_t)(columns * leaf * l->g.co) * 4) : 0);
    size_t slices =
        l->plan == PLAN_MMA && l->m.slice ? (size_t)((l->m.chunks * l->g.k + l->m.slice - 1) / l->m.slice) : 0;
    size_t split = (size_t)(frames < SPLIT_FRAMES ? frames : SPLIT_FRAMES);
    r.turned = r.partial + aligned(slices * split * l->g.co * MMA_LEAF * 4);
    int64_t rows = columns * leaf + frames * ((l->g.k - 1) * (int64_t)l->g.dil / l->g.stride),
            units = l->g.groups * (int64_t)l->m.chunks * (l->m.rows / 4);
    const int turned = l->plan == PLAN_MMA || (l->plan == PLAN_WGMMA && max_t > MMA_LEAF);
    r.bytes = r.turned + (turned ? aligned((size_t)(rows * l->g.stride * units) * 16) : 0);
    return r;
}

int cuda_workspace(const nct_layer *nl, const nct_limits *lim, size_t *ret_bytes, nct_why *why) {
    (void)why;
    *ret_bytes = room_of((const cuda_layer *)nl->impl, lim->max_frames, lim->max_t_out, lim->sum_t_out).bytes;
    return 0;
}

/* ---- a job ---- */

/* All rows row 0's but for constant steps of x_off and y_off? Slots may differ. */
static int frames_alike(const nct_job *job) {
    const nct_frame *f = job->frames;
    if (job->n_frames < 2) return 1;
    int64_t dx = f[1].x_off - f[0].x_off, dy = f[1].y_off - f[0].y_off;
    for (int32_t n = 1; n < job->n_frames; n++)
        if (f[n].x_off != f[n - 1].x_off + dx || f[n].y_off != f[n - 1].y_off + dy || f[n].t_in != f[0].t_in ||
            f[n].t_out != f[0].t_out || f[n].x_pitch != f[0].x_pitch || f[n].y_pitch != f[0].y_pitch ||
            f[n].pad_left != f[0].pad_left || f[n].pad_right != f[0].pad_right)
            return 0;
    return 1;
}

cuda_job job_begin(const cuda_layer *l, const nct_job *job) {
    cuda_job j = {};
    j.g = l->g;
    j.m = l->m;
    j.x = job->x;
    j.x_count = job->x_count;
    j.y = job->y;
    j.frames = job->frames_dev;
    j.row0 = job->frames[0];
    j.uniform = frames_alike(job);
    if (job->n_frames > 1) {
        j.x_step = job->frames[1].x_off - job->frames[0].x_off;
        j.y_step = job->frames[1].y_off - job->frames[0].y_off;
    }
    j.n_frames = job->n_frames;
    j.x_dtype = job->x_dtype;
    j.y_dtype = job->y_dtype;
    j.norm = job->norm;
    j.leaf_t = plan_leaf(l->plan);
    j.precision = l->precision;
    j.stats = job->stats;
    j.flags = job->frame_flags;
    j.weight = l->weight;
    j.bias = l->bias;
    j.gamma = l->gamma;
    j.beta = l->beta;
    j.x_wide = 1;
    for (int32_t n = 0; n < job->n_frames; n++) {
        if (job->frames[n].x_pitch * (int64_t)dtype_size(job->x_dtype) % 16) j.x_wide = 0;
        if (job->frames[n].t_out > j.max_t_out) j.max_t_out = job->frames[n].t_out;
    }
    return j;
}

/* Tiles along time of a row, and the columns of leaves. */
void job_tiles(cuda_job *j, const nct_job *job, const row *row) {
    int64_t tiles = 0;
    if ((row->plan == PLAN_MMA || row->plan == PLAN_WGMMA) && j->max_t_out <= MMA_LEAF) {
        int32_t steps = slot_steps_of(&j->g, j->max_t_out, row->tile_t);
        int32_t slots = row->tile_t / steps;
        tiles = (job->n_frames + slots - 1) / slots;
        j->tile_leaves = j->leaf_cols = 1;
        j->slot_steps = steps;
    } else {
        for (int32_t n = 0; n < job->n_frames; n++) tiles += (job->frames[n].t_out + row->tile_t - 1) / row->tile_t;
        j->tile_leaves = row->tile_t > j->leaf_t ? row->tile_t / j->leaf_t : 1;
        j->leaf_cols = (j->row0.t_out + row->tile_t - 1) / row->tile_t * j->tile_leaves;
        if (j->max_t_out <= j->leaf_t) j->leaf_cols = 1;
    }
    j->tiles = (int32_t)tiles;
}
static int needs_prefix(const cuda_job *j) {
    return !j->uniform && j->max_t_out > j->leaf_t;
}

/* ---- launch ---- */

static cudaError_t launch_split(const cuda_layer *l, cuda_job *j, const row *r, int32_t final, cudaStream_t s) {
    j->what = DO_PARTIAL;
    cudaError_t err = r->launch(l, j, r, s);
    if (err) return err;
    j->what = final;
    return norm_combine(j, (j->m.chunks * j->g.k + j->m.slice - 1) / j->m.slice, s);
}

static cudaError_t launch_conv(const cuda_layer *l, cuda_job *j, const row *r, int32_t what, cudaStream_t s) {
    j->what = what;
    return r->launch(l, j, r, s);
}

static cudaError_t launch_passes(const cuda_layer *l, cuda_job *j, const row *r, int conv_only, cudaStream_t s) {
    j->raw_in_y = conv_only || (j->y && j->y_dtype == NCT_F32);
    cudaError_t err = cudaSuccess;
    if (j->flags) err = cudaMemsetAsync(j->flags, 0, (size_t)j->n_frames * sizeof *j->flags, s);
    if (!err && needs_prefix(j)) err = norm_prefix(j, (int32_t *)j->leaf_start, s);
    if (err) return err;
    int given = j->norm == NCT_NORM_GIVEN;
    if (r->pass == PASS_SPLIT)
        return launch_split(l, j, r,
            conv_only ? DO_RAW
            : !j->y   ? DO_LEAVES
                      : DO_RAW | DO_APPLY | (given ? 0 : DO_LEAVES),
            s);
    if (conv_only) return launch_conv(l, j, r, DO_RAW, s);
    int again = r->pass == PASS_AGAIN || plan_again(r->plan);
    /* Several tiles would read a running slot that one of them writes. */
    if (r->pass == PASS_FUSED && j->y && j->norm == NCT_NORM_OWN)
        return launch_conv(l, j, r, DO_LEAVES | DO_MEET | DO_APPLY, s);
    if (!given) err = launch_conv(l, j, r, j->y && !again ? DO_LEAVES | DO_RAW : DO_LEAVES, s);
    if (err) return err;
    if (!given && j->y && !again && norm_merges(j)) return norm_apply(j, 1, s);
    err = norm_finish(j, s);
    if (err || !j->y) return err;
    return given || again ? launch_conv(l, j, r, DO_APPLY, s) : norm_apply(j, 0, s);
}

int cuda_launch(const nct_layer *nl, const nct_job *job, nct_why *why) {
    const cuda_layer *l = (const cuda_layer *)nl->impl;
    int64_t sum = 0;
    for (int32_t n = 0; n < job->n_frames; n++) sum += job->frames[n].t_out;
    cuda_job j = job_begin(l, job);
    const row *r = row_choose(l, &j, job, why);
    if (!r) return -ENOTSUP;
    room at = room_of(l, job->n_frames, j.max_t_out, sum);
    if (job->workspace_bytes < at.bytes || !job->workspace)
        return why_set(why, -ENOSPC, "the workspace has %zu bytes, %d frames of %lld steps in all need %zu",
            job->workspace ? job->workspace_bytes : 0, job->n_frames, (long long)sum, at.bytes);
    job_tiles(&j, job, r);
    if (job_ctas(&j, r) > INT32_MAX || (int64_t)j.n_frames * j.g.norm_groups * 16 > INT32_MAX)
        return why_set(why, -ENOTSUP, "%d frames of up to %d steps are more than one launch holds: cut the batch",
            job->n_frames, j.max_t_out);
    char *base = (char *)job->workspace;
    j.coef = (float4 *)(base + at.coef);
    j.leaves = (float4 *)(base + at.leaves);
    j.scratch = (float *)(base + at.scratch);
    j.partial = (float *)(base + at.partial);
    j.counters = (int32_t *)(base + at.counters);
    j.turned = (uint8_t *)(base + at.turned);
    if (needs_prefix(&j)) j.leaf_start = (int32_t *)(base + at.leaf_start);
    int before, err = device_enter(l->device, &before, why);
    if (err) return err;
    cudaError_t e = launch_passes(l, &j, r, job->flags & NCT_CONV_ONLY, (cudaStream_t)job->stream);
    if (e) cudaGetLastError();
    device_leave(l->device, before);
    return cuda_error(e, "launching a layer", why);
}
