/* batcher_queue.h: inside the batcher: who waits for what. Loop thread.
 *
 *     queue (a generation) --< lane (a kind, an engine or none) --< member (a session in it) --< streams, in turn
 *     stream: its frames in admission order. The first ones of one (generation, kind) are its run: only they can be
 *             taken now, the others are held back. A stream stands in the lane of its run.
 *
 * All nodes come from one pool that is made large enough when a frame is pushed, so nothing later can fail. */
#ifndef NCTD_BATCHER_QUEUE_H
#define NCTD_BATCHER_QUEUE_H
#include "batcher.h"
#include "map.h"

typedef struct ring {
    struct ring *next, *prev; /* circular, with a head that is no item */
} ring;

typedef struct queue {
    map_link link; /* of its model */
    ring all;      /* in batcher.queues */
    const struct generation *model;
    struct lane *lanes;
    uint32_t n_frames; /* held back ones included */
    bool flush;
} queue;
typedef struct lane {
    struct lane *next;
    queue *q;
    int32_t x_dtype, y_dtype, norm;
    bool observe;
    struct engine *engine; /* NULL: streams that are not bound yet */
    heap streams;          /* by the admission number of their first frame */
    ring members;          /* the next in turn first */
    uint32_t n_frames;
    size_t in, out; /* slot room of its frames */
} lane;
typedef struct member {
    map_link link; /* (lane, session) */
    ring turn;     /* in lane.members */
    uint64_t stamp;
    ring streams; /* the next in turn first */
} member;
typedef struct bsession {
    map_link link; /* of its session */
    ring streams;
} bsession;
typedef struct bstream {
    map_link link; /* of its stream */
    ring turn;     /* in member.streams */
    ring owned;    /* in bsession.streams */
    heap_node oldest;
    const struct session *session;
    bsession *owner;
    struct engine *engine;
    lane *lane; /* NULL while it is moved */
    member *member;
    frame *first, *last, *run_last;
    uint32_t run_n;
    size_t run_in, run_out;
} bstream;
typedef union node {
    union node *free_next;
    queue q;
    lane l;
    member m;
    bsession s;
    bstream st;
} node;

struct batcher {
    batcher_limits limits;
    uint64_t now_ns, turn, closed[CLOSE_CAUSES];
    uint32_t n_frames;
    ring queues;
    heap ttl; /* frames, by t_expire_ns */
    map queues_of, sessions_of, streams_of, members_of;
    node *free;
    struct chunk *chunks;
    size_t n_nodes, n_streams, n_queues;
};

int bq_init(batcher *b);
void bq_done(batcher *b);
/* 0, or -ENOMEM and nothing changed. */
int bq_push(batcher *b, frame *f);
/* Takes f out of its stream, whichever place it has; its queue may be empty afterwards: bq_sweep(). */
void bq_remove(batcher *b, frame *f);
/* The stream's first frame, for engine e: binds the stream, and sends it and its session to the end of their turns. */
frame *bq_pop(batcher *b, bstream *st, struct engine *e);
void bq_sweep(batcher *b, queue *q); /* frees q if it is empty */
queue *bq_queue(const batcher *b, const struct generation *model);
bsession *bq_session(const batcher *b, const struct session *s);
/* The lane of this kind and engine, or NULL. */
lane *bq_lane(queue *q, const lane *kind, const struct engine *e);
static inline bstream *bq_oldest(const lane *l) {
    return heap_item(l->streams.top, bstream, oldest);
}
#endif
