/* model_check.c: before a model is served, one small frame goes through its packed layer and through the float64
 * reference. It shows that this CPU really runs the code it was given and that the weights were packed right; the
 * kernels' own tests show the rest. Called by models.c on the helper thread. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "models.h"

#define STEPS_OUT     5    /* of the trial frame */
#define TOLERANCE_F32 1e-3 /* of the largest output: far above f32's error, far below any mistake */

typedef struct {
    int32_t t_in, t_out;
    float *x, *y;
    double *want;
    void *workspace;
    size_t workspace_bytes;
    nct_frame row;
} trial;

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* The shortest frame with STEPS_OUT results that its padding mode allows. */
static int geometry(trial *t, const nct_params *p, nct_why *why) {
    int64_t reach = (int64_t)p->dilation * (p->kernel_size - 1) + 1, t_out;
    int64_t t_in = reach - p->pad_left - p->pad_right + (int64_t)(STEPS_OUT - 1) * p->stride;
    int32_t pad = larger(p->pad_left, p->pad_right);
    if (t_in < pad + 1) t_in = pad + 1; /* reflect needs more steps than padding */
    int error = nct_out_steps(p, t_in, p->pad_left, p->pad_right, &t_out, why);
    if (error) return error;
    if (t_in > INT32_MAX || t_out > INT32_MAX) return -EINVAL;
    t->t_in = (int32_t)t_in;
    t->t_out = (int32_t)t_out;
    t->row = (nct_frame){.x_pitch = t_in,
        .y_pitch = t_out,
        .t_in = t->t_in,
        .t_out = t->t_out,
        .pad_left = p->pad_left,
        .pad_right = p->pad_right,
        .stat_in = -1,
        .stat_out = -1};
    return 0;
}

/* Values in [-1, 1) that are the same every time. */
static void fill(float *x, size_t n) {
    uint32_t v = 2463534242u;
    for (size_t i = 0; i < n; i++) {
        v ^= v << 13, v ^= v >> 17, v ^= v << 5;
        x[i] = (float)((int32_t)v >> 8) / 8388608.0f;
    }
}

static int allocate(trial *t, nct_layer *l, const nct_params *p, nct_why *why) {
    nct_limits limits = {.max_frames = 1, .n_workers = 1, .max_t_out = t->t_out, .sum_t_out = t->t_out};
    size_t n_x = (size_t)p->in_channels * (size_t)t->t_in, n_y = (size_t)p->out_channels * (size_t)t->t_out;
    int error = nct_workspace(&l, 1, &limits, &t->workspace_bytes, why);
    if (error) return error;
    t->x = malloc(n_x * sizeof *t->x);
    t->y = malloc(n_y * sizeof *t->y);
    t->want = malloc(n_y * sizeof *t->want);
    t->workspace = aligned_alloc(256, (t->workspace_bytes + 256) / 256 * 256);
    if (!t->x || !t->y || !t->want || !t->workspace) return -ENOMEM;
    fill(t->x, n_x);
    for (size_t i = 0; i < n_y; i++) t->y[i] = NAN; /* what is not written is seen */
    return 0;
}

static int compare(const trial *t, const nct_params *p, double tolerance, nct_why *why) {
    size_t n = (size_t)p->out_channels * (size_t)t->t_out;
    double largest = 1;
    for (size_t i = 0; i < n; i++)
        if (isfinite(t->want[i]) && fabs(t->want[i]) > largest) largest = fabs(t->want[i]);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(t->want[i]) && !isfinite(t->y[i])) continue; /* weights that are not finite */
        if (fabs((double)t->y[i] - t->want[i]) <= tolerance * largest) continue;
        if (why)
            snprintf(why->text, sizeof why->text,
                "a trial frame of %d steps came out wrong at channel %zu, step %zu: %.9g instead of %.9g", t->t_in,
                i / (size_t)t->t_out, i % (size_t)t->t_out, (double)t->y[i], t->want[i]);
        return -EIO;
    }
    return 0;
}

static int on_cpu(nct_layer *l, int32_t device, const nct_job *job, nct_why *why) {
    (void)device;
    int phases = nct_phases(&l, 1, job, 1, why), error = phases < 0 ? phases : 0;
    for (int32_t phase = 0; phase < phases && !error; phase++) error = nct_phase(&l, 1, job, phase, 0, 1);
    return error;
}

static nct_job job_of(trial *t, const nct_params *p) {
    return (nct_job){.n_frames = 1,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F32,
        .norm = NCT_NORM_OWN,
        .frames = &t->row,
        .x = t->x,
        .x_count = (int64_t)p->in_channels * t->t_in,
        .y = t->y,
        .y_count = (int64_t)p->out_channels * t->t_out,
        .workspace = t->workspace,
        .workspace_bytes = t->workspace_bytes};
}

int model_check_with(nct_layer *l, const model *m, int32_t device, double tolerance, model_trial run, nct_why *why) {
    trial t = {0};
    const nct_params *p = &m->params;
    int error = geometry(&t, p, why);
    if (!error) error = allocate(&t, l, p, why);
    nct_job job = job_of(&t, p);
    if (!error) error = run(l, device, &job, why);
    job.y = t.want;
    job.y_dtype = NCT_F64;
    if (!error) error = nct_reference(p, &m->weights, &job, why);
    if (!error) error = compare(&t, p, tolerance, why);
    free(t.x);
    free(t.y);
    free(t.want);
    free(t.workspace);
    return error;
}

int model_check_cpu(nct_layer *l, const model *m, int32_t device, nct_why *why) {
    return model_check_with(l, m, device, TOLERANCE_F32, on_cpu, why);
}
