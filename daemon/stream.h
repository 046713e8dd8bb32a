/* stream.h: per-stream facts: who owns it, its epoch, its last seq, the engine its frames are in.
 *
 *     FRAME or OPEN -> streams_check -> (request id, admission) -> streams_open if it is new -> streams_push -> batcher
 *
 * A stream belongs to the session that first used its name. Each opening gets a new epoch. CLOSE takes the name away
 * at once, so that it can be opened again; CLOSED follows when the last of its frames has its answer. Frames hold
 * counted references. Frame mode only. Loop thread. */
#ifndef NCTD_STREAM_H
#define NCTD_STREAM_H
#include <jansson.h>
#include "frame.h"
#include "ledger.h"
#include "map.h"
#include "models.h"
#include "session.h"

typedef struct stream {
    map_link by_name;
    struct stream *next, *prev; /* of its session */
    struct session *owner;      /* NULL once it ended */
    served *of;
    struct engine *engine; /* where its frames are; NULL while it has none in flight */
    json_t *facts;         /* of OPEN; may be NULL */
    char name[WIRE_NAME_MAX + 1], topic[WIRE_TOPIC_MAX + 1];
    size_t topic_bytes;
    int32_t refs;
    uint32_t epoch, in_flight;
    bool named;                           /* reachable by its name */
    bool seen, published;                 /* a frame was admitted / given to PUB */
    uint64_t seq, published_seq;          /* its highest */
    uint64_t n_frames, n_gaps, n_missing; /* admitted; how often seqs were missing before one, and how many */
    bool closing;                         /* CLOSED is due when in_flight is 0 */
    uint64_t close_request;               /* the request it answers; 0: none asked */
    int close_status;                     /* of that CLOSED, */
    char *close_why;                      /* and its sentence; NULL: none */
    uint64_t t_used_ns;
} stream;

typedef struct {
    /* Tell the owner that s ended: status 0 (after CLOSE) or why. */
    void (*fn)(void *ctx, stream *s, int status, const char *sentence);
    void *ctx;
} stream_sink;

typedef struct streams {
    map by_name;
    uint32_t n, max, max_session, last_epoch;
    ledger *counts;
    stream_sink closed;
    frame_sink next; /* batcher */
} streams;

int streams_init(streams *t, uint32_t max, uint32_t max_session, ledger *counts, stream_sink closed, frame_sink next);
void streams_done(streams *t); /* no session may be left */

stream *streams_find(const streams *t, const char *topic, size_t len); /* by name; NULL: not open */
/* May session s use this topic with this epoch (0: current or new)? *ret is the open stream, NULL when one would be
 * opened. 0; -EBUSY another's; -ESTALE the epoch; -EUSERS too many. */
int streams_check(
    streams *t, const session *s, const char *topic, size_t len, uint32_t epoch, stream **ret, session_why *why);
/* Opens it; an open one of that name must be this session's, and is let go without a word. 0 or -ENOMEM. */
int streams_open(streams *t, session *s, served *of, const char *name, uint64_t now_ns, stream **ret);
/* CLOSE: `closed` is called now or when its last frame has its answer. */
void streams_close(streams *t, stream *s, uint64_t request_id);
/* The daemon's own CLOSE, with this status and sentence. One that closes already goes on as it is. */
void streams_drop(streams *t, stream *s, int status, const char *sentence);
void streams_end_session(streams *t, session *s);
/* Ends those without a frame for idle_s, with CLOSED. */
void streams_expire(streams *t, sessions *ss, uint64_t now_ns, uint32_t idle_s);

void streams_push(void *ctx, frame *f);         /* frame_sink: f->stream is set and counted */
void streams_bind(stream *s, struct engine *e); /* engine_setup.bind */
/* A stream may say its rate: 0, or -EINVAL with a sentence when it is no number above 0, or not the model's, if that has
 * one. facts may be NULL. */
int stream_facts_fit(const json_t *facts, const served *of, char *why, size_t size);
void stream_frame_ended(streams *t, stream *s); /* the frame table's; gives the frame's reference back */
#endif
