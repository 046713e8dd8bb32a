/* ingest_own.h: what the ingest files share. */
#ifndef NCTD_INGEST_OWN_H
#define NCTD_INGEST_OWN_H
#include "ingest.h"

/* A message of three parts with a readable header. */
typedef struct {
    zpeer *peer;
    zbuf *topic, *payload;
    wire_header h;
} request;

/* ERROR to a request that is no frame of a live session, or to a message of the wrong shape (r NULL: ids unknown).
 * `topic` is "model/stream/" or "". Counts the fault; may cut the peer. */
void ingest_error(ingest *in, zpeer *p, const wire_header *h, const char *topic, int error, const char *sentence,
    const zenvelope *envelope);
/* The answer of this kind, with the request's ids: copied, not tracked. */
void ingest_reply(ingest *in, const request *r, wire_kind kind, const char *topic, uint32_t epoch,
    const void *payload, size_t bytes);
/* Its own fault: 1000 in a row cut it. EAGAIN, ENOBUFS, EUSERS and ESHUTDOWN are nobody's. */
void ingest_fault(ingest *in, zpeer *p, int error);
/* The session of this connection if the header names it, else NULL and the -ESTALE was sent. */
session *ingest_session(ingest *in, const request *r);

void ingest_frame(ingest *in, request *r);
void ingest_hello(ingest *in, const request *r);
void ingest_open(ingest *in, const request *r);
void ingest_close(ingest *in, const request *r);
void ingest_ping(ingest *in, const request *r);
#endif
