/* answer.c: see answer.h. Owns answers in ZeroMQ's hands and the let-go list. Called by the publisher (results), ingest
 * (refusals, control) and the loop (turn, expire). Does not decide what to answer. */
#include "answer.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "error.h"
#include "log.h"

int answers_init(answers *a, zrouter *router, sessions *ss, ledger *counts, arena *out, cells *pool,
    void (*wake)(void *ctx), void *wake_ctx) {
    *a = (answers){.router = router,
        .ss = ss,
        .counts = counts,
        .out = out,
        .pool = pool,
        .list = {.wake = wake, .ctx = wake_ctx}};
    return 0;
}

void answers_done(answers *a) {
    assert(!a->held);
    for (answer *n = a->spare, *after; n; n = after) {
        after = n->next;
        free(n);
    }
}

void answer_row_free(answers *a, const answer_row *row) {
    cells_give(a->pool, row->cell, row->cell_bytes);
    if (row->arena_pages) arena_give(a->out, row->arena_first, row->arena_pages);
}

/* Everything an answer keeps goes back. */
static void release(answers *a, answer *n) {
    answer_row_free(a, &(answer_row){.cell = n->cell,
                           .cell_bytes = n->cell_bytes,
                           .arena_first = n->arena_first,
                           .arena_pages = n->arena_pages});
    session_give_out(a->ss, n->session, n->out_bytes);
    if (n->placed) session_give_place(n->session);
    session_unref(n->session);
    n->next = a->spare;
    a->spare = n;
}

static void held_add(answers *a, answer *n) {
    session *s = n->session;
    n->next = NULL;
    n->prev = s->held_last;
    if (n->prev)
        n->prev->next = n;
    else
        s->held_first = n;
    s->held_last = n;
    a->held++;
    s->n_held++;
}

static void held_remove(answers *a, answer *n) {
    session *s = n->session;
    if (n->prev)
        n->prev->next = n->next;
    else
        s->held_first = n->next;
    if (n->next)
        n->next->prev = n->prev;
    else
        s->held_last = n->prev;
    a->held--;
    s->n_held--;
}

void answers_turn(answers *a, uint64_t now_ns) {
    for (letgo_node *node = letgo_take(&a->list), *after; node; node = after) {
        answer *n = (answer *)node;
        after = node->next;
        n->session->t_let_go_ns = now_ns;
        ledger_count(a->counts, n->session->gone ? COUNT_cut : COUNT_let_go);
        held_remove(a, n);
        release(a, n);
    }
}

static answer *take(answers *a) {
    answer *n = a->spare;
    if (n)
        a->spare = n->next;
    else
        n = malloc(sizeof *n);
    return n;
}

static int64_t unix_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* No room for one more means that this peer has stopped reading for long: nobody waits for it (flow.md 17). */
static void send_failed(answers *a, zpeer *p, session *s, int error) {
    if (error == -EAGAIN && p) {
        if (!p->cut) log_warning("client cut: no room for one more answer client=%s", s ? s->client : "");
        zrouter_cut(a->router, p, CUT_full);
    }
    /* One that has left and still has frames to be read: they are received first, and then end with it. libzmq knows it
     * before its monitor was read. */
    bool leaves = p && (p->left || (error == -EHOSTUNREACH && p->fd >= 0));
    if (s && !leaves) sessions_fail(a->ss, s);
}

int answer_send(answers *a, session *s, wire_header *h, const char *topic, size_t topic_bytes, const answer_row *row,
    size_t out_bytes, bool placed, uint64_t now_ns) {
    unsigned char header[WIRE_HEADER_BYTES];
    answer *n = take(a);
    int error = n ? -EHOSTUNREACH : -ENOMEM;
    if (!n) {
        answer_row_free(a, row);
        session_give_out(a->ss, s, out_bytes);
        if (placed) session_give_place(s);
        return error;
    }
    *n = (answer){.node.list = &a->list,
        .session = session_ref(s),
        .t_ns = now_ns,
        .out_bytes = out_bytes,
        .placed = placed,
        .cell = row->cell,
        .cell_bytes = row->cell_bytes,
        .arena_first = row->arena_first,
        .arena_pages = row->arena_pages};
    h->session = s->id;
    h->window = session_window(a->ss, s);
    h->t_answer_ns = unix_now_ns();
    wire_write(header, h);
    zout m = {.topic = topic,
        .topic_bytes = topic_bytes,
        .header = header,
        .header_bytes = sizeof header,
        .payload = row->data,
        .payload_bytes = row->bytes,
        .node = &n->node};
    held_add(a, n);
    if (!session_gone(s)) error = zrouter_send(a->router, s->peer, &m);
    if (!error) {
        ledger_count(a->counts, COUNT_handed);
        return 0;
    }
    send_failed(a, s->peer, s, error);
    held_remove(a, n);
    release(a, n);
    return error;
}

int answer_error(answers *a, session *s, wire_header *h, const char *topic, size_t topic_bytes, int error,
    const char *sentence, size_t out_bytes, bool placed, uint64_t now_ns) {
    size_t bytes = strlen(sentence);
    answer_row row = {.bytes = bytes, .cell = cells_take(a->pool, bytes), .cell_bytes = bytes};
    row.data = row.cell;
    if (row.cell)
        memcpy(row.cell, sentence, bytes);
    else
        row.bytes = row.cell_bytes = 0;
    h->kind = WIRE_ERROR;
    h->dtype = h->want = 0;
    h->status = error_to_wire(error);
    return answer_send(a, s, h, topic, topic_bytes, &row, out_bytes, placed, now_ns);
}

void answer_plain(answers *a, zpeer *p, wire_header *h, const char *topic, const void *payload, size_t bytes,
    const zenvelope *envelope) {
    unsigned char header[WIRE_HEADER_BYTES];
    session *s = p->session;
    if (s && !h->session) h->session = s->id;
    h->window = s ? session_window(a->ss, s) : 0;
    h->t_answer_ns = unix_now_ns();
    wire_write(header, h);
    zout m = {.topic = topic,
        .topic_bytes = strlen(topic),
        .header = header,
        .header_bytes = sizeof header,
        .payload = payload,
        .payload_bytes = bytes,
        .envelope = envelope};
    int error = zrouter_send(a->router, p, &m);
    if (error) send_failed(a, p, s, error);
}

/* A session that holds answers and takes one now and then, or bytes of one (a large answer on a slow link), is slow, not
 * stalled. The bytes are looked at from a quarter of stall_ms on: before that, sending goes on anyway. */
static bool stalled(answers *a, session *s, uint64_t now_ns, uint32_t stall_ms) {
    if (!s->held_first) return false;
    uint64_t since = s->held_first->t_ns > s->t_let_go_ns ? s->held_first->t_ns : s->t_let_go_ns;
    if (now_ns <= since || now_ns - since < stall_ms * 250000ull) return false;
    a->watches = true;
    uint64_t bytes = zpeer_progress(s->peer);
    if (s->watched_since_ns != since) {
        s->watched_since_ns = s->t_progress_ns = since;
        s->progress = bytes;
    }
    if (bytes != s->progress) s->t_progress_ns = now_ns;
    s->progress = bytes;
    return now_ns - s->t_progress_ns > stall_ms * 1000000ull;
}

void answers_expire(answers *a, uint64_t now_ns, uint32_t stall_ms) {
    a->watches = false;
    for (session *s = a->ss->first; s; s = s->next) {
        if (session_gone(s) || !stalled(a, s, now_ns, stall_ms)) continue;
        log_warning("client cut: it took none of %u answers for %u ms session=%016" PRIx64 " client=%s", s->n_held,
            stall_ms, s->id, s->client);
        zrouter_cut(a->router, s->peer, CUT_stall);
        sessions_fail(a->ss, s);
    }
}
