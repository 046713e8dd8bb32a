/* frames.h: the frame table: every frame from its admission to its outcome. Its count is the ledger's `in_flight`.
 * A request id is taken from admission to outcome; the place in the window and the result's charge last longer, until
 * the answer was let go of (answer.h). Loop thread. */
#ifndef NCTD_FRAMES_H
#define NCTD_FRAMES_H
#include "frame.h"
#include "ledger.h"
#include "map.h"
#include "session.h"
#include "stream.h"

typedef struct frames {
    map by_request;
    uint32_t n;
    uint64_t order; /* admission numbers */
    frame *spare;
    ledger *counts;
    sessions *ss;
    streams *streams;
} frames;

int frames_init(frames *t, ledger *counts, sessions *ss, streams *streams);
void frames_done(frames *t); /* none may be left */
bool frames_have(const frames *t, const session *s, uint64_t request_id);
/* An admitted frame: session and model are counted references, in_bytes, out_bytes and its place are the session's
 * charges already; the caller fills the rest. NULL without memory (nothing was counted). */
frame *frames_add(
    frames *t, session *s, struct generation *g, uint64_t request_id, size_t in_bytes, size_t out_bytes);
/* engine_setup.copied_in, a frame_sink with ctx = frames: the payload and its charge go back. */
void frames_copied_in(void *ctx, frame *f);
/* The one way a frame ends: counts its outcome, gives back what it still holds (payload, charges, place, references).
 * Rows in the arena or a cell are the caller's to give back before. */
void frames_end(frames *t, frame *f, outcome o);
#endif
