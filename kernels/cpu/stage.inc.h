/* stage.inc.h: a slice of x for one tile, brought to f32 and padded, in the layout of cpu_plan.
 *
 * Worker threads, through conv_tile. Reads x inside [0, t_in) of a channel alone; everything else is filled by
 * the padding mode, and with 0 where no output of the frame reaches. */

enum { IN_PLACE_ROWS = 24 };

static float half_value(uint16_t h) {
#ifdef HALF
    return HALF(h);
#else
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff, bits;
    if (mag < 0x400) {
        float f = (float)mag * 0x1p-24f;
        memcpy(&bits, &f, 4);
    } else {
        bits = (mag << 13) + (mag >= 0x7c00 ? 0x70000000 : 0x38000000);
    }
    bits |= sign;
    float f;
    memcpy(&f, &bits, 4);
    return f;
#endif
}

static float bf16_value(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static float i16_value(int16_t v) {
    return (float)v * 0x1p-15f;
}

#define READ(name, type, value)                                                                                      \
    static void name(float *restrict out, const void *x, int64_t at, int64_t step, int64_t n) {                      \
        const type *p = (const type *)x + at;                                                                        \
        if (step == 1)                                                                                               \
            for (int64_t j = 0; j < n; j++) out[j] = value(p[j]);                                                    \
        else                                                                                                         \
            for (int64_t j = 0; j < n; j++) out[j] = value(p[j * step]);                                             \
    }
READ(read_f16, uint16_t, half_value)
READ(read_bf16, uint16_t, bf16_value)
READ(read_i16, int16_t, i16_value)
#undef READ

static inline void read_f32(float *restrict out, const void *x, int64_t at, int64_t step, int64_t n) {
    const float *p = (const float *)x + at;
    int64_t j = 0;
    if (step == 1 && n >= LANES) {
        for (; j + LANES <= n; j += LANES) store(out + j, load(p + j));
        store(out + n - LANES, load(p + n - LANES));
        return;
    }
    for (; j < n; j++) out[j] = p[j * step];
}

/* out[j] = x[at + j * step], n of them. */
static inline void read_row(float *out, const cpu_source *src, int64_t at, int64_t step, int64_t n) {
    switch (src->dtype) {
    case NCT_F16: read_f16(out, src->x, at, step, n); break;
    case NCT_BF16: read_bf16(out, src->x, at, step, n); break;
    case NCT_I16: read_i16(out, src->x, at, step, n); break;
    default: read_f32(out, src->x, at, step, n);
    }
}

/* The step of x that stands at u, outside [0, t_in); -1: zero. */
static int64_t pad_step(const cpu_source *src, int64_t u) {
    int64_t t = src->t_in;
    if (u < -(int64_t)src->pad_left || u >= t + src->pad_right) return -1;
    switch (src->mode) {
    case NCT_REFLECT: return u < 0 ? -u : 2 * (t - 1) - u;
    case NCT_REPLICATE: return u < 0 ? 0 : t - 1;
    case NCT_CIRCULAR: return u < 0 ? u + t : u - t;
    default: return -1;
    }
}

static void pad_fill(float *out, const cpu_source *src, int64_t row, int64_t u, int64_t step, int64_t n) {
    if (src->mode == NCT_ZEROS) {
        memset(out, 0, (size_t)n * sizeof(float));
        return;
    }
    for (int64_t j = 0; j < n; j++) {
        int64_t t = pad_step(src, u + j * step);
        if (t < 0)
            out[j] = 0;
        else
            read_row(out + j, src, row + t, 1, 1);
    }
}

/* Steps u, u + step, ... of the channel at `row`, n of them, wherever they lie. */
static void segment_stage(float *out, const cpu_source *src, int64_t row, int64_t u, int64_t step, int64_t n) {
    int64_t lo = u < 0 ? ceil_div(-u, step) : 0;
    int64_t hi = u < src->t_in ? ceil_div(src->t_in - u, step) : 0;
    if (lo > n) lo = n;
    if (hi > n) hi = n;
    if (hi < lo) hi = lo;
    if (lo > 0) pad_fill(out, src, row, u, step, lo);
    read_row(out + lo, src, row + u + lo * step, step, hi - lo);
    if (hi < n) pad_fill(out + hi, src, row, u + hi * step, step, n - hi);
}

/* Lines to bring into L2 while something else is computed, one at a time: the next tile's x (its rows lie pages apart,
 * where the hardware's own prefetch ends), and y that is about to be written. All at once would fill the line buffers and
 * stall what they are for. */
typedef struct {
    const char *p, *row_end;
    int64_t pitch, jump; /* to the next row, from a row's end to the next row */
    int32_t lines, done;
    int64_t work; /* of all that takes the time */
    float rate;   /* lines of a unit of it */
} lines_ahead;

/* Of each row the lines that begin in it: where it begins in the middle of one, the tile before has brought that. */
INLINE lines_ahead lines_of(const char *p, int64_t pitch, int64_t bytes, int64_t rows, int64_t work) {
    int64_t skip = -(intptr_t)p & 63, lines = ceil_div(bytes - skip, 64);
    if (lines <= 0) return (lines_ahead){.lines = 0};
    p += skip;
    return (lines_ahead){.p = p,
        .row_end = p + lines * 64,
        .pitch = pitch,
        .jump = pitch - lines * 64,
        .lines = (int32_t)(lines * rows),
        .rate = (float)(lines * rows) / (float)work};
}

static lines_ahead ahead_of(
    const cpu_source *src, int64_t channel, int32_t rows, int64_t u, int64_t n, int64_t work) {
    if (u < 0) {
        n += u;
        u = 0;
    }
    if (n > src->t_in - u) n = src->t_in - u;
    if (n <= 0) return (lines_ahead){.lines = 0};
    int64_t size = src->dtype == NCT_F32 ? 4 : 2;
    const char *p = (const char *)src->x + (src->off + channel * src->pitch + u) * size;
    return lines_of(p, src->pitch * size, n * size, rows, work);
}

static lines_ahead outputs_ahead(cpu_target dst, int32_t rows, int32_t n, int64_t work) {
    return lines_of((const char *)dst.y, dst.pitch * (int64_t)sizeof(float), n * (int64_t)sizeof(float), rows, work);
}

/* One line; without branches, for the middle of a kernel. */
INLINE void line_bring(lines_ahead *a) {
    __builtin_prefetch(a->p, 0, 2);
    const char *next = a->p + 64;
    int over = next == a->row_end;
    a->p = over ? next + a->jump : next;
    a->row_end += over ? a->pitch : 0;
}

/* `work` is done: what is due and no kernel has brought. */
INLINE void ahead_step(lines_ahead *a, int32_t work) {
    a->work += work;
    int32_t due = (int32_t)((float)a->work * a->rate);
    if (due > a->lines) due = a->lines;
    for (; a->done < due; a->done++) line_bring(a);
}

/* Where the steps of tap k0 of output t0 stand in a channel. */
INLINE int64_t slice_first(const cpu_plan *plan, const cpu_source *src, const cpu_slice *s, int64_t t0) {
    return t0 * plan->stride + (int64_t)s->k0 * plan->dilation - src->pad_left;
}

/* n steps of each of 2 or 4 phases of a row, `pitch` apart; whole vectors are read and written. */
INLINE void phases_split(const float *x, const int stride, int32_t n, int64_t pitch, float *out) {
    for (int32_t i = 0; i < n; i += LANES, x += stride * LANES) {
        vf e0 = EVEN(load(x), load(x + LANES)), o0 = ODD(load(x), load(x + LANES));
        if (stride == 2) {
            store(out + i, e0);
            store(out + pitch + i, o0);
            continue;
        }
        const float *p = x + 2 * LANES;
        vf e1 = EVEN(load(p), load(p + LANES)), o1 = ODD(load(p), load(p + LANES));
        store(out + i, EVEN(e0, e1));
        store(out + pitch + i, EVEN(o0, o1));
        store(out + 2 * pitch + i, ODD(e0, e1));
        store(out + 3 * pitch + i, ODD(o0, o1));
    }
}

/* The first n outputs' part of a tile, n rounded up to whole vectors by the caller. */
static void slice_stage(const cpu_plan *plan, const cpu_source *src, int64_t channel, const cpu_slice *s, int64_t t0,
    int32_t n, float *out) {
    int64_t first = slice_first(plan, src, s, t0), stride = plan->stride;
    int32_t need = plan->seg_need - plan->tile + n;
    int32_t segments = plan->seg_step == 1 ? plan->segments : s->n_k;
    int split = src->dtype == NCT_F32 && plan->seg_step == 1 && plan->segments == stride &&
                (stride == 2 || stride == 4) && first >= 0 && first + round_up(need, LANES) * stride <= src->t_in;
    for (int32_t c = 0; c < s->n_ci; c++) {
        int64_t row = src->off + (channel + c) * src->pitch;
        float *x = out + (int64_t)c * plan->pitch;
        const float *from = (const float *)src->x + row + first;
        if (split && stride == 2) {
            phases_split(from, 2, need, plan->seg_len, x);
        } else if (split) {
            phases_split(from, 4, need, plan->seg_len, x);
        } else {
            for (int32_t q = 0; q < segments; q++)
                segment_stage(
                    x + (int64_t)q * plan->seg_len, src, row, first + (int64_t)q * plan->seg_step, stride, need);
        }
    }
}

/* A tile far from the ends of an f32 row, where it lies; else NULL. */
static const float *slice_inside(
    const cpu_plan *plan, const cpu_source *src, int64_t channel, const cpu_slice *s, int64_t t0, int32_t n) {
    int64_t first = slice_first(plan, src, s, t0), reach = (int64_t)(s->n_k - 1) * plan->dilation;
    int64_t len = (n + LANES - 1) / LANES * LANES + reach;
    if (src->dtype != NCT_F32 || plan->stride != 1 || first < 0 || first + len > src->t_in) return NULL;
    int64_t row = src->off + channel * src->pitch;
    return (const float *)src->x + row + first;
}

/* Need it not be staged? So when few channels read it; not when the rows would fall into the same sets of L1. */
static int slice_stays(const cpu_source *src, const cpu_slice *s, int32_t rows) {
    int64_t way = src->pitch % 1024;
    return rows <= IN_PLACE_ROWS && (s->n_ci <= 8 || (way >= 64 && way <= 960));
}
