/* bench_ours.c: our layer and the FMA loop, as bench_layer.py times them. */
#include "bench_layer.h"
#include "nct_layer.h"
#include "pool.h"
#include "weights_memory.h"
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double bench_seconds(int32_t threads) {
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct ours {
    nct_layer *layer;
    nct_frame *frames;
    nct_job job;
    pool *pool;
    int32_t threads, phase;
    char plan[256];
};

static void frames_fill(nct_frame *f, const bench_shape *s) {
    for (int32_t n = 0; n < s->n; n++)
        f[n] = (nct_frame){.x_off = (int64_t)n * s->ci * s->t,
            .y_off = (int64_t)n * s->co * s->t_out,
            .x_pitch = s->t,
            .y_pitch = s->t_out,
            .t_in = s->t,
            .t_out = s->t_out,
            .pad_left = s->pad,
            .pad_right = s->pad,
            .stat_in = -1,
            .stat_out = -1};
}

static int layer_make(ours *o, const bench_shape *s, const char *variant) {
    nct_params p = {.in_channels = s->ci,
        .out_channels = s->co,
        .kernel_size = s->k,
        .stride = s->stride,
        .dilation = s->dilation,
        .groups = s->groups,
        .num_groups = s->num_groups,
        .pad_left = s->pad,
        .pad_right = s->pad,
        .activation = s->activation,
        .eps = s->eps};
    nct_weights w = {{s->w, NCT_F32, 0}, {s->bias, NCT_F32, 0}, {s->gamma, NCT_F32, 0}, {s->beta, NCT_F32, 0}};
    nct_where at = {.device = -1, .force = variant};
    nct_why why;
    int err = nct_layer_new(&o->layer, &p, &w, &at, NULL, &why);
    if (err) fprintf(stderr, "bench: %s\n", why.text);
    return err;
}

static int job_make(ours *o, const bench_shape *s) {
    nct_limits lim = {s->n, o->threads, s->t_out, (int64_t)s->n * s->t_out};
    size_t bytes;
    if (nct_workspace(&o->layer, 1, &lim, &bytes, NULL)) return -1;
    void *workspace = memory_new(bytes);
    o->frames = calloc((size_t)s->n, sizeof *o->frames);
    o->job.workspace = workspace;
    if (!workspace || !o->frames) return -1;
    memset(workspace, 0, bytes);
    frames_fill(o->frames, s);
    o->job = (nct_job){.n_frames = s->n,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F32,
        .norm = NCT_NORM_OWN,
        .frames = o->frames,
        .x = s->x,
        .x_count = (int64_t)s->n * s->ci * s->t,
        .y = s->y,
        .y_count = (int64_t)s->n * s->co * s->t_out,
        .workspace = workspace,
        .workspace_bytes = bytes};
    nct_report r;
    if (nct_explain(&o->layer, 1, &o->job, 0, &r, NULL)) return -1;
    snprintf(o->plan, sizeof o->plan, "%s; %s", r.plan, r.schedule);
    return 0;
}

ours *ours_new(const bench_shape *s, const char *variant, int32_t threads) {
    ours *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    o->threads = threads;
    if (layer_make(o, s, variant) || job_make(o, s) || pool_new(&o->pool, threads)) {
        ours_free(o);
        return NULL;
    }
    return o;
}

static void phase_work(void *ctx, int32_t worker, int32_t n_workers) {
    ours *o = ctx;
    nct_phase(&o->layer, 1, &o->job, o->phase, worker, n_workers);
}

double ours_run(ours *o) {
    double start = bench_seconds(o->threads);
    int phases = nct_phases(&o->layer, 1, &o->job, o->threads, NULL);
    if (phases < 0) return -1;
    for (o->phase = 0; o->phase < phases; o->phase++) pool_run(o->pool, phase_work, o);
    return bench_seconds(o->threads) - start;
}

const char *ours_plan(const ours *o) {
    return o->plan;
}

void ours_free(ours *o) {
    if (!o) return;
    pool_free(o->pool);
    nct_layer_free(o->layer);
    free(o->frames);
    memory_free(o->job.workspace);
    free(o);
}

/* ---- the FMA loop ---- */

typedef struct {
    double flop;
    float sink[256];
} fma_ctx;

/* 12 chains: two ports x four cycles need 8; 12 fit the 16 registers of AVX2 too. Each loop over the chains is
 * unrolled: one that is not keeps them in memory. */
#define CHAINS _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)
#define FMA_LOOP(name, isa, type, set1, fmadd, lanes)                                                                \
    __attribute__((target(isa))) static float name(double flop) {                                                    \
        type a[12], m = set1(0.999f), c = set1(1e-3f);                                                               \
        CHAINS a[i] = set1((float)i);                                                                                \
        for (long j = (long)(flop / (24.0 * lanes)); j > 0; j--) CHAINS {                                            \
                a[i] = fmadd(a[i], m, c);                                                                            \
                __asm__("" : "+v"(a[i]));                                                                            \
            }                                                                                                        \
        CHAINS c += a[i];                                                                                            \
        return ((float *)&c)[0];                                                                                     \
    }
FMA_LOOP(fma_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps, 16)
FMA_LOOP(fma_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps, 8)

static void fma_work(void *ctx, int32_t worker, int32_t n_workers) {
    fma_ctx *f = ctx;
    double share = f->flop / n_workers;
    f->sink[worker] = __builtin_cpu_supports("avx512f") ? fma_avx512(share) : fma_avx2(share);
}

double fma_run(double flop, int32_t threads) {
    static pool *pools[256]; /* kept: the loop is timed between all others */
    fma_ctx f = {.flop = flop};
    if (threads < 1 || threads > 255 || (!pools[threads] && pool_new(&pools[threads], threads))) return -1;
    double start = bench_seconds(threads);
    pool_run(pools[threads], fma_work, &f);
    return bench_seconds(threads) - start;
}
