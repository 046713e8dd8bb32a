/* session.h: one client connection after its HELLO: its window, what it is charged, what it holds.
 *
 * Two pools bound the daemon (flow.md 5-8): `in`, payloads until their row was copied into a slot (queue_bytes), and
 * `out`, results until ZeroMQ let go of them (arena_bytes). A session may take as much of a pool as is still free
 * besides: one alone gets half of it, n get 1/(n+1) each, and a new one always finds room. Pure bookkeeping: no
 * socket, no clock of its own. Loop thread. */
#ifndef NCTD_SESSION_H
#define NCTD_SESSION_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "map.h"

#define SESSION_SLACK 16 /* frames above the window that are admitted: a let-go may be seen late */

struct zpeer;
struct stream;
struct answer;

typedef struct session {
    map_link by_id;
    struct session *next, *prev; /* all live ones */
    struct session *next_failed;
    struct zpeer *peer; /* NULL once gone */
    uint64_t id;
    int32_t refs;
    bool failed;        /* cannot be sent to; ends at the next sessions_reap */
    bool gone;          /* ended; frames and answers may still refer to it */
    uint32_t in_flight; /* places: admitted frames, and their answers until let go of */
    size_t in_bytes, out_bytes;
    double mean_in, mean_out; /* of its frames' charges: a moving mean over about 16 */
    uint32_t n_streams;
    struct stream *streams;
    struct answer *held_first, *held_last; /* in ZeroMQ's hands, oldest first */
    uint32_t n_held;
    uint64_t t_let_go_ns;                               /* it last took an answer */
    uint64_t watched_since_ns, progress, t_progress_ns; /* answer.c's: bytes it takes of the oldest one it holds */
    char client[64];                                    /* what HELLO said of itself */
} session;

typedef struct {
    void (*fn)(void *ctx, session *s);
    void *ctx;
} session_sink;

typedef struct {
    uint32_t max_clients, window;
    uint64_t queue_bytes, arena_bytes;
} session_limits;

typedef struct sessions {
    session_limits limits;
    session_sink gone; /* queued frames are dropped and streams ended here */
    map by_id;
    session *first, *failed;
    uint32_t n;
    uint64_t in_used, out_used;
} sessions;

typedef struct {
    char text[256];
} session_why;

int sessions_init(sessions *ss, const session_limits *limits, session_sink gone);
void sessions_done(sessions *ss); /* none may be live */

/* A new session on this connection, under a random id. 0; -EUSERS with a sentence; -ENOMEM. */
int sessions_open(sessions *ss, session **ret, struct zpeer *peer, const char *client, session_why *why);
session *sessions_find(const sessions *ss, uint64_t id);
/* Ends it now: `gone` is called, its connection forgets it. Charges come back as they are let go of. */
void sessions_end(sessions *ss, session *s);
/* For those who find out in the middle of something: it ends at sessions_reap, and session_gone() is true at once. */
void sessions_fail(sessions *ss, session *s);
void sessions_reap(sessions *ss);
static inline bool session_gone(const session *s) {
    return s->gone || s->failed;
}
session *session_ref(session *s); /* returns s */
void session_unref(session *s);

/* flow.md 6. Takes the charges and a place. 0; -EAGAIN (its window) or -ENOBUFS (the pools), with a sentence. */
int session_admit(sessions *ss, session *s, size_t in_bytes, size_t out_bytes, session_why *why);
void session_give_in(sessions *ss, session *s, size_t bytes);
void session_give_out(sessions *ss, session *s, size_t bytes);
void session_give_place(session *s);
/* flow.md 8: the frames it should have in flight from now on, 1 .. window. */
uint32_t session_window(const sessions *ss, const session *s);
/* flow.md 5: what a result of this size is charged. */
size_t session_out_charge(size_t result_bytes);
#endif
