/* cuda.cuh: what the files of the CUDA backend share: the layer on the device, one launch as the kernels see
 * it, and the table of rows.
 *
 * A plan decides every rounding (products and their order, slices, leaves of the statistics); a row is one
 * schedule of one plan (tile, who owns what, one pass or two) and may not change a bit. backend.cu chooses,
 * conv_*.cu hold the rows, norm.cu what comes after the conv. A new kernel is one file and one line in ROWS. */
#ifndef NCT_CUDA_CUH
#define NCT_CUDA_CUH
#include <cuda_runtime.h>
extern "C" {
#include "layer.h"
}

/* ---- plans ---- */

enum plan_kind {
    PLAN_SIMT,   /* f32 FMA chains in slices of 256 products; leaves of 1 channel x 256 steps */
    PLAN_MMA,    /* mma.sync; leaves of 1 channel x 64 steps */
    PLAN_WGMMA,  /* wgmma (Hopper, tf32 and bf16); leaves of 1 channel x 64 steps */
    PLAN_NARROW, /* mma.sync tf32, C_in*K <= 32 kept in registers, conv twice; leaves of 1 channel x 2048 steps */
    PLAN_LONG, /* Hopper, at most 16 channels out: mma.sync with y kept in registers; leaves of 1 channel x 2048 steps */
    PLAN_DEPTH, /* depthwise by f32 FMA chains, conv twice; leaves of 1 channel x 2048 steps */
};
enum { SIMT_SLICE = 256, SIMT_LEAF = 256, MMA_LEAF = 64, MMA_ROWS = 32, NARROW_LEAF = 2048, NARROW_PRODUCTS = 32 };

/* The layer's constants, as kernels read them. */
struct geometry {
    int32_t ci, co, k, stride, dil, groups; /* conv */
    int32_t cig, cog;                       /* channels in and out of one conv group */
    int32_t norm_groups, cg;                /* groups of the norm, channels of one */
    int32_t pad_mode, act;
    float offset_limit; /* NCT_SAW_OFFSET beyond |mean|*rstd of this */
    double eps;
};

/* How the products are laid out for the tensor cores; see conv_mma.cu. */
struct mma_layout {
    int32_t rows;   /* word rows of x in one chunk: 32, 16 or 8 (a word: 1 channel, or 2 in bf16) */
    int32_t chunks; /* chunks that cover the conv group's input channels */
    int32_t blocks; /* blocks of 32 output channels in one conv group */
    int32_t slice;  /* steps (chunk, tap) in one slice; 0: one slice holds everything */
    int32_t planes; /* 1, or 2: hi and lo of f32 */
};

/* ---- one launch ---- */

enum {              /* what the epilogue of a conv does with its tile */
    DO_LEAVES = 1,  /* statistics of the tile's leaves */
    DO_RAW = 2,     /* unnormalised f32: to the scratch, or to y itself if y is f32 */
    DO_APPLY = 4,   /* normalise with coef, activate, store to y */
    DO_PARTIAL = 8, /* one slice's sums to job.partial: short frames over all SMs */
    DO_MEET = 16    /* fused: the tiles of a block exchange their leaves before DO_APPLY */
};

struct cuda_job {
    geometry g;
    mma_layout m;
    const void *x;
    int64_t x_count; /* elements at x: wide copies stay inside */
    void *y;
    const nct_frame *frames; /* NULL: row n is row0 advanced by x_step, y_step */
    nct_frame row0;
    int64_t x_step, y_step;
    int32_t uniform; /* all rows have row0's t_in, t_out, pads and pitches, at constant steps */
    int32_t n_frames, x_dtype, y_dtype, norm, precision;
    int32_t what; /* DO_* */
    int32_t max_t_out;
    int32_t leaf_t;            /* steps of a leaf, by plan */
    int32_t tile_leaves;       /* leaves that one tile of the row spans */
    const int32_t *leaf_start; /* ragged: first leaf column of frame n, n_frames + 1 entries; else NULL */
    int32_t leaf_cols;         /* uniform: leaf columns that a frame takes, a multiple of tile_leaves */
    int32_t tiles;             /* tiles along time, all frames */
    float4 *leaves;            /* [leaf column of the frame's start * co + channel * columns + column] */
    float4 *coef;              /* [n * co + channel] = mean_hi, mean_lo, rstd * gamma, beta */
    float *scratch;            /* f32 conv outputs where y cannot hold them */
    float *partial;            /* [slice][frame][channel][slot_steps] */
    int32_t *counters;         /* DO_MEET: [frame][block of channels] */
    uint8_t *turned;           /* PLAN_WGMMA: x as wgmma_units.cuh lays it */
    nct_stat *stats;
    uint32_t *flags;
    const void *weight; /* packed for the plan */
    const float *bias, *gamma, *beta;
    int32_t slot_steps; /* DO_PARTIAL: steps of a slot */
    int32_t x_wide;     /* every row of x begins at the same distance from a 16-byte boundary as its frame's first */
    int32_t raw_in_y;   /* DO_RAW and the apply pass use y (f32) instead of scratch */
};

/* ---- the layer on the device ---- */

struct cuda_layer {
    geometry g;
    mma_layout m;
    int32_t plan, precision;
    int32_t device, sms, cc; /* cc: 75, 80, 90, ... */
    const struct row *forced;
    char *memory; /* one block: raw f32 weights, packed weights, bias, gamma, beta */
    size_t bytes;
    float *raw, *bias, *gamma, *beta;
    void *weight;
    char reason[96];
};

/* ---- rows ---- */

enum pass { PASS_ANY, PASS_STORE, PASS_AGAIN, PASS_SPLIT, PASS_FUSED };
struct row {
    const char *name;
    int32_t plan, pass, min_cc;
    int32_t tile_c, tile_t; /* channels, steps of one CTA's tile */
    /* Can this row run the job? Shared memory, precision, shape. */
    int (*fits)(const row *row, const cuda_layer *l, const cuda_job *job);
    /* Enqueue the conv with job->what (PASS_FUSED: everything). */
    cudaError_t (*launch)(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
    const void *tile; /* the file's own */
};
const row *cuda_row(int32_t i); /* NULL past the end */

struct simt_tile {
    int32_t r, j; /* channels of a warp, steps of a lane */
};
int simt_fits(const row *row, const cuda_layer *l, const cuda_job *job);
cudaError_t simt_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
struct mma_tile {
    int32_t wm, wn, mt; /* warps along channels and steps, m16 tiles of a warp */
};
int64_t job_ctas(const cuda_job *job, const row *row); /* CTAs of a row; job has its frames' tiles counted */
struct wgmma_tile {
    int32_t wgs, mt, nb; /* consumer warpgroups, m64 tiles of one, channels */
};
int wgmma_fits(const row *row, const cuda_layer *l, const cuda_job *job);
cudaError_t wgmma_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
struct short_tile {
    int32_t wm, n; /* consumer warpgroups, of 64 channels each; steps: blocks of 8 */
};
int short_fits(const row *row, const cuda_layer *l, const cuda_job *job);
int64_t short_ctas(const row *row, const cuda_layer *l, const cuda_job *job); /* 0: does not fit */
cudaError_t short_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
int thin_fits(const row *row, const cuda_layer *l, const cuda_job *job);
cudaError_t thin_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
int narrow_holds(const geometry *g); /* can PLAN_NARROW run this layer? */
cudaError_t narrow_load(void);
int narrow_fits(const row *row, const cuda_layer *l, const cuda_job *job);
cudaError_t narrow_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
struct units_tile {
    int32_t wm, wt, n, cluster; /* warpgroups along channels and steps, steps of one; CTAs that share weights */
};
int units_fits(const row *row, const cuda_layer *l, const cuda_job *job);
cudaError_t units_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
struct resident_tile {
    int32_t steps; /* of a warpgroup's tile of 64 channels */
};
int resident_fits(const row *row, const cuda_layer *l, const cuda_job *job);
int64_t resident_phases(const row *row, const cuda_layer *l, const cuda_job *job); /* 0: does not fit */
cudaError_t resident_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
int depth_holds(const geometry *g); /* can PLAN_DEPTH? */
cudaError_t depth_load(void);
int depth_fits(const row *row, const cuda_layer *l, const cuda_job *job);
cudaError_t depth_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
int long_holds(const geometry *g); /* can PLAN_LONG? */
cudaError_t long_load_code(void);
int long_fits(const row *row, const cuda_layer *l, const cuda_job *job);
cudaError_t long_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);
int mma_fits(const row *row, const cuda_layer *l, const cuda_job *job);
cudaError_t mma_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s);

/* ---- around the conv (norm.cu, pack.cu) ---- */

cudaError_t norm_prefix(const cuda_job *job, int32_t *leaf_start, cudaStream_t s); /* ragged: fill leaf_start */
cudaError_t norm_finish(const cuda_job *job, cudaStream_t s); /* leaves, stats -> coef, stats, flags */
/* Normalise the raw f32 into y. merge: merge the leaves here (norm_merges says when that pays) */
cudaError_t norm_apply(const cuda_job *job, int merge, cudaStream_t s);
int norm_merges(const cuda_job *job);
cudaError_t norm_load(void); /* nct_warm: load the kernels' code */
/* Slices' sums -> everything else, one CTA a (frame, norm group): short frames. */
cudaError_t norm_combine(const cuda_job *job, int32_t slices, cudaStream_t s);

/* dst[count] on the device, f32 to nearest even from a tensor of any weight dtype; absent: the constant. A host
 * tensor has been copied to `dst` or was read when this returns. */
int pack_f32(float *dst, const nct_tensor *src, int64_t count, float absent, cudaStream_t s, nct_why *why);
cudaError_t pack_simt(float *dst, const float *raw, const geometry *g, cudaStream_t s);
cudaError_t pack_wgmma(
    uint32_t *dst, const float *raw, const geometry *g, const mma_layout *m, int32_t precision, cudaStream_t s);
cudaError_t pack_mma(
    uint32_t *dst, const float *raw, const geometry *g, const mma_layout *m, int32_t precision, cudaStream_t s);
int64_t pack_mma_words(const geometry *g, const mma_layout *m);
int cuda_error(cudaError_t err, const char *what, nct_why *why); /* 0 or the errno of nct_layer.h */
#endif
