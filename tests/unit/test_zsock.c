/* test_zsock.c: the ROUTER's side of the wall against plain libzmq clients, over tcp and ipc: bursts, what is let go of
 * and when, cuts that hit the right connection, peers that are gone or full. */
#include "zsock_rig.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bursts), cmocka_unit_test(test_let_go),
        cmocka_unit_test(test_cut), cmocka_unit_test(test_numbers_come_again),
        cmocka_unit_test(test_gone_is_unreachable), cmocka_unit_test(test_full_is_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
