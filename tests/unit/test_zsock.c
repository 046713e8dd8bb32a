/* test_zsock.c: the ROUTER's side of the wall against plain libzmq clients, over tcp and ipc: bursts, what is let go of
 * and when, cuts that hit the right connection, self-chosen names, messages of the wrong shape. */
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

static void wake(void *ctx) {
    atomic_fetch_add(&((rig *)ctx)->n_woken, 1); /* ZeroMQ's thread */
}

static void on_gone(void *ctx, zpeer *p) {
    rig *r = ctx;
    r->n_gone++;
    r->gone_peer = p;
}

static void rig_init(rig *r, const char *endpoint, int send_hwm) {
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

static void let_go(rig *r) {
    for (letgo_node *n = letgo_take(&r->list); n; n = n->next) r->n_let_go++;
}

static void rig_done(rig *r) {
    zrouter_close(r->router, 0);
    zctx_term(r->ctx);
    let_go(r);
    zmq_ctx_term(r->client_ctx);
}

/* One turn: monitor, let-go list, at most `budget` messages. */
static int turn(rig *r, int budget) {
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

static void *meet(rig *r) {
    void *c = test_socket(r->client_ctx, ZMQ_DEALER, r->endpoint, 1);
    int before = r->n_messages;
    assert_non_null(c);
    test_send(c, 3, hello_parts, hello_bytes);
    WAIT_UNTIL(r->n_messages == before + 1, turn(r, 64));
    return c;
}

static int send_row(rig *r, zpeer *p, int i, const void *row, size_t bytes) {
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

/* Every burst is read to its end by poll on the edge-triggered descriptor and one ZMQ_EVENTS a turn. */
static void bursts(const char *endpoint) {
    static const int sizes[] = {1, 2, 3, 7, 63, 64, 65, 127, 128, 129, 500, 999, 1000};
    rig r;
    int fds[2];
    rig_init(&r, endpoint, 1000);
    void *c = test_socket(r.client_ctx, ZMQ_DEALER, r.endpoint, 2000);
    zrouter_fds(r.router, fds);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int before = r.n_messages;
        bool pending = true;
        for (int i = 0; i < sizes[k]; i++) test_send(c, 3, hello_parts, hello_bytes);
        uint64_t end_ns = test_now_ns() + WAIT_MS * 1000000ull;
        while (r.n_messages < before + sizes[k] && test_now_ns() < end_ns) {
            struct pollfd p[2] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};
            if (!pending) assert_true(poll(p, 2, WAIT_MS) > 0); /* a lost edge would end here */
            turn(&r, 64);
            pending = zrouter_pending(r.router);
        }
        assert_int_equal(r.n_messages, before + sizes[k]);
    }
    zmq_close(c);
    rig_done(&r);
}

static void test_bursts(void **state) {
    (void)state;
    bursts("tcp://127.0.0.1:*");
    bursts("ipc://@nctd-test-bursts");
}

/* Rows of any size, empty too, are let go of once, and only when they have left. */
static void test_let_go(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 30, 33, 34, 96, 8192, 40000, 500000};
    static char row[500000], got[500000];
    rig r;
    rig_init(&r, "tcp://127.0.0.1:*", 1000);
    void *c = meet(&r);
    for (size_t i = 0; i < sizeof row; i++) row[i] = (char)(i * 31);
    for (int i = 0; i < 9; i++) {
        size_t parts[8] = {0};
        int n;
        assert_int_equal(send_row(&r, r.last_peer, i, row, sizes[i]), 0);
        memset(got, 0x55, sizeof got);
        WAIT_UNTIL((n = test_recv(c, parts, (unsigned char *)got, sizeof got)) >= 0, turn(&r, 64));
        assert_int_equal(n, 3);
        assert_int_equal(parts[2], sizes[i]);
        assert_memory_equal(got, row, sizes[i]);
        WAIT_UNTIL(r.n_let_go == i + 1, turn(&r, 64));
        assert_int_equal(atomic_load(&r.n_woken), i + 1); /* the list was empty each time */
    }
    zmq_close(c);
    rig_done(&r);
    assert_int_equal(r.n_let_go, 9);
}

/* A client that reads nothing holds rows; cutting it brings every one back, and nobody else notices. */
static void cut(const char *endpoint) {
    static char row[1 << 20];
    rig r;
    int n = 0;
    rig_init(&r, endpoint, 1000);
    void *stopped = meet(&r);
    zpeer *victim = r.last_peer;
    void *other = meet(&r);
    zpeer *bystander = r.last_peer;
    assert_ptr_not_equal(victim, bystander);
    for (; n < 20; n++) assert_int_equal(send_row(&r, victim, n, row, sizeof row), 0);
    for (int i = 0; i < 20; i++) turn(&r, 64);
    assert_true(r.n_let_go < n);
    zrouter_cut(r.router, victim, CUT_stall);
    zrouter_cut(r.router, victim, CUT_stall); /* counted once */
    WAIT_UNTIL(r.n_gone == 1 && r.n_let_go == n, turn(&r, 64));
    assert_ptr_equal(r.gone_peer, victim);
    assert_int_equal(r.counts.cuts[CUT_stall], 1);
    assert_int_equal(r.counts.cuts[CUT_protocol], 0); /* ours, not ZeroMQ's */
    size_t parts[8];
    unsigned char last[64];
    assert_int_equal(send_row(&r, bystander, n, row, 10), 0);
    WAIT_UNTIL(test_recv(other, parts, last, sizeof last) == 3, turn(&r, 64));
    zmq_close(stopped);
    zmq_close(other);
    rig_done(&r);
}

static void test_cut(void **state) {
    (void)state;
    cut("tcp://127.0.0.1:*");
    cut("ipc://@nctd-test-cut");
}

/* 24 stopped clients after each other, on descriptor numbers that come again: the connection that has the number now
 * is never hit by what was known of the one before. */
static void test_numbers_come_again(void **state) {
    (void)state;
    static char row[1 << 20];
    rig r;
    rig_init(&r, "tcp://127.0.0.1:*", 1000);
    void *living = meet(&r);
    zpeer *alive = r.last_peer;
    int number = -1, again = 0, total = 0;
    for (int k = 0; k < 24; k++) {
        int off = -1;
        void *c = zmq_socket(r.client_ctx, ZMQ_DEALER);
        zmq_setsockopt(c, ZMQ_RECONNECT_IVL, &off, sizeof off);
        zmq_setsockopt(c, ZMQ_LINGER, &(int){0}, sizeof(int));
        zmq_setsockopt(c, ZMQ_RCVHWM, &(int){1}, sizeof(int));
        assert_int_equal(zmq_connect(c, r.endpoint), 0);
        int before = r.n_messages;
        test_send(c, 3, hello_parts, hello_bytes);
        WAIT_UNTIL(r.n_messages == before + 1, turn(&r, 64));
        zpeer *p = r.last_peer;
        if (p->fd == number) again++;
        number = p->fd;
        uint64_t cookie = p->cookie;
        assert_true(cookie != 0 && cookie != alive->cookie);
        for (int i = 0; i < 12; i++) total += !send_row(&r, p, i, row, sizeof row);
        zrouter_cut(r.router, p, CUT_stall);
        WAIT_UNTIL(r.n_gone == k + 1 && r.n_let_go == total, turn(&r, 64));
        zmq_close(c);
    }
    assert_true(again > 0); /* or the test shows nothing */
    size_t parts[8];
    unsigned char last[64];
    assert_int_equal(send_row(&r, alive, 0, row, 10), 0);
    WAIT_UNTIL(test_recv(living, parts, last, sizeof last) == 3, turn(&r, 64));
    zmq_close(living);
    rig_done(&r);
}

static void test_gone_is_unreachable(void **state) {
    (void)state;
    rig r;
    rig_init(&r, "tcp://127.0.0.1:*", 1000);
    void *c = meet(&r);
    zpeer copy = *r.last_peer;
    zmq_close(c);
    WAIT_UNTIL(r.n_gone == 1, turn(&r, 64));
    assert_int_equal(send_row(&r, &copy, 0, "x", 1), -EHOSTUNREACH);
    turn(&r, 64);
    assert_int_equal(r.n_let_go, 0); /* what was not taken is not let go of */
    rig_done(&r);
}

static void test_full_is_again(void **state) {
    (void)state;
    static char row[1 << 20];
    rig r;
    int n = 0, error = 0;
    rig_init(&r, "tcp://127.0.0.1:*", 4);
    void *c = meet(&r);
    while (n < ROWS_MAX && !error) error = send_row(&r, r.last_peer, n, row, sizeof row) ? -errno : (n++, 0);
    assert_in_range(n, 4, ROWS_MAX - 1);
    assert_int_equal(send_row(&r, r.last_peer, n, row, sizeof row), -EAGAIN);
    zmq_close(c);
    rig_done(&r);
    assert_int_equal(r.n_let_go, n);
}

static void test_self_named(void **state) {
    (void)state;
    rig r;
    rig_init(&r, "tcp://127.0.0.1:*", 100);
    void *plain = meet(&r);
    assert_false(r.m.self_named);
    /* in the form of an automatic one, and in a form of its own */
    static const char *const names[] = {"\0\1\2\3\4", "camera"};
    for (int i = 0; i < 2; i++) {
        void *n = zmq_socket(r.client_ctx, ZMQ_DEALER);
        zmq_setsockopt(n, ZMQ_LINGER, &(int){0}, sizeof(int));
        assert_int_equal(zmq_setsockopt(n, ZMQ_ROUTING_ID, names[i], i ? 6 : 5), 0);
        assert_int_equal(zmq_connect(n, r.endpoint), 0);
        int before = r.n_messages;
        test_send(n, 3, hello_parts, hello_bytes);
        WAIT_UNTIL(r.n_messages == before + 1, turn(&r, 64));
        assert_true(r.m.self_named);
        zmq_close(n);
        WAIT_UNTIL(r.n_gone == i + 1, turn(&r, 64));
    }
    zmq_close(plain);
    rig_done(&r);
}

/* A part above the limit: ZeroMQ cuts, and it is known that neither we nor the peer did. */
static void test_oversize(void **state) {
    (void)state;
    static const char *parts[] = {"t", "h", NULL};
    size_t bytes[] = {1, 1, (1 << 20) + 1};
    rig r;
    rig_init(&r, "tcp://127.0.0.1:*", 100);
    void *c = meet(&r), *leaver = meet(&r);
    zmq_close(leaver);
    WAIT_UNTIL(r.n_gone == 1, turn(&r, 64));
    assert_int_equal(r.counts.cuts[CUT_protocol], 0); /* it left by itself */
    parts[2] = calloc(1, bytes[2]);
    int before = r.n_messages;
    test_send(c, 3, parts, bytes);
    WAIT_UNTIL(r.n_gone == 2, turn(&r, 64));
    assert_int_equal(r.n_messages, before);
    assert_int_equal(r.counts.cuts[CUT_protocol], 1);
    free((void *)parts[2]);
    zmq_close(c);
    rig_done(&r);
}

static void test_crowd(void **state) {
    (void)state;
    rig r;
    void *c[12];
    rig_init(&r, "tcp://127.0.0.1:*", 100); /* 8 connections */
    for (int i = 0; i < 8; i++) c[i] = meet(&r);
    for (int i = 8; i < 12; i++) c[i] = test_socket(r.client_ctx, ZMQ_DEALER, r.endpoint, 10);
    WAIT_UNTIL(r.counts.cuts[CUT_crowd] >= 4, turn(&r, 64));
    assert_int_equal(r.n_messages, 8);
    assert_true(zrouter_connections(r.router) >= 8);
    for (int i = 0; i < 12; i++) zmq_close(c[i]);
    rig_done(&r);
}

/* {parts sent} -> how many of them come back in front of topic, header, payload. */
static void test_envelopes(void **state) {
    (void)state;
    static const struct {
        int n;
        const char *parts[9];
        int back;
    } rows[] = {{1, {"a"}, 0}, {1, {""}, 1}, {2, {"a", "b"}, 0}, {2, {"", "b"}, 1}, {4, {"", "t", "h", "p"}, 1},
        {4, {"x", "t", "h", "p"}, 1}, {4, {"x", "", "h", "p"}, 1}, {5, {"x", "", "t", "h", "p"}, 2},
        {5, {"x", "y", "", "h", "p"}, 2}, {9, {"a", "b", "c", "d", "e", "f", "g", "h", "i"}, 0},
        {9, {"", "b", "c", "d", "e", "f", "g", "h", "i"}, 1}};
    rig r;
    rig_init(&r, "ipc://@nctd-test-envelopes", 100);
    void *c = test_socket(r.client_ctx, ZMQ_DEALER, r.endpoint, 100);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        size_t bytes[9], sizes[8];
        unsigned char last[64];
        int before = r.n_messages, n;
        for (int i = 0; i < rows[k].n; i++) bytes[i] = strlen(rows[k].parts[i]);
        test_send(c, rows[k].n, rows[k].parts, bytes);
        WAIT_UNTIL(r.n_messages == before + 1, turn(&r, 64));
        assert_int_equal(r.m.n_parts, rows[k].n);
        assert_int_equal(r.m.envelope.n, rows[k].back);
        zout m = {.topic = "",
            .header = "hh",
            .header_bytes = 2,
            .payload = "ppp",
            .payload_bytes = 3,
            .envelope = &r.m.envelope};
        assert_int_equal(zrouter_send(r.router, r.last_peer, &m), 0);
        WAIT_UNTIL((n = test_recv(c, sizes, last, sizeof last)) >= 0, turn(&r, 64));
        assert_int_equal(n, 3 + rows[k].back);
        for (int i = 0; i < rows[k].back; i++) assert_int_equal(sizes[i], bytes[i]);
        assert_int_equal(sizes[n - 1], 3);
    }
    zmq_close(c);
    rig_done(&r);
}

static void test_self_test(void **state) {
    (void)state;
    zwhy why = {""};
    assert_int_equal(zsock_self_test(&why), 0);
}

static void test_endpoints(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int error;
        bool loopback;
    } rows[] = {{"tcp://127.0.0.1:1", 0, true}, {"tcp://127.9.9.9:*", 0, true}, {"tcp://[::1]:1", 0, true},
        {"tcp://lo:1", 0, true}, {"tcp://0.0.0.0:1", 0, false}, {"tcp://*:1", 0, false},
        {"tcp://10.0.0.1:1", 0, false}, {"tcp://[::]:1", 0, false}, {"tcp://eth0:1", 0, false},
        {"tcp://127.0.0.1", -EINVAL, false}, {"ipc:///run/x", 0, true}, {"ipc://", -EINVAL, false},
        {"inproc://a", 0, true}, {"udp://127.0.0.1:1", -EINVAL, false}, {"", -EINVAL, false},
        {"tcp://127.0.0.1.example.org:1", 0, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool loopback = false;
        zwhy why;
        assert_int_equal(zsock_endpoint(rows[i].text, &loopback, &why), rows[i].error);
        if (!rows[i].error) assert_int_equal(loopback, rows[i].loopback);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bursts), cmocka_unit_test(test_let_go),
        cmocka_unit_test(test_cut), cmocka_unit_test(test_numbers_come_again),
        cmocka_unit_test(test_gone_is_unreachable), cmocka_unit_test(test_full_is_again),
        cmocka_unit_test(test_self_named), cmocka_unit_test(test_oversize), cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_envelopes), cmocka_unit_test(test_self_test), cmocka_unit_test(test_endpoints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
