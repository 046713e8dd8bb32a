/* test_client_sub.c: subscribers of libnct on a real XPUB: exact topics, gaps by seq, what is not this protocol. */
#include "client_peer.h"

#include <errno.h>
#include <poll.h>

typedef struct {
    char folder[64], endpoint[96];
    void *ctx, *xpub;
} publisher;

static void publisher_start(publisher *p) {
    int wait_ms = 5000, linger = 0;
    strcpy(p->folder, "/tmp/nct-pub-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(p->endpoint, sizeof p->endpoint, "ipc://%s/s", p->folder);
    p->ctx = zmq_ctx_new();
    p->xpub = zmq_socket(p->ctx, ZMQ_XPUB);
    zmq_setsockopt(p->xpub, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    zmq_setsockopt(p->xpub, ZMQ_LINGER, &linger, sizeof linger);
    assert_int_equal(zmq_bind(p->xpub, p->endpoint), 0);
}

static void publisher_stop(publisher *p) {
    char path[96];
    zmq_close(p->xpub);
    zmq_ctx_term(p->ctx);
    snprintf(path, sizeof path, "%s/s", p->folder);
    unlink(path);
    rmdir(p->folder);
}

/* The subscription has arrived, and is the prefix that it should be. */
static void subscribed(publisher *p, const char *prefix) {
    char got[256];
    int n = zmq_recv(p->xpub, got, sizeof got, 0);
    assert_int_equal(n, strlen(prefix) + 1);
    assert_int_equal(got[0], 1);
    assert_memory_equal(got + 1, prefix, strlen(prefix));
}

static void publish(publisher *p, const char *topic, uint32_t epoch, uint64_t seq) {
    uint8_t header[WIRE_HEADER_BYTES];
    float value = (float)seq;
    wire_header h = {
        .kind = WIRE_RESULT, .dtype = 1, .request_id = 55, .seq = seq, .channels = 1, .steps = 1, .epoch = epoch};
    wire_write(header, &h);
    assert_true(zmq_send(p->xpub, topic, strlen(topic), ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(p->xpub, header, sizeof header, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(p->xpub, &value, sizeof value, 0) >= 0);
}

static void next_is(nct_sub *s, const char *model, const char *stream_name, uint64_t seq, uint64_t missed) {
    nct_answer a;
    int error = nct_sub_recv(s, 3000, &a);
    if (error) fail_msg("%d, %s", error, nct_sub_reason(s));
    assert_string_equal(a.model, model);
    assert_string_equal(a.stream, stream_name);
    float value;
    memcpy(&value, a.payload, 4);
    assert_true(a.seq == seq && value == (float)seq && a.kind == NCT_RESULT && a.request_id == 0);
    assert_int_equal(a.missed, missed);
    nct_release(&a);
}

static nct_sub *sub_open(publisher *p, const char *topic, const char *prefix) {
    nct_sub *s = NULL;
    assert_int_equal(nct_sub_open(&s, p->endpoint, topic, NULL), 0);
    subscribed(p, prefix);
    return s;
}

/* d9: ch1 brings neither ch10 nor ch1/x nor the empty name. */
static void exact_topics(void **state) {
    (void)state;
    publisher p;
    nct_answer a;
    publisher_start(&p);
    nct_sub *one = sub_open(&p, "m/ch1", "m/ch1/"), *model = sub_open(&p, "m/", "m/"), *all = sub_open(&p, "", "");
    static const char *topics[] = {"m/ch10/", "m/ch1/x/", "m//", "m1/ch1/", "m/ch1/", "x/ch1/"};
    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++) publish(&p, topics[i], 1, 7);
    assert_int_equal(nct_sub_recv(one, 3000, &a), -EPROTO); /* m/ch1/x/ is no topic; said, and gone on */
    next_is(one, "m", "ch1", 7, 0);
    assert_int_equal(nct_sub_recv(one, 50, &a), -ETIMEDOUT);
    assert_int_equal(nct_sub_recv(one, 0, &a), -EAGAIN);
    next_is(model, "m", "ch10", 7, 0);
    for (int i = 0; i < 2; i++) assert_int_equal(nct_sub_recv(model, 3000, &a), -EPROTO); /* m/ch1/x/ and m// */
    next_is(model, "m", "ch1", 7, 0);
    next_is(all, "m", "ch10", 7, 0);
    for (int i = 0; i < 2; i++) assert_int_equal(nct_sub_recv(all, 3000, &a), -EPROTO);
    next_is(all, "m1", "ch1", 7, 0);
    next_is(all, "m", "ch1", 7, 0);
    next_is(all, "x", "ch1", 7, 0);
    nct_sub_close(one);
    nct_sub_close(model);
    nct_sub_close(all);
    publisher_stop(&p);
}

static void gaps_by_seq(void **state) {
    (void)state;
    publisher p;
    publisher_start(&p);
    nct_sub *s = sub_open(&p, "m/a/", "m/a/");
    assert_int_equal(nct_sub_add(s, "m/b"), 0);
    subscribed(&p, "m/b/");
    static const struct {
        const char *name;
        uint32_t epoch;
        uint64_t seq, missed;
    } rows[] = {{"a", 1, 5, 0}, {"a", 1, 6, 0}, {"b", 1, 100, 0}, {"a", 1, 9, 2}, {"b", 1, 101, 0}, {"a", 1, 10, 0},
        {"a", 2, 0, 0}, {"a", 2, 2, 1}, {"a", 2, 1, 0}, {"b", 1, 1000, 898}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        publish(&p, rows[i].name[0] == 'a' ? "m/a/" : "m/b/", rows[i].epoch, rows[i].seq);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        next_is(s, "m", rows[i].name, rows[i].seq, rows[i].missed);
    nct_sub_close(s);
    publisher_stop(&p);
}

static void bad_messages(void **state) {
    (void)state;
    publisher p;
    nct_answer a;
    uint8_t header[WIRE_HEADER_BYTES];
    publisher_start(&p);
    nct_sub *s = sub_open(&p, "m/a", "m/a/");
    zmq_send(p.xpub, "m/a/", 4, 0); /* one part */
    wire_write(header, &(wire_header){.kind = WIRE_RESULT, .dtype = 1, .channels = 2, .steps = 1});
    zmq_send(p.xpub, "m/a/", 4, ZMQ_SNDMORE);
    zmq_send(p.xpub, header, 96, ZMQ_SNDMORE);
    zmq_send(p.xpub, "1234567", 7, 0); /* 8 are meant */
    zmq_send(p.xpub, "m/a/", 4, ZMQ_SNDMORE);
    zmq_send(p.xpub, header, 95, ZMQ_SNDMORE);
    zmq_send(p.xpub, "12345678", 8, 0);
    publish(&p, "m/a/", 1, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(nct_sub_recv(s, 3000, &a), -EPROTO);
        assert_true(nct_sub_reason(s)[0]);
    }
    next_is(s, "m", "a", 3, 0);
    nct_sub_close(s);
    static const char *bad[] = {"m", "/", "m/a/b", "m//", " m/a", "m/*", "/a"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        nct_sub *none = NULL;
        assert_int_equal(nct_sub_open(&none, p.endpoint, bad[i], NULL), -EINVAL);
        assert_null(none);
    }
    assert_int_equal(nct_sub_open(&s, "x://y", "", NULL), -EINVAL);
    assert_int_equal(nct_sub_open(&s, NULL, "", NULL), -EINVAL);
    assert_int_equal(nct_sub_open(&s, p.endpoint, NULL, NULL), -EINVAL);
    publisher_stop(&p);
}

static int readable(int fd, int timeout_ms) {
    struct pollfd f = {.fd = fd, .events = POLLIN};
    return poll(&f, 1, timeout_ms);
}

/* A burst on a level-triggered fd: taken one at a time, readable until the last. */
static void fd_of_a_burst(void **state) {
    (void)state;
    publisher p;
    nct_answer a;
    publisher_start(&p);
    nct_sub *s = sub_open(&p, "m/a", "m/a/");
    int fd = nct_sub_fd(s);
    assert_true(fd >= 0);
    for (uint64_t i = 0; i < 100; i++) publish(&p, "m/a/", 1, i);
    for (uint64_t i = 0; i < 100; i++) {
        int error;
        do assert_int_equal(readable(fd, 3000), 1);
        while ((error = nct_sub_recv(s, 0, &a)) == -EAGAIN);
        assert_int_equal(error, 0);
        assert_true(a.seq == i && a.missed == 0);
        nct_release(&a);
    }
    while (nct_sub_recv(s, 0, &a) != -EAGAIN) {
    }
    assert_int_equal(readable(fd, 0), 0);
    nct_sub_close(s);
    publisher_stop(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_topics),
        cmocka_unit_test(gaps_by_seq),
        cmocka_unit_test(bad_messages),
        cmocka_unit_test(fd_of_a_burst),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
