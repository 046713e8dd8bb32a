/* choose.cu: which plan a layer has and which row a job takes. Called by backend.cu and launch.cu; looks at shapes and
 * at nct_where.force, touches no memory of the device. The reasons and thresholds are measurements on an H200. */
#include "backend.cuh"
#include "mma_rows.cuh"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- plan ---- */

geometry geometry_of(const nct_params *p, int32_t precision) {
    geometry g = {};
    g.ci = p->in_channels;
    g.co = p->out_channels;
    g.k = p->kernel_size;
    g.stride = p->stride;
    g.dil = p->dilation;
    g.groups = p->groups;
    g.cig = g.ci / g.groups;
    g.cog = g.co / g.groups;
    g.norm_groups = p->num_groups;
    g.cg = g.co / p->num_groups;
    g.pad_mode = p->padding_mode;
    g.act = p->activation;
    g.eps = p->eps;
    g.offset_limit = (float)(precision == NCT_PREC_F32    ? NCT_OFFSET_F32
                             : precision == NCT_PREC_TF32 ? NCT_OFFSET_TF32
                                                          : NCT_OFFSET_BF16);
    return g;
}

/* So many that reading them is the work when frames are few and short: slices spread over all SMs. */
static int many_weights(const geometry *g) {
    return (int64_t)g->co * g->cig * g->k >= SLICED_WEIGHTS;
}
/* Word rows of a chunk: what 128 steps of x at 36 KB allow; 0: not even 8. */
static int32_t chunk_rows(const geometry *g, int32_t words) {
    int64_t window = 127ll * g->stride + (int64_t)(g->k - 1) * g->dil + 1 + g->stride + 40;
    int32_t rows = MMA_ROWS;
    while (rows > 8 && rows * window * 4 > 36 * 1024) rows /= 2;
    if (rows * window * 4 > 40 * 1024) return 0;
    while (rows > 8 && rows / 2 >= words) rows /= 2;
    return rows;
}
static mma_layout layout_of(const geometry *g, int32_t plan, int32_t precision) {
    mma_layout m = {};
    int32_t words = precision == NCT_PREC_BF16 ? (g->cig + 1) / 2 : g->cig;
    m.rows = plan == PLAN_WGMMA ? MMA_ROWS : chunk_rows(g, words);
    if (!m.rows) return m;
    m.chunks = (words + m.rows - 1) / m.rows;
    m.blocks = (g->cog + 31) / 32;
    m.planes = precision == NCT_PREC_F32 ? 2 : 1;
    if (precision == NCT_PREC_F32 || (plan == PLAN_MMA && many_weights(g))) m.slice = 384 / m.rows;
    return m;
}
/* Can the layer's shape run on a plan at all? */
static int plan_fits(const cuda_layer *l, int32_t plan) {
    if (plan == PLAN_SIMT) return 1;
    if (plan == PLAN_NARROW) return l->cc >= 80 && l->precision != NCT_PREC_F32 && narrow_holds(&l->g);
    if (plan == PLAN_LONG) return l->cc == 90 && l->precision != NCT_PREC_F32 && long_holds(&l->g);
    if (plan == PLAN_DEPTH) return l->precision != NCT_PREC_F32 && depth_holds(&l->g);
    if (l->g.cig < 8 || l->g.cog < 8) return 0;
    int64_t window = 63ll * l->g.stride + (int64_t)(l->g.k - 1) * l->g.dil + 1;
    if (plan == PLAN_WGMMA)
        return l->cc == 90 && l->precision != NCT_PREC_F32 && 2 * MMA_ROWS * 4 * (window + 64) <= 180 * 1024;
    return l->cc >= 80 && layout_of(&l->g, PLAN_MMA, l->precision).rows > 0;
}

static int plan_force(cuda_layer *l, const char *name, nct_why *why) {
    for (int32_t i = 0; !l->forced && cuda_row(i); i++)
        if (!strcmp(cuda_row(i)->name, name)) l->forced = cuda_row(i);
    if (!l->forced) return why_set(why, -EINVAL, "no CUDA row has the name %s; nct_variant lists them", name);
    if (l->cc < l->forced->min_cc)
        return why_set(why, -ENOTSUP, "row %s needs compute capability %d, device %d has %d", name, l->forced->min_cc,
            l->device, l->cc);
    l->plan = l->forced->plan;
    if (!plan_fits(l, l->plan))
        return why_set(why, -ENOTSUP,
            "row %s cannot run this layer: tensor cores need 8 input and output channels a conv group (has %d, %d) "
            "and a "
            "short enough reach; wgmma, narrow, long and depth need tf32 or bf16, narrow at most 32 products, long "
            "at "
            "most 16 channels out, depth a depthwise conv",
            name, l->g.cig, l->g.cog);
    snprintf(l->reason, sizeof l->reason, "forced: %s", name);
    return 0;
}

/* "sm80": the rows of a card of compute capability 8.0 alone, on any newer one. 0: that is no such name. */
static int older_card(cuda_layer *l, const char *name) {
    int cc = 0, end = 0;
    if (!name || sscanf(name, "sm%d%n", &cc, &end) != 1 || name[end] || cc < 75 || cc > l->cc) return 0;
    l->cc = cc;
    return 1;
}

int plan_choose(cuda_layer *l, const nct_where *at, nct_why *why) {
    int wide = l->g.cig >= 16 && l->g.cog >= 16;
    if (at->force && !older_card(l, at->force)) {
        int err = plan_force(l, at->force, why);
        if (err) return err;
    } else if (plan_fits(l, PLAN_LONG)) {
        l->plan = PLAN_LONG;
        snprintf(l->reason, sizeof l->reason, "Hopper, %d channels out of %d: bound by reading x", l->g.co, l->g.ci);
    } else if (wide && plan_fits(l, PLAN_WGMMA)) {
        l->plan = PLAN_WGMMA;
        snprintf(l->reason, sizeof l->reason, "Hopper, %d products over %d channels", l->g.cig * l->g.k, l->g.cig);
    } else if (wide && plan_fits(l, PLAN_MMA)) {
        l->plan = PLAN_MMA;
        snprintf(l->reason, sizeof l->reason, "tensor cores: %d products over %d channels%s", l->g.cig * l->g.k,
            l->g.cig, many_weights(&l->g) ? ", bound by its weights" : "");
    } else if (plan_fits(l, PLAN_NARROW)) {
        l->plan = PLAN_NARROW;
        snprintf(l->reason, sizeof l->reason, "%d products of %d channels: weights in registers, conv twice",
            l->g.cig * l->g.k, l->g.cig);
    } else if (plan_fits(l, PLAN_DEPTH)) {
        l->plan = PLAN_DEPTH;
        snprintf(l->reason, sizeof l->reason, "depthwise, %d products: bound by memory", l->g.k);
    } else {
        l->plan = PLAN_SIMT;
        snprintf(l->reason, sizeof l->reason, "%d x %d channels a conv group, %d products: no tensor cores", l->g.cig,
            l->g.cog, l->g.cig * l->g.k);
    }
    l->m = layout_of(&l->g, l->plan, l->precision);
    return 0;
}

/* ---- choosing a row ---- */

int again_by_default(const cuda_layer *l) {
    return plan_again(l->plan) || (l->plan == PLAN_SIMT && (int64_t)l->g.cig * l->g.k <= AGAIN_PRODUCTS);
}

static const row *row_named(const char *name) {
    for (int32_t i = 0; cuda_row(i); i++)
        if (!strcmp(cuda_row(i)->name, name)) return cuda_row(i);
    return NULL;
}
int64_t job_ctas(const cuda_job *j, const row *row) {
    return (int64_t)j->tiles * ((j->g.cog + row->tile_c - 1) / row->tile_c) * j->g.groups;
}
int64_t ctas_of(const cuda_job *j, const nct_job *job, const row *row) {
    cuda_job probe = *j;
    job_tiles(&probe, job, row);
    return job_ctas(&probe, row);
}
static int row_fits(const row *r, const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    if (r->pass == PASS_SPLIT && job->n_frames > SPLIT_FRAMES) return 0;
    cuda_job probe = *j;
    job_tiles(&probe, job, r);
    return r->fits(r, l, &probe);
}

static int64_t launches_of(const cuda_layer *l, const cuda_job *j, const nct_job *job, const row *r) {
    cuda_job probe = *j;
    job_tiles(&probe, job, r);
    return turned_launches(l, &probe, r);
}
/* Rows with x turned beforehand: the least of clocks: the SM with most CTAs x (its steps + what lies around them), and either
 * the meeting, a launch for as many frames as fit, or another pass over y. Clocks measured on the H200; frames of at most 64
 * steps: small tiles won (diffpolicy 60 us, 128 steps a tile 76, 256 100). */
static const row *turned_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    static const struct turned_cost {
        const char *name;
        int32_t alone, busy,
            around; /* clocks of 32 words of one tap: of one CTA, of each of several; of all else of a tile */
    } low[] = {{"turned-128x256", 2300, 2300, 22000}, {"turned-128x128", 2260, 1010, 13000},
        {"turned-64x128", 1700, 740, 8500}, {"turned-32x256", 1700, 760, 9000}, {"turned-64x64", 1180, 600, 7500},
        {}},
      f32[] = {{"turned-128x128-3x", 3600, 3600, 13000}, {"turned-32x256", 2600, 1850, 10000},
          {"turned-64x64", 1900, 1350, 7500}, {}};
    enum { LAUNCH = 6000, MEET = 6000, MERGE = 8000, PASS_BYTES_A_CLOCK = 2400 };
    const row *best = NULL;
    int64_t least = INT64_MAX, all = 0;
    const int64_t leaves = (int64_t)l->g.cg * ((j->max_t_out + MMA_LEAF - 1) / MMA_LEAF);
    for (int32_t n = 0; n < job->n_frames; n++) all += job->frames[n].t_out;
    for (const turned_cost *t = l->precision == NCT_PREC_F32 ? f32 : low; t->name; t++) {
        char name[32];
        snprintf(name, sizeof name, "%s-fused", t->name);
        const row *rows[] = {row_named(name), row_named(t->name)};
        if (j->max_t_out <= MMA_LEAF && rows[0]->tile_t > MMA_LEAF) continue;
        for (const row *r : rows) {
            if (!row_fits(r, l, j, job)) continue;
            const int fused = r->pass == PASS_FUSED;
            const int64_t launches = fused ? launches_of(l, j, job, r) : 1, ctas = ctas_of(j, job, r);
            const int64_t each =
                ((ctas + launches - 1) / launches + l->sms - 1) / l->sms; /* CTAs of the fullest SM */
            const int64_t step = each * t->busy > t->alone ? each * t->busy : t->alone;
            int64_t cost = LAUNCH + l->m.chunks * l->g.k * step * l->m.rows / 32 + each * t->around;
            if (fused)
                cost += MEET + (leaves > 256 ? (r->tile_c + l->g.cg - 1) / l->g.cg * MERGE : 0);
            else
                cost += LAUNCH + all * l->g.co * 12 / PASS_BYTES_A_CLOCK;
            if (cost * launches < least) least = cost * launches, best = r;
        }
    }
    return best;
}
/* Rows that bring x themselves: the largest tile that gives every SM a CTA, else the smallest. */
static const row *mma_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    static const char *low[] = {"mma-128x128", "mma-64x128", "mma-64x64", NULL};
    static const char *f32[] = {"mma-64x128-3x", "mma-64x64", NULL};
    const row *split = row_named("mma-split");
    if (row_fits(split, l, j, job) && ctas_of(j, job, split) < l->sms) return split;
    const row *narrow = row_named("mma-32x256"), *last = NULL;
    /* dconv, tf32 and bf16: 285 and 771 us, turned 331 and 249. */
    if (l->g.cog <= 32 && l->precision == NCT_PREC_TF32 && row_fits(narrow, l, j, job) &&
        ctas_of(j, job, narrow) >= l->sms)
        return narrow;
    const row *turned = turned_row(l, j, job);
    if (turned) return turned;
    for (const char **name = l->precision == NCT_PREC_F32 ? f32 : low; *name; name++) {
        const row *r = row_named(*name);
        if (!row_fits(r, l, j, job)) continue;
        last = r;
        if (l->g.cog > r->tile_c / 2 && ctas_of(j, job, r) >= l->sms) return r;
    }
    return last;
}
/* Rows of conv_wgmma_ss_sm90.cu: the least of waves of CTAs x (products + what lies around them), in cycles; a second pass
 * over y where its statistics cannot meet. Cycles of a (chunk, tap) by the steps of a warpgroup, as measured on the H200: 256
 * run at the tensor cores' rate, 64 cost far more than a quarter of it (a chain of products on one accumulator); of equals
 * the earlier one wins. */
static const row *units_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    static const char *names[] = {"units-128x256", "units-64x256", "units-128x128", "units-64x64", "units-64x128"};
    enum { AROUND = 20000, SECOND = 10000, PASS_BYTES_A_CYCLE = 2400 };
    const row *best = NULL;
    int64_t least = INT64_MAX, steps = 0;
    for (int32_t n = 0; n < job->n_frames; n++) steps += job->frames[n].t_out;
    for (const char *base : names) {
        char name[32];
        snprintf(name, sizeof name, "%s-fused", base);
        const row *fused = row_named(name), *r = row_named(base);
        const int meets = row_fits(fused, l, j, job);
        if (meets)
            r = fused;
        else if (!row_fits(r, l, j, job))
            continue;
        int64_t waves = (ctas_of(j, job, r) + l->sms - 1) / l->sms;
        const int32_t n = ((const units_tile *)r->tile)->n, cycles = n == 256 ? 1044 : n == 128 ? 540 : 350;
        int64_t cost = waves * ((int64_t)l->m.chunks * l->g.k * cycles + AROUND) +
                       (meets ? 0 : SECOND + steps * l->g.co * 12 / PASS_BYTES_A_CYCLE);
        if (cost < least) least = cost, best = r;
    }
    return best;
}
/* The fused row of this name if it fits, else the other, else none. */
static const row *row_of(const char *base, const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    char name[32];
    snprintf(name, sizeof name, "%s-fused", base);
    const row *r = row_named(name);
    if (!row_fits(r, l, j, job)) r = row_named(base);
    return row_fits(r, l, j, job) ? r : NULL;
}
/* Frames of at most 64 steps: so few that the weights are the work, or the tile whose waves of CTAs cost least: clocks of a
 * step of (chunk, tap) as measured, and what lies around them. */
static const row *short_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    static const char *thin[] = {"thin-32x64", "thin-16x64"};
    static const struct {
        const char *name;
        int32_t clocks;
    } tiles[] = {{"short-64x128", 650}, {"short-128x128", 1400}};
    enum { AROUND = 20000 };
    const row *best = NULL;
    int64_t least = INT64_MAX;
    for (const char *base : thin) {
        const row *r = row_of(base, l, j, job);
        if (r && job_ctas(j, r) <= l->sms && (r->tile_c == 16 || job_ctas(j, r) >= 48)) return r;
    }
    for (const auto &t : tiles) {
        const row *r = row_of(t.name, l, j, job);
        if (!r) continue;
        int64_t waves = (short_ctas(r, l, j) + l->sms - 1) / l->sms;
        int64_t cost = waves * (AROUND + (int64_t)j->m.chunks * l->g.k * t.clocks);
        if (cost < least) least = cost, best = r;
    }
    return best;
}
/* conv_resident_sm90.cu pays where its CTAs have several tiles each: weights come once, and epilogues run under products.
 * H200, us tf32 / bf16, beside the best of units_row: default 26.7 / 19.9 (28.9 / 22.3), default-n64 91 / 68 (115 / 89),
 * default-long 413 / 311 (502 / 382); with one tile a CTA default-n1 11.1 / 9.7 (10.7 / 9.2), matcha bf16 22.6 (19.8), and one
 * tap leaves its two buffers of x empty: convtasnet 43 / 26 (35 / 24). Fewer steps a tile lose: default 33 with 128, 48 with 64. */
static const row *resident_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    const row *r = row_named("resident-64x256-fused");
    cuda_job probe = *j;
    job_tiles(&probe, job, r);
    return l->g.cog > 32 && l->g.k >= 3 && resident_phases(r, l, &probe) >= 2 ? r : NULL;
}
/* Measured on the H200 with every row (bench_gpu.py --rows): wide tiles win while they give about half of the SMs a CTA
 * (matcha: 64 CTAs of 128x256 beat 128 of 128x128), narrow ones after that; the fused row wins unless so few CTAs meet
 * that the cooperative launch costs more than the pass it saves (default-n1, cosyvoice). */
static const row *wgmma_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    static const struct {
        const char *name;
        int32_t percent; /* of the SMs that its CTAs must reach */
    } tiles[] = {{"wgmma-128x256", 45}, {"wgmma-128x128", 70}, {"wgmma-32x256", 0}, {"wgmma-64x64", 0}};
    int packed = j->max_t_out <= MMA_LEAF;
    const row *brief = packed ? short_row(l, j, job) : NULL;
    if (brief) return brief;
    const row *resident = packed ? NULL : resident_row(l, j, job);
    if (resident) return resident;
    /* x turned beforehand pays but for few products over many tiles: default 29 / 22 us against 35 / 29 (tf32 / bf16),
     * default-n64 115 / 89 against 142 / 123, default-long 502 / 382 against 523 / 430, convtasnet 35 / 24 against 64 / 49. */
    const int turned = (int64_t)l->g.cig * l->g.k >= 256 || ctas_of(j, job, row_named("wgmma-128x256")) * 2 < l->sms;
    const row *units = packed || l->g.cog <= 32 || !turned ? NULL : units_row(l, j, job);
    if (units) return units;
    for (const auto &t : tiles) {
        char name[32];
        snprintf(name, sizeof name, "%s-fused", t.name);
        const row *fused = row_named(name), *r = row_named(t.name);
        if (l->g.cog <= 32 && r->tile_c > 64) continue;
        if (packed && r->tile_c != 64) continue; /* many short slots: small tiles won by 2x */
        if (!row_fits(r, l, j, job) || ctas_of(j, job, r) * 100 < (int64_t)l->sms * t.percent) continue;
        int meets = packed || ctas_of(j, job, r) * 4 >= l->sms;
        return meets && row_fits(fused, l, j, job) ? fused : r;
    }
    return NULL;
}
static const row *simt_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    static const char *order[] = {"simt-8x64", "simt-4x64", "simt-1x64", "simt-8x256", "simt-4x256", "simt-1x256"};
    char name[32];
    for (const char *base : order) {
        snprintf(name, sizeof name, "%s%s", base, again_by_default(l) ? "-again" : "");
        const row *r = row_named(name);
        if (r->tile_c > 32 && l->g.cog <= 32) continue; /* half of its warps would idle */
        if (row_fits(r, l, j, job)) return r;
    }
    return NULL;
}
static const row *narrow_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    const row *fused = row_named("narrow-fused");
    return l->cc >= fused->min_cc && row_fits(fused, l, j, job) ? fused : row_named("narrow");
}
static const row *depth_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    const row *fused = row_named("depth-fused");
    return l->cc >= fused->min_cc && row_fits(fused, l, j, job) ? fused : row_named("depth");
}
static const row *long_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    const row *fused = row_named("long-fused");
    return row_fits(fused, l, j, job) ? fused : row_named("long");
}
const row *row_choose(const cuda_layer *l, const cuda_job *j, const nct_job *job, nct_why *why) {
    const row *r = l->forced && l->forced->launch ? l->forced : NULL;
    if (r && !row_fits(r, l, j, job)) {
        why_set(why, -ENOTSUP, "row %s cannot run %d frames of up to %d steps of this layer", r->name, job->n_frames,
            j->max_t_out);
        return NULL;
    }
    if (!r)
        r = l->plan == PLAN_NARROW  ? narrow_row(l, j, job)
            : l->plan == PLAN_DEPTH ? depth_row(l, j, job)
            : l->plan == PLAN_LONG  ? long_row(l, j, job)
            : l->plan == PLAN_SIMT  ? simt_row(l, j, job)
            : l->plan == PLAN_MMA   ? mma_row(l, j, job)
                                    : wgmma_row(l, j, job);
    if (!r)
        why_set(why, -ENOTSUP, "no row runs %d frames of up to %d steps of this layer (%d products)", job->n_frames,
            j->max_t_out, l->g.cig * l->g.k);
    return r;
}
