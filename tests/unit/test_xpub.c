/* test_xpub.c: the XPUB's side of the wall: what a subscription is granted to, how it ends, and how much a subscriber
 * that stopped may hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <malloc.h>
#include "names.h"
#include "zmq_end.h"

typedef struct {
    zctx *ctx;
    void *client_ctx;
    zxpub *x;
    ledger counts;
    char endpoint[256];
} rig;

static void rig_init(rig *r, const char *endpoint, int hwm) {
    zwhy why = {""};
    memset(r, 0, sizeof *r);
    names_init();
    r->client_ctx = zmq_ctx_new();
    assert_int_equal(zctx_new(&r->ctx, 1), 0);
    zxpub_setup setup = {.ctx = r->ctx, .counts = &r->counts, .max_connections = 8, .send_hwm = hwm};
    assert_int_equal(zxpub_new(&r->x, &setup, &why), 0);
    assert_int_equal(zxpub_bind(r->x, endpoint, r->endpoint, &why), 0);
}

static void rig_done(rig *r) {
    zxpub_close(r->x, 0);
    zctx_term(r->ctx);
    zmq_ctx_term(r->client_ctx);
}

static bool wanted(const rig *r, const char *topic) {
    return zxpub_wanted(r->x, topic, strlen(topic));
}

#define TURN(r) zxpub_turn((r)->x, test_now_ns())

static int publish(rig *r, const char *topic, const void *p, size_t bytes) {
    zout m = {.topic = topic,
        .topic_bytes = strlen(topic),
        .header = "h",
        .header_bytes = 1,
        .payload = p,
        .payload_bytes = bytes};
    return zxpub_send(r->x, &m);
}

static void *subscriber(rig *r, const char *topic) {
    void *s = test_socket(r->client_ctx, ZMQ_SUB, r->endpoint, 1000);
    assert_int_equal(zmq_setsockopt(s, ZMQ_SUBSCRIBE, topic, strlen(topic)), 0);
    return s;
}

static int heard(void *s) {
    size_t sizes[8];
    unsigned char last[64];
    return test_recv(s, sizes, last, sizeof last);
}

static void test_matches(void **state) {
    (void)state;
    rig r;
    rig_init(&r, "tcp://127.0.0.1:*", 1000);
    assert_false(wanted(&r, "m/ch1/"));
    void *s = subscriber(&r, "m/ch1/");
    WAIT_UNTIL(wanted(&r, "m/ch1/"), TURN(&r));
    assert_false(wanted(&r, "m/ch10/"));
    assert_false(wanted(&r, "m/ch1"));
    assert_int_equal(publish(&r, "m/ch10/", "x", 1), 0);
    assert_int_equal(publish(&r, "m/ch1/", "y", 1), 0);
    int n;
    WAIT_UNTIL((n = heard(s)) > 0, TURN(&r));
    assert_int_equal(n, 3);
    assert_int_equal(heard(s), -1); /* ch10 is not ch1 */
    zmq_setsockopt(s, ZMQ_SUBSCRIBE, "", 0);
    WAIT_UNTIL(wanted(&r, "anything/at/"), TURN(&r));
    zmq_setsockopt(s, ZMQ_UNSUBSCRIBE, "", 0);
    WAIT_UNTIL(!wanted(&r, "anything/at/"), TURN(&r));
    assert_true(wanted(&r, "m/ch1/"));
    zmq_close(s);
    WAIT_UNTIL(!wanted(&r, "m/ch1/"), TURN(&r)); /* its connection takes its grants along */
    rig_done(&r);
}

/* A peer that ends a subscription twice, or one it never had, ends nobody else's. */
static void test_isolation(void **state) {
    (void)state;
    rig r;
    int n;
    rig_init(&r, "ipc://@nctd-test-xpub", 1000);
    void *good = subscriber(&r, "m/a/");
    WAIT_UNTIL(wanted(&r, "m/a/"), TURN(&r));
    void *bad = test_socket(r.client_ctx, ZMQ_XSUB, r.endpoint, 1000);
    for (int i = 0; i < 5; i++) zmq_send(bad, "\0m/a/", 5, 0); /* XSUB drops ends of what it never began ... */
    for (int i = 0; i < 5; i++) zmq_send(bad, "\1m/a/", 5, 0);
    for (int i = 0; i < 5; i++) zmq_send(bad, "\0m/a/", 5, 0);
    zmq_send(bad, "\1z", 2, 0); /* ... so this tells that all came */
    WAIT_UNTIL(wanted(&r, "z"), TURN(&r));
    assert_true(wanted(&r, "m/a/"));
    publish(&r, "m/a/", "x", 1);
    WAIT_UNTIL((n = heard(good)) > 0, TURN(&r));
    zmq_close(bad);
    WAIT_UNTIL(!wanted(&r, "z"), TURN(&r));
    assert_true(wanted(&r, "m/a/"));
    publish(&r, "m/a/", "x", 1);
    WAIT_UNTIL((n = heard(good)) > 0, TURN(&r));
    zmq_close(good);
    rig_done(&r);
}

/* What cannot match, and more than one peer may have, is not granted; what is no subscription is dropped. */
static void test_bounds(void **state) {
    (void)state;
    char text[200];
    rig r;
    rig_init(&r, "tcp://127.0.0.1:*", 1000);
    void *s = test_socket(r.client_ctx, ZMQ_XSUB, r.endpoint, 10000);
    memset(text, 'x', sizeof text);
    text[0] = 1;
    zmq_send(s, text, 1 + WIRE_TOPIC_MAX + 1, 0);
    zmq_send(s, "\2hello", 6, 0);
    zmq_send(s, "a", 1, ZMQ_SNDMORE);
    zmq_send(s, "b", 1, 0);
    for (int i = 0; i < 1200; i++) {
        int n = snprintf(text + 1, sizeof text - 1, "t%04d/", i);
        zmq_send(s, text, 1 + (size_t)n, 0);
    }
    WAIT_UNTIL(wanted(&r, "t1023/"), TURN(&r));
    for (int i = 0; i < 50; i++) {
        TURN(&r);
        usleep(1000);
    }
    assert_true(wanted(&r, "t0000/"));
    assert_false(wanted(&r, "t1024/"));
    assert_false(wanted(&r, "t1199/"));
    memset(text, 'x', sizeof text);
    text[WIRE_TOPIC_MAX + 1] = 0;
    assert_false(zxpub_wanted(r.x, text, WIRE_TOPIC_MAX + 1));
    zmq_close(s);
    rig_done(&r);
}

/* How many of 100 MiB reach a subscriber that reads only afterwards, when the mark went from `before` to `after` while
 * it was connected, or before it came. */
static int held(const char *endpoint, int before, int after, bool came_later) {
    static char big[1 << 20], got[1 << 20];
    rig r;
    int n = 0;
    rig_init(&r, endpoint, before);
    if (came_later) zxpub_set_hwm(r.x, after);
    void *s = test_socket(r.client_ctx, ZMQ_SUB, r.endpoint, 1);
    zmq_setsockopt(s, ZMQ_SUBSCRIBE, "m/", 2);
    WAIT_UNTIL(wanted(&r, "m/a/"), TURN(&r));
    publish(&r, "m/a/", "x", 1);
    WAIT_UNTIL(heard(s) > 0, TURN(&r));
    if (!came_later) zxpub_set_hwm(r.x, after);
    for (int i = 0; i < 100; i++) assert_int_equal(publish(&r, "m/a/", big, sizeof big), 0);
    for (int quiet = 0; quiet < 100; quiet++) {
        size_t sizes[8];
        TURN(&r);
        while (test_recv(s, sizes, (unsigned char *)got, sizeof got) == 3) n++, quiet = 0;
        usleep(2000);
    }
    zmq_close(s);
    rig_done(&r);
    return n;
}

static void test_mark_of_connections(void **state) {
    (void)state;
    for (int later = 0; later < 2; later++) {
        assert_in_range(held("tcp://127.0.0.1:*", 4096, 4, later), 1, 40); /* 4, and what the kernel's buffers took */
        assert_in_range(held("ipc://@nctd-test-hwm", 4096, 4, later), 1, 40);
        assert_int_equal(held("tcp://127.0.0.1:*", 4, 4096, later), 100);
        assert_int_equal(held("ipc://@nctd-test-hwm", 4, 4096, later), 100);
    }
}

/* The mark is due with every newcomer, and others leave all the time: libzmq must not be made to write into what it
 * has freed. A lower one keeps results back until it is in force, which it is soon after the last one left. */
static void test_mark_while_they_leave(void **state) {
    (void)state;
    void *s[6];
    rig r;
    mallopt(M_PERTURB, 0xa5); /* what is freed does not look alive */
    rig_init(&r, "ipc://@nctd-test-leave", 4);
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 6; i++) s[i] = subscriber(&r, "m/");
        WAIT_UNTIL(zxpub_connections(r.x) == 6 && wanted(&r, "m/a/"), TURN(&r));
        for (int i = 0; i < 6; i++) zmq_close(s[i]);
        for (int i = 0; zxpub_connections(r.x) && i < 1000000; i++) {
            zxpub_set_hwm(r.x, 1000 + i % 10);
            publish(&r, "m/a/", "x", 1);
            TURN(&r);
        }
    }
    void *last = subscriber(&r, "m/");
    WAIT_UNTIL(wanted(&r, "m/a/"), TURN(&r));
    zxpub_set_hwm(r.x, 10);
    WAIT_UNTIL(!publish(&r, "m/a/", "x", 1), TURN(&r));
    WAIT_UNTIL(heard(last) > 0, TURN(&r));
    zmq_close(last);
    rig_done(&r);
    mallopt(M_PERTURB, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_matches), cmocka_unit_test(test_isolation),
        cmocka_unit_test(test_bounds), cmocka_unit_test(test_mark_of_connections),
        cmocka_unit_test(test_mark_while_they_leave)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
