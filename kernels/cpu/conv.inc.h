/* conv.inc.h: the convolution of one tile. ROWS x COLS accumulators of LANES steps stay in registers for a whole
 * slice; a tap is an unaligned load of the staged x, a weight a broadcast.
 *
 * Worker threads, through cpu_ops.conv. Sums are kept as plan.c says; where a tile lies changes no bit.
 *
 * The ladder, on a shared 2-core AVX-512 machine (times over the FMA loop's, one thread, whole fused layer; the inner
 * loop alone, in L1, runs at the FMA loop's speed, unaligned taps included):
 *   default 1.47 direct -> 1.26 with the next tile's x prefetched (rows lie pages apart), weights packed as one stream
 *     -> 0.94 with F(2,3) -> 0.90 with its products in chunks of 48 channels instead of all 256
 *   dconv 2.46 with every tile staged -> 1.95 with rows read in place; convtasnet in place lost (1.62 -> 1.94)
 *   convtasnet 1.92 -> 1.78 prefetching in one burst a tile -> 1.62 spread over the tile -> 1.50 with tiles of 256 steps
 *     instead of 64 (demucs-l4 2.10 -> 1.55 -> 1.40 on the same way)
 *   diffpolicy 2.26 by rows of 16 steps -> 1.54 over the channels (short.inc.h; diffpolicy-n1 14.5 -> 7.6)
 *   the vectors of a tile outside, its channels inside: lost 5 % where x is small (wav2vec2-l0), won where it is not
 *   convtasnet 1.79 -> 1.62 with staged rows an odd count of lines apart (272 floats, not 256) and tiles still of 256
 *     -> 1.55 with frames of their own worker, x of the next slice ahead and one-tap steps without a table of offsets;
 *     what is left: 1.22 in the tiles, memory and prefetch 0.2, leaves and norm 0.1; oneDNN's ncw form takes 1.46
 *   demucs-l4 1.38 -> 1.28 with longer tiles where a unit holds a quarter of the channels: fewer weights from L3
 *   wav2vec2-l0, encodec48-l0, convtasnet-dw -4 to -11 % with units of 384 KB; lost by others (default 3 %)
 *   lost on convtasnet: tiles of 512 (+7 %); staging 64 steps before their use (+4 %); y prefetched for writing as a
 *     kernel starts (+-1 %, encodec48-l0 +2 %)
 *   lost: second pass of a frame from its end (convtasnet -1 %, dconv and encodec48-l0 +6 %)
 *
 * On a quiet machine of the same kind, over the FMA loop beside it. default in parts (of 0.667 if products were all):
 * products 0.68, outputs of F(2,3) 0.08, x 0.03, leaves 0.02, norm 0.02, and 0.20 waiting for lines of y, which every
 * store fetched from L3 before it could leave the store buffer. 1.09 -> 0.87 with y brought up beside the products, x
 * transformed where it lies (a load that spans two fresh stores waits for both), a group normalised as soon as it is
 * counted, folds in registers -> 0.84 with huge pages under weights and workspace (diffpolicy 1.90 -> 1.44, convtasnet
 * 1.46 -> 1.42, demucs-l4 1.30 -> 1.22 by these alone).
 *   convtasnet 1.42 -> 1.34 with x staged by the first block of channels, y of the next tile brought up
 *   eeg64 1.30 -> 1.26 with turned tiles (turn.inc.h); wav2vec2-l0 10.1 -> 8.2 with y past the caches
 *   diffpolicy 1.44 -> 1.38 by 3 vectors x 8 steps instead of 2 x 8 -> 1.30 by frames side by side (beside.inc.h: a block's
 *     weights left L2 once for 8 steps, now once for 64) -> 1.18 with rows staged as vectors, leaves in registers, one call
 *     of the norm for a group's rows; its products are now 1.02 of the loop's time, mish 0.07
 *   convtasnet 1.46 -> 1.24 with lines brought by the kernels, one in 4 steps: 24 at once between two kernels filled the
 *     line buffers, and what the next kernel missed in L1 waited for L3 (default 0.91 -> 0.86, default-long 1.12 -> 0.97,
 *     dconv 2.0 -> 1.8, encodec48-l0 7.3 -> 7.1 by the same); 1.24 -> 1.22 with the first block's rows brought into L1 20
 *     channels before they are read, and staged in 32 KB that stay there. Its parts: products 0.94, first blocks 0.09,
 *     ends of kernels 0.08, leaves 0.03, norm 0.03; oneDNN's ncw form takes 1.19 to 1.24
 *   lost on convtasnet: 12 channels x 2 vectors with slices of 256 (+-1 %), four blocks of channels in one kernel (+-1 %)
 *   lost everywhere: a copy of tile_args for each block (its fields wait for the copy's wide stores: default +6 %)
 *   lost: chunks of F(2,3) of 24 or 96 channels, tiles of 256, units of 512 KB (+-2 %), tiles of 512 (+10 to 30 %);
 *     weights fetched ahead by kernels of this file (+-1 %); slices of the short form cut to 16 KB of L1 (+2 %)
 * With other work on the core's second hyperthread the FMA loop keeps its speed, and every kernel here takes 1.2 to 1.45
 * times as long (peers too): it needs 3 instructions a cycle, two thirds of the loads that L1 can serve, and all of L1. */

typedef struct {
    const float *x;
    int64_t x_pitch;
    const int32_t *off;
    int32_t n_ci, n_k;
    const float *w;    /* CPU_ROWS apart */
    const float *part; /* sum of the slices before, or NULL */
    float *y;
    int64_t part_pitch, y_pitch;
    const float *bias;            /* with the last slice, else NULL */
    lines_ahead *ahead, *y_ahead; /* y_ahead may be NULL */
    lines_ahead *near;            /* what a kernel brings lines of */
    const tile_end *end;          /* a block's products become outputs, or NULL */
    int slides;                   /* turned x: the next tap is the next vector */
    float *staged;                /* one tap, x in place: the first block stages what it reads; NULL: x is staged */
    int64_t staged_pitch;
} tile_args;

enum { STEPS = 4 }; /* of a kernel of one tap, unrolled, for a line brought */

INLINE void step_kernel(const int rows, const int cols, const int stages, const float *x, const float *w,
    vf (*acc)[COLS], float *staged) {
    vf xv[COLS];
#pragma GCC unroll 8
    for (int v = 0; v < cols; v++) {
        xv[v] = load(x + v * LANES);
        if (stages) store(staged + v * LANES, xv[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        vf wv = splat(w[r]);
#pragma GCC unroll 8
        for (int v = 0; v < cols; v++) acc[r][v] = FMA(wv, xv[v], acc[r][v]);
    }
}

/* All taps of a channel; the vectors of a tap but the last are those of the tap before but the first. */
INLINE const float *taps_kernel(
    const int rows, const int cols, int32_t n_k, const float *x, const float *w, vf (*acc)[COLS]) {
    vf xv[COLS];
#pragma GCC unroll 8
    for (int v = 0; v < cols; v++) xv[v] = load(x + v * LANES);
    for (int32_t k = 0; k < n_k; k += cols)
#pragma GCC unroll 8
        for (int i = 0; i < cols; i++, w += CPU_ROWS) {
            if (i > 0 && k + i >= n_k) return w;
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vf wv = splat(w[r]);
#pragma GCC unroll 8
                for (int v = 0; v < cols; v++) acc[r][v] = FMA(wv, xv[(v + i) % cols], acc[r][v]);
            }
            xv[i] = load(x + (k + i + cols) * LANES);
        }
    return w;
}

enum { FIRST_AHEAD = 20 }; /* rows of x in place brought into L1 before they are read */

INLINE void products_sum(const int rows, const int cols, const tile_args *a, lines_ahead *near, vf (*acc)[COLS]) {
    const float *x = a->x, *w = a->w;
    if (a->staged) {
        float *staged = a->staged;
        for (int32_t c = 0; c < a->n_ci; c++, x += a->x_pitch, w += CPU_ROWS, staged += a->staged_pitch) {
#pragma GCC unroll 8
            for (int v = 0; v < cols; v++) __builtin_prefetch(x + FIRST_AHEAD * a->x_pitch + v * LANES);
            step_kernel(rows, cols, 1, x, w, acc, staged);
        }
    } else if (a->slides) {
        for (int32_t c = 0; c < a->n_ci; c++, x += a->x_pitch) {
            line_bring(near);
            w = taps_kernel(rows, cols, a->n_k, x, w, acc);
        }
    } else if (a->n_k == 1) {
        int32_t c = 0;
        for (; c + STEPS <= a->n_ci; c += STEPS) {
            line_bring(near);
#pragma GCC unroll 4
            for (int i = 0; i < STEPS; i++, x += a->x_pitch, w += CPU_ROWS)
                step_kernel(rows, cols, 0, x, w, acc, NULL);
        }
        for (; c < a->n_ci; c++, x += a->x_pitch, w += CPU_ROWS) step_kernel(rows, cols, 0, x, w, acc, NULL);
    } else {
        for (int32_t c = 0; c < a->n_ci; c++, x += a->x_pitch) {
            if (c > 0) line_bring(near);
            for (int32_t k = 0; k < a->n_k; k++, w += CPU_ROWS)
                step_kernel(rows, cols, 0, x + a->off[k], w, acc, NULL);
        }
    }
}

INLINE void tile_kernel(const int rows, const int cols, const tile_args *a) {
    vf acc[CPU_ROWS][COLS];
    const float *part = a->part, *bias = a->bias;
    float *y = a->y;
    int64_t part_pitch = a->part_pitch, y_pitch = a->y_pitch;
    lines_ahead near = *a->near;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < cols; v++) acc[r][v] = (vf){0};
#pragma GCC unroll 8
    for (int r = 0; part && r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < cols; v++) __builtin_prefetch(part + r * part_pitch + v * LANES);
    products_sum(rows, cols, a, &near, acc);
    a->near->p = near.p;
    a->near->row_end = near.row_end;
#pragma GCC unroll 8
    for (int r = 0; part && r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < cols; v++) acc[r][v] = load(part + r * part_pitch + v * LANES) + acc[r][v];
#pragma GCC unroll 8
    for (int r = 0; bias && r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < cols; v++) acc[r][v] = acc[r][v] + splat(bias[r]);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < cols; v++) store(y + r * y_pitch + v * LANES, acc[r][v]);
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

static int32_t round_up_lanes(int32_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

enum { L1_FLOATS = 4096 };

/* Lines that a kernel brings. */
static int32_t kernel_lines(const tile_args *a) {
    if (a->staged || a->n_ci < STEPS) return 0;
    if (a->slides) return a->n_ci;
    return a->n_k == 1 ? a->n_ci / STEPS : a->n_ci - 1;
}

/* The stream with more to come, if a kernel does not overrun it; else `idle`. */
INLINE lines_ahead *near_choose(const tile_args *a, lines_ahead *idle, int32_t n) {
    lines_ahead *s = a->ahead, *y = a->y_ahead;
    if (y && y->lines - y->done > s->lines - s->done) s = y;
    if (s->lines - s->done < n) return idle;
    s->done += n;
    return s;
}

/* Rows of a block of channels, vectors v0 .. v1-1 of the tile; row: from the tile's first channel. `a` is the tile with
 * what differs from kernel to kernel: a copy for each block cost as much as its kernels' ends. */
INLINE void block_run(
    const tile_args *tile, tile_args *a, int32_t row, int32_t rows, int32_t v0, int32_t v1, lines_ahead *idle) {
    const float *x = tile->x + v0 * LANES, *part = tile->part;
    float *y = tile->y + row * tile->y_pitch + v0 * LANES;
    if (part) part += row * tile->part_pitch + v0 * LANES;
    if (tile->bias) a->bias = tile->bias + row;
    if (tile->staged) {
        a->staged = row == 0 ? tile->staged : NULL;
        a->x_pitch = row == 0 ? tile->x_pitch : a->staged_pitch;
        if (row > 0) x = tile->staged;
    }
    int32_t lines = kernel_lines(a);
    a->near = idle;
    for (int32_t v = v0; v < v1; v += COLS) {
        int32_t cols = v1 - v < COLS ? v1 - v : COLS;
        a->x = x;
        a->part = part;
        a->y = y;
        if (lines) a->near = near_choose(a, idle, lines);
        kernels[cols - 1][rows - 1](a);
        x += COLS * LANES;
        y += COLS * LANES;
        if (part) part += COLS * LANES;
        if (a->staged) a->staged += COLS * LANES;
    }
}

/* All of a tile's channels with one staged slice; x of what runs between two reads of a weight stays in L1. */
static void slice_run(const tile_args *tile, const float *w_slice, int32_t lo, int32_t hi, int32_t n) {
    int64_t block_floats = (int64_t)CPU_ROWS * tile->n_ci * tile->n_k;
    int32_t vectors = (n + LANES - 1) / LANES, span = tile->n_ci * tile->x_pitch <= L1_FLOATS ? vectors : COLS;
    lines_ahead idle = {.p = (const char *)w_slice, .row_end = (const char *)w_slice + 64, .jump = -64};
    tile_args a = *tile;
    a.staged_pitch = span * LANES;
    for (int32_t v = 0; v < vectors; v += span) {
        int32_t end = v + span < vectors ? v + span : vectors;
        for (int32_t co = lo, rows; co < hi; co += rows) {
            int32_t row0 = co % CPU_ROWS;
            rows = CPU_ROWS - row0 < hi - co ? CPU_ROWS - row0 : hi - co;
            a.w = w_slice + co / CPU_ROWS * block_floats + row0;
            block_run(tile, &a, co - lo, rows, v, end, &idle);
            ahead_step(a.ahead, rows * (end - v));
            if (a.y_ahead) ahead_step(a.y_ahead, rows * (end - v));
            if (a.end) a.end->finish(a.end, co - lo, rows, v, end);
        }
    }
}

/* What slice i brings up: the next slice of the tile, or the next tile's first. Slices of the same channels read the
 * same rows. */
static lines_ahead slice_ahead(
    const cpu_plan *plan, const cpu_source *src, int32_t group, int32_t i, int64_t t0, int64_t work) {
    int64_t step = (int64_t)plan->tile * plan->stride;
    int32_t next = i + 1 < plan->n_slices ? i + 1 : 0;
    cpu_slice s = cpu_slice_at(plan, next);
    int64_t u = slice_first(plan, src, &s, next > 0 ? t0 : t0 + plan->tile);
    return ahead_of(src, (int64_t)group * plan->ci + s.ci0, s.n_ci, u, step, work);
}

/* One tile of a conv group's channels lo .. hi-1. */
typedef struct {
    const cpu_layer *c;
    const cpu_source *src;
    int32_t group, lo, hi, n;
    int64_t t0, work; /* work: channels x vectors */
    int turned;
    float *x_tile, *part;
} tile_job;

/* Where a slice's x is read: turned, in place, in place and staged by the first block, or staged. */
static void slice_x(const tile_job *j, const cpu_slice *s, tile_args *a) {
    const cpu_plan *plan = &j->c->plan;
    int64_t channel = (int64_t)j->group * plan->ci + s->ci0;
    a->x = j->x_tile;
    if (j->turned) {
        turned_stage(j->c, j->src, channel, s, j->t0, j->x_tile);
        a->x_pitch = j->c->turned_pitch;
        a->off = j->c->off_turned;
        a->slides = plan->stride == 1 && plan->dilation == 1;
        return;
    }
    int stays = slice_stays(j->src, s, j->hi - j->lo);
    const float *x = slice_inside(plan, j->src, channel, s, j->t0, j->n);
    if (!x || (s->n_k > 1 && !stays)) {
        a->x_pitch = plan->pitch;
        a->off = j->c->off;
        slice_stage(plan, j->src, channel, s, j->t0, round_up_lanes(j->n), j->x_tile);
        return;
    }
    a->x = x;
    a->x_pitch = j->src->pitch;
    a->off = j->c->off_row;
    if (stays) return;
    a->staged = j->x_tile;
}

static void conv_tile(const cpu_layer *c, const cpu_source *src, int32_t group, int32_t lo, int32_t hi, int64_t t0,
    int32_t n, cpu_target dst, float *x_tile, float *part) {
    const cpu_plan *plan = &c->plan;
    const float *w_group = c->weight + group * plan->group_floats;
    int64_t blocks = ceil_div(plan->co, CPU_ROWS), work = (int64_t)(hi - lo) * (round_up_lanes(n) / LANES);
    int turned = c->turned_pitch && n == plan->tile && hi - lo > IN_PLACE_ROWS;
    int direct = !turned && (dst.slack || n % LANES == 0);
    tile_job job = {c, src, group, lo, hi, n, t0, work, turned, x_tile, part};
    tile_end end = {turned_finish, part, plan->tile, NULL, dst, n};
    for (int32_t i = 0; i < plan->n_slices; i++) {
        cpu_slice s = cpu_slice_at(plan, i);
        tile_args a = {.n_ci = s.n_ci, .n_k = s.n_k, .part = i > 0 ? part : NULL, .y = part};
        a.part_pitch = a.y_pitch = plan->tile;
        lines_ahead ahead = slice_ahead(plan, src, group, i, t0, work), y_ahead;
        a.ahead = &ahead;
        slice_x(&job, &s, &a);
        if (i == plan->n_slices - 1) {
            cpu_target later = {
                dst.y + plan->tile, dst.pitch, 0}; /* a direct tile is written from its first kernel on */
            y_ahead = outputs_ahead(turned ? dst : later, hi - lo, n, work);
            a.y_ahead = &y_ahead;
            a.bias = c->bias + group * plan->co + lo;
            if (turned) a.end = &end;
            if (direct) {
                a.y = dst.y;
                a.y_pitch = dst.pitch;
            }
        }
        slice_run(&a, w_group + s.first * blocks * CPU_ROWS, lo, hi, n);
    }
    for (int32_t r = 0; !direct && !turned && r < hi - lo; r++)
        memcpy(dst.y + r * dst.pitch, part + (int64_t)r * plan->tile, (size_t)n * sizeof(float));
}
