/* short.inc.h: frames of few outputs, vectorised over the output channels: SHORT_VECTORS of weights are loaded, each
 * step's x is a broadcast. Several frames share a pass over the weights. The same products in the same order as
 * conv.inc.h, and the additions of leaf() transposed: the same bits.
 *
 * Worker threads, through cpu_ops.conv_short. */

enum { WIDE = SHORT_VECTORS * LANES };

typedef struct {
    const float *x;
    int64_t x_pitch;
    const int32_t *off;
    int32_t n_ci, n_k;
    const float *w;
    float *part;
    int64_t part_pitch;
    int first; /* the slice that starts the sum */
} short_args;

INLINE void short_kernel(const int vectors, const int cols, const short_args *a) {
    vf acc[SHORT_COLS][SHORT_VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < cols; j++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) acc[j][v] = (vf){0};
    const float *w = a->w, *row = a->x;
    for (int32_t c = 0; c < a->n_ci; c++, row += a->x_pitch)
        for (int32_t k = 0; k < a->n_k; k++, w += vectors * LANES) {
            const float *x = row + a->off[k];
            vf wv[SHORT_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) wv[v] = load(w + v * LANES);
#pragma GCC unroll 4
            for (int v = 0; v < vectors * LANES; v += 16) __builtin_prefetch(w + 16 * WIDE + v);
#pragma GCC unroll 8
            for (int j = 0; j < cols; j++) {
                vf xv = splat(x[j]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) acc[j][v] = FMA(wv[v], xv, acc[j][v]);
            }
        }
#pragma GCC unroll 8
    for (int j = 0; j < cols; j++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            float *p = a->part + j * a->part_pitch + v * LANES;
            store(p, a->first ? acc[j][v] : load(p) + acc[j][v]);
        }
}

#define KERNEL(v, n)                                                                                                 \
    static void short_##v##x##n(const short_args *a) {                                                               \
        short_kernel(v, n, a);                                                                                       \
    }
#if SHORT_COLS == 8
    #define KERNELS(v)                                                                                               \
        KERNEL(v, 1)                                                                                                 \
        KERNEL(v, 2) KERNEL(v, 3) KERNEL(v, 4) KERNEL(v, 5) KERNEL(v, 6) KERNEL(v, 7) KERNEL(v, 8)
    #define ROW(v)                                                                                                   \
        {                                                                                                            \
            short_##v##x1, short_##v##x2, short_##v##x3, short_##v##x4, short_##v##x5, short_##v##x6, short_##v##x7, \
                short_##v##x8                                                                                        \
        }
#else
    #define KERNELS(v) KERNEL(v, 1) KERNEL(v, 2) KERNEL(v, 3) KERNEL(v, 4) KERNEL(v, 5) KERNEL(v, 6)
    #define ROW(v)                                                                                                   \
        { short_##v##x1, short_##v##x2, short_##v##x3, short_##v##x4, short_##v##x5, short_##v##x6 }
#endif
KERNELS(1)
KERNELS(2)
#if SHORT_VECTORS == 3
KERNELS(3)
static void (*const short_kernels[][SHORT_COLS])(const short_args *) = {ROW(1), ROW(2), ROW(3)};
#else
static void (*const short_kernels[][SHORT_COLS])(const short_args *) = {ROW(1), ROW(2)};
#endif
#undef KERNEL
#undef KERNELS
#undef ROW

/* One slice of one frame against one block of weights. */
static void short_block(short_args *a, int32_t vectors, int32_t t_out) {
    const float *x = a->x;
    float *part = a->part;
    int32_t runs = (t_out + SHORT_COLS - 1) / SHORT_COLS;
    for (int32_t i = 0, t = 0, n; i < runs; i++, t += n) {
        n = (t_out - t + runs - i - 1) / (runs - i);
        a->x = x + t;
        a->part = part + t * a->part_pitch;
        short_kernels[vectors - 1][n - 1](a);
    }
    a->x = x;
    a->part = part;
}

/* The 64 lanes of leaf() folded: sum[t] stands for lane t, lanes of no step hold 0, and adding 0 changes no sum. */
INLINE vf steps_fold(vf *sum, const int32_t n) {
#pragma GCC unroll 8
    for (int half = CPU_SHORT / 2; half > 0; half /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < half; i++)
            if (i + half < n) sum[i] = sum[i] + sum[i + half];
    return sum[0];
}

INLINE void steps_leaf(const float *y, int64_t pitch, const int32_t n, int32_t channels, cpu_leaf *ret) {
    vf sum[CPU_SHORT], sq[CPU_SHORT], first = load(y);
#pragma GCC unroll 16
    for (int32_t t = 0; t < n; t++) sum[t] = load(y + t * pitch) - first;
    vf p = first + steps_fold(sum, n) / splat((float)n);
#pragma GCC unroll 16
    for (int32_t t = 0; t < n; t++) {
        vf d = load(y + t * pitch) - p;
        sum[t] = splat(0) + d;
        sq[t] = FMA(d, d, splat(0));
    }
    float lanes[3][LANES];
    store(lanes[0], p);
    store(lanes[1], steps_fold(sum, n));
    store(lanes[2], steps_fold(sq, n));
    for (int32_t i = 0; i < channels; i++) {
        double s = lanes[1][i], q = lanes[2][i];
        ret[i] = (cpu_leaf){lanes[0][i] + s / n, q - s * s / n};
    }
}

/* leaf() of LANES channels at once. */
static void short_leaf(const float *y, int64_t pitch, int32_t n, int32_t channels, cpu_leaf *ret) {
    if (n == 16)
        steps_leaf(y, pitch, 16, channels, ret);
    else
        steps_leaf(y, pitch, n, channels, ret);
}

/* part [t][channel] of channels lo .. hi-1 to rows of y, with the leaves on the way. */
static void short_finish(const cpu_short *f, const float *bias, int32_t lo, int32_t hi, float *part, int64_t pitch) {
    for (int32_t c = lo; c < hi; c += LANES) {
        int32_t n = hi - c < LANES ? hi - c : LANES;
        float lane[LANES] = {0};
        memcpy(lane, bias + c, (size_t)n * sizeof(float));
        vf b = load(lane);
        for (int32_t t = 0; t < f->t_out; t++) store(part + t * pitch + c, load(part + t * pitch + c) + b);
        if (f->leaf) short_leaf(part + c, pitch, f->t_out, n, f->leaf + (c - lo));
        for (int32_t i = 0; i < n; i++) {
            float *y = f->dst.y + (c - lo + i) * f->dst.pitch;
            for (int32_t t = 0; t < f->t_out; t++) y[t] = part[t * pitch + c + i];
        }
    }
}

static void conv_short(const cpu_layer *c, const cpu_short *frames, int32_t n_frames, int32_t group, int32_t lo,
    int32_t hi, float *x_tile, float *part) {
    const cpu_plan *plan = &c->shorts;
    int64_t pitch = round_up(plan->co, LANES), frame_x = (int64_t)plan->slice_ci * plan->pitch;
    const float *w_group = c->weight_short + group * pitch * plan->ci * plan->taps;
    for (int32_t i = 0; i < plan->n_slices; i++) {
        cpu_slice s = cpu_slice_at(plan, i);
        for (int32_t f = 0; f < n_frames; f++)
            slice_stage(plan, &frames[f].src, (int64_t)group * plan->ci + s.ci0, &s, 0, frames[f].t_out,
                x_tile + f * frame_x);
        short_args a = {.x_pitch = plan->pitch, .off = c->off_short, .n_ci = s.n_ci, .n_k = s.n_k};
        a.part_pitch = pitch;
        a.first = i == 0;
        for (int32_t co = lo / WIDE * WIDE; co < hi; co += WIDE) {
            int32_t vectors = (int32_t)(pitch - co < WIDE ? pitch - co : WIDE) / LANES;
            a.w = w_group + s.first * pitch + (int64_t)co * s.n_ci * s.n_k;
            for (int32_t f = 0; f < n_frames; f++) {
                a.x = x_tile + f * frame_x;
                a.part = part + f * CPU_SHORT * pitch + co;
                short_block(&a, vectors, frames[f].t_out);
            }
        }
    }
    for (int32_t f = 0; f < n_frames; f++)
        short_finish(&frames[f], c->bias + group * plan->co, lo, hi, part + f * CPU_SHORT * pitch, pitch);
}
