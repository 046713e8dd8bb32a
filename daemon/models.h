/* models.h: what the daemon serves: names, and under each name generations of one layer with its weights.
 *
 * A `served` is a name from the configuration, with its own counters; it lives as long as the daemon, also when a reload
 * takes it out of the configuration (its numbers go on when it comes back). A `generation`
 * is that name's layer as one load made it: parameters, host weights, one packed layer a device. Frames hold counted
 * references to the generation that admitted them, so a reload makes generation n+1 beside n, swaps `current`, and
 * the old weights go when their last frame has ended. Loading (reading, packing, warming, comparing with the float64
 * reference) touches nothing shared and runs on a helper thread; everything else belongs to the loop thread. */
#ifndef NCTD_MODELS_H
#define NCTD_MODELS_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "config.h"
#include "ledger.h"
#include "model.h"
#include "nct_layer.h"

#define MODELS_DEVICES_MAX 17 /* the CPU and 16 GPUs */

typedef struct served {
    char name[65];
    struct generation *current; /* counted reference; NULL: a reload took it out */
    uint32_t generations;       /* how many this name has had */
    uint32_t in_flight;         /* frames in the frame table */
    frame_counts counts;
    uint64_t queue_ns, compute_ns; /* sums over its frames (meters.h) */
    int64_t t_result_ns;           /* Unix time of its last RESULT, 0: none yet */
} served;

typedef struct generation {
    int32_t refs;    /* loop thread */
    uint32_t number; /* 1, 2, ... under its name; in every RESULT */
    served *of;
    bool publish; /* results go to PUB */
    model *m;     /* parameters and host weights, digest */
    int32_t n_devices, devices[MODELS_DEVICES_MAX];
    nct_layer *layers[MODELS_DEVICES_MAX]; /* engines of one device share its packed layer */
} generation;

/* The layer packed for `device` (-1 CPU): borrowed, immutable, any number of threads may launch it. NULL: none. */
nct_layer *generation_layer(const generation *g, int32_t device);
const nct_params *generation_params(const generation *g);
const void *generation_model(const generation *g); /* what generations of one name share: engine_setup.model_of */
/* Layers on this device are not freed from now on: after a fault the driver's free can wait for a kernel that never
 * ends. Loop thread. */
void models_lose_device(int32_t device);
generation *generation_ref(generation *g); /* returns g */
void generation_unref(generation *g);      /* frees it with its last reference; NULL is fine */

typedef struct models models;
/* Where layers go: filled from the engines before anything is loaded. */
typedef struct {
    int32_t n_devices, devices[MODELS_DEVICES_MAX];
    int32_t precision;        /* nct_precision, the same on every device */
    const char *force;        /* a CPU variant by name, or NULL */
    const struct models *now; /* a reload: what is served, of which equals are not made again; borrowed */
    /* One small launch of the layer on its device, compared with the float64 reference of `m`: model_check_cpu for
     * the CPU. Any thread. */
    int (*check[MODELS_DEVICES_MAX])(nct_layer *l, const model *m, int32_t device, nct_why *why);
} models_target;

/* 0, -EIO with the first element that differs and by how much, or what the layer says. */
int model_check_cpu(nct_layer *l, const model *m, int32_t device, nct_why *why);
int model_check_cuda(
    nct_layer *l, const model *m, int32_t device, nct_why *why); /* only in builds with CUDA; warms the layer, too */
/* What both are: run() does the job of one small frame, whose pointers are host memory, and its y is compared with the
 * float64 reference; `tolerance` of the largest output. */
typedef int (*model_trial)(nct_layer *l, int32_t device, const nct_job *job, nct_why *why);
int model_check_with(nct_layer *l, const model *m, int32_t device, double tolerance, model_trial run, nct_why *why);

/* The CPU too, where it is not yet. */
void models_target_cpu(models_target *t);

/* Everything the configuration names, loaded and checked but not yet served. Any thread. */
typedef struct model_set {
    int32_t n;
    generation **made; /* [n], of == NULL until models_adopt; NULL: what is served stays */
    char (*names)[65];
    int32_t n_changed, n_added, n_removed; /* against target.now */
    generation **left;                     /* [n_left], after models_adopt: those that no new frame gets */
    int32_t n_left;
} model_set;
/* 0, or a negative errno of model_load / nct_layer_new / -EIO (the comparison with the reference failed), with the
 * model's name and origin in *why. No [model] at all makes the default layer under the name "default". With
 * target.now, a model of the same digest, settings and devices is not made. */
int model_set_load(model_set **ret, const config *cfg, const models_target *to, nct_why *why);
void model_set_free(model_set *s); /* NULL is fine */

int models_new(models **ret);
void models_free(models *m); /* no frame may be left */
/* Serve what was loaded, in the set's order: its generations become the current ones, and those that they replace are
 * the set's (left). Names that it lacks are served no more. 0, or -ENOMEM and nothing changed. */
int models_adopt(models *m, model_set *s);
served *models_find(models *m, const char *name); /* NULL: no such */
served *models_at(models *m, int32_t i);          /* NULL past the end */
int32_t models_count(const models *m);
/* [{"name", every layer parameter, "digest", "mode", "generation", "publish", "ledger"}]: for WELCOME. NULL without
 * memory. */
json_t *models_describe(const models *m);
#endif
