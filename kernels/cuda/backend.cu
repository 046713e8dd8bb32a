/* backend.cu: cuda_backend: a layer on one device. Makes and repacks it, lays out the workspace, chooses plan
 * and row, and enqueues the kernels of a job on the caller's stream.
 *
 * Called by layer.c, which has checked layer and job, on any thread. launch allocates and synchronises nothing.
 * The arithmetic is in the kernels' files; which rows there are in rows.cu. */
#include "cuda.cuh"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPLIT_FRAMES = 4, AGAIN_PRODUCTS = 32, SLICED_WEIGHTS = 8 << 20, ALIGN = 256 };

/* ---- errors and the current device ---- */

int cuda_error(cudaError_t err, const char *what, nct_why *why) {
    int code = -EIO;
    switch (err) {
    case cudaSuccess: return 0;
    case cudaErrorMemoryAllocation: code = -ENOMEM; break;
    case cudaErrorNotSupported: code = -ENOTSUP; break;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice: code = -ENODEV; break;
    default: break;
    }
    return why_set(why, code, "%s: CUDA error %d, %s", what, (int)err, cudaGetErrorString(err));
}

/* Makes `device` current; device_leave puts the caller's back. */
static int device_enter(int32_t device, int *ret_before, nct_why *why) {
    int before = 0;
    cudaError_t err = cudaGetDevice(&before);
    if (!err && before != device) err = cudaSetDevice(device);
    if (err) {
        cudaGetLastError();
        return cuda_error(err, "choosing the CUDA device", why);
    }
    *ret_before = before;
    return 0;
}
static void device_leave(int32_t device, int before) {
    if (before != device) cudaSetDevice(before);
}

/* ---- plan ---- */

static geometry geometry_of(const nct_params *p, int32_t precision) {
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
        return why_set(why, -ENOTSUP, "row %s needs compute capability %d, device %d has %d", name,
            l->forced->min_cc, l->device, l->cc);
    l->plan = l->forced->plan;
    if (!plan_fits(l, l->plan))
        return why_set(why, -ENOTSUP,
            "row %s cannot run this layer: it needs 8 input and output channels a conv group (has %d, %d), a short "
            "enough reach and, for wgmma, tf32 or bf16",
            name, l->g.cig, l->g.cog);
    snprintf(l->reason, sizeof l->reason, "forced: %s", name);
    return 0;
}

static int plan_choose(cuda_layer *l, const nct_where *at, nct_why *why) {
    int wide = l->g.cig >= 16 && l->g.cog >= 16;
    if (at->force) {
        int err = plan_force(l, at->force, why);
        if (err) return err;
    } else if (wide && plan_fits(l, PLAN_WGMMA) && !many_weights(&l->g)) {
        l->plan = PLAN_WGMMA;
        snprintf(l->reason, sizeof l->reason, "Hopper, %d products over %d channels", l->g.cig * l->g.k, l->g.cig);
    } else if (wide && plan_fits(l, PLAN_MMA)) {
        l->plan = PLAN_MMA;
        snprintf(l->reason, sizeof l->reason, "tensor cores: %d products over %d channels%s", l->g.cig * l->g.k,
            l->g.cig, many_weights(&l->g) ? ", bound by its weights" : "");
    } else {
        l->plan = PLAN_SIMT;
        snprintf(l->reason, sizeof l->reason, "%d x %d channels a conv group, %d products: no tensor cores", l->g.cig,
            l->g.cog, l->g.cig * l->g.k);
    }
    l->m = layout_of(&l->g, l->plan, l->precision);
    return 0;
}

/* ---- making a layer ---- */

static size_t aligned(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}
static int64_t weight_words(const cuda_layer *l) {
    return l->plan == PLAN_SIMT ? (int64_t)l->g.co * l->g.cig * l->g.k : pack_mma_words(&l->g, &l->m);
}

static int repack(nct_layer *nl, const nct_weights *w, void *stream, nct_why *why) {
    cuda_layer *l = (cuda_layer *)nl->impl;
    cudaStream_t s = (cudaStream_t)stream;
    int before, err = device_enter(l->device, &before, why);
    if (err) return err;
    err = pack_f32(l->raw, &w->weight, (int64_t)l->g.co * l->g.cig * l->g.k, 0, s, why);
    if (!err) err = pack_f32(l->bias, &w->bias, l->g.co, 0, s, why);
    if (!err) err = pack_f32(l->gamma, &w->gamma, l->g.co, 1, s, why);
    if (!err) err = pack_f32(l->beta, &w->beta, l->g.co, 0, s, why);
    if (!err) {
        uint32_t *to = (uint32_t *)l->weight;
        cudaError_t e = l->plan == PLAN_SIMT  ? pack_simt((float *)l->weight, l->raw, &l->g, s)
                        : l->plan == PLAN_MMA ? pack_mma(to, l->raw, &l->g, &l->m, l->precision, s)
                                              : pack_wgmma(to, l->raw, &l->g, &l->m, l->precision, s);
        err = cuda_error(e, "packing weights", why);
    }
    device_leave(l->device, before);
    return err;
}

static int memory_new(cuda_layer *l, const nct_where *at, nct_why *why) {
    size_t raw = aligned((size_t)l->g.co * l->g.cig * l->g.k * 4), row = aligned((size_t)l->g.co * 4);
    l->bytes = raw + 3 * row + aligned((size_t)weight_words(l) * 4);
    if (at->alloc) {
        l->memory = (char *)at->alloc(at->ctx, l->bytes);
        if (!l->memory) return why_set(why, -ENOMEM, "the caller's alloc gave no %zu bytes for a layer", l->bytes);
    } else {
        cudaError_t err = cudaMalloc((void **)&l->memory, l->bytes);
        if (err) {
            cudaGetLastError();
            return why_set(why, err == cudaErrorMemoryAllocation ? -ENOMEM : -EIO,
                "device %d has no %zu bytes for a layer's weights: %s", l->device, l->bytes,
                cudaGetErrorString(err));
        }
    }
    l->raw = (float *)l->memory;
    l->bias = (float *)(l->memory + raw);
    l->gamma = (float *)(l->memory + raw + row);
    l->beta = (float *)(l->memory + raw + 2 * row);
    l->weight = l->memory + raw + 3 * row;
    return 0;
}

static int device_read(cuda_layer *l, nct_why *why) {
    int major = 0, minor = 0, sms = 0;
    cudaError_t err = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, l->device);
    if (!err) err = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, l->device);
    if (!err) err = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, l->device);
    if (err) {
        cudaGetLastError();
        return cuda_error(err, "reading the CUDA device", why);
    }
    l->cc = major * 10 + minor;
    l->sms = sms;
    return 0;
}

static void layer_free(nct_layer *nl) {
    cuda_layer *l = (cuda_layer *)nl->impl;
    if (!l) return;
    if (l->memory && nl->at.release)
        nl->at.release(nl->at.ctx, l->memory);
    else if (l->memory) {
        int before;
        if (!device_enter(l->device, &before, NULL)) {
            cudaFree(l->memory);
            device_leave(l->device, before);
        }
    }
    free(l);
    nl->impl = NULL;
}

static int layer_new(nct_layer *nl, const nct_weights *w, void *stream, nct_why *why) {
    int count = 0, before;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e) {
        cudaGetLastError();
        return cuda_error(e, "looking for CUDA devices", why);
    }
    if (nl->at.device >= count)
        return why_set(why, -ENODEV, "CUDA device %d was asked for, this machine shows %d", nl->at.device, count);
    cuda_layer *l = (cuda_layer *)calloc(1, sizeof *l);
    if (!l) return why_set(why, -ENOMEM, "no memory for a layer of %zu bytes", sizeof *l);
    l->device = nl->at.device;
    l->precision = nl->at.precision;
    l->g = geometry_of(&nl->p, l->precision);
    nl->impl = l;
    int err = device_enter(l->device, &before, why);
    if (err) goto fail_device;
    err = device_read(l, why);
    if (!err) err = plan_choose(l, &nl->at, why);
    if (!err) err = memory_new(l, &nl->at, why);
    device_leave(l->device, before);
    if (!err) err = repack(nl, w, stream, why);
    if (!err) return 0;
fail_device:
    layer_free(nl);
    return err;
}

/* ---- workspace ---- */

struct room { /* offsets into the workspace */
    size_t leaf_start, coef, counters, leaves, scratch, partial, bytes;
};
static int again_by_default(const cuda_layer *l) {
    return l->plan == PLAN_SIMT && (int64_t)l->g.cig * l->g.k <= AGAIN_PRODUCTS;
}
static int needs_scratch(const cuda_layer *l) {
    if (l->forced && l->forced->launch) return l->forced->pass != PASS_AGAIN;
    return !again_by_default(l);
}

/* Grows with each argument. A frame takes whole tiles of at most 256 steps (short frames: one leaf). */
static room room_of(const cuda_layer *l, int64_t frames, int64_t max_t, int64_t sum_t) {
    int64_t leaf = l->plan == PLAN_SIMT ? SIMT_LEAF : MMA_LEAF, unit = 256 / leaf;
    if (sum_t > frames * max_t) sum_t = frames * max_t;
    int64_t most = ((max_t + leaf - 1) / leaf + unit - 1) / unit * unit;
    int64_t columns = max_t <= leaf ? frames : sum_t / leaf + frames * unit;
    if (max_t > leaf && columns > frames * most) columns = frames * most;
    room r;
    r.leaf_start = 0;
    r.coef = aligned((size_t)(frames + 1) * 4);
    r.counters = r.coef + aligned((size_t)(frames * l->g.co) * 16);
    r.leaves = r.counters + aligned((size_t)(frames * l->g.groups * ((l->g.cog + 31) / 32)) * 4);
    r.scratch = r.leaves + aligned((size_t)(columns * l->g.co) * 16);
    r.partial = r.scratch + (needs_scratch(l) ? aligned((size_t)(columns * leaf * l->g.co) * 4) : 0);
    size_t slices = l->plan == PLAN_MMA && l->m.slice ? (size_t)((l->m.chunks * l->g.k + l->m.slice - 1) / l->m.slice) : 0;
    size_t split = (size_t)(frames < SPLIT_FRAMES ? frames : SPLIT_FRAMES);
    r.bytes = r.partial + aligned(slices * split * l->g.co * MMA_LEAF * 4);
    return r;
}

static int workspace(const nct_layer *nl, const nct_limits *lim, size_t *ret_bytes, nct_why *why) {
    (void)why;
    *ret_bytes = room_of((const cuda_layer *)nl->impl, lim->max_frames, lim->max_t_out, lim->sum_t_out).bytes;
    return 0;
}

/* ---- a job ---- */

/* All rows row 0's but for constant steps of x_off and y_off? Slots may differ. */
static int frames_alike(const nct_job *job) {
    const nct_frame *f = job->frames;
    if (job->n_frames < 2) return 1;
    int64_t dx = f[1].x_off - f[0].x_off, dy = f[1].y_off - f[0].y_off;
    for (int32_t n = 1; n < job->n_frames; n++)
        if (f[n].x_off != f[n - 1].x_off + dx || f[n].y_off != f[n - 1].y_off + dy || f[n].t_in != f[0].t_in ||
            f[n].t_out != f[0].t_out || f[n].x_pitch != f[0].x_pitch || f[n].y_pitch != f[0].y_pitch ||
            f[n].pad_left != f[0].pad_left || f[n].pad_right != f[0].pad_right)
            return 0;
    return 1;
}

static cuda_job job_begin(const cuda_layer *l, const nct_job *job) {
    cuda_job j = {};
    j.g = l->g;
    j.m = l->m;
    j.x = job->x;
    j.x_count = job->x_count;
    j.y = job->y;
    j.frames = job->frames_dev;
    j.row0 = job->frames[0];
    j.uniform = frames_alike(job);
    if (job->n_frames > 1) {
        j.x_step = job->frames[1].x_off - job->frames[0].x_off;
        j.y_step = job->frames[1].y_off - job->frames[0].y_off;
    }
    j.n_frames = job->n_frames;
    j.x_dtype = job->x_dtype;
    j.y_dtype = job->y_dtype;
    j.norm = job->norm;
    j.leaf_t = l->plan == PLAN_SIMT ? SIMT_LEAF : MMA_LEAF;
    j.stats = job->stats;
    j.flags = job->frame_flags;
    j.weight = l->weight;
    j.bias = l->bias;
    j.gamma = l->gamma;
    j.beta = l->beta;
    j.x_wide = 1;
    for (int32_t n = 0; n < job->n_frames; n++) {
        if (job->frames[n].x_pitch * (int64_t)dtype_size(job->x_dtype) % 16) j.x_wide = 0;
        if (job->frames[n].t_out > j.max_t_out) j.max_t_out = job->frames[n].t_out;
    }
    return j;
}

/* Tiles along time of a row, and the columns of leaves. */
static void job_tiles(cuda_job *j, const nct_job *job, const row *row) {
    int64_t tiles = 0;
    if (row->plan != PLAN_SIMT && j->max_t_out <= MMA_LEAF) {
        int32_t steps = 8;
        while (steps < j->max_t_out) steps *= 2;
        int32_t slots = row->tile_t / steps;
        tiles = (job->n_frames + slots - 1) / slots;
        j->tile_leaves = j->leaf_cols = 1;
        j->slot_steps = steps;
    } else {
        for (int32_t n = 0; n < job->n_frames; n++)
            tiles += (job->frames[n].t_out + row->tile_t - 1) / row->tile_t;
        j->tile_leaves = row->tile_t > j->leaf_t ? row->tile_t / j->leaf_t : 1;
        j->leaf_cols = (j->row0.t_out + row->tile_t - 1) / row->tile_t * j->tile_leaves;
        if (j->max_t_out <= j->leaf_t) j->leaf_cols = 1;
    }
    j->tiles = (int32_t)tiles;
}
static int needs_prefix(const cuda_job *j) {
    return !j->uniform && j->max_t_out > j->leaf_t;
}

/* ---- choosing a row ---- */

static const row *row_named(const char *name) {
    for (int32_t i = 0; cuda_row(i); i++)
        if (!strcmp(cuda_row(i)->name, name)) return cuda_row(i);
    return NULL;
}
int64_t job_ctas(const cuda_job *j, const row *row) {
    return (int64_t)j->tiles * ((j->g.cog + row->tile_c - 1) / row->tile_c) * j->g.groups;
}
static int64_t ctas_of(const cuda_job *j, const nct_job *job, const row *row) {
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

/* The largest tile that gives every SM a CTA, else the smallest. */
static const row *mma_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    static const char *low[] = {"mma-128x128", "mma-64x128", "mma-64x64", NULL};
    static const char *f32[] = {"mma-64x128-3x", "mma-64x64", NULL};
    const row *split = row_named("mma-split");
    if (row_fits(split, l, j, job) && ctas_of(j, job, split) < l->sms) return split;
    const row *narrow = row_named("mma-32x256"), *last = NULL;
    if (l->g.cog <= 32 && row_fits(narrow, l, j, job) && ctas_of(j, job, narrow) >= l->sms) return narrow;
    for (const char **name = l->precision == NCT_PREC_F32 ? f32 : low; *name; name++) {
        const row *r = row_named(*name);
        if (!row_fits(r, l, j, job)) continue;
        last = r;
        if (l->g.cog > r->tile_c / 2 && ctas_of(j, job, r) >= l->sms) return r;
    }
    return last;
}
static const row *wgmma_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    static const char *tiles[] = {"wgmma-32x256", "wgmma-128x256", "wgmma-128x128", "wgmma-64x64", NULL};
    const row *last = NULL;
    char name[32];
    for (const char **tile = l->g.cog <= 32 ? tiles : tiles + 1; *tile; tile++) {
        snprintf(name, sizeof name, "%s-fused", *tile);
        const row *fused = row_named(name), *r = row_named(*tile);
        if (!row_fits(r, l, j, job)) continue;
        if (row_fits(fused, l, j, job)) r = fused;
        last = r;
        if (l->g.cog > r->tile_c / 2 && ctas_of(j, job, r) * 4 >= l->sms * 3) return r;
    }
    return last ? last : row_named("wgmma-64x64");
}
static const row *simt_row(const cuda_layer *l, const cuda_job *j, const nct_job *job) {
    static const char *order[] = {"simt-8x64", "simt-4x64", "simt-1x64", "simt-8x256", "simt-4x256", "simt-1x256"};
    char name[32];
    for (const char *base : order) {
        snprintf(name, sizeof name, "%s%s", base, again_by_default(l) ? "-again" : "");
        const row *r = row_named(name);
        if (row_fits(r, l, j, job)) return r;
    }
    return NULL;
}
static const row *row_choose(const cuda_layer *l, const cuda_job *j, const nct_job *job, nct_why *why) {
    const row *r = l->forced && l->forced->launch ? l->forced : NULL;
    if (r && !row_fits(r, l, j, job)) {
        why_set(why, -ENOTSUP, "row %s cannot run %d frames of up to %d steps of this layer", r->name, job->n_frames,
            j->max_t_out);
        return NULL;
    }
    if (!r)
        r = l->plan == PLAN_SIMT  ? simt_row(l, j, job)
            : l->plan == PLAN_MMA ? mma_row(l, j, job)
                                  : wgmma_row(l, j, job);
    if (!r)
        why_set(why, -ENOTSUP, "no row runs %d frames of up to %d steps of this layer (%d products)", job->n_frames,
            j->max_t_out, l->g.cig * l->g.k);
    return r;
}

/* ---- launch ---- */

static cudaError_t launch_split(const cuda_layer *l, cuda_job *j, const row *r, int32_t final, cudaStream_t s) {
    j->what = DO_PARTIAL;
    cudaError_t err = r->launch(l, j, r, s);
    if (err) return err;
    j->what = final;
    return norm_combine(j, (j->m.chunks * j->g.k + j->m.slice - 1) / j->m.slice, s);
}

static cudaError_t launch_conv(const cuda_layer *l, cuda_job *j, const row *r, int32_t what, cudaStream_t s) {
    j->what = what;
    return r->launch(l, j, r, s);
}

static cudaError_t launch_passes(const cuda_layer *l, cuda_job *j, const row *r, int conv_only, cudaStream_t s) {
    j->raw_in_y = conv_only || (j->y && j->y_dtype == NCT_F32);
    cudaError_t err = cudaSuccess;
    if (j->flags) err = cudaMemsetAsync(j->flags, 0, (size_t)j->n_frames * sizeof *j->flags, s);
    if (!err && needs_prefix(j)) err = norm_prefix(j, (int32_t *)j->leaf_start, s);
    if (err) return err;
    int given = j->norm == NCT_NORM_GIVEN;
    if (r->pass == PASS_SPLIT)
        return launch_split(l, j, r,
            conv_only ? DO_RAW : !j->y ? DO_LEAVES : DO_RAW | DO_APPLY | (given ? 0 : DO_LEAVES), s);
    if (conv_only) return launch_conv(l, j, r, DO_RAW, s);
    int again = r->pass == PASS_AGAIN;
    /* Several tiles would read a running slot that one of them writes. */
    if (r->pass == PASS_FUSED && j->y && j->norm == NCT_NORM_OWN)
        return launch_conv(l, j, r, DO_LEAVES | DO_MEET | DO_APPLY, s);
    if (!given) err = launch_conv(l, j, r, j->y && !again ? DO_LEAVES | DO_RAW : DO_LEAVES, s);
    if (err) return err;
    if (!given && j->y && !again && norm_merges(j)) return norm_apply(j, 1, s);
    err = norm_finish(j, s);
    if (err || !j->y) return err;
    return given || again ? launch_conv(l, j, r, DO_APPLY, s) : norm_apply(j, 0, s);
}

static int launch(const nct_layer *nl, const nct_job *job, nct_why *why) {
    const cuda_layer *l = (const cuda_layer *)nl->impl;
    int64_t sum = 0;
    for (int32_t n = 0; n < job->n_frames; n++) sum += job->frames[n].t_out;
    cuda_job j = job_begin(l, job);
    const row *r = row_choose(l, &j, job, why);
    if (!r) return -ENOTSUP;
    room at = room_of(l, job->n_frames, j.max_t_out, sum);
    if (job->workspace_bytes < at.bytes || !job->workspace)
        return why_set(why, -ENOSPC, "the workspace has %zu bytes, %d frames of %lld steps in all need %zu",
            job->workspace ? job->workspace_bytes : 0, job->n_frames, (long long)sum, at.bytes);
    job_tiles(&j, job, r);
    if (job_ctas(&j, r) > INT32_MAX || (int64_t)j.n_frames * j.g.norm_groups * 16 > INT32_MAX)
        return why_set(why, -ENOTSUP, "%d frames of up to %d steps are more than one launch holds: cut the batch",
            job->n_frames, j.max_t_out);
    char *base = (char *)job->workspace;
    j.coef = (float4 *)(base + at.coef);
    j.leaves = (float4 *)(base + at.leaves);
    j.scratch = (float *)(base + at.scratch);
    j.partial = (float *)(base + at.partial);
    j.counters = (int32_t *)(base + at.counters);
    if (needs_prefix(&j)) j.leaf_start = (int32_t *)(base + at.leaf_start);
    int before, err = device_enter(l->device, &before, why);
    if (err) return err;
    cudaError_t e = launch_passes(l, &j, r, job->flags & NCT_CONV_ONLY, (cudaStream_t)job->stream);
    if (e) cudaGetLastError();
    device_leave(l->device, before);
    return cuda_error(e, "launching a layer", why);
}

/* ---- warm ---- */

/* One launch of every row that could be chosen, for f32 and 16-bit input, on memory of its own. */
static int warm_rows(const nct_layer *nl, int32_t t_in, int32_t t_out, char *memory, size_t bytes, cudaStream_t s,
    nct_why *why) {
    const cuda_layer *l = (const cuda_layer *)nl->impl;
    nct_frame f = {};
    f.x_pitch = f.t_in = t_in;
    f.y_pitch = f.t_out = t_out;
    f.pad_left = nl->p.pad_left;
    f.pad_right = nl->p.pad_right;
    f.stat_in = f.stat_out = -1;
    size_t x_bytes = aligned((size_t)t_in * l->g.ci * 4), y_bytes = aligned((size_t)t_out * l->g.co * 4);
    nct_job job = {};
    job.n_frames = 1;
    job.frames = &f;
    job.x = memory;
    job.x_count = (int64_t)t_in * l->g.ci;
    job.y = memory + x_bytes;
    job.y_count = (int64_t)t_out * l->g.co;
    job.workspace = memory + x_bytes + y_bytes;
    job.workspace_bytes = bytes - x_bytes - y_bytes;
    job.stream = s;
    cuda_layer copy = *l;
    nct_layer one = *nl;
    one.impl = &copy;
    for (int32_t i = 0; cuda_row(i); i++) {
        const row *r = cuda_row(i);
        if (r->plan != l->plan || !r->launch || r->min_cc > l->cc || r->pass == PASS_AGAIN) continue;
        if (l->forced && l->forced->launch && l->forced->tile != r->tile) continue;
        copy.forced = r;
        for (int half = 0; half < 2; half++) {
            job.x_dtype = half ? NCT_F16 : NCT_F32;
            job.y_dtype = half ? NCT_F16 : NCT_F32;
            job.norm = NCT_NORM_OWN;
            int err = launch(&one, &job, why);
            if (err && err != -ENOTSUP) return err;
        }
    }
    return 0;
}

static int warm(const nct_layer *nl, const nct_limits *lim, void *workspace_, size_t bytes, void *stream, nct_why *why) {
    const cuda_layer *l = (const cuda_layer *)nl->impl;
    (void)workspace_;
    size_t need = room_of(l, lim->max_frames, lim->max_t_out, lim->sum_t_out).bytes;
    if (bytes < need) return why_set(why, -ENOSPC, "the workspace has %zu bytes, these limits need %zu", bytes, need);
    int before, err = device_enter(l->device, &before, why);
    if (err) return err;
    cudaStream_t s = (cudaStream_t)stream;
    for (int32_t steps = 8; !err && steps <= 72; steps += 64) { /* short frames, and long ones */
        int64_t t_in = (int64_t)(steps - 1) * l->g.stride + (int64_t)(l->g.k - 1) * l->g.dil + 1, t_out;
        if (t_in <= nl->p.pad_left || t_in <= nl->p.pad_right) t_in = (int64_t)nl->p.pad_left + nl->p.pad_right + 1;
        if (nct_out_steps(&nl->p, t_in, nl->p.pad_left, nl->p.pad_right, &t_out, why)) continue;
        cuda_layer most = *l; /* with scratch */
        most.forced = NULL;
        size_t total = aligned((size_t)t_in * l->g.ci * 4) + aligned((size_t)t_out * l->g.co * 4) +
                       room_of(&most, 1, t_out, t_out).bytes + aligned((size_t)t_out * 2 * l->g.co * 4 + 65536);
        char *memory = NULL;
        cudaError_t e = cudaMalloc((void **)&memory, total);
        if (!e) e = cudaMemsetAsync(memory, 0, total, s);
        if (!e) err = warm_rows(nl, (int32_t)t_in, (int32_t)t_out, memory, total, s, why);
        if (!e && !err) e = cudaStreamSynchronize(s);
        if (memory) cudaFree(memory);
        if (e) cudaGetLastError();
        if (e) err = cuda_error(e, "warming a layer up", why);
    }
    device_leave(l->device, before);
    return err;
}

/* ---- explain ---- */

static int explain(const nct_layer *nl, const nct_job *job, int32_t frame, nct_report *ret, nct_why *why) {
    const cuda_layer *l = (const cuda_layer *)nl->impl;
    (void)frame; /* every frame of a layer has one plan */
    static const char *names[] = {"f32", "tf32", "bf16"};
    static const char *passes[] = {"any", "f32 y kept, then applied", "conv twice", "slices over all SMs", "fused"};
    cuda_job j = job_begin(l, job);
    const row *r = row_choose(l, &j, job, why);
    if (!r) return -ENOTSUP;
    nct_report out = {};
    int32_t steps = l->m.chunks * l->g.k, slices = l->m.slice ? (steps + l->m.slice - 1) / l->m.slice : 1;
    if (l->plan == PLAN_SIMT)
        snprintf(out.plan, sizeof out.plan, "simt-f32 slices %lld leaf 1x%d",
            ((long long)l->g.cig * l->g.k + SIMT_SLICE - 1) / SIMT_SLICE, SIMT_LEAF);
    else
        snprintf(out.plan, sizeof out.plan, "%s-%s rows %d slices %d leaf 1x%d",
            l->plan == PLAN_MMA ? "mma" : "wgmma", l->precision == NCT_PREC_F32 ? "3xtf32" : names[l->precision],
            l->m.rows, slices, MMA_LEAF);
    snprintf(out.schedule, sizeof out.schedule, "%s: tile %dx%d, %lld CTAs, %s", r->name, r->tile_c, r->tile_t,
        (long long)ctas_of(&j, job, r), passes[r->pass]);
    snprintf(out.reason, sizeof out.reason, "%s", l->reason);
    int64_t x_size = (int64_t)dtype_size(job->x_dtype), y_size = job->y ? (int64_t)dtype_size(job->y_dtype) : 0;
    for (int32_t n = 0; n < job->n_frames; n++) {
        out.flop += 2.0 * l->g.co * job->frames[n].t_out * l->g.cig * l->g.k;
        out.bytes += job->frames[n].t_in * l->g.ci * x_size + job->frames[n].t_out * l->g.co * y_size;
    }
    out.bytes += (int64_t)l->g.co * l->g.cig * l->g.k * (l->precision == NCT_PREC_BF16 ? 2 : 4);
    *ret = out;
    return 0;
}

static const char *variant(int32_t i) {
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device)) {
        cudaGetLastError();
        return NULL;
    }
    for (int32_t k = 0; cuda_row(k); k++)
        if (cuda_row(k)->min_cc <= major * 10 + minor && i-- == 0) return cuda_row(k)->name;
    return NULL;
}

extern "C" const backend cuda_backend = {
    "cuda", layer_new, repack, layer_free, workspace, warm, launch, NULL, NULL, explain, variant};
