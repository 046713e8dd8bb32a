/* turn.inc.h: a whole tile of a layer of several taps, with its steps turned: vector j holds steps j, j + L, j + 2L ...,
 * L = tile / LANES. A tap is then the next vector, not an unaligned load that crosses two lines of L1, and with stride and
 * dilation 1 it is in a register already: three of four vectors of the tap before. Every output sums the same products in
 * the same order. On a core whose other hyperthread works, L1 and the front end are what a kernel waits for.
 *
 * Worker threads, through conv_tile. */

/* LANES vectors `step` floats apart, transposed: log2(LANES) perfect shuffles of (vector, lane). */
INLINE void turn(const float *p, int64_t step, vf *v) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) v[i] = load(p + i * step);
#pragma GCC unroll 4
    for (int done = 1; done < LANES; done *= 2) {
        vf t[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            t[2 * i] = LOW(v[i], v[i + LANES / 2]);
            t[2 * i + 1] = HIGH(v[i], v[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) v[i] = t[i];
    }
}

/* A row of `tile` steps and `reach` more: tile / LANES + reach vectors. Reads LANES floats past the tile. */
static void row_turn(const float *row, int32_t tile, int32_t reach, float *out) {
    int32_t across = tile / LANES;
    vf v[LANES];
    for (int32_t j = 0; j < across; j += LANES) {
        turn(row + j, across, v);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) store(out + (j + i) * LANES, v[i]);
    }
    turn(row + across, across, v);
    for (int32_t i = 0; i < reach; i++) store(out + (across + i) * LANES, v[i]);
}

enum { TURNED_PHASES = 4, TURNED_ROW = CPU_TILE_MAX + 4 * 16 };

static void turned_stage(
    const cpu_layer *c, const cpu_source *src, int64_t channel, const cpu_slice *s, int64_t t0, float *out) {
    const cpu_plan *plan = &c->plan;
    float rows[TURNED_PHASES][TURNED_ROW] = {{0}};
    int64_t first = slice_first(plan, src, s, t0), stride = plan->stride;
    int32_t need = plan->seg_need;
    int inside = src->dtype == NCT_F32 && first >= 0 && first + (plan->tile + 2 * LANES) * stride <= src->t_in;
    for (int32_t i = 0; i < s->n_ci; i++) {
        int64_t row = src->off + (channel + i) * src->pitch;
        const float *from = (const float *)src->x + row + first;
        float *x = out + (int64_t)i * c->turned_pitch;
        if (inside && stride == 2)
            phases_split(from, 2, need, TURNED_ROW, rows[0]);
        else if (inside && stride == 4)
            phases_split(from, 4, need, TURNED_ROW, rows[0]);
        for (int32_t q = 0; q < stride; q++) {
            if (!inside || stride == 3) segment_stage(rows[q], src, row, first + q, stride, need);
            const float *steps = inside && stride == 1 ? from : rows[q];
            row_turn(steps, plan->tile, c->turned_reach, x + (int64_t)q * c->turned_seg);
        }
    }
}

/* Where a tile's products go when a block of channels is done; m is [channel][m_pitch]. */
typedef struct tile_end tile_end;
struct tile_end {
    void (*finish)(const tile_end *e, int32_t co, int32_t rows, int32_t v0, int32_t v1);
    const float *m;
    int64_t m_pitch;
    const float *bias; /* of F(2,3); a turned tile has its own already */
    cpu_target dst;
    int32_t n;
};

/* After the last vectors of a row: steps in their order. */
static void turned_finish(const tile_end *e, int32_t co, int32_t rows, int32_t v0, int32_t v1) {
    (void)v0;
    int32_t across = e->n / LANES;
    vf v[LANES];
    if (v1 < across) return;
    for (int32_t r = co; r < co + rows; r++)
        for (int32_t j = 0; j < across; j += LANES) {
            turn(e->m + r * e->m_pitch + (int64_t)j * LANES, LANES, v);
            float *y = e->dst.y + r * e->dst.pitch + j;
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) store(y + (int64_t)i * across, v[i]);
        }
}
