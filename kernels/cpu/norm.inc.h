/* norm.inc.h: leaves of the statistics, and normalise + activate + store of a row.
 *
 * Worker threads, through cpu_ops. A leaf is summed in 64 lanes whatever LANES is, so its order of additions is
 * the same in every variant. */

enum { SUMS = 64, VECTORS = SUMS / LANES };

#if LANES == 16
    #define LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#elif LANES == 8
    #define LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7
#else
    #define LANE_NUMBERS 0, 1, 2, 3
#endif

/* lane[i] += lane[i + half] for half = 32, 16, 8, 4, 2, 1. */
INLINE float sums_fold(vf *sum) {
#pragma GCC unroll 8
    for (int half = VECTORS / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int v = 0; v < half; v++) sum[v] += sum[v + half];
    vf lanes = sum[0];
#pragma GCC unroll 8
    for (int half = LANES / 2; half > 0; half /= 2)
        lanes += __builtin_shuffle(lanes, (vi){LANE_NUMBERS} + half); /* modulo LANES */
    return lanes[0];
}
#undef LANE_NUMBERS

/* The last n < 64 values, filled up with `fill`. */
INLINE void tail_load(vf *out, const float *y, int32_t n, float fill) {
    float lane[SUMS];
    for (int i = 0; i < SUMS; i++) lane[i] = fill;
    memcpy(lane, y, (size_t)n * sizeof(float));
    for (int v = 0; v < VECTORS; v++) out[v] = load(lane + v * LANES);
}

static void leaf(const float *y, int32_t n, const float *next, double *ret_mean, double *ret_m2) {
    int32_t whole = n / SUMS * SUMS;
    vf sum[VECTORS], sq[VECTORS], tail[VECTORS], shift = splat(y[0]);
    for (int v = 0; v < VECTORS; v++) sum[v] = sq[v] = (vf){0};
    for (int32_t i = 0; i < whole; i += SUMS)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) sum[v] += load(y + i + v * LANES) - shift;
    if (whole < n) {
        tail_load(tail, y + whole, n - whole, y[0]);
        for (int v = 0; v < VECTORS; v++) sum[v] += tail[v] - shift;
    }
    float p = y[0] + sums_fold(sum) / (float)n; /* about the first value: a constant leaf has exactly its value */
    shift = splat(p);
    for (int v = 0; v < VECTORS; v++) sum[v] = (vf){0};
    for (int32_t i = 0; i < whole; i += SUMS) {
#pragma GCC unroll 4
        for (int j = 0; j < SUMS; j += 16) __builtin_prefetch(next + i + j);
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) {
            vf d = load(y + i + v * LANES) - shift;
            sum[v] += d;
            sq[v] = FMA(d, d, sq[v]);
        }
    }
    if (whole < n) {
        tail_load(tail, y + whole, n - whole, p);
        for (int v = 0; v < VECTORS; v++) {
            vf d = tail[v] - shift;
            sum[v] += d;
            sq[v] = FMA(d, d, sq[v]);
        }
    }
    double s = sums_fold(sum), q = sums_fold(sq);
    *ret_mean = p + s / n;
    *ret_m2 = q - s * s / n;
}

static uint16_t bf16_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t nan = (u & 0x7fffffff) > 0x7f800000;
    return (uint16_t)(nan ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#ifndef TO_HALF
static uint16_t half_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (mag >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (mag >= 0x38800000) return (uint16_t)(sign | (mag - 0x38000000 + 0xfff + (mag >> 13 & 1)) >> 13);
    float magnitude, rounded;
    memcpy(&magnitude, &mag, 4);
    rounded = magnitude + 0x1p-1f; /* 2^-24 is its last place: the sum is rounded to a subnormal half */
    memcpy(&u, &rounded, 4);
    return (uint16_t)(sign | (u - 0x3f000000));
}
    #define TO_HALF(f) half_bits(f)
#endif

/* What a row's values go through, in registers: through `a` each would be read again after every store. */
typedef struct {
    vf mean_hi, mean_lo, rstd, gamma, beta;
} row_factors;

enum { ROW_STEP = 4 * LANES };

INLINE vf row_value(const row_factors *f, const int activation, const int guard, vf y) {
    if (guard) y = y + (y - y);
    vf z = ((y - f->mean_hi) - f->mean_lo) * f->rstd;
    return activate(activation, FMA(z, f->gamma, f->beta));
}

/* n values in place, or into dst. The last vector is read before any is written and written after all others. */
INLINE void row_run(
    const row_factors *f, const int activation, const int guard, const float *y, int64_t n, float *dst) {
    if (n < LANES) {
        float lane[LANES] = {0};
        for (int64_t i = 0; i < n; i++) lane[i] = y[i];
        store(lane, row_value(f, activation, guard, load(lane)));
        for (int64_t i = 0; i < n; i++) dst[i] = lane[i];
        return;
    }
    vf last = load(y + n - LANES);
    int64_t i = 0;
    for (; i + ROW_STEP <= n; i += ROW_STEP) {
        vf v[ROW_STEP / LANES];
#pragma GCC unroll 8
        for (int j = 0; j < ROW_STEP / LANES; j++) v[j] = row_value(f, activation, guard, load(y + i + j * LANES));
#pragma GCC unroll 8
        for (int j = 0; j < ROW_STEP / LANES; j++) store(dst + i + j * LANES, v[j]);
    }
    for (; i + LANES < n; i += LANES) store(dst + i, row_value(f, activation, guard, load(y + i)));
    if (i < n) store(dst + n - LANES, row_value(f, activation, guard, last));
}

/* The same into dst, not y itself, past the caches. */
INLINE void row_stream(const row_factors *f, const int activation, const float *y, int64_t n, float *dst) {
    int64_t head = (int64_t)((-(uintptr_t)dst % sizeof(vf)) / sizeof(float)), whole = (n - head) / LANES * LANES;
    if (whole <= 0) {
        row_run(f, activation, 0, y, n, dst);
        return;
    }
    if (head) row_run(f, activation, 0, y, head, dst);
    for (int64_t i = head; i < head + whole; i += LANES) STREAM(dst + i, row_value(f, activation, 0, load(y + i)));
    if (head + whole < n) row_run(f, activation, 0, y + head + whole, n - head - whole, dst + head + whole);
}

INLINE void rows_f32(const cpu_apply *a, const int activation, int32_t rows, const float *y, int64_t y_pitch,
    int64_t n, float *dst, int64_t dst_pitch) {
    row_factors f = {.mean_hi = splat(a->mean_hi), .mean_lo = splat(a->mean_lo), .rstd = splat(a->rstd)};
    for (int32_t r = 0; r < rows; r++, y += y_pitch, dst += dst_pitch) {
        f.gamma = splat(a->gamma[r]);
        f.beta = splat(a->beta[r]);
        if (r + 1 < rows) row_ahead(y + y_pitch, n);
        if (a->guard)
            row_run(&f, activation, 1, y, n, dst);
        else if (a->stream)
            row_stream(&f, activation, y, n, dst);
        else
            row_run(&f, activation, 0, y, n, dst);
    }
}

static void rows_apply(
    const cpu_apply *a, int32_t rows, const float *y, int64_t y_pitch, int64_t n, float *dst, int64_t dst_pitch) {
    if (!a->norm) {
        for (int32_t r = 0; dst != y && r < rows; r++)
            memmove(dst + r * dst_pitch, y + r * y_pitch, (size_t)n * sizeof(float));
        return;
    }
    switch (a->activation) {
    case NCT_RELU: rows_f32(a, NCT_RELU, rows, y, y_pitch, n, dst, dst_pitch); break;
    case NCT_GELU: rows_f32(a, NCT_GELU, rows, y, y_pitch, n, dst, dst_pitch); break;
    case NCT_GELU_TANH: rows_f32(a, NCT_GELU_TANH, rows, y, y_pitch, n, dst, dst_pitch); break;
    case NCT_SILU: rows_f32(a, NCT_SILU, rows, y, y_pitch, n, dst, dst_pitch); break;
    case NCT_MISH: rows_f32(a, NCT_MISH, rows, y, y_pitch, n, dst, dst_pitch); break;
    case NCT_ELU: rows_f32(a, NCT_ELU, rows, y, y_pitch, n, dst, dst_pitch); break;
    default: rows_f32(a, NCT_NONE, rows, y, y_pitch, n, dst, dst_pitch);
    }
}

/* One row by way of f32. */
static void row_half(const cpu_apply *a, const float *y, int64_t n, uint16_t *dst) {
    float buffer[512];
    for (int64_t i = 0; i < n; i += 512) {
        int64_t m = n - i < 512 ? n - i : 512;
        rows_apply(a, 1, y + i, 0, m, buffer, 0);
        if (a->dtype == NCT_BF16)
            for (int64_t j = 0; j < m; j++) dst[i + j] = bf16_bits(buffer[j]);
        else
            for (int64_t j = 0; j < m; j++) dst[i + j] = TO_HALF(buffer[j]);
    }
}

static void apply(
    const cpu_apply *a, int32_t rows, const float *y, int64_t y_pitch, int64_t n, void *dst, int64_t dst_pitch) {
    if (a->dtype == NCT_F32) {
        rows_apply(a, rows, y, y_pitch, n, dst, dst_pitch);
        if (a->stream) STREAM_END();
        return;
    }
    cpu_apply row = *a;
    for (int32_t r = 0; r < rows; r++, row.gamma++, row.beta++)
        row_half(&row, y + r * y_pitch, n, (uint16_t *)dst + r * dst_pitch);
}
