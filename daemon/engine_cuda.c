/* engine_cuda.c: the CUDA backend of one GPU's engine. Called by engine.c on the loop thread; the host function that
 * reports a batch runs on a thread of the driver and calls engine_done alone. Owns device twins, streams and events of
 * the slots, made at start and never after; decides nothing about batches. Errors latch in engine_cuda_watch.c.
 *
 *     stream of a slot:  copy table and x in -> the layer's kernels -> copy flags and rows out -> host function
 *
 * The streams of different slots are independent, so the two copy engines and the SMs work at once. */
#include "engine_cuda.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include "gpu_meter.h"
#include "gpu_range.h"
#include "log.h"
#include "pool.h"
#include "rows.h"

int cuda_say(nct_why *why, int32_t device, const char *call, cudaError_t err) {
    if (why)
        snprintf(why->text, sizeof why->text, "%s on GPU %d: error %d, %s", call, device, (int)err,
            cudaGetErrorString(err));
    return err == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

/* ---- host memory ---- */
/* Without registration copies go through the driver's own buffers and wait: slower, same results. Said once. */
static bool pin(engine *e, void *p, size_t bytes) {
    static bool said;
    struct rlimit lock = {0};
    cudaError_t err = CU(cudaHostRegister, p, bytes, cudaHostRegisterPortable);
    if (!err) {
        e->facts.pinned_bytes += bytes;
        return true;
    }
    cudaGetLastError(); /* what the last call left behind is not the next one's */
    e->facts.unpinned_bytes += bytes;
    getrlimit(RLIMIT_MEMLOCK, &lock);
    if (!said)
        log_warning("cudaHostRegister refused %zu bytes of host memory (not GPU memory): error %d, %s; "
                    "RLIMIT_MEMLOCK is %llu: going on with ordinary memory, copies are slower",
            bytes, (int)err, cudaGetErrorString(err), (unsigned long long)lock.rlim_cur);
    said = true;
    return false;
}

static void *cuda_alloc(engine *e, size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    pin(e, p, bytes);
    return p;
}
static void cuda_release(engine *e, void *p, size_t bytes) {
    if (!e->latched && CU(cudaHostUnregister, p)) cudaGetLastError(); /* it may not have been registered */
    munmap(p, bytes);
}

/* ---- device memory ---- */
static int device_alloc(engine *e, void **ret, size_t bytes, const char *what, nct_why *why) {
    size_t free_bytes = 0, total = 0;
    int32_t gpu = e->setup.device;
    cudaError_t err = CU(cudaSetDevice, gpu);
    if (!err) err = CU(cudaMalloc, ret, bytes);
    if (!err) {
        e->facts.device_bytes += bytes;
        return 0;
    }
    cudaGetLastError();
    int error = cuda_say(why, gpu, "cudaMalloc", err);
    if (error != -ENOMEM || cudaMemGetInfo(&free_bytes, &total)) return error;
    snprintf(why->text, sizeof why->text,
        "GPU %d has no %zu bytes of device memory for %s: %zu of %zu bytes are free; each of engine.slots = %d takes "
        "2 x engine.slot_bytes = %zu and a workspace: set one of them lower",
        gpu, bytes, what, free_bytes, total, e->n_slots, e->slot_bytes);
    return error;
}
static void device_release(engine *e, void *p, size_t bytes) {
    if (!p || e->latched) return;
    cudaFree(p);
    e->facts.device_bytes -= bytes;
}

static void *cuda_work_alloc(engine *e, size_t bytes, nct_why *why) {
    void *p = NULL;
    return device_alloc(e, &p, bytes, "a slot's workspace", why) ? NULL : p;
}
static void cuda_work_release(engine *e, void *p, size_t bytes) {
    device_release(e, p, bytes);
}

/* ---- slots ---- */
static cudaError_t make_stream(gpu_slot *g, size_t in_bytes, size_t out_bytes) {
    cudaError_t err = CU(cudaStreamCreateWithFlags, &g->stream, cudaStreamNonBlocking);
    for (int i = 0; i < AT_EVENTS && !err; i++)
        err = CU(cudaEventCreateWithFlags, &g->at[i], i == AT_DONE ? cudaEventDisableTiming : cudaEventDefault);
    if (!err) err = CU(cudaMemsetAsync, g->in, 0, in_bytes, g->stream);
    if (!err) err = CU(cudaMemsetAsync, g->out, 0, out_bytes, g->stream);
    if (!err) err = CU(cudaStreamSynchronize, g->stream);
    return err;
}

static void cuda_slot_close(engine *e, slot *s) {
    gpu_slot *g = s->backend;
    s->backend = NULL;
    if (e->latched) return;
    if (g->stream) cudaStreamSynchronize(g->stream);
    for (int i = 0; i < AT_EVENTS; i++)
        if (g->at[i]) cudaEventDestroy(g->at[i]);
    if (g->stream) cudaStreamDestroy(g->stream);
    device_release(e, g->in, slot_in_bytes(e));
    device_release(e, g->out, slot_out_bytes(e));
}

static int cuda_slot_open(engine *e, slot *s, nct_why *why) {
    cuda *c = e->backend;
    gpu_slot *g = &c->slots[c->n_open];
    *g = (gpu_slot){.running = false};
    int error = device_alloc(e, (void **)&g->in, slot_in_bytes(e), "a slot's input", why);
    if (!error) error = device_alloc(e, (void **)&g->out, slot_out_bytes(e), "a slot's output", why);
    s->backend = g;
    c->n_open++;
    if (error) return error;
    cudaError_t err = make_stream(g, slot_in_bytes(e), slot_out_bytes(e));
    return err ? cuda_say(why, e->setup.device, "a slot's stream and events", err) : 0;
}

/* ---- a batch ---- */
/* The job with every pointer at the slot's twin. */
static nct_job job_there(const slot *s, const gpu_slot *g) {
    nct_job job = s->job;
    unsigned char *y = g->out + FLAGS_BYTES;
    job.frames_dev = (const nct_frame *)(const void *)(g->in + ((unsigned char *)s->table - s->in));
    job.x = g->in + TABLE_BYTES;
    if (job.y) job.y = y;
    if (job.stats && job.norm == NCT_NORM_GIVEN)
        job.stats = (nct_stat *)(void *)(g->in + ((unsigned char *)job.stats - s->in));
    else if (job.stats)
        job.stats = (nct_stat *)(void *)y;
    job.frame_flags = (uint32_t *)(void *)g->out;
    job.stream = g->stream;
    return job;
}

typedef struct {
    size_t at; /* in the slot's y */
    unsigned char *host;
    size_t bytes;
} piece;

static cudaError_t copy_piece(gpu_slot *g, const piece *p) {
    if (!p->bytes) return cudaSuccess;
    return CU(cudaMemcpyAsync, p->host, g->out + FLAGS_BYTES + p->at, p->bytes, cudaMemcpyDeviceToHost, g->stream);
}

/* Rows that stand in the arena as they stand on the device leave together: one copy for a batch with one run. */
static cudaError_t copy_rows(const slot *s, gpu_slot *g) {
    const batch *b = s->b;
    piece p = {0};
    cudaError_t err = cudaSuccess;
    for (int small = 0; small < 2; small++)
        for (int32_t n = 0; n < b->n_frames && !err; n++) {
            const frame *f = b->frames[n];
            unsigned char *host = f->y;
            if (rows_y_pages(f) == (bool)small) continue;
            size_t at = f->observe ? (size_t)(host - (unsigned char *)b->frames[0]->y)
                                   : (size_t)s->table[n].y_off * rows_dtype_bytes(f->y_dtype);
            if (!p.bytes || (uintptr_t)host - (uintptr_t)p.host != at - p.at) {
                err = copy_piece(g, &p);
                p = (piece){.at = at, .host = host};
            }
            p.bytes = at - p.at + f->y_bytes;
        }
    return err ? err : copy_piece(g, &p);
}

static cudaError_t copy_in(const slot *s, gpu_slot *g) {
    size_t from = (size_t)((unsigned char *)s->table - s->in), bytes = TABLE_BYTES - from + s->x_bytes;
    cudaError_t err = CU(cudaMemcpyAsync, g->in + from, s->table, bytes, cudaMemcpyHostToDevice, g->stream);
    return err ? err : CU(cudaEventRecord, g->at[AT_IN], g->stream);
}

static cudaError_t copy_out(const slot *s, gpu_slot *g) {
    size_t flags = (size_t)s->b->n_frames * sizeof *s->flags;
    cudaError_t err = CU(cudaEventRecord, g->at[AT_KERNEL], g->stream);
    if (!err) err = CU(cudaMemcpyAsync, s->flags, g->out, flags, cudaMemcpyDeviceToHost, g->stream);
    if (!err) err = copy_rows(s, g);
    return err ? err : CU(cudaEventRecord, g->at[AT_OUT], g->stream);
}

static void CUDART_CB on_done(void *ctx) {
    slot *s = ctx;
    gpu_slot *g = s->backend;
    if (atomic_exchange(&g->running, false)) engine_done(s, 0);
}

/* An error of the job itself (what nct_launch says before it enqueues) fails this batch alone. */
static int run_layer(engine *e, slot *s, const nct_job *job, nct_why *why) {
#ifdef NCT_FAULTS
    gpu_fault_arm();
    cudaError_t err = gpu_fault_next("nct_launch");
    if (err) return cuda_latch(e, "nct_launch", err);
#endif
    int error = nct_launch(&s->layer, 1, job, why);
    if (error == -EINVAL || error == -ENOTSUP || error == -ENOSPC || error == -ERANGE) return error;
    if (error) {
        engine_latch(e, why->text);
        return cuda_latch(e, "nct_launch", cudaErrorUnknown);
    }
#ifdef NCT_FAULTS
    err = gpu_fault_kernel((cudaStream_t)job->stream);
    if (err) return cuda_latch(e, "the kernel of NCTD_GPU_FAULT", err);
#endif
    return 0;
}

static int launch_batch(engine *e, slot *s, nct_why *why) {
    gpu_slot *g = s->backend;
    nct_job job = job_there(s, g);
    cudaError_t err = CU(cudaSetDevice, e->setup.device);
    if (err) return cuda_latch(e, "cudaSetDevice", err);
    err = copy_in(s, g);
    if (err) return cuda_latch(e, "copying a batch in", err);
    int error = run_layer(e, s, &job, why);
    if (error) return error;
    err = copy_out(s, g);
    if (err) return cuda_latch(e, "copying results out", err);
    atomic_store(&g->running, true);
    err = CU(cudaLaunchHostFunc, g->stream, on_done, s);
    if (err) {
        atomic_store(&g->running, false);
        return cuda_latch(e, "cudaLaunchHostFunc", err);
    }
    err = CU(cudaEventRecord, g->at[AT_DONE], g->stream);
    if (err) cuda_latch(e, "cudaEventRecord", err); /* it began: the latch, or the host function, ends it */
    return 0;
}

static int cuda_launch(engine *e, slot *s, nct_why *why) {
    gpu_range_begin("nctd: launch a batch");
    int error = launch_batch(e, s, why);
    gpu_range_end();
    return error;
}

/* ---- life ---- */
static int read_facts(engine *e, nct_why *why) {
    struct cudaDeviceProp prop;
    size_t free_bytes, total;
    cudaError_t err = CU(cudaSetDevice, e->setup.device);
    if (!err) err = CU(cudaGetDeviceProperties, &prop, e->setup.device);
    if (!err) err = CU(cudaMemGetInfo, &free_bytes, &total);
    if (err) return cuda_say(why, e->setup.device, "looking at the device", err);
    snprintf(e->facts.device, sizeof e->facts.device, "%.40s sm_%d%d", prop.name, prop.major, prop.minor);
    char pci[32];
    if (!cudaDeviceGetPCIBusId(pci, sizeof pci, e->setup.device)) gpu_meter_open(e->setup.index, pci);
    size_t need = (size_t)e->n_slots * (slot_in_bytes(e) + slot_out_bytes(e));
    if (need <= free_bytes) return 0;
    snprintf(why->text, sizeof why->text,
        "engine.slots = %d x 2 x engine.slot_bytes = %zu need %zu bytes of device memory, and GPU %d has %zu of %zu "
        "bytes free: set one of them lower, or free the GPU",
        e->n_slots, e->slot_bytes, need, e->setup.device, free_bytes, total);
    return -ENOMEM;
}

/* One thread copies 8 to 20 GB/s, PCIe takes 50. */
static int32_t n_copiers(const engine *e) {
    enum { MOST = 4 };
    int32_t n = (int32_t)e->setup.cfg->engine.threads;
    if (!n) n = pool_default_workers() / 4;
    return n < 1 ? 1 : n > MOST ? MOST : n;
}

static int cuda_open(engine *e, nct_why *why) {
    int error = read_facts(e, why);
    if (error) return error;
    cuda *c = calloc(1, sizeof *c);
    gpu_slot *slots = calloc((size_t)e->n_slots, sizeof *slots);
    if (!c || !slots) {
        error = -ENOMEM;
        goto fail;
    }
    *c = (cuda){.e = e, .slots = slots};
    error = cuda_watch_open(c);
    if (error) goto fail;
    error = pool_new(&e->copiers, n_copiers(e));
    if (error) goto fail_pool;
    e->n_workers = 1;
    e->backend = c;
    /* The arena is everybody's; the first engine registers it, for all devices. */
    if (e->setup.index == 0) c->arena_registered = pin(e, arena_base(e->setup.out), arena_bytes(e->setup.out));
    return 0;
fail_pool:
    cuda_watch_close(c);
fail:
    free(slots);
    free(c);
    snprintf(why->text, sizeof why->text, "GPU %d: %s", e->setup.device, strerror(-error));
    return error;
}

static void cuda_close(engine *e) {
    cuda *c = e->backend;
    cuda_watch_close(c);
    pool_free(e->copiers);
    e->copiers = NULL;
    if (c->arena_registered && !e->latched && !e->failed_ops) cudaHostUnregister(arena_base(e->setup.out));
    if (e->latched || e->failed_ops) return; /* a late host function may still look at its slot */
    free(c->slots);
    free(c);
}

const engine_ops engine_cuda_ops = {.name = "cuda",
    .in_place = false,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .launch = cuda_launch,
    .slot_open = cuda_slot_open,
    .slot_close = cuda_slot_close,
    .work_alloc = cuda_work_alloc,
    .work_release = cuda_work_release,
    .verify = cuda_verify,
    .busy = cuda_busy};
