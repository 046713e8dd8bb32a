/* conv.inc.h: the convolution of one tile. ROWS x COLS accumulators of LANES steps stay in registers for a whole
 * slice; a tap is an unaligned load of the staged x, a weight a broadcast.
 *
 * Worker threads, through cpu_ops.conv. Sums are kept as plan.c says; where a tile lies changes no bit. */

typedef struct {
    const float *x;
    int64_t x_pitch;
    const int32_t *off;
    int32_t n_ci, n_k;
    const float *w;    /* CPU_ROWS apart */
    const float *part; /* sum of the slices before, or NULL */
    float *y;
    int64_t part_pitch, y_pitch;
    const float *bias; /* with the last slice, else NULL */
    x_ahead *ahead;
} tile_args;

enum { AHEAD = 64 * CPU_ROWS }; /* weights are read once a call, in one stream over the calls of a slice */

INLINE void tile_kernel(const int rows, const int cols, const tile_args *a) {
    vf acc[CPU_ROWS][COLS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < cols; v++) acc[r][v] = (vf){0};
    const float *w = a->w, *x_row = a->x;
    for (int32_t c = 0; c < a->n_ci; c++, x_row += a->x_pitch)
        for (int32_t k = 0; k < a->n_k; k++, w += CPU_ROWS) {
            const float *x = x_row + a->off[k];
            __builtin_prefetch(w + AHEAD);
            vf xv[COLS];
#pragma GCC unroll 8
            for (int v = 0; v < cols; v++) xv[v] = load(x + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vf wv = splat(w[r]);
#pragma GCC unroll 8
                for (int v = 0; v < cols; v++) acc[r][v] = FMA(wv, xv[v], acc[r][v]);
            }
        }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < cols; v++) {
            vf y = acc[r][v];
            if (a->part) y = load(a->part + r * a->part_pitch + v * LANES) + y;
            if (a->bias) y = y + splat(a->bias[r]);
            store(a->y + r * a->y_pitch + v * LANES, y);
        }
}

#define KERNEL(r, v)                                                                                                 \
    static void kernel_##r##x##v(const tile_args *a) {                                                               \
        tile_kernel(r, v, a);                                                                                        \
    }
#define KERNELS(v) KERNEL(1, v) KERNEL(2, v) KERNEL(3, v) KERNEL(4, v) KERNEL(5, v) KERNEL(6, v)
#define ROW(v)                                                                                                       \
    { kernel_1x##v, kernel_2x##v, kernel_3x##v, kernel_4x##v, kernel_5x##v, kernel_6x##v }
KERNELS(1)
KERNELS(2)
#if COLS == 4
KERNELS(3)
KERNELS(4)
#endif
static void (*const kernels[COLS][CPU_ROWS])(const tile_args *) = {
    ROW(1),
    ROW(2),
#if COLS == 4
    ROW(3),
    ROW(4),
#endif
};
#undef KERNEL
#undef KERNELS
#undef ROW

/* All of a tile's channels with one staged slice. */
static void slice_run(tile_args *a, const float *w_slice, int32_t lo, int32_t hi, int32_t n) {
    const float *x = a->x, *part = a->part, *bias = a->bias;
    float *y = a->y;
    int64_t block_floats = (int64_t)CPU_ROWS * a->n_ci * a->n_k;
    int32_t vectors = (n + LANES - 1) / LANES;
    for (int32_t co = lo, rows; co < hi; co += rows) {
        int32_t row0 = co % CPU_ROWS;
        rows = CPU_ROWS - row0 < hi - co ? CPU_ROWS - row0 : hi - co;
        a->w = w_slice + co / CPU_ROWS * block_floats + row0;
        a->bias = bias ? bias + (co - lo) : NULL;
        for (int32_t v = 0; v < vectors; v += COLS) {
            int32_t cols = vectors - v < COLS ? vectors - v : COLS;
            a->x = x + v * LANES;
            a->part = part ? part + (co - lo) * a->part_pitch + v * LANES : NULL;
            a->y = y + (co - lo) * a->y_pitch + v * LANES;
            kernels[cols - 1][rows - 1](a);
        }
        ahead_step(a->ahead, rows);
    }
}

static int32_t round_up_lanes(int32_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

static void conv_tile(const cpu_layer *c, const cpu_source *src, int32_t group, int32_t lo, int32_t hi, int64_t t0,
    int32_t n, cpu_target dst, float *x_tile, float *part) {
    const cpu_plan *plan = &c->plan;
    const float *w_group = c->weight + group * plan->group_floats;
    int64_t blocks = ceil_div(plan->co, CPU_ROWS);
    int direct = dst.slack || n % LANES == 0;
    for (int32_t i = 0; i < plan->n_slices; i++) {
        cpu_slice s = cpu_slice_at(plan, i);
        int last = i == plan->n_slices - 1;
        tile_args a = {.x = x_tile, .x_pitch = plan->pitch, .off = c->off, .n_ci = s.n_ci, .n_k = s.n_k};
        int64_t channel = (int64_t)group * plan->ci + s.ci0, step = (int64_t)plan->tile * plan->stride;
        x_ahead ahead = ahead_of(src, channel, s.n_ci, slice_first(plan, src, &s, t0) + step, step, hi - lo);
        a.ahead = &ahead;
        const float *x = slice_in_place(plan, src, channel, &s, t0, n, hi - lo);
        if (x) {
            a.x = x;
            a.x_pitch = src->pitch;
            a.off = c->off_row;
        } else {
            slice_stage(plan, src, channel, &s, t0, round_up_lanes(n), x_tile);
        }
        a.part = i > 0 ? part : NULL;
        a.part_pitch = a.y_pitch = plan->tile;
        a.y = part;
        if (last) {
            a.bias = c->bias + group * plan->co + lo;
            if (direct) {
                a.y = dst.y;
                a.y_pitch = dst.pitch;
            }
        }
        slice_run(&a, w_group + s.first * blocks * CPU_ROWS, lo, hi, n);
    }
    for (int32_t r = 0; !direct && r < hi - lo; r++)
        memcpy(dst.y + r * dst.pitch, part + (int64_t)r * plan->tile, (size_t)n * sizeof(float));
}
