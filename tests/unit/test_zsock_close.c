/* test_zsock_close.c: the ROUTER's last moment: what was sent still goes out while its socket lingers, whoever leaves
 * meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "zmq_end.h"

#define ROWS 20
static char row[1 << 20];

static void on_gone(void *ctx, zpeer *p) {
    (void)ctx;
    (void)p;
}

/* A client that says something, and the peer that it is. */
static void *meet(void *client_ctx, zrouter *r, const char *endpoint, zpeer **ret_peer) {
    static const char *const parts[] = {"t", "h", "p"};
    static const size_t bytes[] = {1, 1, 1};
    void *c = test_socket(client_ctx, ZMQ_DEALER, endpoint, 1);
    zmsg m;
    int got = 0;
    assert_non_null(c);
    test_send(c, 3, parts, bytes);
    WAIT_UNTIL((got = zrouter_recv(r, &m, test_now_ns())) > 0, zrouter_monitor(r, test_now_ns()));
    *ret_peer = m.peer;
    zmsg_done(&m);
    return c;
}

/* Two clients are owed 20 MB each; one leaves after the socket was closed. The thread that sends to the other must not
 * wait for somebody to hear of that. */
static void closed_while_one_leaves(const char *endpoint) {
    void *client_ctx = zmq_ctx_new(), *client[2];
    char bound[256];
    ledger counts = {0};
    zwhy why = {""};
    zctx *ctx;
    zrouter *r;
    zpeer *peer[2];
    assert_int_equal(zctx_new(&ctx, 1), 0);
    zrouter_setup setup = {.ctx = ctx,
        .counts = &counts,
        .gone = {on_gone, NULL},
        .max_message_bytes = 1 << 21,
        .max_connections = 8,
        .send_hwm = 1000,
        .receive_hwm = 1000};
    assert_int_equal(zrouter_new(&r, &setup, &why), 0);
    assert_int_equal(zrouter_bind(r, endpoint, bound, &why), 0);
    for (int k = 0; k < 2; k++) client[k] = meet(client_ctx, r, bound, &peer[k]);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < ROWS; i++) {
            zout m = {.topic = "t/",
                .topic_bytes = 2,
                .header = "h",
                .header_bytes = 1,
                .payload = row,
                .payload_bytes = sizeof row};
            assert_int_equal(zrouter_send(r, peer[k], &m), 0);
        }
    zrouter_close(r, 10000, NULL);
    zmq_close(client[0]);
    usleep(100000); /* its end is seen by then, or a little later: the rows below take a while too */
    for (int i = 0; i < ROWS; i++) {
        static unsigned char got[sizeof row];
        size_t sizes[8];
        WAIT_UNTIL(test_recv(client[1], sizes, got, sizeof got) == 3, (void)0);
        assert_int_equal(sizes[2], sizeof row);
    }
    zmq_close(client[1]);
    zctx_term(ctx);
    zmq_ctx_term(client_ctx);
}

static void test_what_was_sent_goes_out(void **state) {
    (void)state;
    closed_while_one_leaves("tcp://127.0.0.1:*");
    closed_while_one_leaves("ipc://@nctd-test-close");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_was_sent_goes_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
