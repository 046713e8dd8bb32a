/* rows.c: sizes of a frame's row in a slot, and the copy of its payload into it. Called by the batcher (sizes) and the
 * engine (copies) on the loop thread; owns nothing. The loops load from message memory by memcpy, which the compiler
 * turns into unaligned vector loads; an interleaved payload is transposed in blocks that stay in the first cache. */
#include "rows.h"
#include <assert.h>
#include <string.h>

int32_t rows_x_dtype(int32_t wire_dtype) {
    return wire_dtype == NCT_I32 || wire_dtype == NCT_F64 ? NCT_F32 : wire_dtype;
}

int64_t rows_x_pitch(const frame *f) {
    size_t size = rows_dtype_bytes(f->x_dtype), bytes = (size_t)f->t_in * size;
    return bytes < 128 ? f->t_in : (int64_t)(rows_round(bytes, 16) / size);
}

size_t rows_x_bytes(const frame *f) {
    return rows_round((size_t)f->c_in * (size_t)rows_x_pitch(f) * rows_dtype_bytes(f->x_dtype), ROWS_ALIGN);
}

size_t rows_stats_bytes(const frame *f) {
    return (size_t)f->n_groups * sizeof(nct_stat);
}

size_t rows_y_bytes(const frame *f) {
    if (f->observe) return rows_stats_bytes(f);
    return (size_t)f->c_out * (size_t)f->t_out * rows_dtype_bytes(f->y_dtype);
}

bool rows_y_pages(const frame *f) {
    return !f->observe && rows_y_bytes(f) >= ROWS_PAGE;
}

size_t rows_in_room(const frame *f) {
    return rows_x_bytes(f) + (f->norm == NCT_NORM_GIVEN ? rows_stats_bytes(f) : 0);
}

size_t rows_out_room(const frame *f) {
    if (f->observe) return rows_stats_bytes(f);
    return rows_round(rows_y_bytes(f), rows_y_pages(f) ? ROWS_PAGE : ROWS_ALIGN);
}

size_t rows_slot_bytes_min(size_t max_frame_bytes) {
    size_t in = rows_round(max_frame_bytes + max_frame_bytes / 8, ROWS_ALIGN);
    size_t out = rows_round(max_frame_bytes, ROWS_PAGE);
    return in > out ? in : out;
}

/* ---- payload (C, T): runs of one channel ---- */
static void run_same(void *to, const unsigned char *from, int64_t n, size_t size) {
    memcpy(to, from, (size_t)n * size);
}
static void run_i32(float *to, const unsigned char *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int32_t v;
        memcpy(&v, from + i * 4, 4);
        to[i] = (float)v * 0x1p-31f;
    }
}
static void run_f64(float *to, const unsigned char *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, from + i * 8, 8);
        to[i] = (float)v;
    }
}

static void run(int dtype, void *x, int64_t at, const unsigned char *from, int64_t n) {
    switch (dtype) {
    case NCT_I32: run_i32((float *)x + at, from, n); break;
    case NCT_F64: run_f64((float *)x + at, from, n); break;
    case NCT_F32: run_same((float *)x + at, from, n, 4); break;
    default: run_same((uint16_t *)x + at, from, n, 2); break;
    }
}

/* ---- payload (T, C): blocks of steps x channels ---- */
enum { BLOCK_STEPS = 32, BLOCK_CHANNELS = 16 };
typedef struct {
    const unsigned char *from; /* of [step 0][channel 0] of the block */
    int64_t from_stride;       /* samples from a step to the next */
    int64_t at, pitch;         /* in x */
    int64_t steps, channels;
} block;

#define BLOCK(name, type, out_type, convert)                                                                         \
    static void name(out_type *x, const block *k) {                                                                  \
        for (int64_t c = 0; c < k->channels; c++) {                                                                  \
            const unsigned char *from = k->from + c * (int64_t)sizeof(type);                                         \
            out_type *to = x + k->at + c * k->pitch;                                                                 \
            for (int64_t t = 0; t < k->steps; t++) {                                                                 \
                type v;                                                                                              \
                memcpy(&v, from + t * k->from_stride * (int64_t)sizeof(type), sizeof v);                             \
                to[t] = convert;                                                                                     \
            }                                                                                                        \
        }                                                                                                            \
    }
BLOCK(block_i32, int32_t, float, (float)v * 0x1p-31f)
BLOCK(block_f64, double, float, (float)v)
BLOCK(block_f32, uint32_t, uint32_t, v)
BLOCK(block_16, uint16_t, uint16_t, v)

static void block_copy(int dtype, void *x, const block *k) {
    switch (dtype) {
    case NCT_I32: block_i32(x, k); break;
    case NCT_F64: block_f64(x, k); break;
    case NCT_F32: block_f32(x, k); break;
    default: block_16(x, k); break;
    }
}

static void transpose(const frame *f, void *x, int64_t t0, int64_t t1, int64_t c0, int64_t c1) {
    const unsigned char *data = f->payload.data;
    int64_t size = (int64_t)rows_dtype_bytes(f->h.dtype), pitch = rows_x_pitch(f);
    for (int64_t t = t0; t < t1; t += BLOCK_STEPS) {
        for (int64_t c = c0; c < c1; c += BLOCK_CHANNELS) {
            block k = {.from = data + (t * f->c_in + c) * size,
                .from_stride = f->c_in,
                .at = c * pitch + t,
                .pitch = pitch,
                .steps = t1 - t < BLOCK_STEPS ? t1 - t : BLOCK_STEPS,
                .channels = c1 - c < BLOCK_CHANNELS ? c1 - c : BLOCK_CHANNELS};
            block_copy(f->h.dtype, x, &k);
        }
    }
}

/* One piece of [from, end) in the payload's order: part of one channel. Returns its length. */
static int64_t copy_channels(const frame *f, void *x, int64_t from, int64_t end) {
    const unsigned char *data = f->payload.data;
    int64_t c = from / f->t_in, t = from % f->t_in, n = f->t_in - t;
    if (n > end - from) n = end - from;
    run(f->h.dtype, x, c * rows_x_pitch(f) + t, data + from * (int64_t)rows_dtype_bytes(f->h.dtype), n);
    return n;
}

/* One piece of [from, end): whole steps, or part of one. */
static int64_t copy_steps(const frame *f, void *x, int64_t from, int64_t end) {
    int64_t t = from / f->c_in, c = from % f->c_in, n = end - from;
    if (c == 0 && n >= f->c_in) {
        int64_t steps = n / f->c_in;
        transpose(f, x, t, t + steps, 0, f->c_in);
        return steps * f->c_in;
    }
    if (n > f->c_in - c) n = f->c_in - c;
    transpose(f, x, t, t + 1, c, c + n);
    return n;
}

int64_t rows_copy_in(const frame *f, void *x, int64_t from, int64_t n) {
    int64_t total = (int64_t)f->c_in * f->t_in, end = n < total - from ? from + n : total;
    assert(f->payload.bytes >= (size_t)total * rows_dtype_bytes(f->h.dtype));
    while (from < end)
        from += f->h.flags & WIRE_INTERLEAVED ? copy_steps(f, x, from, end) : copy_channels(f, x, from, end);
    return from;
}

void rows_copy_stats(const frame *f, nct_stat *stats) {
    size_t samples = (size_t)f->c_in * (size_t)f->t_in * rows_dtype_bytes(f->h.dtype);
    assert(f->payload.bytes == samples + rows_stats_bytes(f));
    memcpy(stats, (const unsigned char *)f->payload.data + samples, rows_stats_bytes(f));
}
