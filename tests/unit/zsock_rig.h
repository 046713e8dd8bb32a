/* zsock_rig.h: what the unit tests of the ROUTER's side share: a ROUTER with its let-go list, and plain libzmq clients. */
#ifndef ZSOCK_RIG_H
#define ZSOCK_RIG_H
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <poll.h>
#include <stdatomic.h>
#include <cmocka.h>
#include "zmq_end.h"

#define ROWS_MAX 64

typedef struct {
    zctx *ctx;
    void *client_ctx;
    zrouter *router;
    ledger counts;
    letgo list;
    letgo_node nodes[ROWS_MAX];
    atomic_int n_woken;
    char endpoint[256];
    int n_let_go, n_gone, n_messages;
    zpeer *last_peer, *gone_peer;
    zmsg m; /* the last message, without its parts */
} rig;

static inline void wake(void *ctx) {
    atomic_fetch_add(&((rig *)ctx)->n_woken, 1); /* ZeroMQ's thread */
}

static inline void on_gone(void *ctx, zpeer *p) {
    rig *r = ctx;
    r->n_gone++;
    r->gone_peer = p;
}

static inline void rig_init(rig *r, const char *endpoint, int send_hwm) {
    zwhy why = {""};
    memset(r, 0, sizeof *r);
    r->list.wake = wake;
    r->list.ctx = r;
    r->client_ctx = zmq_ctx_new();
    assert_int_equal(zctx_new(&r->ctx, 1), 0);
    zrouter_setup setup = {.ctx = r->ctx,
        .counts = &r->counts,
        .gone = {on_gone, r},
        .max_message_bytes = 1 << 20,
        .max_connections = 8,
        .send_hwm = send_hwm,
        .receive_hwm = 2000};
    assert_int_equal(zrouter_new(&r->router, &setup, &why), 0);
    assert_int_equal(zrouter_bind(r->router, endpoint, r->endpoint, &why), 0);
}

static inline void let_go(rig *r) {
    for (letgo_node *n = letgo_take(&r->list); n; n = n->next) r->n_let_go++;
}

static inline void rig_done(rig *r) {
    zrouter_close(r->router, 0, NULL);
    zctx_term(r->ctx);
    let_go(r);
    zmq_ctx_term(r->client_ctx);
}

/* One turn: monitor, let-go list, at most `budget` messages. */
static inline int turn(rig *r, int budget) {
    int n = 0;
    let_go(r);
    zrouter_monitor(r->router, test_now_ns());
    while (n < budget) {
        zmsg m;
        int got = zrouter_recv(r->router, &m, test_now_ns());
        if (!got) break;
        n++;
        if (got < 0) continue;
        r->m = (zmsg){.peer = m.peer, .self_named = m.self_named, .n_parts = m.n_parts, .envelope = m.envelope};
        r->last_peer = m.peer;
        r->n_messages++;
        zmsg_done(&m);
    }
    return n;
}

static const char *const hello_parts[] = {"t", "h", "p"};
static const size_t hello_bytes[] = {1, 1, 1};

static inline void *meet(rig *r) {
    void *c = test_socket(r->client_ctx, ZMQ_DEALER, r->endpoint, 1);
    int before = r->n_messages;
    assert_non_null(c);
    test_send(c, 3, hello_parts, hello_bytes);
    WAIT_UNTIL(r->n_messages == before + 1, turn(r, 64));
    return c;
}

static inline int send_row(rig *r, zpeer *p, int i, const void *row, size_t bytes) {
    r->nodes[i].list = &r->list;
    zout m = {.topic = "t/",
        .topic_bytes = 2,
        .header = "h",
        .header_bytes = 1,
        .payload = row,
        .payload_bytes = bytes,
        .node = &r->nodes[i]};
    return zrouter_send(r->router, p, &m);
}
#endif
