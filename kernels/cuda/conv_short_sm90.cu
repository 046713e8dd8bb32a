/* conv_short_sm90.cu: rows "short" of PLAN_WGMMA: what a launch of conv_short.cuh looks like, and its kernels in tf32. Called by
 * choose.cu and launch.cu. */
#include "conv_short.cuh"

/* Norm groups inside a tile: 1; as many tiles as hold one: 2 to 8; else 0: leaves and raw f32 for the general passes. */
static int32_t short_cluster(const geometry *g, int32_t bm) {
    if (g->cog % g->cg) return 0;
    if (bm % g->cg == 0) return g->cg >= 8;
    return g->cg % bm == 0 && g->cg / bm <= 8 && g->cg <= FEW ? g->cg / bm : 0;
}
/* 0: does not fit. meets: with norm groups; frames: of the job. */
static size_t short_shape_of(
    const cuda_job *job, int32_t precision, const short_tile *t, int meets, short_shape *ret) {
    const geometry *g = &job->g;
    const int32_t bm = 64 * t->wm;
    short_shape s = {};
    short_rows(g, job->max_t_out, &s);
    s.slots = t->n / 8 / s.blocks;
    if (s.slots < 1 || s.slots > SHORT_SLOTS || !short_windows(job, t->n / 8, &s)) return 0;
    s.team = short_team(&s, precision, t->wm == 2 ? 7 : 8);
    s.co_tiles = (g->cog + bm - 1) / bm;
    s.along_c = meets ? short_cluster(g, bm) : 1;
    if (!s.along_c) return 0;
    const int64_t tiles = (job->n_frames + s.slots - 1) / s.slots;
    s.along_t = s.along_c > 2 || tiles < 2 ? 1 : 2;
    /* At least 2 chunks of x and 3 stages of weights; taps share a stage as long as 3 stages and the chunks have room. */
    const int64_t x = (int64_t)s.deep * 128, tap = (int64_t)bm * 128, table = (int64_t)s.places * sizeof(short_place),
                  all = SHORT_SHARED - SHORT_HEAD - table;
    s.buffers = job->m.chunks < 2 ? 1 : 2;
    auto taps = [&] { return (all - s.buffers * x) / tap; };
    const int32_t want = g->k < 6 ? g->k : (g->k + (g->k + 5) / 6 - 1) / ((g->k + 5) / 6);
    s.span = want;
    while (s.span > 1 && taps() < 3 * s.span) s.span--;
    if (taps() < 3) return 0;
    while (s.buffers < job->m.chunks && s.buffers < SHORT_BUFFERS && taps() - x / tap >= 4 * s.span + 1) s.buffers++;
    short_few_teams(job->m.chunks, t->wm == 2 ? 7 : 8, &s);
    int64_t stages = taps() / s.span;
    s.stages = (int32_t)(stages < SHORT_STAGES ? stages : SHORT_STAGES);
    int64_t loop = s.stages * s.span * tap + s.buffers * x + table;
    *ret = s;
    return (size_t)(SHORT_HEAD + loop);
}

cudaError_t short_start_tf32(
    const cuda_job *job, const short_tile *t, const short_shape *sh, size_t bytes, cudaStream_t s) {
    return start_tile<NCT_PREC_TF32>(job, t, sh, bytes, s);
}

int short_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    short_shape sh;
    if (job->max_t_out > MMA_LEAF) return 0;
    return short_shape_of(job, l->precision, (const short_tile *)row->tile, row->pass == PASS_FUSED, &sh) > 0;
}
int64_t short_ctas(const row *row, const cuda_layer *l, const cuda_job *job) {
    short_shape sh;
    if (!short_fits(row, l, job)) return 0;
    short_shape_of(job, l->precision, (const short_tile *)row->tile, row->pass == PASS_FUSED, &sh);
    return (int64_t)((job->n_frames + sh.slots - 1) / sh.slots) * sh.co_tiles * job->g.groups;
}
cudaError_t short_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    const short_tile *t = (const short_tile *)row->tile;
    short_shape sh;
    size_t bytes = short_shape_of(job, l->precision, t, job->what & DO_MEET, &sh);
    return (l->precision == NCT_PREC_BF16 ? short_start_bf16 : short_start_tf32)(job, t, &sh, bytes, s);
}
