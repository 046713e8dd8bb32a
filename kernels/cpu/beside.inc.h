/* beside.inc.h: short frames, COLS of them side by side: a vector of each, so that a broadcast weight serves them all.
 * For frames that fill their vectors; weights are read from L2 once for COLS frames, where short.inc.h reads them once
 * for 8 steps. The same products in the same order as conv.inc.h, and leaf() transposed: the same bits.
 *
 * Worker threads, through cpu_ops.conv_beside. */

typedef struct {
    const float *x;
    int64_t x_pitch, x_frame; /* floats to the next channel, the next frame */
    const int32_t *off;
    int32_t n_ci, n_k;
    const float *w;
    float *y;
    int64_t y_pitch, y_frame;
    const float *bias; /* with the last slice, else NULL */
    int first;         /* the slice that starts the sum */
} beside_args;

INLINE void beside_kernel(const int rows, const beside_args *a) {
    vf acc[CPU_ROWS][COLS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < COLS; v++) acc[r][v] = (vf){0};
    const float *w = a->w, *x = a->x;
    int64_t frame = a->x_frame;
    for (int32_t c = 0; c < a->n_ci; c++, x += a->x_pitch)
        for (int32_t k = 0; k < a->n_k; k++, w += CPU_ROWS) {
            const float *p = x + a->off[k];
            vf xv[COLS];
#pragma GCC unroll 8
            for (int v = 0; v < COLS; v++) xv[v] = load(p + v * frame);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vf wv = splat(w[r]);
#pragma GCC unroll 8
                for (int v = 0; v < COLS; v++) acc[r][v] = FMA(wv, xv[v], acc[r][v]);
            }
        }
    float *y = a->y;
    const float *part = a->first ? NULL : y, *bias = a->bias;
    int64_t y_pitch = a->y_pitch, y_frame = a->y_frame;
#pragma GCC unroll 8
    for (int r = 0; part && r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < COLS; v++) acc[r][v] = load(part + r * y_pitch + v * y_frame) + acc[r][v];
#pragma GCC unroll 8
    for (int r = 0; bias && r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < COLS; v++) acc[r][v] = acc[r][v] + splat(bias[r]);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < COLS; v++) store(y + r * y_pitch + v * y_frame, acc[r][v]);
}

#define KERNEL(r)                                                                                                    \
    static void beside_##r(const beside_args *a) {                                                                   \
        beside_kernel(r, a);                                                                                         \
    }
KERNEL(1)
KERNEL(2)
KERNEL(3)
KERNEL(4)
KERNEL(5)
KERNEL(6)
#undef KERNEL
static void (*const beside_kernels[CPU_ROWS])(const beside_args *) = {
    beside_1, beside_2, beside_3, beside_4, beside_5, beside_6};

/* slice_stage of one frame: rows that are whole vectors between zeros are copied as such. */
static void beside_stage(const cpu_plan *plan, const cpu_source *src, int64_t channel, const cpu_slice *s, int32_t n,
    int32_t x_frame, float *out) {
    int64_t before = -slice_first(plan, src, s, 0), after = x_frame - before - src->t_in;
    int whole = src->dtype == NCT_F32 && src->mode == NCT_ZEROS && src->t_in % LANES == 0;
    if (!whole || before < 0 || before > LANES || after < 0 || after > LANES) {
        slice_stage(plan, src, channel, s, 0, n, out);
        return;
    }
    const float *x = (const float *)src->x + src->off + channel * src->pitch;
    for (int32_t c = 0; c < s->n_ci; c++, x += src->pitch, out += plan->pitch) {
        store(out, splat(0));
        store(out + x_frame - LANES, splat(0));
        for (int32_t t = 0; t < src->t_in; t += LANES) store(out + before + t, load(x + t));
    }
}

/* Steps of LANES channels, by way of their transposed rows. */
static void beside_leaves(const float *y, int64_t pitch, int32_t t_out, int32_t channels, cpu_leaf *ret) {
    float steps[CPU_SHORT * LANES];
    int32_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        for (int32_t t = 0; t < t_out; t += LANES) {
            vf v[LANES];
            turn(y + c * pitch + t, pitch, v);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) store(steps + (t + i) * LANES, v[i]);
        }
        short_leaf(steps, LANES, t_out, LANES, ret + c);
    }
    for (; c < channels; c++) leaf(y + c * pitch, t_out, y, &ret[c].mean, &ret[c].m2);
}

static void conv_beside(const cpu_layer *c, const cpu_short *frames, int32_t n_frames, int32_t group, int32_t lo,
    int32_t hi, int32_t n, float *x_tile, cpu_beside to) {
    cpu_plan plan = c->shorts;
    int32_t x_frame = (int32_t)round_up(plan.seg_need - plan.tile + n, 16);
    plan.pitch = COLS * x_frame;
    const float *w_group = c->weight + group * c->plan.group_floats;
    int64_t blocks = ceil_div(plan.co, CPU_ROWS);
    for (int32_t i = 0; i < plan.n_slices; i++) {
        cpu_slice s = cpu_slice_at(&plan, i);
        int64_t channel = (int64_t)group * plan.ci + s.ci0;
        for (int32_t f = 0; f < n_frames; f++)
            beside_stage(&plan, &frames[f].src, channel, &s, n, x_frame, x_tile + f * x_frame);
        beside_args a = {
            .x_pitch = plan.pitch, .x_frame = x_frame, .off = c->off_short, .n_ci = s.n_ci, .n_k = s.n_k};
        a.y_pitch = to.pitch;
        a.y_frame = to.frame;
        a.first = i == 0;
        const float *w = w_group + s.first * blocks * CPU_ROWS;
        for (int32_t co = lo, rows; co < hi; co += rows) {
            int32_t row0 = co % CPU_ROWS;
            rows = CPU_ROWS - row0 < hi - co ? CPU_ROWS - row0 : hi - co;
            a.w = w + (int64_t)(co / CPU_ROWS) * CPU_ROWS * s.n_ci * s.n_k + row0;
            if (i == plan.n_slices - 1) a.bias = c->bias + group * plan.co + co;
            for (int32_t t = 0; t < n; t += LANES) {
                a.x = x_tile + t;
                a.y = to.y + (co - lo) * to.pitch + t;
                beside_kernels[rows - 1](&a);
            }
        }
    }
    for (int32_t f = 0; f < n_frames; f++)
        if (frames[f].leaf) beside_leaves(to.y + f * to.frame, to.pitch, frames[f].t_out, hi - lo, frames[f].leaf);
}
