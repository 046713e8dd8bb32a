/* nct_layer.h: y = act(GroupNorm(pre_act(conv1d(x, w) + bias))) on CPUs and CUDA devices.
 *
 * A plain C library: the functions of this header use no sockets, files, threads, logging, environment or exit (threads: pool.h, files: model.h). Functions return 0 or a negative errno
 * and leave ret_* untouched on failure; *why (may be NULL) then holds one English sentence that names the numbers.
 * Errors: -EINVAL parameters or job, -ERANGE T_out < 1 (names T and K), -ENOTSUP combination not built, -ENOSPC workspace
 * too small, -ENOMEM, -ENOSYS built without CUDA, -ENODEV no such device or no code for it, -EIO device lost (sticky).
 * Letters: N frames, Ci/Co channels, K taps, G norm groups, T steps. Offsets and pitches count elements, int64.
 * Same bits: a frame's y depends on the layer, its variant or architecture, the frame's own x, t_in, pads and stats, and
 * nothing else: not on N, neighbours, row, pitch, alignment, workspace, SM count, cluster size, thread count, run. */
#ifndef NCT_LAYER_H
#define NCT_LAYER_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* the library is built with -fvisibility=hidden */
#define NCT_LAYER_ABI 1
int nct_layer_abi(void);                 /* NCT_LAYER_ABI of the library that was loaded */

typedef enum { NCT_F32 = 1, NCT_F16, NCT_BF16, NCT_I16, NCT_I32, NCT_F64 } nct_dtype;
                                         /* the wire's numbers, 0 = not set; I16 reads as v / 2^15, I32 as v / 2^31 */
typedef enum { NCT_PREC_F32, NCT_PREC_TF32, NCT_PREC_BF16 } nct_precision; /* of the products; sums and statistics: f32 or better */
typedef enum { NCT_ZEROS, NCT_REFLECT, NCT_REPLICATE, NCT_CIRCULAR } nct_pad_mode;
typedef enum { NCT_NONE, NCT_RELU, NCT_GELU, NCT_GELU_TANH, NCT_SILU, NCT_MISH, NCT_ELU } nct_act;
typedef enum { NCT_NORM_OWN, NCT_NORM_RUNNING, NCT_NORM_GIVEN } nct_norm;
typedef struct { char text[512]; } nct_why;

/* ---- the layer ------------------------------------------------------------------------------------------------- */
typedef struct {                         /* zero it, then fill it; PyTorch's names */
    int32_t in_channels, out_channels, kernel_size, stride, dilation, groups, num_groups;
    int32_t pad_left, pad_right;         /* from padding=int|'same'|'valid' by nct_padding() */
    int32_t padding_mode, activation;    /* nct_pad_mode, nct_act */
    int32_t pre_activation;              /* between bias and norm; NCT_NONE in ABI 1, else -ENOTSUP */
    double  eps;                         /* 1.2e-38 (FLT_MIN) or more, finite: with 0 a constant group would have no result */
    int32_t reserved[8];                 /* zero */
} nct_params;
typedef struct { const void *data; int32_t dtype; int32_t on_device; } nct_tensor; /* contiguous, borrowed; data NULL: absent */
typedef struct {
    nct_tensor weight;                   /* (Co, Ci/groups, K); F64, F32, F16 or BF16, brought to f32 to nearest even */
    nct_tensor bias, gamma, beta;        /* (Co) each; absent: 0, 1, 0 */
} nct_weights;
#define NCT_CUTTABLE 1u                  /* plan may look neither at T nor at positions: conv bits are the same however a
                                            sequence is cut into frames (stream models). No Winograd, no short-T plan. */
typedef struct {                         /* zero it, then fill it */
    int32_t  device;                     /* -1 CPU, else CUDA ordinal */
    int32_t  precision;                  /* nct_precision; CPU: NCT_PREC_F32 */
    uint32_t flags;
    const char *force;                   /* NULL, or a variant/kernel row by name ("avx2", "sm80"): for tests and benches */
    void *(*alloc)(void *ctx, size_t bytes);      /* memory for packed weights, 256-byte aligned, on `device`; */
    void  (*release)(void *ctx, void *p); void *ctx; /* both NULL: the library's own. Kept until nct_layer_free */
} nct_where;
typedef struct nct_layer nct_layer;      /* packed, immutable between repacks; any number of threads may launch it */

/* PyTorch's `padding` as two numbers. same 0: the int in p->pad_left goes to both sides ('valid' is 0). same 1: the total
 * dilation*(K-1), halved, an odd one's extra zero on the right; p->pad_* are not looked at; stride must be 1, else -EINVAL. */
int nct_padding(const nct_params *p, int same, int32_t *ret_left, int32_t *ret_right, nct_why *why);
/* T_out = floor((T + pad_left + pad_right - dilation*(K-1) - 1) / stride) + 1. -ERANGE: T < 1 or T_out < 1 (names T and K);
 * -EINVAL: a negative pad, reflect with a pad >= T, circular with a pad > T. */
int nct_out_steps(const nct_params *p, int64_t t_in, int32_t pad_left, int32_t pad_right, int64_t *ret_t_out, nct_why *why);
/* Check everything, pack for one device and precision. CUDA: packing is enqueued on `stream` (a cudaStream_t, 0 = default);
 * device tensors are read in stream order. Host tensors may be freed on return. Not capturable. */
int nct_layer_new(nct_layer **ret, const nct_params *p, const nct_weights *w, const nct_where *at, void *stream, nct_why *why);
/* New values, same shapes, into the same memory (graphs stay valid): what a training framework calls after an update.
 * The caller orders it against launches in flight: same stream, or events. */
int nct_layer_repack(nct_layer *l, const nct_weights *w, void *stream, nct_why *why);
/* What nct_where.force can name on this machine: row i = 0, 1, ... of the device's backend, best first; NULL past the end. */
const char *nct_variant(int32_t device, int32_t i);
void nct_layer_free(nct_layer *l);       /* NULL is fine; waits for nothing: no launched work may still use it */

/* ---- the work -------------------------------------------------------------------------------------------------- */
typedef struct {                         /* one frame, 64 bytes, same layout on host and device */
    int64_t x_off, y_off;                /* of [channel 0][step 0], from job.x / job.y */
    int64_t x_pitch, y_pitch;            /* from a channel to the next, >= t_in / t_out; ANY value and alignment is right,
                                            multiples of 16 bytes may be faster, bits are the same */
    int32_t t_in, t_out;                 /* steps present at x (history included), steps to write: nct_out_steps() says */
    int32_t pad_left, pad_right;         /* this frame's own pads: the layer's, or 0 inside a stream; filled by padding_mode */
    int32_t stat_in, stat_out;           /* slot in job.stats, -1 none. OWN: stat_in -1. RUNNING: stat_in a slot (count 0 at
                                            the start; may be the stat_out of the same frame). GIVEN: stat_in a slot, stat_out -1 */
    int32_t t_skip, reserved;            /* 0 in ABI 1 (chains: leading outputs neither counted nor stored) */
} nct_frame;
/* A stream piece is an ordinary frame: its caller puts the last steps that the next output still needs (at most
 * (K-1)*dilation) before the new ones, so that output 0 reads x[0 - pad_left ...]; stride phase lives in that choice. */
typedef struct { double count, mean, m2; } nct_stat; /* the wire's order; count is a whole number, exact to 2^53;
                                            job.stats[slot*G + g]; count 0 = empty; m2 = sum (y-mean)^2. A group that is not
                                            finite writes NaN mean and m2; GIVEN with count 0 or NaN gives NaN */
typedef struct {                         /* zero it, then fill it; everything borrowed until the work is done */
    int32_t n_frames;                    /* 0: does nothing */
    int32_t x_dtype, y_dtype;            /* F32 F16 BF16 I16 / F32 F16 BF16, one each per job */
    int32_t norm;                        /* OWN: the frame's outputs (stat_out, if any, receives them).
                                            RUNNING: stat_in merged with them, used and written to stat_out.
                                            GIVEN: stat_in alone. */
    const nct_frame *frames;             /* host; read during the call only */
    const nct_frame *frames_dev;         /* CUDA: the same rows on the device; NULL if frames are alike: row n is row 0 with
                                            x_off, y_off advanced by constant steps (any plain (N,C,T) tensor) */
    const void *x; int64_t x_count;      /* elements in the allocation at x: loads stay inside it, and what lies outside a */
    void *y;       int64_t y_count;      /* frame's t_in never reaches a result. y NULL: statistics only (every frame then has
                                            a stat_out). x, y disjoint, and so are the y of two frames (not checked). */
    nct_stat *stats; int32_t n_stats;    /* same memory kind as x; two frames that touch one slot, one of them writing: -EINVAL */
    uint32_t flags;
    uint32_t *frame_flags;               /* NULL or [n_frames], memory kind of x: NCT_SAW_* of each frame */
    void *workspace; size_t workspace_bytes; /* 256-byte aligned, not shared by jobs in flight together, no initial value */
    void *stream;                        /* CUDA */
} nct_job;
#define NCT_CONV_ONLY 1u                 /* y = conv + bias in f32, no norm, no activation: seam and plan tests. norm OWN,
                                            slots -1, frame_flags NULL, y not NULL */
#define NCT_SAW_NONFINITE 1u             /* a conv output or a statistic of this frame is NaN or Inf (in f32) */
#define NCT_SAW_OFFSET    2u             /* |mean|*rstd of a group is beyond what the precision resolves to 1 %: */
#define NCT_OFFSET_F32    9000.0         /* the bounds, by precision of the products */
#define NCT_OFFSET_TF32   30.0
#define NCT_OFFSET_BF16   4.0

typedef struct { int32_t max_frames, n_workers; int64_t max_t_out, sum_t_out; } nct_limits;
/* Bytes that suffice for every job within the limits, chain of n layers. Grows with each limit; never with data. */
int nct_workspace(nct_layer *const *chain, int32_t n, const nct_limits *lim, size_t *ret_bytes, nct_why *why);
/* Load code, set attributes, one launch on scratch: afterwards nct_launch may be captured. Synchronises.
 * CPU: checks its arguments, no more. */
int nct_warm(nct_layer *const *chain, int32_t n, const nct_limits *lim, void *workspace, size_t bytes, void *stream, nct_why *why);
/* CUDA: check, then enqueue on job->stream and return. Allocates and synchronises nothing; the device of the layer is made
 * current and the caller's restored. chain: y of each layer is x of the next, f32 inside the workspace; n = 1 in ABI 1. */
int nct_launch(nct_layer *const *chain, int32_t n, const nct_job *job, nct_why *why);
/* CPU: the job is nct_phases() phases; in each, every worker 0..n_workers-1 calls nct_phase() once, and all must have
 * returned before the next phase begins. The caller owns the threads and the barrier; n_workers = 1 is a plain loop.
 * nct_phases() readies the workspace for these phases; a job whose phases have all returned may run them again. */
int nct_phases(nct_layer *const *chain, int32_t n, const nct_job *job, int32_t n_workers, nct_why *why); /* >= 0, or error */
int nct_phase(nct_layer *const *chain, int32_t n, const nct_job *job, int32_t phase, int32_t worker, int32_t n_workers);
/* The oracle: float64 plain loops on the host, from the unpacked weights (host tensors, first brought to f32), same job
 * (x_dtype F64, I32 and y_dtype F64 allowed too, frames_dev and workspace ignored; SAW_OFFSET by the f32 bound); it shares
 * no code with the backends. A conv output beyond f32's range counts as Inf, as it does on every backend. One thread. */
int nct_reference(const nct_params *p, const nct_weights *w, const nct_job *job, nct_why *why);

typedef struct {
    char plan[48];                       /* decides every rounding: "wgmma-tf32 k8 slices 1 leaf 8x16" */
    char schedule[96];                   /* decides only the time: "cluster 4, tile 128x256, 2 waves" */
    char reason[96];
    double flop; int64_t bytes;          /* of the job, each input and output once */
} nct_report;
int nct_explain(nct_layer *const *chain, int32_t n, const nct_job *job, int32_t frame, nct_report *ret, nct_why *why);
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
