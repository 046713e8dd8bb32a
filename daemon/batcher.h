/* batcher.h: what goes together, and when (flow.md 9-13). Pure: no socket, no clock of its own; time is an argument,
 * so overload, fairness and deadlines are tested in virtual time. Loop thread. */
#ifndef NCTD_BATCHER_H
#define NCTD_BATCHER_H
#include "frame.h"

typedef struct batcher batcher;
typedef struct {
    uint32_t max_frames, max_delay_us;
    size_t slot_bytes; /* room of a slot, in and out, counted with batcher_row_room() */
} batcher_limits;

int batcher_new(batcher **ret, const batcher_limits *limits);
void batcher_free(batcher *b); /* must be empty */
void batcher_set_limits(batcher *b, const batcher_limits *limits);

/* Takes an admitted frame (f->model, f->stream, f->engine, kind and geometry set). */
void batcher_push(batcher *b, frame *f);

/* The engine asks on behalf of a free slot: `busy` says whether it has a batch in flight. Fills frames[] (room
 * max_frames) with the due batch whose oldest frame is oldest over all queues bound to this engine, and returns its
 * size, 0 when nothing is due. The frames are the caller's then. */
int32_t batcher_take(batcher *b, struct engine *e, bool busy, uint64_t now_ns, frame **frames, close_cause *ret_cause);

/* Frames past their ttl, in order of expiry, to `sink` (rule 10), slot or no slot. */
void batcher_expire(batcher *b, uint64_t now_ns, frame_sink sink);
/* Every queued frame of a session that is gone / of everything, to `sink`. */
void batcher_drop_session(batcher *b, const struct session *s, frame_sink sink);
/* All queues of this generation (NULL: of all) are due from now on until empty. */
void batcher_flush(batcher *b, const struct generation *model);
/* Monotonic ns of the earliest batch deadline or ttl; UINT64_MAX when none. For the one timerfd. */
uint64_t batcher_next_ns(const batcher *b);
uint32_t batcher_queued(const batcher *b);
#endif
