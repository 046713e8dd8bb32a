/* heat.c: see heat.h. Called by live.c for results of a stream that somebody looks at. */
#include "heat.h"
#include <errno.h>
#include <math.h>
#include <string.h>
#include "nct_layer.h"

enum { SAMPLES_ACROSS = 4, SAMPLES_ALONG = 8 }; /* looked at in one cell: channels, steps */

static float from_f16(uint16_t h) {
    int exponent = h >> 10 & 31;
    float m = (float)(h & 1023);
    float x = exponent == 31 ? (m != 0.0f ? NAN : INFINITY)
              : exponent     ? ldexpf(m + 1024.0f, exponent - 25)
                             : ldexpf(m, -24);
    return h & 0x8000 ? -x : x;
}

static float read_one(const unsigned char *y, int32_t dtype, int64_t i) {
    float f;
    double d;
    uint16_t h;
    if (dtype == NCT_F32) return memcpy(&f, y + 4 * i, 4), f;
    if (dtype == NCT_F64) return memcpy(&d, y + 8 * i, 8), (float)d;
    memcpy(&h, y + 2 * i, 2);
    if (dtype == NCT_F16) return from_f16(h);
    uint32_t bits = (uint32_t)h << 16;
    return memcpy(&f, &bits, 4), f;
}

typedef struct {
    int64_t first, n; /* of n values, at most `looks` are looked at, evenly */
    int looks;
} span;
static span span_of(int64_t all, int32_t parts, int32_t part, int most) {
    span s = {.first = all * part / parts};
    s.n = all * (part + 1) / parts - s.first;
    s.looks = s.n < most ? (int)s.n : most;
    return s;
}
static int64_t look(const span *s, int i) {
    return s->first + s->n * (2 * i + 1) / (2 * s->looks);
}

/* NAN when one of them is not finite. */
static float extreme(const unsigned char *y, int32_t dtype, const span *across, const span *along, int64_t steps) {
    float best = 0.0f;
    for (int a = 0; a < across->looks; a++)
        for (int b = 0; b < along->looks; b++) {
            float x = read_one(y, dtype, look(across, a) * steps + look(along, b));
            if (!isfinite(x)) return NAN;
            if (fabsf(x) > fabsf(best)) best = x;
        }
    return best;
}

static void quantise(heat *h, const float *values, int n) {
    float low = INFINITY, high = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (values[i] < low) low = values[i];
        if (values[i] > high) high = values[i];
    }
    if (low > high) low = high = 0.0f;
    h->low = low;
    h->high = high;
    double step = ((double)high - (double)low) / 254;
    for (int i = 0; i < n; i++)
        h->cells[i] = isnan(values[i]) ? HEAT_NONFINITE
                      : step > 0       ? (unsigned char)lrint(((double)values[i] - (double)low) / step)
                                       : 0;
}

int heat_make(heat *ret, const void *y, int32_t dtype, int32_t channels, int32_t steps) {
    float values[HEAT_ROWS * HEAT_COLUMNS];
    if (channels < 1 || steps < 1) return -EINVAL;
    if (dtype != NCT_F32 && dtype != NCT_F16 && dtype != NCT_BF16 && dtype != NCT_F64) return -EINVAL;
    ret->channels = channels;
    ret->steps = steps;
    ret->rows = channels < HEAT_ROWS ? channels : HEAT_ROWS;
    ret->columns = steps < HEAT_COLUMNS ? steps : HEAT_COLUMNS;
    for (int32_t r = 0; r < ret->rows; r++)
        for (int32_t c = 0; c < ret->columns; c++) {
            span across = span_of(channels, ret->rows, r, SAMPLES_ACROSS);
            span along = span_of(steps, ret->columns, c, SAMPLES_ALONG);
            values[r * ret->columns + c] = extreme(y, dtype, &across, &along, steps);
        }
    quantise(ret, values, ret->rows * ret->columns);
    return 0;
}
