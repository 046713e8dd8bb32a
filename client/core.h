/* core.h: what the files of libnct share: the handle, frames without an answer, answers not taken yet.
 *
 *     nct.c            handles' getters, options, fork check, open and close
 *     core.c           one turn: news of the connection, messages, HELLO, resending, PING
 *     core_answer.c    what a message from the daemon means
 *     core_welcome.c   WELCOME's JSON        core_path.c      why an ipc path cannot be reached
 *     nct_keys.c       CURVE keys, new and from files (keyfile.c)
 *     nct_send.c nct_recv.c nct_stream.c   the public calls
 *     wake.c           the pollable fd        zsock_link.c   ZeroMQ
 *
 * Everything runs on the thread that called in. */
#ifndef NCT_CORE_H
#define NCT_CORE_H
#include "nct.h"
#include "wake.h"
#include "wire.h"
#include "zsock_link.h"

#include <stdbool.h>
#include <sys/types.h>

#define CORE_IN_FLIGHT_MAX 64  /* WELCOME's windows end there */
#define CORE_READY_MAX     512 /* with unasked CLOSED; those beyond are dropped */
#define CORE_STREAMS_MAX   4096

/* What is remembered of a stream: opened ones, and those of stream-mode models. */
typedef struct stream {
    struct stream *next;
    char model[WIRE_NAME_MAX + 1], name[WIRE_NAME_MAX + 1];
    char *facts;       /* OPEN's JSON, NULL: never opened */
    uint64_t last_seq; /* last one answered without error */
    int stateful;      /* of a stream-mode model */
    int stale;         /* its state in the daemon is gone */
    int open_sent;     /* OPEN went out in the present session */
} stream;

/* A frame without an answer. */
typedef struct {
    wire_header h;
    char topic[WIRE_TOPIC_MAX + 1];
    size_t topic_len;
    zlink_part payload; /* the copy to send again */
    uint64_t tag;
    stream *state; /* stream-mode models; NULL: frame mode */
    int sent;      /* in the present session */
    int forgotten; /* nobody wants its answer */
    int lost;      /* times the daemon did not know its session */
} pending;

/* An answer and what it borrows from. */
typedef struct held {
    struct held *next;
    nct_answer answer;
    zlink_part payload;
    char model[WIRE_NAME_MAX + 1], stream[WIRE_NAME_MAX + 1];
    char text[]; /* NUL-terminated */
} held;

/* OPEN, CLOSE or PING that a call waits for. */
typedef struct {
    uint64_t id;
    uint8_t kind;
    int sent, done, status;
    uint32_t epoch;
} control;

typedef enum { CORE_CONNECTING, CORE_GREETING, CORE_LIVE } core_phase;

struct nct {
    pid_t pid;
    nct_options o;
    char endpoint[256], name[WIRE_NAME_MAX + 1], reason[256];
    zlink *link;
    core_phase phase;
    int leaving; /* GOAWAY: no new frames until the next session */
    int blocked; /* the last send met no connection */
    int gone;    /* the daemon does not know the session: to be renewed at the end of the turn */
    int refusal; /* the daemon's last answer to HELLO, a negative errno */
    uint64_t session, next_id, hello_id, ping_id, reconnects;
    uint32_t window;
    int64_t heard_ns, pinged_ns, hello_after_ns, leave_ns; /* CLOCK_MONOTONIC; pinged_ns 0: no PING out */
    int64_t retry_ns;                                      /* a refused handshake is tried again then; 0: none was */
    char *welcome;
    size_t welcome_bytes;
    uint64_t max_frame_bytes; /* UINT64_MAX: WELCOME does not say */
    char **stateful_models;   /* names, NULL at the end */
    stream *streams;
    uint32_t n_streams;
    pending *flight[CORE_IN_FLIGHT_MAX]; /* by rising request id */
    uint32_t n_flight;
    held *ready, **ready_end;
    uint32_t n_ready;
    control *waiting; /* at most one: calls do not nest */
    wake *wake;       /* NULL until nct_fd() */
};

int64_t core_now_ns(void);
/* Format the handle's sentence; returns error. */
int core_reason(nct *c, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* True, with a sentence, when the file system keeps this process from the endpoint's ipc path. */
bool core_path_denied(const char *endpoint, char *ret_text, size_t size);
int core_owned(nct *c); /* 0, or -EINVAL in a forked child */

/* Read what is there, keep the session going; waits for nothing. 0 or a negative errno that ends the call. */
int core_turn(nct *c);
/* Wait for something to happen until deadline_ns (INT64_MAX: none). 0, -ETIMEDOUT or -EINTR. */
int core_wait(nct *c, int64_t deadline_ns);
int64_t core_deadline(int timeout_ms); /* -1: INT64_MAX */
int64_t core_due_ns(const nct *c);     /* when the session needs a turn by itself; INT64_MAX: never */
int core_send_header(nct *c, uint8_t kind, uint64_t id, const char *topic, const char *json);
int core_send_frame(nct *c, pending *p); /* 0, or -EAGAIN: no connection */
/* The session is gone: new connection, unanswered frames kept or answered -ESTALE. */
int core_lost(nct *c, const char *why);
void core_leave(nct *c, int64_t drain_ms);
int core_wanted(const nct *c); /* frames in flight whose answer somebody wants */
void core_sync(nct *c);        /* before a public call returns: the pollable fd tells the truth */

void core_message(nct *c, zlink_message *m);
int core_payload_fits(const wire_header *h, uint64_t bytes); /* as long as its header says; dtype 0: empty */
nct_answer core_answer(const wire_header *h);
/* An answer with what it borrows from; takes the payload (may be NULL). NULL: no memory. nct_release() frees it. */
held *core_held(
    const nct_answer *a, zlink_part *payload, const char *topic, size_t topic_len, const char *text, size_t text_len);
/* The same at the end of the list; takes the payload. -ENOMEM, -ENOBUFS: dropped. */
int core_ready(nct *c, const nct_answer *a, zlink_part *payload, const char *topic, size_t topic_len,
    const char *text, size_t text_len);
held *core_take(nct *c, uint64_t id); /* first, or with id != 0 that one; NULL: none */
void core_local_answer(nct *c, pending *p, int status, const char *text);
pending *core_find(nct *c, uint64_t id);
void core_remove(nct *c, pending *p); /* frees it */

int core_welcome(nct *c, const void *json, size_t len); /* keeps a copy; 0, -EPROTO or -ENOMEM */
void core_welcome_done(nct *c);
int core_stateful(const nct *c, const char *model);
stream *core_stream(nct *c, const char *model, const char *name);
int core_stream_add(nct *c, const char *model, const char *name, stream **ret);
void core_stream_remove(nct *c, stream *s);

/* Check, wait for a place and send; the id stays the same over reconnects. nct_send() and nct_call() stand on it. */
int core_send(nct *c, const nct_request *q, const void *payload, int64_t deadline_ns, uint64_t *ret_id);
#endif
