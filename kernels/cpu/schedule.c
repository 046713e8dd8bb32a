/* schedule.c: who computes what, and when; nothing here changes a bit of a result.
 *
 * Three ways through a frame. IN_UNITS: a worker takes whole norm groups and does everything while their raw outputs
 * lie in L2, in one phase. IN_BLOCKS, for groups beyond L2, for more workers than groups, and where no statistics
 * are waited for: blocks of CPU_LEAF steps are convolved and counted in the first phase, groups are merged in the
 * second, blocks are normalised in the third (from y, or convolved again where y cannot hold f32 or the products
 * are few). IN_FRAMES: the same, but one worker does all blocks of a frame, and in one phase. Few frames and blocks are
 * dealt out by cost in contiguous ranges: a worker keeps to its frames. Many frames are taken as they get done.
 *
 * Worker threads, all at once, each with its own part of the workspace; nothing is allocated or kept. */
#include "schedule.h"
#include <errno.h>
#include <stdatomic.h>

enum {
    FEW_PRODUCTS = 16, /* of an output: cheaper to compute again than to fetch */
    FEW_BYTES = 384 << 10,
    STREAM_BYTES = 16 << 20,
    DEAL_FRAMES = 4,       /* for each worker, that they are dealt out one by one at the end */
    FRAMES_EACH = 16,      /* of unequal length for each worker: none is more than 1/16 behind */
    SHARE_WORTH = 4 << 20, /* products: the work of 40 us, worth two more meetings of the workers */
    STAGE_WORTH = 48,      /* channels of a unit that make up for staging its x once more */
};

/* At the head of the workspace. Many frames that each stay with one worker are dealt out while they are worked on, so that
 * a core that other work shares gets fewer: frames dealt so far, workers that found none left. */
typedef struct {
    atomic_int next, over;
} cpu_deal;

typedef struct {
    size_t norm, leaf, worker, raw, x_tile, part, worker_bytes, total;
} layout;

static int has_few_products(const nct_params *p) {
    return (int64_t)p->in_channels / p->groups * p->kernel_size <= FEW_PRODUCTS;
}

/* Of one worker: a share of a frame that stays in L2, or short frames. */
static int64_t raw_floats_of(const nct_params *p, int64_t max_t) {
    int64_t all = p->out_channels * round_up(max_t, 64);
    int64_t most = (has_few_products(p) ? FEW_BYTES : CPU_UNIT_BYTES) / (int64_t)sizeof(float);
    return all < most ? all : most;
}

static layout layout_of(const nct_layer *l, int64_t n_frames, int64_t max_t, int64_t sum_t, int64_t n_workers) {
    const cpu_layer *c = l->impl;
    layout at;
    size_t blocks = (size_t)(sum_t / CPU_LEAF + n_frames);
    at.norm = (size_t)round_up(sizeof(cpu_deal), CPU_ALIGN);
    at.leaf = at.norm + (size_t)round_up(n_frames * l->p.num_groups * (int64_t)sizeof(cpu_norm), CPU_ALIGN);
    at.worker =
        at.leaf + (size_t)round_up((int64_t)blocks * l->p.out_channels * (int64_t)sizeof(cpu_leaf), CPU_ALIGN);
    at.raw = 0;
    int64_t raw = raw_floats_of(&l->p, max_t);
    if (c->weight_short && raw < (int64_t)CPU_SHORT_FRAMES * CPU_SHORT * l->p.out_channels)
        raw = (int64_t)CPU_SHORT_FRAMES * CPU_SHORT * l->p.out_channels;
    at.x_tile = (size_t)round_up(raw * (int64_t)sizeof(float), CPU_ALIGN);
    at.part = at.x_tile + (size_t)cpu_x_floats(c) * sizeof(float);
    at.worker_bytes = at.part + (size_t)cpu_part_floats(c) * sizeof(float);
    at.total = at.worker + at.worker_bytes * (size_t)n_workers;
    return at;
}

size_t cpu_workspace_bytes(const nct_layer *l, int64_t n_frames, int64_t max_t, int64_t sum_t, int64_t n_workers) {
    return layout_of(l, n_frames, max_t, sum_t, n_workers).total;
}

static layout layout_of_job(const nct_layer *l, const nct_job *job, int32_t n_workers, int64_t *ret_max_t) {
    int64_t max_t = 0, sum_t = 0;
    for (int32_t n = 0; n < job->n_frames; n++) {
        int64_t t = job->frames[n].t_out;
        sum_t += t;
        if (t > max_t) max_t = t;
    }
    *ret_max_t = max_t;
    return layout_of(l, job->n_frames, max_t, sum_t, n_workers);
}

static frame_kind kind_of(const cpu_run *r, const nct_frame *f) {
    const nct_params *p = &r->l->p;
    if (r->c->weight_short && f->t_out <= CPU_SHORT) return IN_UNITS;
    if (!r->stats) return IN_BLOCKS;
    frame_kind blocks = r->whole ? IN_FRAMES : IN_BLOCKS;
    int64_t row = round_up(f->t_out, 64), held = r->raw_floats / row / r->group_co * r->group_co;
    if (held == 0) return blocks;
    int64_t products = (int64_t)p->out_channels * f->t_out * r->c->plan.ci * r->c->plan.taps;
    int shared = f->t_out > CPU_LEAF || products >= SHARE_WORTH;
    if ((int64_t)r->job->n_frames * p->num_groups < r->n_workers && shared) return blocks;
    int64_t worth = has_few_products(p) ? CPU_ROWS : STAGE_WORTH;
    if (worth > r->c->plan.co) worth = r->c->plan.co;
    int f32 = r->job->y && r->job->y_dtype == NCT_F32;
    return f32 && held < worth ? blocks : IN_UNITS;
}

static int32_t blocks_of(const nct_frame *f) {
    return (int32_t)ceil_div(f->t_out, CPU_LEAF);
}

/* A worker that has a frame to itself normalises it while its end lies in L2 and its beginning in L3, and waits for
 * nobody; done only where that leaves no worker with less than the others. */
static int whole_pays(const nct_job *job, int32_t n_workers) {
    if (n_workers == 1) return 1;
    int64_t sum = 0, most = 0;
    for (int32_t n = 0; n < job->n_frames; n++) {
        sum += job->frames[n].t_out;
        if (job->frames[n].t_out > most) most = job->frames[n].t_out;
    }
    int even = job->n_frames % n_workers == 0 && most * job->n_frames == sum;
    return even || most * n_workers * FRAMES_EACH <= sum;
}

/* Small jobs in blocks are cut along the channels too, so that every worker has some. */
static void splits_choose(cpu_run *r) {
    int64_t blocks = 0;
    for (int32_t n = 0; n < r->job->n_frames; n++)
        if (kind_of(r, &r->job->frames[n]) == IN_BLOCKS) blocks += blocks_of(&r->job->frames[n]);
    r->any_blocks = blocks > 0;
    r->splits = 1;
    if (r->n_workers == 1 || blocks >= 4 * (int64_t)r->n_workers || blocks == 0) return;
    int64_t want = ceil_div(4 * (int64_t)r->n_workers, blocks), most = ceil_div(r->l->p.out_channels, CPU_ROWS);
    r->splits = (int32_t)(want < most ? want : most);
}

static int64_t y_bytes(const nct_layer *l, const nct_job *job) {
    int64_t steps = 0;
    for (int32_t n = 0; job->y && n < job->n_frames; n++) steps += job->frames[n].t_out;
    return steps * l->p.out_channels * (int64_t)dtype_size(job->y_dtype);
}

static cpu_run run_of(const nct_layer *l, const nct_job *job, int32_t n_workers, const layout *at, int64_t max_t) {
    const cpu_layer *c = l->impl;
    cpu_run r = {.l = l, .c = c, .job = job, .n_workers = n_workers};
    r.group_co = l->p.out_channels / l->p.num_groups;
    r.stats = job->norm != NCT_NORM_GIVEN && !(job->flags & NCT_CONV_ONLY);
    r.leaves = r.stats || job->frame_flags;
    r.in_place = job->y && job->y_dtype == NCT_F32 && !has_few_products(&l->p);
    r.stream = has_few_products(&l->p) && y_bytes(l, job) >= STREAM_BYTES;
    r.raw_floats = raw_floats_of(&l->p, max_t);
    char *base = job->workspace;
    r.norm = (cpu_norm *)(void *)(base + at->norm);
    r.leaf = (cpu_leaf *)(void *)(base + at->leaf);
    r.whole = r.stats && whole_pays(job, n_workers);
    splits_choose(&r);
    r.dealt = n_workers > 1 && !r.any_blocks && job->n_frames >= DEAL_FRAMES * n_workers;
    return r;
}

static int phases_of(const cpu_run *r) {
    if (r->stats && r->any_blocks) return 3;
    return r->job->frame_flags && r->n_workers > 1 ? 2 : 1; /* flags wait for the other workers' groups */
}

int cpu_phases(const nct_layer *l, const nct_job *job, int32_t n_workers, nct_why *why) {
    int64_t max_t;
    layout at = layout_of_job(l, job, n_workers, &max_t);
    if (!job->workspace || job->workspace_bytes < at.total)
        return why_set(why, -ENOSPC,
            "the workspace has %zu bytes, %d frames of up to %lld steps on %d workers need %zu: ask nct_workspace()",
            job->workspace ? job->workspace_bytes : 0, job->n_frames, (long long)max_t, n_workers, at.total);
    cpu_run r = run_of(l, job, n_workers, &at, max_t);
    cpu_deal *deal = job->workspace;
    atomic_store(&deal->next, 0);
    atomic_store(&deal->over, 0);
    return phases_of(&r);
}

/* ---- dealing out ---- */

typedef enum { CONV, MERGE, NORMALISE } phase_kind;

typedef struct {
    int32_t units;
    int64_t cost; /* of a unit */
} frame_work;

static frame_work work_of(const cpu_run *r, const nct_frame *f, phase_kind phase) {
    frame_kind kind = kind_of(r, f);
    int64_t all = (int64_t)r->l->p.out_channels * f->t_out;
    int32_t n = 0;
    if (kind == IN_BLOCKS)
        n = phase == MERGE ? r->l->p.num_groups : blocks_of(f) * r->splits;
    else if (phase == CONV)
        n = kind == IN_FRAMES ? 1 : r->l->p.num_groups;
    return (frame_work){n, n ? all / n + 1 : 0};
}

static void blocks_do(const cpu_run *r, const cpu_frame *f, phase_kind phase, int32_t u0, int32_t u1) {
    for (int32_t u = u0, n; u < u1; u += n) {
        int32_t split = u % r->splits; /* a block's neighbouring parts at once: its x is staged for all of them */
        n = r->splits - split < u1 - u ? r->splits - split : u1 - u;
        if (phase == CONV)
            cpu_block_first(r, f, u / r->splits, split, split + n);
        else
            cpu_block_second(r, f, u / r->splits, split, split + n);
    }
}

static void work_do(const cpu_run *r, const cpu_frame *f, phase_kind phase, int32_t u0, int32_t u1) {
    cpu_norm *norm = r->norm + (int64_t)f->index * r->l->p.num_groups;
    if (phase == MERGE)
        for (int32_t g = u0; g < u1; g++) norm[g] = cpu_norm_merge(r, f, g);
    else if (f->kind == IN_UNITS)
        cpu_unit(r, f, u0, u1);
    else if (f->kind == IN_FRAMES)
        cpu_unit_frame(r, f);
    else
        blocks_do(r, f, phase, u0, u1);
}

/* First unit of the frame whose middle lies at or beyond `share` of the whole job. */
static int32_t unit_from(frame_work w, int64_t before, double share) {
    double u = (share - (double)before) / (double)w.cost;
    if (u <= 0) return 0;
    return u >= w.units ? w.units : (int32_t)(u + 0.5);
}

static cpu_frame frame_of(const cpu_run *r, int32_t n, cpu_leaf *leaf) {
    const nct_frame *f = &r->job->frames[n];
    return (cpu_frame){.index = n,
        .f = f,
        .kind = kind_of(r, f),
        .blocks = blocks_of(f),
        .leaf = leaf,
        .src = {.x = r->job->x,
            .off = f->x_off,
            .pitch = f->x_pitch,
            .dtype = r->job->x_dtype,
            .t_in = f->t_in,
            .t_out = f->t_out,
            .isolate = !r->stats,
            .pad_left = f->pad_left,
            .pad_right = f->pad_right,
            .mode = r->l->p.padding_mode}};
}

/* Short frames that a worker takes whole, until they are enough for a pass over the weights. */
typedef struct {
    cpu_frame frames[CPU_SHORT_FRAMES];
    int32_t n;
} short_batch;

static void batch_flush(const cpu_run *r, short_batch *b) {
    if (b->n) cpu_unit_short(r, b->frames, b->n, 0, r->l->p.num_groups);
    b->n = 0;
}

static void frame_do(const cpu_run *r, const cpu_frame *f, phase_kind phase, int32_t u0, int32_t u1, short_batch *b) {
    int is_short = phase == CONV && f->kind == IN_UNITS && r->c->weight_short && f->f->t_out <= CPU_SHORT;
    if (!is_short) {
        work_do(r, f, phase, u0, u1);
    } else if (u1 - u0 < r->l->p.num_groups) {
        cpu_unit_short(r, f, 1, u0, u1);
    } else {
        b->frames[b->n++] = *f;
        if (b->n == CPU_SHORT_FRAMES) batch_flush(r, b);
    }
}

static void share_do(const cpu_run *r, phase_kind phase, int32_t worker) {
    int64_t total = 0, before = 0;
    for (int32_t n = 0; n < r->job->n_frames; n++) {
        frame_work w = work_of(r, &r->job->frames[n], phase);
        total += w.units * w.cost;
    }
    double from = (double)total * worker / r->n_workers, to = (double)total * (worker + 1) / r->n_workers;
    cpu_leaf *leaf = r->leaf;
    short_batch batch = {.n = 0};
    for (int32_t n = 0; n < r->job->n_frames; n++) {
        cpu_frame f = frame_of(r, n, leaf);
        frame_work w = work_of(r, f.f, phase);
        if (w.units) {
            int32_t u0 = unit_from(w, before, from), u1 = unit_from(w, before, to);
            if (worker == r->n_workers - 1) u1 = w.units;
            if (u0 < u1) frame_do(r, &f, phase, u0, u1, &batch);
        }
        before += w.units * w.cost;
        leaf += (int64_t)f.blocks * r->l->p.out_channels;
    }
    batch_flush(r, &batch);
}

/* All of frames n0 .. n1-1. */
static void frames_do(const cpu_run *r, int32_t n0, int32_t n1) {
    cpu_leaf *leaf = r->leaf;
    short_batch batch = {.n = 0};
    for (int32_t n = 0; n < n1; n++) {
        cpu_frame f = frame_of(r, n, leaf);
        int32_t units = work_of(r, f.f, CONV).units;
        if (n >= n0 && units) frame_do(r, &f, CONV, 0, units, &batch);
        leaf += (int64_t)f.blocks * r->l->p.out_channels;
    }
    batch_flush(r, &batch);
}

/* Half of an even share of what is left, and again, down to a frame or a batch of short ones. Whoever comes last for
 * nothing leaves the counts as they were found. */
static void deal_do(const cpu_run *r) {
    cpu_deal *deal = r->job->workspace;
    int32_t n_frames = r->job->n_frames, least = r->c->weight_short ? CPU_SHORT_FRAMES : 1;
    for (int n = atomic_load(&deal->next); n < n_frames;) {
        int32_t take = (n_frames - n) / (2 * r->n_workers) / least * least;
        if (take < least) take = least;
        if (take > n_frames - n) take = n_frames - n;
        if (!atomic_compare_exchange_weak(&deal->next, &n, n + take)) continue;
        frames_do(r, n, n + take);
        n = atomic_load(&deal->next);
    }
    if (atomic_fetch_add(&deal->over, 1) < r->n_workers - 1) return;
    atomic_store(&deal->over, 0);
    atomic_store(&deal->next, 0);
}

/* In the last phase, when every norm is known; norm GIVEN is merged here only for what it saw. */
static void flags_write(const cpu_run *r, int32_t worker) {
    cpu_leaf *leaf = r->leaf;
    for (int32_t n = 0; n < r->job->n_frames; n++) {
        cpu_frame f = frame_of(r, n, leaf);
        leaf += (int64_t)f.blocks * r->l->p.out_channels;
        if (n % r->n_workers != worker) continue;
        const cpu_norm *norm = r->norm + (int64_t)n * r->l->p.num_groups;
        uint32_t saw = 0;
        for (int32_t g = 0; g < r->l->p.num_groups; g++) saw |= r->stats ? norm[g].saw : cpu_norm_merge(r, &f, g).saw;
        r->job->frame_flags[n] = saw;
    }
}

int cpu_phase(const nct_layer *l, const nct_job *job, int32_t phase, int32_t worker, int32_t n_workers) {
    int64_t max_t;
    layout at = layout_of_job(l, job, n_workers, &max_t);
    cpu_run r = run_of(l, job, n_workers, &at, max_t);
    char *mine = (char *)job->workspace + at.worker + at.worker_bytes * (size_t)worker;
    r.raw = (float *)(void *)(mine + at.raw);
    r.x_tile = (float *)(void *)(mine + at.x_tile);
    r.part = (float *)(void *)(mine + at.part);
    int last = phase == phases_of(&r) - 1;
    if (phase == 0 && r.dealt)
        deal_do(&r);
    else if (phase == 0)
        share_do(&r, CONV, worker);
    else if (phase == 1 && r.any_blocks && r.stats)
        share_do(&r, MERGE, worker);
    else if (r.stats && job->y)
        share_do(&r, NORMALISE, worker);
    if (last && job->frame_flags) flags_write(&r, worker);
    return 0;
}

const char *cpu_schedule_text(const nct_layer *l, const nct_job *job, int32_t frame, int32_t n_workers) {
    int64_t max_t;
    layout at = layout_of_job(l, job, n_workers, &max_t);
    cpu_run r = run_of(l, job, n_workers, &at, max_t);
    frame_kind kind = kind_of(&r, &job->frames[frame]);
    if (kind == IN_UNITS) return "whole groups in L2, one pass";
    if (kind == IN_FRAMES)
        return r.in_place ? "whole frames, normalised in a second pass over y" : "whole frames, convolved twice";
    if (!r.stats) return "blocks of steps, one pass";
    return r.in_place ? "blocks of steps, normalised in a second pass over y" : "blocks of steps, convolved twice";
}
