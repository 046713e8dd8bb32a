/* frame.h: one admitted frame on its way, and the batch that carries it. The facts every stage shares.
 *
 * A frame is made by ingest, owned by exactly one stage at a time (ingest -> stream -> batcher -> engine -> publisher)
 * and ended by the publisher or by whoever drops it, with exactly one outcome in the ledger. Loop thread only. */
#ifndef NCTD_FRAME_H
#define NCTD_FRAME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "heap.h"
#include "map.h"
#include "nct_layer.h"
#include "wire.h"

struct session;    /* session.h: one client connection after its HELLO */
struct stream;     /* stream.h: one model/stream name and its facts */
struct generation; /* models.h: one model with its weights, as one reload made it */
struct engine;     /* engine.h */
struct slot;       /* engine.h */

/* Bytes that came from, or will go to, ZeroMQ; opaque here (zsock.h). */
typedef struct zbuf {
    _Alignas(8) unsigned char opaque[64];
    const void *data; /* any alignment */
    size_t bytes;
    int kind; /* zsock's: 0 none, message, pooled cell */
} zbuf;

/* Where a result's bytes are. ARENA: pages of the out arena. SLOT: the slot's own out buffer (arena was full):
 * the publisher must copy before the slot is free. CELL: the publisher did, into a pooled cell. */
typedef enum { ROW_NONE, ROW_ARENA, ROW_SLOT, ROW_CELL } row_place;

typedef struct frame {
    struct frame *next, *prev;  /* the queue of the stage that holds it */
    struct session *session;    /* counted reference: outlives its connection (session_gone() tells) */
    struct stream *stream;      /* counted reference */
    struct generation *model;   /* counted reference: the generation that admitted it */
    map_link by_request;        /* the frame table's: (session, request id) */
    bool placed;                /* it holds a place in its session's window; an answer takes that over */
    wire_header h;              /* the request, as received */
    zbuf payload;               /* until its row was copied into a slot */
    size_t in_bytes, out_bytes; /* the charges (flow.md 5) */
    int32_t x_dtype, y_dtype,
        norm; /* its kind: the layer's input dtype (i32, f64 become f32), result dtype, nct_norm;
                                       OBSERVE is norm OWN with `observe` */
    bool observe;
    int32_t t_in, t_out, pad_left, pad_right;
    int32_t c_in, c_out,
        n_groups;         /* the model's, set at admission: batcher and engine size rows from the frame alone */
    heap_node ttl;        /* the batcher's */
    uint64_t t_read_ns;   /* monotonic: read by ingest */
    uint64_t t_expire_ns; /* 0: no ttl */
    uint64_t t_launch_ns, t_done_ns;
    uint64_t order;        /* admission number: rising over all frames */
    struct engine *engine; /* the engine its stream is bound to while it has frames in flight; NULL on the way
                                       to the batcher: none yet, the first take binds (engine_setup.bind tells the stream) */
    /* the result */
    int error; /* 0, or negative errno: then why says it */
    char why[128];
    uint32_t result_flags; /* WIRE_CPU_FALLBACK, ... */
    uint32_t saw;          /* NCT_SAW_* */
    row_place place;
    void *y; /* t_out * C_out samples of y_dtype, or G x nct_stat with OBSERVE */
    size_t y_bytes;
    uint32_t arena_first,
        arena_pages; /* ROW_ARENA: its pages, the frame's until let go. arena_pages 0: a small row in
                                          pages that the batch owns; the publisher copies it before engine_batch_end */
} frame;

typedef struct {
    void (*fn)(void *ctx, frame *f); /* takes the frame */
    void *ctx;
} frame_sink;

typedef enum { CLOSE_FULL, CLOSE_DEADLINE, CLOSE_IDLE, CLOSE_FLUSH, CLOSE_CAUSES } close_cause;

/* Frames of one (model generation, kind), in one slot. Owned by engine from batcher's close to publisher's end. */
typedef struct batch {
    struct batch *next;
    struct engine *engine;
    struct slot *slot;
    struct generation *model;
    close_cause cause;
    uint64_t t_take_ns; /* it left the queue */
    int32_t n_frames;
    frame **frames;                  /* [n_frames], room for batch.max_frames; row n of the launch */
    int error;                       /* of the launch: then every frame's error is set too */
    uint32_t tail_first, tail_pages; /* arena pages shared by its small rows; engine_batch_end gives them back */
    bool done;                       /* the engine's: computed, waits for its turn */
} batch;

typedef struct {
    void (*fn)(void *ctx, batch *b); /* takes the batch and its frames */
    void *ctx;
} batch_sink;
#endif
