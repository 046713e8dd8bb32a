/* unit.c: what a worker does with its share of a frame.
 *
 * Worker threads, from schedule.c. Writes y, leaves and norms of its own channels and steps only; the float work
 * is the variant's (cpu_ops). */
#include "schedule.h"
#include <string.h>

/* Channels c0 .. c1-1, steps t0 .. t1-1 of a block; dst.y is [c0][t0]. */
static void conv_run(
    const cpu_run *r, const cpu_frame *f, int32_t c0, int32_t c1, int64_t t0, int64_t t1, cpu_target dst) {
    const cpu_plan *plan = &r->c->plan;
    for (int32_t c = c0, end; c < c1; c = end) {
        int32_t group = c / plan->co, first = group * plan->co;
        end = first + plan->co < c1 ? first + plan->co : c1;
        cpu_target at = {dst.y + (c - c0) * dst.pitch, dst.pitch, dst.slack};
        r->c->ops->conv(r->c, &f->src, group, c - first, end - first, t0, (int32_t)(t1 - t0), at, r->x_tile, r->part);
    }
}

/* The leaves of one block of steps. */
static void leaves_run(
    const cpu_run *r, const cpu_frame *f, int32_t c0, int32_t c1, int32_t block, const float *y, int64_t pitch) {
    int64_t left = f->f->t_out - (int64_t)block * CPU_LEAF;
    int32_t n = left < CPU_LEAF ? (int32_t)left : CPU_LEAF;
    for (int32_t c = c0; c < c1; c++) {
        cpu_leaf *leaf = f->leaf + (int64_t)c * f->blocks + block;
        const float *row = y + (c - c0) * pitch;
        r->c->ops->leaf(row, n, c + 1 < c1 ? row + pitch : row, &leaf->mean, &leaf->m2);
    }
}

static char *y_at(const cpu_run *r, const cpu_frame *f, int32_t c, int64_t t) {
    return (char *)r->job->y + (f->f->y_off + c * f->f->y_pitch + t) * (int64_t)dtype_size(r->job->y_dtype);
}

static cpu_apply apply_of(const cpu_run *r, const cpu_frame *f, int32_t group) {
    cpu_apply a = {.activation = r->l->p.activation, .dtype = r->job->y_dtype};
    if (r->job->flags & NCT_CONV_ONLY) return a;
    cpu_norm n;
    a.norm = 1;
    a.guard = r->job->norm == NCT_NORM_GIVEN;
    n = a.guard ? cpu_norm_given(r, f, group) : r->norm[(int64_t)f->index * r->l->p.num_groups + group];
    a.mean_hi = n.mean_hi;
    a.mean_lo = n.mean_lo;
    a.rstd = n.rstd;
    return a;
}

/* Raw rows of steps t0 .. t0+n-1 to y. */
static void apply_run(const cpu_run *r, const cpu_frame *f, int32_t c0, int32_t c1, int64_t t0, int64_t n,
    const float *raw, int64_t pitch) {
    for (int32_t c = c0, end; c < c1; c = end) {
        end = c / r->group_co * r->group_co + r->group_co;
        if (end > c1) end = c1;
        cpu_apply a = apply_of(r, f, c / r->group_co);
        a.stream = r->stream;
        a.gamma = r->c->gamma + c;
        a.beta = r->c->beta + c;
        r->c->ops->apply(&a, end - c, raw + (c - c0) * pitch, pitch, n, y_at(r, f, c, t0), f->f->y_pitch);
    }
}

/* Where raw outputs of [c0][t0] go: y itself if it can and shall hold them, else this worker's buffer. */
static cpu_target raw_target(const cpu_run *r, const cpu_frame *f, int32_t c0, int64_t t0, int64_t steps) {
    if (r->job->y && r->job->y_dtype == NCT_F32 && !r->stream)
        return (cpu_target){(float *)(void *)y_at(r, f, c0, t0), f->f->y_pitch, 0};
    return (cpu_target){r->raw, round_up(steps, 64), 1};
}

/* The same for frame i of several short ones, at channel c0 + skip. */
static cpu_target short_target(const cpu_run *r, const cpu_frame *f, int32_t i, int32_t c0, int32_t skip) {
    if (r->job->y && r->job->y_dtype == NCT_F32 && !r->stream) return raw_target(r, f, c0 + skip, 0, f->f->t_out);
    return (cpu_target){r->raw + ((int64_t)i * r->l->p.out_channels + skip) * CPU_SHORT, CPU_SHORT, 1};
}

static void groups_run(const cpu_run *r, const cpu_frame *f, int32_t g0, int32_t g1) {
    int32_t c0 = g0 * r->group_co, c1 = g1 * r->group_co;
    int64_t t_out = f->f->t_out;
    cpu_target raw = raw_target(r, f, c0, 0, t_out);
    int32_t last = f->blocks - 1;
    for (int32_t b = 0; b <= last; b++) {
        int64_t t0 = (int64_t)b * CPU_LEAF, t1 = t0 + CPU_LEAF < t_out ? t0 + CPU_LEAF : t_out;
        cpu_target at = {raw.y + t0, raw.pitch, raw.slack};
        conv_run(r, f, c0, c1, t0, t1, at);
        if (b < last) leaves_run(r, f, c0, c1, b, at.y, at.pitch);
    }
    cpu_norm *norm = r->norm + (int64_t)f->index * r->l->p.num_groups;
    for (int32_t g = g0, c = c0; g < g1; g++, c += r->group_co) { /* a group's last leaves are normalised from L1 */
        float *y = raw.y + (c - c0) * raw.pitch;
        leaves_run(r, f, c, c + r->group_co, last, y + (int64_t)last * CPU_LEAF, raw.pitch);
        norm[g] = cpu_norm_merge(r, f, g);
        if (r->job->y) apply_run(r, f, c, c + r->group_co, 0, t_out, y, raw.pitch);
    }
}

void cpu_unit(const cpu_run *r, const cpu_frame *f, int32_t g0, int32_t g1) {
    int64_t group_floats = r->group_co * round_up(f->f->t_out, 64);
    int32_t most = (int32_t)(r->raw_floats / group_floats);
    int32_t parts = (int32_t)ceil_div(g1 - g0, most), step = (int32_t)ceil_div(g1 - g0, parts);
    for (int32_t g = g0; g < g1; g += step) groups_run(r, f, g, g + step < g1 ? g + step : g1);
}

/* Convolve and count the groups' channels, conv group by conv group. */
static void short_conv_run(const cpu_run *r, const cpu_frame *frames, int32_t n, int32_t c0, int32_t c1) {
    const cpu_plan *plan = &r->c->plan;
    for (int32_t c = c0, end; c < c1; c = end) {
        int32_t group = c / plan->co, first = group * plan->co;
        end = first + plan->co < c1 ? first + plan->co : c1;
        cpu_short shorts[CPU_SHORT_FRAMES];
        for (int32_t i = 0; i < n; i++)
            shorts[i] = (cpu_short){.src = frames[i].src,
                .t_out = frames[i].f->t_out,
                .dst = short_target(r, &frames[i], i, c0, c - c0),
                .leaf = r->leaves ? frames[i].leaf + c : NULL};
        r->c->ops->conv_short(r->c, shorts, n, group, c - first, end - first, r->x_tile, r->part);
    }
}

/* Frames side by side: their raw outputs, [channel][frame][step], stay in L2. */
static void beside_run(const cpu_run *r, const cpu_frame *frames, int32_t n, int32_t steps, int32_t g0, int32_t g1) {
    const cpu_plan *plan = &r->c->plan;
    int32_t c0 = g0 * r->group_co, c1 = g1 * r->group_co, row = (int32_t)round_up(steps, 16);
    int64_t pitch = (int64_t)r->c->ops->beside * row;
    for (int32_t c = c0, end; c < c1; c = end) {
        int32_t group = c / plan->co, first = group * plan->co;
        end = first + plan->co < c1 ? first + plan->co : c1;
        cpu_short shorts[CPU_SHORT_FRAMES];
        for (int32_t i = 0; i < n; i++)
            shorts[i] = (cpu_short){
                .src = frames[i].src, .t_out = frames[i].f->t_out, .leaf = r->leaves ? frames[i].leaf + c : NULL};
        cpu_beside to = {r->raw + (c - c0) * pitch, pitch, row};
        r->c->ops->conv_beside(r->c, shorts, n, group, c - first, end - first, steps, r->x_tile, to);
    }
    for (int32_t i = 0; i < n; i++) {
        const cpu_frame *f = &frames[i];
        cpu_norm *norm = r->norm + (int64_t)f->index * r->l->p.num_groups;
        for (int32_t g = g0; r->stats && g < g1; g++) norm[g] = cpu_norm_merge(r, f, g);
        if (r->job->y) apply_run(r, f, c0, c1, 0, f->f->t_out, r->raw + i * row, pitch);
    }
}

/* Steps of the vectors of `beside` frames; 0: too few of them would be outputs, or x is not one span of a row. */
static int32_t beside_steps(const cpu_run *r, const cpu_frame *frames, int32_t n) {
    const cpu_plan *plan = &r->c->shorts;
    int32_t most = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += frames[i].f->t_out;
        if (frames[i].f->t_out > most) most = frames[i].f->t_out;
    }
    int32_t steps = (int32_t)round_up(most, r->c->ops->lanes);
    if (plan->stride != 1 || plan->segments != 1 || r->c->plan.seg_step != 1) return 0;
    return 4 * sum >= 3 * steps * r->c->ops->beside ? steps : 0;
}

void cpu_unit_short(const cpu_run *r, const cpu_frame *frames, int32_t n, int32_t g0, int32_t g1) {
    for (int32_t most = r->c->ops->beside; n > 0;) {
        int32_t part = n < most ? n : most, steps = beside_steps(r, frames, part);
        if (!steps) break;
        beside_run(r, frames, part, steps, g0, g1);
        frames += part;
        n -= part;
    }
    if (!n) return;
    int32_t c0 = g0 * r->group_co, c1 = g1 * r->group_co;
    short_conv_run(r, frames, n, c0, c1);
    for (int32_t i = 0; i < n; i++) {
        const cpu_frame *f = &frames[i];
        cpu_norm *norm = r->norm + (int64_t)f->index * r->l->p.num_groups;
        for (int32_t g = g0; r->stats && g < g1; g++) norm[g] = cpu_norm_merge(r, f, g);
        if (!r->job->y) continue;
        cpu_target raw = short_target(r, f, i, c0, 0);
        apply_run(r, f, c0, c1, 0, f->f->t_out, raw.y, raw.pitch);
    }
}

typedef struct {
    int32_t c0, c1, rows; /* rows: channels at a time */
    int64_t t0, n;
} block_range;

static block_range block_of(const cpu_run *r, const cpu_frame *f, int32_t block, int32_t s0, int32_t s1) {
    int64_t co = r->l->p.out_channels;
    block_range b = {.t0 = (int64_t)block * CPU_LEAF}; /* whole blocks of weights, but for the last */
    b.c0 = (int32_t)(co * s0 / r->splits / CPU_ROWS * CPU_ROWS);
    b.c1 = (int32_t)(s1 < r->splits ? co * s1 / r->splits / CPU_ROWS * CPU_ROWS : co);
    b.n = f->f->t_out - b.t0 < CPU_LEAF ? f->f->t_out - b.t0 : CPU_LEAF;
    b.rows = (int32_t)(r->raw_floats / round_up(b.n, 64));
    return b;
}

void cpu_block_first(const cpu_run *r, const cpu_frame *f, int32_t block, int32_t s0, int32_t s1) {
    block_range b = block_of(r, f, block, s0, s1);
    for (int32_t c = b.c0; c < b.c1; c += b.rows) {
        int32_t end = c + b.rows < b.c1 ? c + b.rows : b.c1;
        cpu_target raw = raw_target(r, f, c, b.t0, b.n);
        if (r->stats && !r->in_place) raw = (cpu_target){r->raw, round_up(b.n, 64), 1};
        conv_run(r, f, c, end, b.t0, b.t0 + b.n, raw);
        if (r->leaves) leaves_run(r, f, c, end, block, raw.y, raw.pitch);
        if (!r->stats) apply_run(r, f, c, end, b.t0, b.n, raw.y, raw.pitch);
    }
}

void cpu_block_second(const cpu_run *r, const cpu_frame *f, int32_t block, int32_t s0, int32_t s1) {
    block_range b = block_of(r, f, block, s0, s1);
    for (int32_t c = b.c0; c < b.c1; c += b.rows) {
        int32_t end = c + b.rows < b.c1 ? c + b.rows : b.c1;
        cpu_target raw = raw_target(r, f, c, b.t0, b.n);
        if (!r->in_place) {
            raw = (cpu_target){r->raw, round_up(b.n, 64), 1};
            conv_run(r, f, c, end, b.t0, b.t0 + b.n, raw);
        }
        apply_run(r, f, c, end, b.t0, b.n, raw.y, raw.pitch);
    }
}

void cpu_unit_frame(const cpu_run *r, const cpu_frame *f) {
    cpu_norm *norm = r->norm + (int64_t)f->index * r->l->p.num_groups;
    for (int32_t b = 0; b < f->blocks; b++) cpu_block_first(r, f, b, 0, r->splits);
    for (int32_t g = 0; g < r->l->p.num_groups; g++) norm[g] = cpu_norm_merge(r, f, g);
    for (int32_t b = 0; r->job->y && b < f->blocks; b++) cpu_block_second(r, f, b, 0, r->splits);
}
