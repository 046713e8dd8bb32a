/* bench_dnnl.c: oneDNN's convolution with our norm and activation behind it, as a peer of bench_layer.py. */
#include "bench_layer.h"
#include "cpu/cpu.h"
#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SRC, WEIGHTS, BIAS, DST, N_MEM };

struct dnnl_peer {
    bench_shape s;
    int32_t threads;
    int nwc;
    const cpu_ops *ops;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t conv, x_reorder, y_reorder;
    dnnl_memory_t mem[N_MEM], x, y, w;
    double *leaf; /* [n][co] mean, m2 */
};

#define TRY(call)                                                                                                    \
    do {                                                                                                             \
        dnnl_status_t status = (call);                                                                               \
        if (status != dnnl_success) {                                                                                \
            fprintf(stderr, "bench: %s: oneDNN status %d\n", #call, status);                                         \
            return -1;                                                                                               \
        }                                                                                                            \
    } while (0)

static int reorder_make(dnnl_peer *d, dnnl_memory_t from, dnnl_memory_t to, dnnl_primitive_t *ret) {
    const dnnl_memory_desc_t *a, *b;
    dnnl_primitive_desc_t pd;
    TRY(dnnl_memory_get_memory_desc(from, &a));
    TRY(dnnl_memory_get_memory_desc(to, &b));
    TRY(dnnl_reorder_primitive_desc_create(&pd, a, d->engine, b, d->engine, NULL));
    TRY(dnnl_primitive_create(ret, pd));
    TRY(dnnl_primitive_desc_destroy(pd));
    return 0;
}

static int reorder_run(dnnl_peer *d, dnnl_primitive_t p, dnnl_memory_t from, dnnl_memory_t to) {
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    TRY(dnnl_primitive_execute(p, d->stream, 2, args));
    return 0;
}

static int conv_desc(const bench_shape *s, int nwc, dnnl_convolution_desc_t *ret) {
    int g = s->groups, gi = s->ci / g, go = s->co / g;
    dnnl_dims_t xd = {s->n, s->ci, s->t}, yd = {s->n, s->co, s->t_out}, bd = {s->co};
    dnnl_dims_t wd = {s->co, s->ci, s->k}, wg = {g, go, gi, s->k};
    dnnl_dims_t stride = {s->stride}, dilation = {s->dilation - 1}, pad = {s->pad}, pad_right;
    dnnl_memory_desc_t x, w, b, y;
    dnnl_format_tag_t tag = nwc ? dnnl_nwc : dnnl_ncw;
    pad_right[0] = (int64_t)(s->t_out - 1) * s->stride + (int64_t)s->dilation * (s->k - 1) + 1 - s->t - s->pad;
    TRY(dnnl_memory_desc_init_by_tag(&x, 3, xd, dnnl_f32, tag));
    TRY(dnnl_memory_desc_init_by_tag(&y, 3, yd, dnnl_f32, tag));
    TRY(dnnl_memory_desc_init_by_tag(&w, g > 1 ? 4 : 3, g > 1 ? wg : wd, dnnl_f32, dnnl_format_tag_any));
    TRY(dnnl_memory_desc_init_by_tag(&b, 1, bd, dnnl_f32, dnnl_a));
    TRY(dnnl_dilated_convolution_forward_desc_init(ret, dnnl_forward_inference, dnnl_convolution_auto, &x, &w,
        s->bias ? &b : NULL, &y, stride, dilation, pad, pad_right));
    return 0;
}

static int memory_make(dnnl_peer *d, dnnl_primitive_desc_t pd, dnnl_query_t query, void *data, dnnl_memory_t *ret) {
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(pd, query, 0);
    TRY(dnnl_memory_create(ret, md, d->engine, data));
    return 0;
}

static int weights_pack(dnnl_peer *d, dnnl_primitive_desc_t pd) {
    const bench_shape *s = &d->s;
    int g = s->groups, gi = s->ci / g, go = s->co / g;
    dnnl_dims_t wd = {s->co, s->ci, s->k}, wg = {g, go, gi, s->k};
    dnnl_memory_desc_t plain;
    TRY(dnnl_memory_desc_init_by_tag(&plain, g > 1 ? 4 : 3, g > 1 ? wg : wd, dnnl_f32, g > 1 ? dnnl_goiw : dnnl_oiw));
    TRY(dnnl_memory_create(&d->w, &plain, d->engine, (void *)(uintptr_t)s->w));
    if (memory_make(d, pd, dnnl_query_weights_md, DNNL_MEMORY_ALLOCATE, &d->mem[WEIGHTS])) return -1;
    dnnl_primitive_t pack;
    if (reorder_make(d, d->w, d->mem[WEIGHTS], &pack) || reorder_run(d, pack, d->w, d->mem[WEIGHTS])) return -1;
    TRY(dnnl_primitive_destroy(pack));
    return 0;
}

static int peer_make(dnnl_peer *d) {
    const bench_shape *s = &d->s;
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t pd;
    TRY(dnnl_engine_create(&d->engine, dnnl_cpu, 0));
    TRY(dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags));
    if (conv_desc(s, d->nwc, &desc)) return -1;
    TRY(dnnl_primitive_desc_create(&pd, &desc, NULL, d->engine, NULL));
    TRY(dnnl_primitive_create(&d->conv, pd));
    void *x = (void *)(uintptr_t)s->x;
    if (memory_make(d, pd, dnnl_query_src_md, d->nwc ? DNNL_MEMORY_ALLOCATE : x, &d->mem[SRC])) return -1;
    if (memory_make(d, pd, dnnl_query_dst_md, d->nwc ? DNNL_MEMORY_ALLOCATE : s->y, &d->mem[DST])) return -1;
    if (weights_pack(d, pd)) return -1;
    if (s->bias) {
        dnnl_memory_desc_t b;
        dnnl_dims_t bd = {s->co};
        TRY(dnnl_memory_desc_init_by_tag(&b, 1, bd, dnnl_f32, dnnl_a));
        TRY(dnnl_memory_create(&d->mem[BIAS], &b, d->engine, (void *)(uintptr_t)s->bias));
    }
    TRY(dnnl_primitive_desc_destroy(pd));
    if (!d->nwc) return 0;
    dnnl_memory_desc_t md;
    dnnl_dims_t xd = {s->n, s->ci, s->t}, yd = {s->n, s->co, s->t_out};
    TRY(dnnl_memory_desc_init_by_tag(&md, 3, xd, dnnl_f32, dnnl_ncw));
    TRY(dnnl_memory_create(&d->x, &md, d->engine, x));
    TRY(dnnl_memory_desc_init_by_tag(&md, 3, yd, dnnl_f32, dnnl_ncw));
    TRY(dnnl_memory_create(&d->y, &md, d->engine, s->y));
    if (reorder_make(d, d->x, d->mem[SRC], &d->x_reorder)) return -1;
    return reorder_make(d, d->mem[DST], d->y, &d->y_reorder);
}

dnnl_peer *dnnl_peer_new(const bench_shape *s, int nwc, int32_t threads) {
    dnnl_peer *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->s = *s;
    d->nwc = nwc;
    d->threads = threads;
    d->ops = cpu_ops_avx512.supported() ? &cpu_ops_avx512 : &cpu_ops_avx2;
    d->leaf = calloc((size_t)s->n * (size_t)s->co * (size_t)(s->t_out / CPU_LEAF + 1), 2 * sizeof *d->leaf);
    omp_set_num_threads(threads);
    if (!d->leaf || peer_make(d)) {
        dnnl_peer_free(d);
        return NULL;
    }
    return d;
}

static int conv_run(dnnl_peer *d) {
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, d->mem[SRC]}, {DNNL_ARG_WEIGHTS, d->mem[WEIGHTS]},
        {DNNL_ARG_DST, d->mem[DST]}, {DNNL_ARG_BIAS, d->mem[BIAS]}};
    TRY(dnnl_primitive_execute(d->conv, d->stream, d->s.bias ? 4 : 3, args));
    return 0;
}

/* ---- the norm and activation pass: our leaves and rows, spread over (frame, channel, block) by OpenMP ---- */

static cpu_apply group_apply(const dnnl_peer *d, int32_t n, int32_t g) {
    const bench_shape *s = &d->s;
    int32_t blocks = (s->t_out + CPU_LEAF - 1) / CPU_LEAF, rows = s->co / s->num_groups;
    const double *leaf = d->leaf + 2 * ((int64_t)n * s->co + (int64_t)g * rows) * blocks;
    double sum = 0, m2 = 0, count = (double)rows * s->t_out;
    for (int64_t i = 0; i < (int64_t)rows * blocks; i++) {
        int32_t left = s->t_out - (int32_t)(i % blocks) * CPU_LEAF;
        sum += leaf[2 * i] * (left < CPU_LEAF ? left : CPU_LEAF);
    }
    double mean = sum / count;
    for (int64_t i = 0; i < (int64_t)rows * blocks; i++) {
        int32_t left = s->t_out - (int32_t)(i % blocks) * CPU_LEAF;
        double e = leaf[2 * i] - mean;
        m2 += leaf[2 * i + 1] + e * e * (left < CPU_LEAF ? left : CPU_LEAF);
    }
    return (cpu_apply){.mean_hi = (float)mean,
        .mean_lo = (float)(mean - (float)mean),
        .rstd = (float)(1 / sqrt(m2 / count + s->eps)),
        .activation = s->activation,
        .dtype = NCT_F32,
        .norm = 1};
}

/* Leaf i of n. */
static void leaf_run(dnnl_peer *d, int64_t i, int64_t n) {
    int32_t t_out = d->s.t_out, blocks = (t_out + CPU_LEAF - 1) / CPU_LEAF;
    int32_t t0 = (int32_t)(i % blocks) * CPU_LEAF, left = t_out - t0;
    const float *y = d->s.y + i / blocks * t_out + t0, *next = d->s.y;
    if (i + 1 < n) next += (i + 1) / blocks * t_out + (i + 1) % blocks * CPU_LEAF;
    d->ops->leaf(y, left < CPU_LEAF ? left : CPU_LEAF, next, &d->leaf[2 * i], &d->leaf[2 * i + 1]);
}

static void norm_run(dnnl_peer *d) {
    const bench_shape *s = &d->s;
    int32_t blocks = (s->t_out + CPU_LEAF - 1) / CPU_LEAF, rows = s->co / s->num_groups;
    int64_t all = (int64_t)s->n * s->co * blocks, groups = (int64_t)s->n * s->num_groups;
    if (groups >= d->threads && (int64_t)rows * s->t_out * 4 <= CPU_UNIT_BYTES) {
#pragma omp parallel for schedule(static)
        for (int64_t g = 0; g < groups; g++) {
            for (int64_t i = g * rows * blocks; i < (g + 1) * rows * blocks; i++) leaf_run(d, i, all);
            cpu_apply a = group_apply(d, (int32_t)(g / s->num_groups), (int32_t)(g % s->num_groups));
            a.gamma = s->gamma + g * rows % s->co;
            a.beta = s->beta + g * rows % s->co;
            float *y = s->y + g * rows * s->t_out;
            d->ops->apply(&a, rows, y, s->t_out, s->t_out, y, s->t_out);
        }
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < all; i++) leaf_run(d, i, all);
#pragma omp parallel
    {
        int64_t known = -1;
        cpu_apply a = {0};
#pragma omp for schedule(static)
        for (int64_t i = 0; i < all; i++) {
            int64_t row = i / blocks, c = row % s->co, group = row / rows;
            int32_t t0 = (int32_t)(i % blocks) * CPU_LEAF, left = s->t_out - t0;
            if (group != known)
                a = group_apply(d, (int32_t)(group / s->num_groups), (int32_t)(group % s->num_groups));
            known = group;
            a.gamma = s->gamma + c;
            a.beta = s->beta + c;
            float *y = s->y + row * s->t_out + t0;
            d->ops->apply(&a, 1, y, s->t_out, left < CPU_LEAF ? left : CPU_LEAF, y, s->t_out);
        }
    }
}

double dnnl_peer_run(dnnl_peer *d) {
    omp_set_num_threads(d->threads);
    double start = bench_seconds(d->threads);
    if (d->nwc && reorder_run(d, d->x_reorder, d->x, d->mem[SRC])) return -1;
    if (conv_run(d)) return -1;
    if (d->nwc && reorder_run(d, d->y_reorder, d->mem[DST], d->y)) return -1;
    norm_run(d);
    return bench_seconds(d->threads) - start;
}

double dnnl_peer_bare(dnnl_peer *d) {
    omp_set_num_threads(d->threads);
    double start = bench_seconds(d->threads);
    return conv_run(d) ? -1 : bench_seconds(d->threads) - start;
}

void dnnl_peer_free(dnnl_peer *d) {
    if (!d) return;
    for (int i = 0; i < N_MEM; i++)
        if (d->mem[i]) dnnl_memory_destroy(d->mem[i]);
    if (d->x) dnnl_memory_destroy(d->x);
    if (d->y) dnnl_memory_destroy(d->y);
    if (d->w) dnnl_memory_destroy(d->w);
    if (d->x_reorder) dnnl_primitive_destroy(d->x_reorder);
    if (d->y_reorder) dnnl_primitive_destroy(d->y_reorder);
    if (d->conv) dnnl_primitive_destroy(d->conv);
    if (d->stream) dnnl_stream_destroy(d->stream);
    if (d->engine) dnnl_engine_destroy(d->engine);
    free(d->leaf);
    free(d);
}
