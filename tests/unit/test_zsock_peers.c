/* test_zsock_peers.c: peers that a ROUTER does not trust: self-chosen names, messages too large or of the wrong shape, a crowd;
 * the start-up test of a cut, and endpoints. */
#include "zsock_rig.h"

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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_self_named), cmocka_unit_test(test_oversize),
        cmocka_unit_test(test_crowd), cmocka_unit_test(test_envelopes), cmocka_unit_test(test_self_test),
        cmocka_unit_test(test_endpoints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
