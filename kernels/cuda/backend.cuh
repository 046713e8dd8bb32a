/* backend.cuh: what backend.cu, choose.cu and launch.cu share. */
#ifndef NCT_CUDA_BACKEND_CUH
#define NCT_CUDA_BACKEND_CUH
#include "cuda.cuh"

enum {
    SPLIT_FRAMES = 4,         /* frames of a job that slices may spread over all SMs */
    AGAIN_PRODUCTS = 32,      /* SIMT layers up to here run the conv twice and move y once */
    SLICED_WEIGHTS = 8 << 20, /* layers from here are bound by their weights */
    ALIGN = 256
};

/* backend.cu */
int device_enter(
    int32_t device, int *ret_before, nct_why *why); /* make it current; device_leave puts the caller's back */
void device_leave(int32_t device, int before);
size_t aligned(size_t bytes);

/* choose.cu */
static inline int plan_again(int32_t plan) { /* the conv twice, never a raw y kept */
    return plan == PLAN_NARROW || plan == PLAN_DEPTH || plan == PLAN_LONG;
}
static inline int plan_plain(int32_t plan) { /* weights as f32 [product][channel] */
    return plan == PLAN_SIMT || plan == PLAN_NARROW || plan == PLAN_DEPTH || plan == PLAN_LONG;
}
static inline int32_t plan_leaf(int32_t plan) { /* steps of a leaf */
    return plan == PLAN_SIMT ? SIMT_LEAF : plan_again(plan) ? NARROW_LEAF : MMA_LEAF;
}
geometry geometry_of(const nct_params *p, int32_t precision);
int plan_choose(cuda_layer *l, const nct_where *at, nct_why *why); /* l->plan, m, forced, reason */
const row *row_choose(const cuda_layer *l, const cuda_job *j, const nct_job *job, nct_why *why); /* NULL: -ENOTSUP */
int again_by_default(const cuda_layer *l);
int64_t ctas_of(const cuda_job *j, const nct_job *job, const row *row);

/* launch.cu */
struct room { /* offsets into the workspace */
    size_t leaf_start, coef, counters, leaves, scratch, partial, turned, bytes;
};
room room_of(const cuda_layer *l, int64_t frames, int64_t max_t, int64_t sum_t);
cuda_job job_begin(const cuda_layer *l, const nct_job *job);
void job_tiles(cuda_job *j, const nct_job *job, const row *row);
int cuda_workspace(const nct_layer *nl, const nct_limits *lim, size_t *ret_bytes, nct_why *why);
int cuda_launch(const nct_layer *nl, const nct_job *job, nct_why *why);
#endif
