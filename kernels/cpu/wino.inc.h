/* wino.inc.h: F(2,3) along T for kernels of 3 taps, stride 1, dilation 1: two outputs for 4 products instead of 6
 * (Winograd, Arithmetic Complexity of Computations, 1980).
 *
 *   d0..d3 = x[2i .. 2i+3];  u0 = d0-d2, u1 = d1+d2, u2 = d2-d1, u3 = d1-d3;  m_j = sum over channels of u_j * w_j
 *   y[2i] = (m0 + m1) + m2,  y[2i+1] = (m1 - m2) - m3
 *
 * Pairs are counted from output 0 of the frame. Each m_j is a tile of conv.inc.h with one tap. Against float64,
 * normalised outputs, 128 to 512 channels: rms 2.7e-7 (direct 2.5e-7), largest 1.9e-6 (direct 1.9e-6). Worker threads,
 * through cpu_ops.conv. */

enum { PAIRS = CPU_WINO / 2, WINO_CHUNK = 8 * CPU_ROWS };

enum { WINO_STEPS = CPU_WINO + 2, WINO_STAGED = 8 };

/* u[product][pair] of a channel, from its x; products lie `product` floats apart. */
INLINE void wino_inputs(const float *x, int64_t product, float *u) {
#pragma GCC unroll 4
    for (int32_t i = 0; i < PAIRS; i += LANES) {
        const float *p = x + 2 * i;
        vf a = load(p), b = load(p + LANES), a2 = load(p + 2), b2 = load(p + 2 + LANES);
        vf d0 = EVEN(a, b), d1 = ODD(a, b), d2 = EVEN(a2, b2), d3 = ODD(a2, b2);
        store(u + i, d0 - d2);
        store(u + product + i, d1 + d2);
        store(u + 2 * product + i, d2 - d1);
        store(u + 3 * product + i, d1 - d3);
    }
}

/* u[product][channel][pair] of a slice. What cannot be read in place is staged a few channels ahead of its use: a load
 * that spans two stores waits until both have left for L1. */
static void wino_stage(const cpu_source *src, int64_t channel, const cpu_slice *s, int64_t t0, float *u) {
    float staged[WINO_STAGED][WINO_STEPS];
    int64_t product = (int64_t)s->n_ci * PAIRS, first = t0 - src->pad_left;
    int in_place = src->dtype == NCT_F32 && first >= 0 && first + WINO_STEPS <= src->t_in;
    for (int32_t c = 0; c < s->n_ci; c += WINO_STAGED) {
        int32_t n = s->n_ci - c < WINO_STAGED ? s->n_ci - c : WINO_STAGED;
        int64_t row = src->off + (channel + c) * src->pitch;
        for (int32_t i = 0; !in_place && i < n; i++)
            segment_stage(staged[i], src, row + i * src->pitch, first, 1, WINO_STEPS);
        for (int32_t i = 0; i < n; i++, u += PAIRS)
            wino_inputs(in_place ? (const float *)src->x + row + i * src->pitch + first : staged[i], product, u);
    }
}

/* m[product][pair] of one channel to its outputs, vectors v0 .. v1-1 of pairs. */
INLINE void wino_outputs(const float *m, float bias, int32_t v0, int32_t v1, float *y) {
    vf b = splat(bias);
    for (int32_t i = v0 * LANES; i < v1 * LANES; i += LANES) {
        vf m0 = load(m + i), m1 = load(m + PAIRS + i), m2 = load(m + 2 * PAIRS + i), m3 = load(m + 3 * PAIRS + i);
        vf even = ((m0 + m1) + m2) + b, odd = ((m1 - m2) - m3) + b;
        store(y + 2 * i, LOW(even, odd));
        store(y + 2 * i + LANES, HIGH(even, odd));
    }
}

/* Block by block between kernels, so that the stores drain while the next block is multiplied: rows of y lie pages
 * apart, in the same sets of L1, and a whole chunk's at once waited for L2. */
static void wino_finish(const tile_end *e, int32_t co, int32_t rows, int32_t v0, int32_t v1) {
    float whole[CPU_WINO];
    for (int32_t r = co; r < co + rows; r++) {
        float *y = e->dst.y + r * e->dst.pitch;
        int32_t t0 = 2 * v0 * LANES, t1 = 2 * v1 * LANES < e->n ? 2 * v1 * LANES : e->n;
        int part = t1 < 2 * v1 * LANES;
        wino_outputs(e->m + r * e->m_pitch, e->bias[r], v0, v1, part ? whole : y);
        if (part) memcpy(y + t0, whole + t0, (size_t)(t1 - t0) * sizeof(float));
    }
}

/* A pair shares its x: what is not finite has reached both outputs. Those that should not have it are taken from the
 * direct form. */
static void wino_isolate(const cpu_layer *c, const cpu_source *src, int32_t group, int32_t co, int64_t t0, int32_t n,
    float *y, float *x_tile, float *part) {
    float direct[CPU_TILE_MAX];
    for (int32_t t = 0; t < n; t += c->plan.tile) {
        int32_t m = n - t < c->plan.tile ? n - t : c->plan.tile, bad = 0;
        for (int32_t i = 0; i < m; i++) bad |= y[t + i] - y[t + i] != 0;
        if (!bad) continue;
        conv_tile(c, src, group, co, co + 1, t0 + t, m, (cpu_target){direct, CPU_TILE_MAX, 1}, x_tile, part);
        for (int32_t i = 0; i < m; i++)
            if (y[t + i] - y[t + i] != 0) y[t + i] = direct[i];
    }
}

/* One slice of channels lo .. hi-1: the four products; m is [channel][product][pair]. end: of the last slice. */
static void wino_slice(const cpu_plan *plan, const cpu_slice *s, const float *w, const float *u, int32_t lo,
    int32_t hi, int32_t pairs, float *m, lines_ahead *ahead, lines_ahead *y_ahead, const tile_end *end) {
    static const int32_t no_off[1] = {0};
    for (int32_t j = 0; j < 4; j++) {
        tile_args a = {.x = u + (int64_t)j * s->n_ci * PAIRS, .x_pitch = PAIRS, .off = no_off, .ahead = ahead};
        a.n_ci = s->n_ci;
        a.n_k = 1;
        a.y = m + j * PAIRS;
        a.part = s->ci0 > 0 ? a.y : NULL;
        a.y_pitch = a.part_pitch = 4 * PAIRS;
        if (end) a.y_ahead = y_ahead;
        if (j == 3) a.end = end;
        slice_run(&a, w + j * round_up(plan->co, CPU_ROWS) * s->n_ci, lo, hi, pairs);
    }
}

/* Channels in chunks whose products stay in L1 until they are outputs: m of all 256 and y together overran L2. */
static void wino_tile(const cpu_layer *c, const cpu_source *src, int32_t group, int32_t lo, int32_t hi, int64_t t0,
    int32_t n, cpu_target dst, float *x_tile, float *part) {
    const cpu_plan *plan = &c->wino;
    int32_t pairs = (n + 1) / 2;
    int64_t row_work = 4 * (round_up_lanes(pairs) / LANES);
    float *m = part + cpu_part_floats(c) - (int64_t)plan->co * 4 * PAIRS;
    for (int32_t i = 0; i < plan->n_slices; i++) {
        cpu_slice s = cpu_slice_at(plan, i);
        int64_t channel = (int64_t)group * plan->ci + s.ci0;
        const float *w = c->weight_wino + group * plan->group_floats + 4 * round_up(plan->co, CPU_ROWS) * s.ci0;
        wino_stage(src, channel, &s, t0, x_tile);
        lines_ahead ahead =
            ahead_of(src, channel, s.n_ci, t0 - src->pad_left + CPU_WINO, CPU_WINO, (hi - lo) * row_work);
        for (int32_t c0 = lo, rows; c0 < hi; c0 += rows) {
            rows = WINO_CHUNK < hi - c0 ? WINO_CHUNK : hi - c0;
            float *chunk = m + (int64_t)(c0 - lo) * 4 * PAIRS;
            cpu_target to = {dst.y + (c0 - lo) * dst.pitch, dst.pitch, dst.slack};
            lines_ahead y = outputs_ahead(to, rows, n, rows * row_work);
            tile_end end = {wino_finish, chunk, 4 * PAIRS, c->bias + group * plan->co + c0, to, n};
            wino_slice(
                plan, &s, w, x_tile, c0, c0 + rows, pairs, chunk, &ahead, &y, i == plan->n_slices - 1 ? &end : NULL);
        }
    }
    for (int32_t co = lo; src->isolate && co < hi; co++)
        wino_isolate(c, src, group, co, t0, n, dst.y + (co - lo) * dst.pitch, x_tile, part);
}
