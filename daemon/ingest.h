/* ingest.h: the front door: everything clients send.
 *
 * Every message is admitted, answered or refused in the turn that reads it; the ROUTER is never left unread for want of
 * room (flow.md 2): "full" travels back as the window. Errors are answers: the code, the request's ids, one sentence
 * that names the numbers at fault; the next good frame is served. Loop thread. */
#ifndef NCTD_INGEST_H
#define NCTD_INGEST_H
#include "answer.h"
#include "config.h"
#include "frames.h"
#include "guard.h"
#include "models.h"
#include "session.h"
#include "stream.h"
#include "welcome.h"
#include "zsock.h"

#define INGEST_TURN_MESSAGES 64
#define INGEST_TURN_NS       2000000u
#define INGEST_FAULTS        1000 /* refusals in a row for its own faults: cut */

typedef struct ingest {
    const config *cfg;
    zrouter *router;
    sessions *ss;
    streams *streams;
    frames *frames;
    models *models;
    answers *answers;
    cells *pool;
    ledger *counts;
    welcome *facts;
    const guard *guard;
    frame_sink next;                               /* streams_push */
    void (*flush)(void *ctx, const generation *g); /* CLOSE: what is queued of this model goes now */
    void *flush_ctx;
    struct hello *waiting; /* HELLOs that came before READY */
    bool ready, draining;
    uint64_t now_ns, t_identity_log_ns;
} ingest;

/* Reads at most INGEST_TURN_MESSAGES or INGEST_TURN_NS. */
void ingest_turn(ingest *in, uint64_t now_ns);
/* READY: the HELLOs that waited get their WELCOME. */
void ingest_ready(ingest *in);
/* GOAWAY to every session; from now on new frames and HELLOs are -ESHUTDOWN, and everything is still read. */
void ingest_goaway(ingest *in, uint32_t drain_ms);
/* zpeer_sink of the router, ctx = ingest: its session ends. */
void ingest_peer_gone(void *ctx, zpeer *p);
/* stream_sink, ctx = ingest: CLOSED to the owner. */
void ingest_stream_closed(void *ctx, stream *s, int status, const char *sentence);
void ingest_done(ingest *in);
#endif
