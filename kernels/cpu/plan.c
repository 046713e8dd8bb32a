/* plan.c: what fixes the roundings of a layer on the CPU (slices), and the shape of its x tiles.
 *
 * Called when a layer is made and, for cpu_slice_at, once a slice by the kernels; pure functions of the layer.
 * Packing is pack.c, who computes what is schedule.c. */
#include "cpu.h"

enum {
    TILE_MIN = 64,            /* 4 vectors of 16 */
    SLICE_CI = 128,           /* with one tap: 128 x 64 steps are 32 KB, what a 48 KB L1 holds beside weights */
    TILE_FLOATS = 4 << 10,    /* a tile grows beyond 64 steps while its x stays below 16 KB of L1, */
    SLICED_FLOATS = 64 << 10, /* with several slices, x and their sums below 128 KB of L2 each: pieces of rows that
                                 lie pages apart get longer */
    ROWS_HELD = 256,          /* channels that a worker computes at once where rows are long (CPU_UNIT_BYTES) */
};

/* Balanced: 3 slices of 64 channels rather than 85, 85 and 22. */
static void slices_init(cpu_plan *plan) {
    int32_t most = plan->taps < CPU_SLICE ? CPU_SLICE / plan->taps : 1;
    if (most > SLICE_CI) most = SLICE_CI;
    int32_t ci_slices = (int32_t)ceil_div(plan->ci, most);
    plan->slice_ci = (int32_t)ceil_div(plan->ci, ci_slices);
    ci_slices = (int32_t)ceil_div(plan->ci, plan->slice_ci);
    plan->tap_slices = (int32_t)ceil_div(plan->taps, CPU_SLICE);
    plan->slice_taps = (int32_t)ceil_div(plan->taps, plan->tap_slices);
    plan->tap_slices = (int32_t)ceil_div(plan->taps, plan->slice_taps);
    plan->n_slices = ci_slices * plan->tap_slices;
}

/* Two shapes of a tile: the span of x that it reads, split by phase of the stride; or each tap's own steps, when
 * taps lie so far apart that the span is mostly unread. The smaller one is staged. */
static void tile_init(cpu_plan *plan, int32_t tile) {
    int64_t reach = (int64_t)(plan->slice_taps - 1) * plan->dilation;
    int64_t phase_len = round_up(tile + reach / plan->stride + 1, 16);
    plan->tile = tile;
    if (phase_len * plan->stride <= (int64_t)plan->slice_taps * tile + 16) {
        plan->segments = plan->stride;
        plan->seg_len = (int32_t)phase_len;
        plan->seg_need = (int32_t)(tile + reach / plan->stride);
        plan->seg_step = 1;
    } else {
        plan->segments = plan->slice_taps;
        plan->seg_len = plan->seg_need = tile;
        plan->seg_step = plan->dilation;
    }
    plan->pitch = (plan->segments * plan->seg_len / 16 | 1) * 16; /* an odd count of lines: all sets of L1 in turn */
}

void cpu_plan_init(cpu_plan *plan, const nct_params *p) {
    *plan = (cpu_plan){.ci = p->in_channels / p->groups,
        .co = p->out_channels / p->groups,
        .taps = p->kernel_size,
        .stride = p->stride,
        .dilation = p->dilation,
        .groups = p->groups};
    slices_init(plan);
    int32_t tile = TILE_MIN;
    tile_init(plan, tile);
    while (tile < CPU_TILE_MAX) {
        tile_init(plan, tile * 2);
        int64_t most = plan->n_slices > 1 ? SLICED_FLOATS : TILE_FLOATS;
        if ((int64_t)plan->slice_ci * plan->pitch > most) break;
        int64_t rows = plan->co < ROWS_HELD ? plan->co : ROWS_HELD;
        if (plan->n_slices > 1 && rows * plan->tile > most) break;
        tile *= 2;
    }
    tile_init(plan, tile);
    plan->group_floats = round_up(plan->co, CPU_ROWS) * plan->ci * plan->taps;
}

cpu_slice cpu_slice_at(const cpu_plan *plan, int32_t i) {
    cpu_slice s;
    s.ci0 = i / plan->tap_slices * plan->slice_ci;
    s.k0 = i % plan->tap_slices * plan->slice_taps;
    s.n_ci = plan->ci - s.ci0 < plan->slice_ci ? plan->ci - s.ci0 : plan->slice_ci;
    s.n_k = plan->taps - s.k0 < plan->slice_taps ? plan->taps - s.k0 : plan->slice_taps;
    s.first = (int64_t)s.ci0 * plan->taps + (int64_t)s.k0 * s.n_ci;
    return s;
}

void cpu_plan_short(cpu_plan *plan) {
    tile_init(plan, CPU_SHORT);
}

/* The four products sum over channels alone. */
void cpu_plan_wino(cpu_plan *plan) {
    plan->taps = 1;
    slices_init(plan);
    plan->group_floats = 4 * round_up(plan->co, CPU_ROWS) * plan->ci;
}

/* Direct takes 12 cycles a channel in, channel out and tile (AVX-512), F(2,3) 8, and about 30 a channel either way
 * for its transforms. */
int cpu_wino_pays(const cpu_plan *plan) {
    return plan->taps == 3 && plan->stride == 1 && plan->dilation == 1 && plan->ci >= 16 && plan->co >= 16;
}

/* Turned tiles: of several taps, whole groups of vectors, and no tap further than a group behind the tile. */
void cpu_turned_init(cpu_layer *c) {
    const cpu_plan *plan = &c->plan;
    int32_t lanes = c->ops->lanes, across = plan->tile / lanes;
    int64_t reach = (int64_t)(plan->slice_taps - 1) * plan->dilation / plan->stride;
    int spans = plan->seg_step == 1 && plan->segments == plan->stride;
    if (plan->slice_taps == 1 || plan->stride > 4 || across % lanes || reach > lanes || !spans) return;
    c->turned_reach = (int32_t)reach;
    c->turned_seg = (across + c->turned_reach) * lanes;
    c->turned_pitch = (plan->stride * c->turned_seg / 16 | 1) * 16;
    if (c->turned_pitch < plan->stride * c->turned_seg) c->turned_pitch += 32;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

int64_t cpu_x_floats(const cpu_layer *c) {
    int64_t n = (int64_t)c->plan.slice_ci * c->plan.pitch;
    n = larger(n, (int64_t)c->plan.slice_ci * c->turned_pitch);
    if (c->weight_short) n = larger(n, (int64_t)CPU_SHORT_FRAMES * c->shorts.slice_ci * c->shorts.pitch);
    if (c->weight_wino) n = larger(n, (int64_t)c->wino.slice_ci * 2 * CPU_WINO);
    return round_up(n + 16, CPU_ALIGN / sizeof(float));
}

/* Sums of slices of a tile; the four products of F(2,3) lie behind those of a direct tile. */
int64_t cpu_part_floats(const cpu_layer *c) {
    int64_t n = (int64_t)c->plan.co * c->plan.tile;
    if (c->weight_wino) n = round_up(n, CPU_ALIGN / sizeof(float)) + (int64_t)c->plan.co * 2 * CPU_WINO;
    int64_t wide = round_up(c->plan.co, c->ops->lanes);
    if (c->weight_short) n = larger(n, CPU_SHORT_FRAMES * CPU_SHORT * wide);
    return round_up(n, CPU_ALIGN / sizeof(float));
}
