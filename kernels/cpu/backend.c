/* backend.c: the CPU backend's row for layer.c, and the table of its variants.
 *
 * Layers are made and freed on the caller's thread; phases run on any number of worker threads at once and read
 * the layer only. Which variant runs is asked of the processor when a layer is made. */
#include "cpu.h"
#include "weights_memory.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Best first. */
static const cpu_ops *const variants[] = {
#if defined(__x86_64__)
    &cpu_ops_avx512,
    &cpu_ops_avx2,
#endif
    &cpu_ops_portable,
};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

static const char *variant(int32_t i) {
    for (int v = 0; v < N_VARIANTS; v++)
        if (variants[v]->supported() && i-- == 0) return variants[v]->name;
    return NULL;
}

static void names_join(char *out, size_t room, int runs) {
    size_t at = 0;
    out[0] = 0;
    for (int v = 0; v < N_VARIANTS && at < room; v++)
        if (!runs || variants[v]->supported())
            at += (size_t)snprintf(out + at, room - at, "%s%s", at ? ", " : "", variants[v]->name);
}

static int variant_choose(const char *force, const cpu_ops **ret, nct_why *why) {
    char names[128];
    for (int v = 0; v < N_VARIANTS; v++) {
        if (force && strcmp(force, variants[v]->name) != 0) continue;
        if (variants[v]->supported()) {
            *ret = variants[v];
            return 0;
        }
        if (!force) continue;
        names_join(names, sizeof names, 1);
        return why_set(why, -ENOTSUP, "this processor cannot run the CPU variant %s; it runs %s", force, names);
    }
    names_join(names, sizeof names, 0);
    return why_set(why, -EINVAL, "there is no CPU variant %s; there are %s", force, names);
}

static size_t part_bytes(int64_t floats) {
    return (size_t)round_up(floats * (int64_t)sizeof(float), CPU_ALIGN);
}

static int memory_take(nct_layer *l, cpu_layer *c, nct_why *why) {
    const cpu_plan *plan = &c->plan;
    int64_t wide = round_up(plan->co, c->ops->lanes) * plan->ci * plan->taps;
    size_t weight = part_bytes(plan->group_floats * plan->groups), row = part_bytes(l->p.out_channels);
    size_t shorts = plan->co >= c->ops->lanes ? part_bytes(wide * plan->groups) : 0;
    size_t wino =
        l->at.flags & NCT_CUTTABLE || !cpu_wino_pays(plan) ? 0 : part_bytes(c->wino.group_floats * plan->groups);
    size_t off = part_bytes(plan->slice_taps), bytes = weight + shorts + wino + 3 * row + 4 * off;
    c->memory = l->at.alloc ? l->at.alloc(l->at.ctx, bytes) : memory_new(bytes);
    if (!c->memory) return why_set(why, -ENOMEM, "no memory for %zu bytes of packed weights", bytes);
    char *at = c->memory;
    c->weight = (float *)(void *)at;
    at += weight;
    c->weight_short = shorts ? (float *)(void *)at : NULL;
    at += shorts;
    c->weight_wino = wino ? (float *)(void *)at : NULL;
    at += wino;
    c->bias = (float *)(void *)at;
    c->gamma = (float *)(void *)(at + row);
    c->beta = (float *)(void *)(at + 2 * row);
    c->off = (int32_t *)(void *)(at += 3 * row);
    c->off_row = (int32_t *)(void *)(at + off);
    c->off_short = (int32_t *)(void *)(at + 2 * off);
    c->off_turned = (int32_t *)(void *)(at + 3 * off);
    return 0;
}

static int layer_new(nct_layer *l, const nct_weights *w, void *stream, nct_why *why) {
    (void)stream;
    cpu_layer *c = calloc(1, sizeof *c);
    if (!c) return why_set(why, -ENOMEM, "no memory for a layer of %zu bytes", sizeof *c);
    int err = variant_choose(l->at.force, &c->ops, why);
    if (err) goto fail_variant;
    cpu_plan_init(&c->plan, &l->p);
    c->shorts = c->plan;
    cpu_plan_short(&c->shorts);
    c->wino = c->plan;
    cpu_plan_wino(&c->wino);
    cpu_turned_init(c);
    err = memory_take(l, c, why);
    if (err) goto fail_memory;
    cpu_pack(c, &l->p, w);
    l->impl = c;
    return 0;
fail_memory:
fail_variant:
    free(c);
    return err;
}

static int repack(nct_layer *l, const nct_weights *w, void *stream, nct_why *why) {
    (void)stream, (void)why;
    cpu_pack(l->impl, &l->p, w);
    return 0;
}

static void layer_free(nct_layer *l) {
    cpu_layer *c = l->impl;
    if (l->at.release)
        l->at.release(l->at.ctx, c->memory);
    else
        memory_free(c->memory);
    free(c);
}

static int workspace(const nct_layer *l, const nct_limits *lim, size_t *ret_bytes, nct_why *why) {
    (void)why;
    int64_t workers = lim->n_workers > 0 ? lim->n_workers : 1;
    *ret_bytes = cpu_workspace_bytes(l, lim->max_frames, lim->max_t_out, lim->sum_t_out, workers);
    return 0;
}

static int explain(const nct_layer *l, const nct_job *job, int32_t frame, nct_report *ret, nct_why *why) {
    (void)why;
    const cpu_layer *c = l->impl;
    nct_report r = {0};
    int wino = cpu_is_wino(c, job->frames[frame].t_out);
    const cpu_plan *plan = wino ? &c->wino : &c->plan;
    snprintf(r.plan, sizeof r.plan, "%s %s, slices %d x %d, leaf 1x%d", c->ops->name, wino ? "F(2,3)" : "direct",
        plan->n_slices, plan->slice_ci * plan->slice_taps, CPU_LEAF);
    snprintf(r.schedule, sizeof r.schedule, "%s", cpu_schedule_text(l, job, frame, 1));
    snprintf(r.reason, sizeof r.reason, "%s", l->at.force ? "variant forced" : "best variant of this processor");
    int64_t sum_in = 0, sum_out = 0;
    for (int32_t n = 0; n < job->n_frames; n++) {
        sum_in += job->frames[n].t_in;
        sum_out += job->frames[n].t_out;
    }
    r.flop = 2.0 * (double)sum_out * l->p.out_channels * c->plan.ci * c->plan.taps;
    r.bytes = sum_in * l->p.in_channels * (int64_t)dtype_size(job->x_dtype) +
              (job->y ? sum_out * l->p.out_channels * (int64_t)dtype_size(job->y_dtype) : 0) +
              (int64_t)l->p.out_channels * (c->plan.ci * c->plan.taps + 3) * (int64_t)sizeof(float);
    *ret = r;
    return 0;
}

const backend cpu_backend = {
    .name = "cpu",
    .layer_new = layer_new,
    .repack = repack,
    .layer_free = layer_free,
    .workspace = workspace,
    .phases = cpu_phases,
    .phase = cpu_phase,
    .explain = explain,
    .variant = variant,
};
