/* test_zsock_link.c: what the client's ZeroMQ wall promises to libnct: nothing is queued without a connection, whole
 * messages only, news of a cut, fresh sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "zsock_link.h"

static const char *const no_keys[3] = {NULL, NULL, NULL};

static zlink *link_to(const char *endpoint) {
    zlink *l = NULL;
    assert_int_equal(zlink_new(&l, ZLINK_DEALER, endpoint, no_keys), 0);
    assert_int_equal(zlink_renew(l), 0);
    return l;
}

static void bad_arguments(void **state) {
    (void)state;
    zlink *l = NULL;
    char key[41];
    memset(key, 'k', 40), key[40] = 0;
    const char *two[3] = {key, key, NULL}, *shorter[3] = {key, key, key + 1}, *nonsense[3] = {"\"\"\"\"\"", key, key};
    assert_int_equal(zlink_new(&l, ZLINK_DEALER, "inproc://x", no_keys), -EINVAL);
    assert_int_equal(zlink_new(&l, ZLINK_DEALER, "ipc://x", two), -EINVAL);
    assert_int_equal(zlink_new(&l, ZLINK_DEALER, "ipc://x", shorter), -EINVAL);
    assert_int_equal(zlink_new(&l, ZLINK_DEALER, "ipc://x", nonsense), -EINVAL);
    assert_null(l);
    assert_int_equal(zlink_new(&l, ZLINK_DEALER, "tcp://nowhere", no_keys), 0);
    assert_int_equal(zlink_renew(l), -EINVAL);
    assert_int_equal(zlink_send(l, "t", 1, "h", 1, NULL), -EAGAIN);
    zlink_free(l, 0);
    zlink_free(NULL, 0);
}

/* A frame queued for a daemon that is not there would reach the next one before any HELLO. */
static void nothing_is_queued(void **state) {
    (void)state;
    zlink *l = link_to("ipc:///tmp/nct-nobody-is-here");
    assert_int_equal(zlink_send(l, "t", 1, "h", 1, NULL), -EAGAIN);
    assert_int_equal(zlink_events(l), 0);
    zlink_free(l, 1000);
}

static void *router_at(void *ctx, const char *endpoint) {
    int wait_ms = 5000, linger = 0;
    void *r = zmq_socket(ctx, ZMQ_ROUTER);
    zmq_setsockopt(r, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    zmq_setsockopt(r, ZMQ_LINGER, &linger, sizeof linger);
    assert_int_equal(zmq_bind(r, endpoint), 0);
    return r;
}

static void send_until_taken(zlink *l, zlink_part *payload) {
    int error = -EAGAIN;
    for (int i = 0; i < 100 && (error = zlink_send(l, "topic", 5, "head", 4, payload)) == -EAGAIN; i++)
        zlink_wait(l, 100, 1);
    assert_int_equal(error, 0);
}

static size_t part_is(void *router, const char *text) {
    char got[64];
    int n = zmq_recv(router, got, sizeof got, 0), more;
    size_t size = sizeof more;
    assert_int_equal(n, strlen(text));
    assert_memory_equal(got, text, strlen(text));
    zmq_getsockopt(router, ZMQ_RCVMORE, &more, &size);
    return (size_t)more;
}

/* One message of topic, header and n bytes of payload; the sender's id stays in id. */
static size_t message_is(void *router, char id[256], size_t payload_bytes) {
    char got[128];
    int n = zmq_recv(router, id, 256, 0);
    assert_true(n > 0 && n < 256);
    assert_int_equal(part_is(router, "topic"), 1);
    assert_int_equal(part_is(router, "head"), 1);
    assert_int_equal(zmq_recv(router, got, sizeof got, 0), payload_bytes);
    for (size_t i = 0; i < payload_bytes; i++) assert_int_equal(got[i], 'p');
    return (size_t)n;
}

/* Of any number of parts three are kept, all are counted, and the next message is read in step. */
static void any_number_of_parts(zlink *l, void *router, const char *id, size_t id_len) {
    static const int parts[] = {1, 3, 20};
    zlink_message m;
    for (int k = 0; k < 3; k++) {
        zmq_send(router, id, id_len, ZMQ_SNDMORE);
        for (int j = 0; j < parts[k]; j++) zmq_send(router, "abc", (size_t)j % 4, j < parts[k] - 1 ? ZMQ_SNDMORE : 0);
    }
    for (int k = 0; k < 3; k++) {
        while (zlink_recv(l, &m)) assert_int_equal(zlink_wait(l, 5000, 0), 0);
        assert_int_equal(m.parts, parts[k]);
        assert_int_equal(zlink_part_bytes(&m.part[1]), parts[k] > 1);
        assert_int_equal(zlink_part_bytes(&m.part[2]), parts[k] > 1 ? 2 : 0);
        zlink_message_done(&m);
    }
    assert_int_equal(zlink_recv(l, &m), -EAGAIN);
}

static void messages_and_cuts(void **state) {
    (void)state;
    char folder[] = "/tmp/nct-link-XXXXXX", path[64], endpoint[80], id[256];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/s", folder);
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    void *ctx = zmq_ctx_new(), *router = router_at(ctx, endpoint);
    zlink *l = link_to(endpoint);
    zlink_part payload = {.held = 0};
    assert_int_equal(zlink_part_init(&payload, 100), 0);
    memset(zlink_part_data(&payload), 'p', 100);
    send_until_taken(l, &payload); /* shared, not taken: */
    message_is(router, id, 100);
    send_until_taken(l, &payload); /* it can be sent again */
    any_number_of_parts(l, router, id, message_is(router, id, 100));
    zlink_part_done(&payload);
    zlink_part_done(&payload);
    assert_true(zlink_ask(l).connected && !zlink_ask(l).cut);
    zmq_close(router);
    while (!zlink_ask(l).cut) assert_int_equal(zlink_wait(l, 5000, 0), 0);
    assert_int_equal(zlink_renew(l), 0);
    assert_true(!zlink_ask(l).connected && !zlink_ask(l).cut);
    router = router_at(ctx, endpoint);
    send_until_taken(l, NULL);
    message_is(router, id, 0);
    zlink_free(l, 0);
    zmq_close(router);
    zmq_ctx_term(ctx);
    unlink(path);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(nothing_is_queued),
        cmocka_unit_test(messages_and_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
