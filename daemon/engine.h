/* engine.h: moves batches through a backend. One engine per GPU, or `instances` CPU engines; each has its
 * slots.
 *
 *     batcher --batcher_take--> [fill 2 MiB a turn] -> [arena run] -> launch -> done -> batch_sink
 * (publisher)
 *
 * A slot: two byte arenas (in, out) of slot_bytes, made and touched at start and never after. x channels
 * stand at a 16-byte pitch, x frames at 256 bytes, a table of 64-byte nct_frame rows in front of x; y
 * channels compact (pitch T_out); a y row of 32 KiB or more begins on an arena page and shares its pages with
 * nobody, smaller ones stand at 256 bytes; y has the same offsets wherever it stands. Backends stand behind
 * `engine_ops`, one file each. */
#ifndef NCTD_ENGINE_H
#define NCTD_ENGINE_H
#include <uv.h>
#include "arena.h"
#include "batcher.h"
#include "frame.h"

typedef struct engine engine;
typedef struct slot slot;

/* What a backend does for a slot; engine.c does everything else. The job is complete: pointers, rows,
 * strides. */
#define ENGINE_DONE_HERE 1
typedef struct engine_ops {
    const char *name; /* "cpu", "cuda" */
    bool
        in_place; /* results are written where they stay; else at slot.y's offsets on the device, copied out by launch */
    int (*open)(engine *e, nct_why *why); /* threads, streams; e->slots have no memory yet; warm */
    void (*close)(engine *e);             /* nothing in flight */
    /* A slot's memory, touched, 4096-byte aligned; and back. Called between open and close. */
    void *(*alloc)(engine *e, size_t bytes);
    void (*release)(engine *e, void *p, size_t bytes);
    /* Begin job on s and return 0; call engine_done(s, error) later from any thread (it wakes the loop). Or do it at
     * once, when that takes microseconds: ENGINE_DONE_HERE, with s->error and s->t_done_ns set. A negative errno: it did
     * not begin. */
    int (*launch)(engine *e, slot *s, nct_why *why);

    /* The rest may be NULL. What a slot needs beside its memory (device twins, a stream, events), and back. */
    int (*slot_open)(engine *e, slot *s, nct_why *why);
    void (*slot_close)(engine *e, slot *s);
    /* Workspace where the kernels run. NULL: alloc and release. */
    void *(*work_alloc)(engine *e, size_t bytes, nct_why *why);
    void (*work_release)(engine *e, void *p, size_t bytes);
    /* After engine_done(s, 0), on the loop thread: may the results be believed? Else a negative errno. */
    int (*verify)(engine *e, slot *s);
    /* May the device still touch the memory of the slot's last batch? Any time after a fault. */
    bool (*busy)(const slot *s);
} engine_ops;
extern const engine_ops engine_cpu_ops;
extern const engine_ops engine_cuda_ops; /* only in builds with CUDA */

typedef struct {
    uv_loop_t *loop;
    const struct config *cfg; /* engine.*, batch.max_frames, limits.max_frame_bytes; read by engine_new alone */
    arena *out;
    batcher *batcher;
    batch_sink done;      /* publisher_push: batches in launch order per (engine, model) */
    frame_sink copied_in; /* called when a row's payload was copied into the slot (flow.md 7): gives `in`
                             back; the frame stays the engine's */
    nct_layer *(*layer_of)(const struct generation *g, int32_t device); /* generation_layer */
    /* Generations of one model, by an address they share: their batches are handed over in order of launch, so a
     * stream's order outlives a reload. NULL: each generation stands for itself. */
    const void *(*model_of)(const struct generation *g);
    void (*bind)(struct stream *s, engine *e); /* frames of s are in this engine from now on; called for each frame */
    void (*wake)(void *ctx);                   /* from the loop's async: a batch is done, engine_turn() has work */
    void *wake_ctx;
    /* The engine latched (engine_latch), its batches have their errors: take over (engine_take_over), or end. From
     * engine_turn. NULL: stays latched. */
    void (*failed)(void *ctx, engine *e, const char *why);
    void *failed_ctx;
    int32_t index;  /* 0 .. engines-1 */
    int32_t device; /* -1 CPU, else CUDA ordinal */
} engine_setup;

typedef struct {
    char device[64];                                   /* "NVIDIA H200 sm_90"; empty: the CPU */
    size_t pinned_bytes, unpinned_bytes, device_bytes; /* host memory that CUDA registered, and refused to */
} engine_facts;
const engine_facts *engine_about(const engine *e);

/* -EINVAL: slot_bytes cannot hold one frame of max_frame_bytes in or out, or too few slots (names the keys);
 * -ENOMEM; and what the backend says. */
int engine_new(engine **ret, const engine_ops *ops, const engine_setup *setup, nct_why *why);
/* Nothing in flight. The handle of the async closes through the loop: run it once more before it is closed.
 */
void engine_free(engine *e);
/* Workspace for every batch of this layer, in every slot (those in flight: when they come back). At start for
 * each model, and by a reload before its swap. Loop thread. -ENOMEM, -EINVAL. */
int engine_reserve(engine *e, nct_layer *l, const nct_params *p, nct_why *why);
/* Bytes that engine_reserve takes in each slot for this layer. */
int engine_workspace(
    const struct config *c, nct_layer *l, const nct_params *p, int32_t n_workers, size_t *ret_bytes, nct_why *why);
/* A fault that no later success can be believed after (design.md §8): from now on every batch of this engine fails
 * with -EIO, also those that are computed but not handed over. Backends, loop thread; the backend calls engine_done
 * for what runs. */
void engine_latch(engine *e, const char *why);
bool engine_latched(const engine *e);
const char *engine_fault(const engine *e); /* why it is latched; NULL: it is not */
/* A latched engine goes on with the CPU backend, its slots and its streams; results carry WIRE_CPU_FALLBACK. Models
 * must be there for device -1. Memory that the device may still write to is not used again. On failure it stays
 * latched. Only from engine_setup.failed. */
int engine_take_over(engine *e, nct_why *why);
/* Gives back arena pages that a latched device has stopped touching. */
void engine_lost_turn(engine *e);
/* One turn: collect what is done, fill slots (at most 2 MiB of rows), launch. True while there is more to do
 * at once. */
bool engine_turn(engine *e, uint64_t now_ns);
/* The publisher copied every small and every ROW_SLOT row of the batch: the slot is free, the batch's memory
 * too. */
void engine_batch_end(engine *e, batch *b);
uint32_t engine_in_flight(const engine *e); /* batches between take and done */
uint64_t engine_finished(const engine *e);  /* batches so far that came to their end, good or bad */
int32_t engine_index(const engine *e);
const char *engine_name(const engine *e); /* the backend's */
int32_t engine_workers(const engine *e);
int32_t engine_device(const engine *e); /* -1 CPU */
void engine_done(slot *s, int error);   /* any thread; backends only */
#endif
