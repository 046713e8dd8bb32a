/* cpu.h: what the files of the CPU backend share: the plan, the packed layer, the table of variants.
 *
 * A layer is computed as a plan and a schedule. The plan (plan.c) fixes every rounding: products are summed by
 * FMA in ascending (channel, tap) from zero inside slices of at most CPU_SLICE products, slice sums are added in
 * ascending order, then the bias; leaves of the statistics are one channel x CPU_LEAF steps counted from output
 * 0 of the frame. The schedule (schedule.c) says who computes what when, and changes no bit. */
#ifndef NCT_CPU_H
#define NCT_CPU_H
#include "layer.h"

enum {
    CPU_SLICE = 256,          /* products summed before their sum is put aside */
    CPU_LEAF = 1024,          /* steps of one channel in a leaf of the statistics */
    CPU_TILE_MAX = 256,       /* outputs of a direct tile, at most */
    CPU_ROWS = 6,             /* output channels of a packed block of weights */
    CPU_UNIT_BYTES = 1 << 20, /* raw outputs a worker holds at once: half of a 2 MB L2 */
    CPU_SHORT = 32,           /* frames of up to so many outputs: over the channels, or side by side */
    CPU_SHORT_FRAMES = 8,     /* of them share one pass over the weights */
    CPU_WINO = 128,           /* outputs of a tile of F(2,3) */
    CPU_ALIGN = 256,
};

/* One conv group: ci channels in, co out. x is staged tile by tile as f32: a tile of a slice is `pitch` floats a
 * channel, made of segments of `seg_pitch` floats, tap k of output t at off[k - k0] + (t - t0). */
typedef struct {
    int32_t ci, co, taps, stride, dilation, groups;
    int32_t slice_ci, slice_taps;        /* channels and taps of a full slice; one of them spans its axis or is 1 */
    int32_t n_slices, tap_slices;        /* in all; along the taps */
    int32_t tile;                        /* outputs of a tile, a multiple of 64 */
    int32_t segments, seg_len, seg_step; /* segment q starts q * seg_step after the tile's first x, stride `stride` */
    int32_t pitch, seg_need;             /* floats of a channel; of a segment that are ever read */
    int64_t group_floats; /* packed weights of a conv group: blocks of CPU_ROWS channels, [ci][tap][row] by slices */
} cpu_plan;

typedef struct {
    int32_t ci0, n_ci, k0, n_k;
    int64_t first; /* products before it */
} cpu_slice;

typedef struct cpu_ops cpu_ops;
typedef struct {
    cpu_plan plan, shorts; /* the same slices; tiles of CPU_SHORT outputs */
    cpu_plan wino;         /* slices of channels of the four products of F(2,3); wino.inc.h */
    const cpu_ops *ops;
    void *memory; /* one allocation; below are its parts */
    float *weight, *bias, *gamma, *beta;
    float *weight_short; /* blocks of ops->wide channels; NULL when a conv group has less than a vector */
    float *weight_wino;  /* NULL: every frame is convolved directly */
    int32_t *off_short;
    int32_t turned_seg, turned_pitch,
        turned_reach; /* turn.inc.h: as seg_len, pitch; vectors past a tile. pitch 0: no */
    int32_t *off_turned;
    int32_t *off, *off_row; /* slice_taps of each: tap k in a staged tile, in a row of x itself */
} cpu_layer;

/* A frame's x as the stager reads it. */
typedef struct {
    const void *x;
    int64_t off, pitch; /* of the frame's first channel, in elements */
    int32_t dtype, t_in, pad_left, pad_right, mode, t_out;
    int32_t isolate; /* an x that is not finite must reach no output but those that read it */
} cpu_source;

/* Where a tile of outputs goes: row 0 is channel lo. slack: whole vectors may be written past its last step. */
typedef struct {
    float *y;
    int64_t pitch;
    int slack;
} cpu_target;

typedef struct {
    double mean, m2;
} cpu_leaf;

/* A frame of the channels-as-lanes form: all of its t_out outputs. leaf: of channel lo, or NULL. */
typedef struct {
    cpu_source src;
    int32_t t_out;
    cpu_target dst;
    cpu_leaf *leaf;
} cpu_short;

/* Where frames side by side go: row 0 is channel lo of the first frame. */
typedef struct {
    float *y;
    int64_t pitch, frame;
} cpu_beside;

/* ((y - mean_hi) - mean_lo) * rstd * gamma + beta, activated and stored as `dtype`. norm 0: y is stored as it is.
 * guard: y that is not finite gives NaN (with statistics that did not see it). stream: F32 goes past the caches.
 * gamma, beta: of the first row, then of the next ones. */
typedef struct {
    float mean_hi, mean_lo, rstd;
    const float *gamma, *beta;
    int32_t activation, dtype, norm, guard, stream;
} cpu_apply;

/* One row a variant: everything that touches many floats. The files ops_*.c are one source in three widths. */
struct cpu_ops {
    const char *name;
    int32_t lanes, beside, wide; /* floats of a vector; frames of conv_beside; channels of a block of conv_short's */
    int (*supported)(void);
    /* Outputs t0 .. t0+n-1 (t0 a multiple of CPU_LEAF, n <= CPU_LEAF) of channels lo .. hi-1 of a conv group, bias
     * added. x_tile holds cpu_x_floats(), part cpu_part_floats(). */
    void (*conv)(const cpu_layer *c, const cpu_source *src, int32_t group, int32_t lo, int32_t hi, int64_t t0,
        int32_t n, cpu_target dst, float *x_tile, float *part);
    /* Outputs and leaves of channels lo .. hi-1 of a conv group, of up to CPU_SHORT_FRAMES frames, the bits of conv()
     * without Winograd and of leaf(). */
    void (*conv_short)(const cpu_layer *c, const cpu_short *frames, int32_t n_frames, int32_t group, int32_t lo,
        int32_t hi, float *x_tile, float *part);
    /* The same for n_frames <= beside frames of at most n outputs, n a multiple of lanes; to holds whole vectors of
     * `beside` frames; dst is not looked at. Stride 1, taps in one span. */
    void (*conv_beside)(const cpu_layer *c, const cpu_short *frames, int32_t n_frames, int32_t group, int32_t lo,
        int32_t hi, int32_t n, float *x_tile, cpu_beside to);
    /* Mean and sum of squares about it, of n <= CPU_LEAF values: corrected two-pass about the first. What lies at next,
     * as much, is brought into L1 meanwhile. */
    void (*leaf)(const float *y, int32_t n, const float *next, double *ret_mean, double *ret_m2);
    /* Rows of n, `y_pitch` and `dst_pitch` elements apart; dst may be y itself when dtype is F32. */
    void (*apply)(
        const cpu_apply *a, int32_t rows, const float *y, int64_t y_pitch, int64_t n, void *dst, int64_t dst_pitch);
};
extern const cpu_ops cpu_ops_avx512, cpu_ops_avx2, cpu_ops_portable;

/* plan.c */
void cpu_plan_init(cpu_plan *plan, const nct_params *p);
void cpu_plan_short(cpu_plan *plan);
cpu_slice cpu_slice_at(const cpu_plan *plan, int32_t i);
void cpu_plan_wino(cpu_plan *plan);
int cpu_wino_pays(const cpu_plan *plan);
void cpu_turned_init(cpu_layer *c);
int64_t cpu_x_floats(const cpu_layer *c);
int64_t cpu_part_floats(const cpu_layer *c);
static inline int cpu_is_wino(const cpu_layer *c, int32_t t_out) {
    return c->weight_wino && t_out > CPU_SHORT;
}
/* pack.c: values of a (possibly absent) tensor as f32, and the weights in the order that the kernels read. */
void cpu_pack(cpu_layer *c, const nct_params *p, const nct_weights *w);

/* schedule.c: the functions of `backend` of the same names. */
size_t cpu_workspace_bytes(const nct_layer *l, int64_t n_frames, int64_t max_t, int64_t sum_t, int64_t n_workers);
int cpu_phases(const nct_layer *l, const nct_job *job, int32_t n_workers, nct_why *why);
int cpu_phase(const nct_layer *l, const nct_job *job, int32_t phase, int32_t worker, int32_t n_workers);
const char *cpu_schedule_text(const nct_layer *l, const nct_job *job, int32_t frame, int32_t n_workers);

/* A row's first lines, while the one before is worked on: where one begins, the hardware's prefetch has yet to learn. */
static inline void row_ahead(const float *row, int64_t n) {
    for (int i = 0; n >= 8 * 16 && i < 8; i++) __builtin_prefetch(row + 16 * i);
}

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t round_up(int64_t a, int64_t b) {
    return ceil_div(a, b) * b;
}
#endif
