/* engine_rig.h: what the engine's unit tests share: a loop, an arena, a batcher, engines with a real layer, and a
 * publisher that keeps every batch until it is asked to let go. Frames are checked against the layer run alone. */
#ifndef ENGINE_RIG_H
#define ENGINE_RIG_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "config.h"
#include "engine.h"
#include "rows.h"

enum { RIG_ENGINES = 4, RIG_FRAMES = 4096, RIG_STREAMS = 64 };
struct generation {
    nct_layer *layer;
    nct_params p;
};
struct session {
    int index;
};
struct stream {
    int index, in_flight;
    struct engine *engine;
    uint64_t last_order; /* handed over */
};

typedef struct {
    uv_loop_t loop;
    config *cfg;
    arena *a;
    batcher *b;
    int n_engines;
    engine *e[RIG_ENGINES];
    struct generation g[2];
    struct session sessions[4];
    struct stream streams[RIG_STREAMS];
    frame *frames[RIG_FRAMES]; /* handed over, in that order */
    int n_frames, n_copied_in, n_woken;
    batch *kept, **kept_end;
    bool keep; /* batches are not ended */
    uint64_t order;
} rig;

static void rig_copied_in(void *ctx, frame *f) {
    rig *r = ctx;
    r->n_copied_in++;
    memset((void *)(uintptr_t)f->payload.data, 0x55, f->payload.bytes);
    free((char *)(uintptr_t)f->payload.data - 1);
    f->payload.data = NULL;
}

static void rig_wake(void *ctx) {
    ((rig *)ctx)->n_woken++;
}
static void rig_bind(struct stream *s, engine *e) {
    s->engine = e;
}
static nct_layer *rig_layer_of(const struct generation *g, int32_t device) {
    assert_int_equal(device, -1);
    return g->layer;
}

static void rig_end(rig *r, batch *b) {
    (void)r;
    engine_batch_end(b->engine, b);
}

static void rig_done(void *ctx, batch *b) {
    rig *r = ctx;
    for (int32_t n = 0; n < b->n_frames; n++) {
        frame *f = b->frames[n];
        struct stream *s = f->stream;
        assert_true(f->order > s->last_order); /* in order of admission */
        s->last_order = f->order;
        if (--s->in_flight == 0) s->engine = NULL;
        if (f->place == ROW_SLOT || (f->place == ROW_ARENA && f->arena_pages == 0)) { /* as the publisher copies */
            void *copy = malloc(f->y_bytes);
            memcpy(copy, f->y, f->y_bytes);
            f->y = copy;
        }
        assert_true(r->n_frames < RIG_FRAMES);
        r->frames[r->n_frames++] = f;
    }
    if (!r->keep) {
        rig_end(r, b);
        return;
    }
    *r->kept_end = b;
    r->kept_end = &b->next;
}

static void rig_let_go(rig *r) {
    while (r->kept) {
        batch *b = r->kept;
        r->kept = b->next;
        rig_end(r, b);
    }
    r->kept_end = &r->kept;
}

/* Result rows back to where they came from; the frame too. */
static void rig_frame_free(rig *r, frame *f) {
    if (f->place == ROW_ARENA && f->arena_pages)
        arena_give(r->a, f->arena_first, f->arena_pages);
    else
        free(f->y);
    free(f);
}

static void rig_frames_free(rig *r) {
    for (int i = 0; i < r->n_frames; i++) rig_frame_free(r, r->frames[i]);
    r->n_frames = 0;
}

static void rig_layer(struct generation *g, int32_t c_in, int32_t c_out, int32_t groups, int activation) {
    static float weight[1 << 16], ones[1024];
    nct_why why;
    g->p = (nct_params){.in_channels = c_in,
        .out_channels = c_out,
        .kernel_size = 3,
        .stride = 1,
        .dilation = 1,
        .groups = 1,
        .num_groups = groups,
        .pad_left = 1,
        .pad_right = 1,
        .activation = activation,
        .eps = 1e-5};
    for (int i = 0; i < c_in * c_out * 3; i++) weight[i] = (float)(rand() % 2001 - 1000) / 1000;
    for (int i = 0; i < c_out; i++) ones[i] = 1;
    nct_weights w = {.weight = {weight, NCT_F32, 0}, .gamma = {ones, NCT_F32, 0}};
    nct_where at = {.device = -1};
    if (nct_layer_new(&g->layer, &g->p, &w, &at, NULL, &why)) fail_msg("%s", why.text);
}

/* overrides: section.key=value, NULL at the end. */
static rig *rig_new(const engine_ops *ops, int n_engines, size_t arena_bytes, const char *const *overrides) {
    rig *r = calloc(1, sizeof *r);
    config_why cwhy;
    nct_why why;
    int n = 0;
    while (overrides[n]) n++;
    if (config_load(&r->cfg, NULL, overrides, n, &cwhy)) fail_msg("%s", cwhy.text);
    srand(1);
    uv_loop_init(&r->loop);
    r->kept_end = &r->kept;
    r->n_engines = n_engines;
    for (int i = 0; i < RIG_STREAMS; i++) r->streams[i].index = i;
    rig_layer(&r->g[0], 4, 8, 2, NCT_NONE);
    rig_layer(&r->g[1], 3, 6, 3, NCT_RELU);
    assert_int_equal(arena_new(&r->a, arena_bytes), 0);
    batcher_limits limits = {.max_frames = r->cfg->batch.max_frames,
        .max_delay_us = r->cfg->batch.max_delay_us,
        .slot_bytes = r->cfg->engine.slot_bytes};
    assert_int_equal(batcher_new(&r->b, &limits), 0);
    for (int i = 0; i < n_engines; i++) {
        engine_setup setup = {.loop = &r->loop,
            .cfg = r->cfg,
            .out = r->a,
            .batcher = r->b,
            .done = {rig_done, r},
            .copied_in = {rig_copied_in, r},
            .layer_of = rig_layer_of,
            .bind = rig_bind,
            .wake = rig_wake,
            .wake_ctx = r,
            .index = i,
            .device = -1};
        if (engine_new(&r->e[i], ops, &setup, &why)) fail_msg("%s", why.text);
        for (int m = 0; m < 2; m++)
            if (engine_reserve(r->e[i], r->g[m].layer, &r->g[m].p, &why)) fail_msg("%s", why.text);
    }
    return r;
}

static void rig_free(rig *r) {
    rig_let_go(r);
    rig_frames_free(r);
    for (int i = 0; i < r->n_engines; i++) engine_free(r->e[i]);
    assert_int_equal(arena_pages_free(r->a) * (size_t)ARENA_PAGE, arena_bytes(r->a));
    uv_run(&r->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r->loop), 0);
    batcher_free(r->b);
    arena_free(r->a);
    for (int m = 0; m < 2; m++) nct_layer_free(r->g[m].layer);
    config_free(r->cfg);
    free(r);
}

/* A frame of random samples, its payload at an odd address. `change` may be given to set its kind before it is sized. */
static frame *rig_frame(rig *r, int g_index, int stream, int32_t t, int wire_dtype, uint32_t flags) {
    frame *f = calloc(1, sizeof *f);
    struct generation *g = &r->g[g_index];
    *f = (frame){.session = &r->sessions[stream % 4],
        .stream = &r->streams[stream],
        .model = g,
        .x_dtype = rows_x_dtype(wire_dtype),
        .y_dtype = NCT_F32,
        .observe = (flags & WIRE_OBSERVE) != 0,
        .norm = flags & WIRE_GIVEN ? NCT_NORM_GIVEN : NCT_NORM_OWN,
        .t_in = t,
        .t_out = t,
        .pad_left = 1,
        .pad_right = 1,
        .c_in = g->p.in_channels,
        .c_out = g->p.out_channels,
        .n_groups = g->p.num_groups,
        .t_read_ns = uv_hrtime(),
        .order = ++r->order,
        .engine = r->streams[stream].engine};
    f->h.dtype = (uint8_t)wire_dtype;
    f->h.flags = flags;
    size_t n = (size_t)f->c_in * (size_t)t, size = rows_dtype_bytes(wire_dtype);
    f->payload.bytes = n * size + (flags & WIRE_GIVEN ? rows_stats_bytes(f) : 0);
    unsigned char *at = (unsigned char *)malloc(f->payload.bytes + 1) + 1;
    f->payload.data = at;
    for (size_t i = 0; i < n; i++) {
        float v = (float)(rand() % 20001 - 10000) / 10000;
        double d = v;
        int32_t k = rand();
        memcpy(at + i * size,
            wire_dtype == NCT_F32   ? (void *)&v
            : wire_dtype == NCT_F64 ? (void *)&d
                                    : (void *)&k,
            size);
        if (wire_dtype == NCT_F16 || wire_dtype == NCT_BF16) at[i * size + 1] &= 0xbf; /* finite, below 2 */
    }
    for (int32_t i = 0; flags & WIRE_GIVEN && i < f->n_groups; i++) {
        nct_stat s = {100, 0.25 * i, 50 + i};
        memcpy(at + n * size + (size_t)i * sizeof s, &s, sizeof s);
    }
    return f;
}

static void rig_push(rig *r, frame *f) {
    f->stream->in_flight++;
    assert_int_equal(batcher_push(r->b, f), 0);
}

/* The same frame through the layer alone: its bytes as they must come back, malloc'ed. */
static void *rig_expected(const frame *f) {
    nct_layer *l = f->model->layer;
    nct_why why;
    nct_limits lim = {.max_frames = 1, .n_workers = 1, .max_t_out = f->t_out, .sum_t_out = f->t_out};
    size_t need, bytes = rows_y_bytes(f);
    nct_frame row = {.x_pitch = rows_x_pitch(f),
        .y_pitch = f->t_out,
        .t_in = f->t_in,
        .t_out = f->t_out,
        .pad_left = f->pad_left,
        .pad_right = f->pad_right,
        .stat_in = f->norm == NCT_NORM_GIVEN ? 0 : -1,
        .stat_out = f->observe ? 0 : -1};
    assert_int_equal(nct_workspace(&l, 1, &lim, &need, &why), 0);
    void *x = aligned_alloc(256, rows_x_bytes(f)), *y = malloc(bytes);
    void *work = aligned_alloc(256, rows_round(need + 1, 256));
    nct_stat *stats = calloc((size_t)f->n_groups, sizeof *stats);
    rows_copy_in(f, x, 0, INT64_MAX);
    if (f->norm == NCT_NORM_GIVEN) rows_copy_stats(f, stats);
    nct_job job = {.n_frames = 1,
        .x_dtype = f->x_dtype,
        .y_dtype = f->y_dtype,
        .norm = f->norm,
        .frames = &row,
        .x = x,
        .x_count = (int64_t)(rows_x_bytes(f) / rows_dtype_bytes(f->x_dtype)),
        .y = f->observe ? NULL : y,
        .y_count = (int64_t)(bytes / rows_dtype_bytes(f->y_dtype)),
        .stats = stats,
        .n_stats = 1,
        .workspace = work,
        .workspace_bytes = need};
    int phases = nct_phases(&l, 1, &job, 1, &why);
    if (phases < 0) fail_msg("%s", why.text);
    for (int p = 0; p < phases; p++) assert_int_equal(nct_phase(&l, 1, &job, p, 0, 1), 0);
    if (f->observe) memcpy(y, stats, bytes);
    free(stats);
    free(work);
    free(x);
    return y;
}

/* Turns of every engine until n frames were handed over. */
static inline void rig_run(rig *r, int n) {
    while (r->n_frames < n) {
        bool more = false;
        for (int i = 0; i < r->n_engines; i++) more |= engine_turn(r->e[i], uv_hrtime());
        if (!more && r->n_frames < n) uv_run(&r->loop, UV_RUN_NOWAIT);
    }
}
#endif
