/* answer.h: what a client is told, and what it holds of it. An answer to a frame is tracked from zrouter_send to the
 * let-go callback: until then it keeps its row's memory, its charge and its place in the session's window.
 *
 *     ledger: handed = let_go + cut + held
 *
 * Loop thread; only the let-go list is pushed to from ZeroMQ's threads. */
#ifndef NCTD_ANSWER_H
#define NCTD_ANSWER_H
#include "arena.h"
#include "cells.h"
#include "ledger.h"
#include "letgo.h"
#include "session.h"
#include "wire.h"
#include "zsock.h"

typedef struct answer {
    letgo_node node;            /* first: the let-go list is a list of answers */
    struct answer *next, *prev; /* of its session, oldest first */
    session *session;           /* counted reference */
    uint64_t t_ns;
    size_t out_bytes; /* charge */
    bool placed;
    void *cell;
    size_t cell_bytes;
    uint32_t arena_first, arena_pages;
} answer;

/* Where an answer's payload is: pages of the arena, a cell, or nothing. Taken by answer_send, whatever it returns. */
typedef struct {
    const void *data;
    size_t bytes;
    void *cell;
    size_t cell_bytes;
    uint32_t arena_first, arena_pages;
} answer_row;

typedef struct answers {
    zrouter *router;
    sessions *ss;
    ledger *counts;
    arena *out;
    cells *pool;
    letgo list;
    answer *spare;
    uint32_t held;
    bool
        watches; /* answers_expire looks at the bytes that some session takes: it is to be called often, for what waits on a
                   * unix socket goes up and down, and two looks may see the same */
} answers;

/* wake: called on ZeroMQ's threads when something was let go of. */
int answers_init(answers *a, zrouter *router, sessions *ss, ledger *counts, arena *out, cells *pool,
    void (*wake)(void *ctx), void *wake_ctx);
void answers_done(answers *a); /* after zctx_term and one last answers_turn */
/* The beginning of a turn: what was let go of goes back. */
void answers_turn(answers *a, uint64_t now_ns);

/* The answer to a frame of s. Fills session, window and t_answer_ns of *h. out_bytes and placed are the charge and the
 * place that go over to the answer. 0: handed. -EHOSTUNREACH, -EAGAIN: the session has failed (and is cut); -ENOMEM;
 * then row, charge and place are given back already. */
int answer_send(answers *a, session *s, wire_header *h, const char *topic, size_t topic_bytes, const answer_row *row,
    size_t out_bytes, bool placed, uint64_t now_ns);
/* An ERROR to a frame: the sentence goes into a cell. */
int answer_error(answers *a, session *s, wire_header *h, const char *topic, size_t topic_bytes, int error,
    const char *sentence, size_t out_bytes, bool placed, uint64_t now_ns);
/* Anything else (WELCOME, PONG, ERROR without a session, ...): copied, not tracked. A peer that cannot be sent to is
 * cut, its session fails. */
void answer_plain(answers *a, zpeer *p, wire_header *h, const char *topic, const void *payload, size_t bytes,
    const zenvelope *envelope);
/* flow.md 20: cuts sessions that have taken none of what they hold for stall_ms. */
void answers_expire(answers *a, uint64_t now_ns, uint32_t stall_ms);
void answer_row_free(answers *a, const answer_row *row);
#endif
