/* layer.h: what layer.c and the backends share; private to kernels/.
 *
 * layer.c checks everything a caller hands in (parameters, weights, jobs) and then calls the backend of the
 * layer's device. A backend never repeats those checks; it may refuse a combination with -ENOTSUP. What only
 * it knows is its own: whether at.force names one of its rows (-EINVAL), whether workspace_bytes suffice
 * (-ENOSPC). Job functions are not called for n_frames 0. */
#ifndef NCT_LAYER_INTERNAL_H
#define NCT_LAYER_INTERNAL_H
#include "nct_layer.h"

typedef struct backend {
    const char *name; /* "cpu", "cuda" */
    /* Pack w for l->at; sets l->impl. l->p and l->at are filled and checked. */
    int (*layer_new)(nct_layer *l, const nct_weights *w, void *stream, nct_why *why);
    int (*repack)(nct_layer *l, const nct_weights *w, void *stream, nct_why *why);
    void (*layer_free)(nct_layer *l); /* frees l->impl only */
    int (*workspace)(const nct_layer *l, const nct_limits *lim, size_t *ret_bytes, nct_why *why);
    /* CUDA only (NULL on the CPU): nct_warm, nct_launch. */
    int (*warm)(const nct_layer *l, const nct_limits *lim, void *workspace, size_t bytes, void *stream, nct_why *why);
    int (*launch)(const nct_layer *l, const nct_job *job, nct_why *why);
    /* CPU only (NULL on CUDA): nct_phases, nct_phase. */
    int (*phases)(const nct_layer *l, const nct_job *job, int32_t n_workers, nct_why *why);
    int (*phase)(const nct_layer *l, const nct_job *job, int32_t phase, int32_t worker, int32_t n_workers);
    int (*explain)(const nct_layer *l, const nct_job *job, int32_t frame, nct_report *ret, nct_why *why);
    const char *(*variant)(int32_t i); /* nct_variant: rows that run on this machine, best first, NULL past the end */
} backend;

extern const backend cpu_backend;
#ifdef NCT_CUDA
extern const backend cuda_backend;
#endif

struct nct_layer {
    nct_params p;
    nct_where at; /* at.force points into force[] or is NULL */
    char force[32];
    const backend *be;
    void *impl; /* the backend's packed weights and plan */
};

/* why_set(why, -EINVAL, "format", ...) writes the sentence (why may be NULL) and returns the error. */
int why_set(nct_why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Check params alone (every rule of nct_layer_new that needs no weight). */
int params_check(const nct_params *p, nct_why *why);
/* Check weights for a layer on `device` (-1: the CPU, host tensors only). Values are not looked at. */
int weights_check(const nct_weights *w, int32_t device, nct_why *why);
/* Check a job against a layer of p on `device`: dtypes, geometry of every frame, bounds inside x_count and
 * y_count, slots. One pass over the frames, nothing allocated. JOB_ORACLE also lets in the dtypes that
 * nct_reference alone takes. */
#define JOB_ORACLE (-2)
int job_check(const nct_params *p, int32_t device, const nct_job *job, nct_why *why);
size_t dtype_size(int32_t dtype); /* 0 for an unknown one */
#endif
