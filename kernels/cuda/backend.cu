/* backend.cu: cuda_backend: a layer on one device, made, repacked, warmed, explained and freed. Called by layer.c, which
 * has checked everything a caller hands in, on any thread. Plans and rows are chosen in choose.cu, jobs run in launch.cu. */
#include "backend.cuh"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

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
int device_enter(int32_t device, int *ret_before, nct_why *why) {
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
void device_leave(int32_t device, int before) {
    if (before != device) cudaSetDevice(before);
}

/* ---- making a layer ---- */

size_t aligned(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}
static int64_t weight_words(const cuda_layer *l) {
    return plan_plain(l->plan) ? (int64_t)l->g.co * l->g.cig * l->g.k : pack_mma_words(&l->g, &l->m);
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
        cudaError_t e = plan_plain(l->plan)   ? pack_simt((float *)l->weight, l->raw, &l->g, s)
                        : l->plan == PLAN_MMA ? pack_mma(to, l->raw, &l->g, &l->m, l->precision, s)
                                              : pack_wgmma(to, l->raw, &l->g, &l->m, l->precision, s);
        /* Kernels of a job may begin before the kernel in front of them has ended, and bring weights at once: what stands in
         * front of a job's first is no kernel, so that it waits for all of the packing. */
        if (!e) e = cudaMemsetAsync(l->memory + l->bytes - ALIGN, 0, 4, s);
        err = cuda_error(e, "packing weights", why);
    }
    device_leave(l->device, before);
    return err;
}

static int memory_new(cuda_layer *l, const nct_where *at, nct_why *why) {
    size_t raw = aligned((size_t)l->g.co * l->g.cig * l->g.k * 4), row = aligned((size_t)l->g.co * 4);
    l->bytes = raw + 3 * row + aligned((size_t)weight_words(l) * 4) + ALIGN;
    if (at->alloc) {
        l->memory = (char *)at->alloc(at->ctx, l->bytes);
        if (!l->memory) return why_set(why, -ENOMEM, "the caller's alloc gave no %zu bytes for a layer", l->bytes);
    } else {
        cudaError_t err = cudaMalloc((void **)&l->memory, l->bytes);
        if (err) {
            cudaGetLastError();
            return why_set(why, err == cudaErrorMemoryAllocation ? -ENOMEM : -EIO,
                "device %d has no %zu bytes for a layer's weights: %s", l->device, l->bytes, cudaGetErrorString(err));
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

/* ---- warm ---- */

/* One launch of every row that could be chosen, for f32 and 16-bit input, on memory of its own. */
static int warm_rows(
    const nct_layer *nl, int32_t t_in, int32_t t_out, char *memory, size_t bytes, cudaStream_t s, nct_why *why) {
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
        if (r->plan != l->plan || !r->launch || r->min_cc > l->cc || (r->pass == PASS_AGAIN && !plan_again(r->plan)))
            continue;
        if (l->forced && l->forced->launch && l->forced->tile != r->tile) continue;
        copy.forced = r;
        for (int half = 0; half < 2; half++) {
            job.x_dtype = half ? NCT_F16 : NCT_F32;
            job.y_dtype = half ? NCT_F16 : NCT_F32;
            job.norm = NCT_NORM_OWN;
            int err = cuda_launch(&one, &job, why);
            if (err && err != -ENOTSUP) return err;
        }
    }
    return 0;
}

static int warm(
    const nct_layer *nl, const nct_limits *lim, void *workspace_, size_t bytes, void *stream, nct_why *why) {
    const cuda_layer *l = (const cuda_layer *)nl->impl;
    (void)workspace_;
    size_t need = room_of(l, lim->max_frames, lim->max_t_out, lim->sum_t_out).bytes;
    if (bytes < need) return why_set(why, -ENOSPC, "the workspace has %zu bytes, these limits need %zu", bytes, need);
    int before, err = device_enter(l->device, &before, why);
    if (err) return err;
    cudaStream_t s = (cudaStream_t)stream;
    cudaError_t loaded = norm_load();
    if (!loaded && l->plan == PLAN_NARROW) loaded = narrow_load();
    if (!loaded && l->plan == PLAN_DEPTH) loaded = depth_load();
    if (!loaded && l->plan == PLAN_LONG) loaded = long_load_code();
    err = cuda_error(loaded, "loading kernels", why);
    for (int32_t steps = 8; !err && steps <= 72; steps += 64) { /* short frames, and long ones */
        int64_t t_in = (int64_t)(steps - 1) * l->g.stride + (int64_t)(l->g.k - 1) * l->g.dil + 1, t_out;
        if (t_in <= nl->p.pad_left || t_in <= nl->p.pad_right) t_in = (int64_t)nl->p.pad_left + nl->p.pad_right + 1;
        if (nct_out_steps(&nl->p, t_in, nl->p.pad_left, nl->p.pad_right, &t_out, why)) continue;
        cuda_layer most =
            *l; /* the rows tried keep f32 outputs in scratch, also where the default computes them again */
        for (int32_t i = 0; cuda_row(i); i++)
            if (cuda_row(i)->launch && cuda_row(i)->pass != PASS_AGAIN) most.forced = cuda_row(i);
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
    else if (plan_again(l->plan))
        snprintf(out.plan, sizeof out.plan, "%s leaf 1x%d",
            l->plan == PLAN_NARROW                                      ? "narrow-tf32"
            : l->plan == PLAN_DEPTH                                     ? "depth-f32"
            : job->x_dtype == NCT_BF16 && l->precision == NCT_PREC_BF16 ? "long-bf16"
                                                                        : "long-tf32",
            NARROW_LEAF);
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
    "cuda", layer_new, repack, layer_free, cuda_workspace, warm, cuda_launch, NULL, NULL, explain, variant};
