/* batcher.h: what goes together, and when (flow.md 9-13). Pure: no socket, no clock of its own; time is an
 * argument, so overload, fairness and deadlines are tested in virtual time. Loop thread. */
#ifndef NCTD_BATCHER_H
#define NCTD_BATCHER_H
#include "frame.h"

#define BATCH_FRAMES_MAX 4096 /* batch.max_frames' upper bound in config.def */

typedef struct batcher batcher;
typedef struct {
    uint32_t max_frames, max_delay_us;
    size_t slot_bytes; /* room of a slot, in and out, counted with rows_in_room() and rows_out_room() (rows.h) */
} batcher_limits;

int batcher_new(batcher **ret, const batcher_limits *limits);
void batcher_free(batcher *b); /* must be empty */
void batcher_set_limits(batcher *b, const batcher_limits *limits);

/* Takes an admitted frame (session, stream, model, engine, kind, geometry, times and order set; order rises
 * from push to push). f->engine NULL: any engine may take it, and the take binds: while frames of one stream
 * are queued, all of them go to the engine that took the first. 0, or -ENOMEM: then the frame is still the
 * caller's (answer -ENOBUFS). */
int batcher_push(batcher *b, frame *f);

/* The engine asks on behalf of a free slot: `busy` says whether it has a batch in flight. Fills frames[]
 * (room BATCH_FRAMES_MAX) with the due batch whose oldest frame is oldest over all queues bound to this
 * engine, and returns its size, 0 when nothing is due. Sessions in turn, and each session's streams in turn. Sets engine in every frame. The frames are the caller's then. `now_ns`
 * never goes back from call to call. */
int32_t batcher_take(
    batcher *b, struct engine *e, bool busy, uint64_t now_ns, frame **frames, close_cause *ret_cause);

/* Frames past their ttl, in order of expiry, to `sink` (rule 10), slot or no slot. */
void batcher_expire(batcher *b, uint64_t now_ns, frame_sink sink);
/* Every queued frame of a session that is gone / of everything, to `sink`. */
void batcher_drop_session(batcher *b, const struct session *s, frame_sink sink);
/* All queues of this generation (NULL: of all) are due from now on until empty. */
void batcher_flush(batcher *b, const struct generation *model);
/* Monotonic ns of the earliest batch deadline or ttl later than the last now_ns seen; UINT64_MAX when none.
 * For the one timerfd: what is due already waits for a slot, whose completion wakes the loop, and must not
 * make the timer spin. */
uint64_t batcher_next_ns(const batcher *b);
uint32_t batcher_queued(const batcher *b);
uint64_t batcher_closed(const batcher *b, close_cause cause); /* batches so far that closed for it */
#endif
