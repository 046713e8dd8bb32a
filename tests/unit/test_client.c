/* test_client.c: libnct against a scripted daemon while the connection holds: opening, the window, answers, late ones,
 * streams, the fd, fork. Cuts are test_client_cut.c's. */
#include "client_peer.h"

#include <errno.h>
#include <poll.h>
#include <sys/wait.h>

/* ---- opening ---- */

static void script_hello(peer *p) {
    peer_message m;
    HOLD(p, peer_hello(p, &m));
    HOLD(p, strstr((char *)m.payload, "libnct") && !strstr((char *)m.payload, "previous"));
    HOLD(p, strstr((char *)m.payload, "\"name\": \"bench 1\""));
}

static void open_says_hello(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_hello);
    nct_options o = client_options();
    o.name = "bench 1";
    nct *c = client_open(&p, &o);
    size_t len;
    assert_string_equal(nct_welcome(c, &len), PEER_JSON);
    assert_int_equal(len, strlen(PEER_JSON));
    assert_true(nct_session(c) == PEER_SESSION);
    assert_int_equal(nct_window(c), 4);
    assert_int_equal(nct_reconnects(c), 0);
    nct_answer a;
    assert_int_equal(nct_recv(c, 0, &a), -EAGAIN);
    assert_int_equal(nct_recv(c, 1000, &a), -ENOENT); /* nothing in flight: no wait */
    nct_close(c);
    peer_stop(&p);
}

static void script_refuse(peer *p) {
    peer_message m;
    HOLD(p, peer_expect(p, WIRE_HELLO, &m));
    HOLD(p, peer_error(p, &m, -87, "256 clients are here,\n256 is the limit"));
}

static void script_garbage(peer *p) {
    peer_message m;
    HOLD(p, peer_expect(p, WIRE_HELLO, &m));
    HOLD(p, zmq_send(p->router, m.id, m.id_len, ZMQ_SNDMORE) >= 0 && zmq_send(p->router, "what?", 5, 0) >= 0);
}

static void script_bad_welcome(peer *p) {
    peer_message m;
    HOLD(p, peer_expect(p, WIRE_HELLO, &m));
    HOLD(p, peer_put(p, &m, (wire_header){.kind = WIRE_WELCOME}, "{", 1));
}

static void open_fails(void (*script)(peer *), int want, const char *word) {
    peer p;
    nct *c = (nct *)&p;
    char why[256] = "";
    peer_start(&p, script);
    nct_options o = client_options();
    assert_int_equal(nct_open_why(&c, p.endpoint, &o, why), want);
    if (!strstr(why, word)) fail_msg("\"%s\" does not say \"%s\"", why, word);
    assert_ptr_equal(c, &p);
    peer_stop(&p);
}

static void open_refused(void **state) {
    (void)state;
    open_fails(script_refuse, -EUSERS, "here,?256 is"); /* control characters do not reach a terminal */
    open_fails(script_garbage, -EPROTO, "three parts");
    open_fails(script_bad_welcome, -EPROTO, "WELCOME");
}

static void open_bad(const char *endpoint, nct_options o, int want) {
    nct *c = NULL;
    char why[256] = "";
    int got = nct_open_why(&c, endpoint, &o, why);
    if (got != want || c || !why[0]) fail_msg("%s: %d, \"%s\"", endpoint ? endpoint : "NULL", got, why);
}

static void open_without_daemon(void **state) {
    (void)state;
    nct_options o = client_options();
    o.timeout_ms = 100;
    open_bad("ipc:///tmp/nct-nobody-is-here", o, -ETIMEDOUT);
    open_bad("tcp://127.0.0.1:1", o, -ETIMEDOUT);
    open_bad(NULL, o, -EINVAL);
    open_bad("inproc://x", o, -EINVAL);
    open_bad("tcp://", o, -EINVAL);
    open_bad("tcp://127.0.0.1:notaport", o, -EINVAL);
    open_bad("/run/nctd/ingest.sock", o, -EINVAL);
    static const struct {
        size_t offset;
        int value;
    } bad[] = {{offsetof(nct_options, timeout_ms), 0}, {offsetof(nct_options, ping_ms), 9},
        {offsetof(nct_options, linger_ms), -1}, {offsetof(nct_options, nonblock), 2},
        {offsetof(nct_options, on_cut), 2}, {offsetof(nct_options, max_in_flight), 65}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        nct_options b = o;
        memcpy((char *)&b + bad[i].offset, &bad[i].value, sizeof(int));
        open_bad("ipc:///tmp/nct-nobody-is-here", b, -EINVAL);
    }
    o.name = "a\"b";
    open_bad("ipc:///tmp/nct-nobody-is-here", o, -EINVAL);
    o.name = NULL, o.server_key = "short";
    open_bad("ipc:///tmp/nct-nobody-is-here", o, -EINVAL);
}

/* WELCOME may come late: the daemon loads its models, and answers PING meanwhile. */
static void script_late_welcome(peer *p) {
    peer_message hello, m;
    HOLD(p, peer_expect(p, WIRE_HELLO, &hello));
    for (int i = 0; i < 3; i++) {
        HOLD(p, peer_get(p, &m) && m.h.kind == WIRE_PING && m.h.session == 0);
        HOLD(p, peer_put(p, &m, (wire_header){.kind = WIRE_PONG}, "", 0));
    }
    HOLD(p, peer_put(p, &hello, (wire_header){.kind = WIRE_WELCOME}, "{}", 2));
}

static void open_waits_for_ready(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_late_welcome);
    nct_options o = client_options();
    o.ping_ms = 30;
    nct_close(client_open(&p, &o));
    peer_stop(&p);
}

/* ---- the window ---- */

static void script_window(peer *p) {
    peer_message m[5];
    p->window = 2;
    HOLD(p, peer_hello(p, &m[0]));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m[0]) && peer_expect(p, WIRE_FRAME, &m[1]));
    sem_wait(&p->go);
    p->window = 3;
    HOLD(p, peer_result(p, &m[0], 1));
    for (int i = 2; i < 4; i++) HOLD(p, peer_expect(p, WIRE_FRAME, &m[i]));
    p->window = 1;
    for (int i = 1; i < 4; i++) HOLD(p, peer_result(p, &m[i], (float)i + 1));
}

static void window_nonblock(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_window);
    nct_options o = client_options();
    o.nonblock = 1;
    nct *c = client_open(&p, &o);
    nct_request q = frame_of("m", 9);
    uint64_t id[4] = {send_ok(c, "m", 0), send_ok(c, "m", 1)}, untouched = 77;
    for (int i = 0; i < 3; i++) assert_int_equal(nct_send(c, &q, samples, &untouched), -EAGAIN);
    assert_true(untouched == 77);
    assert_int_equal(nct_in_flight(c), 2);
    sem_post(&p.go);
    recv_value(c, id[0], 1);
    assert_int_equal(nct_window(c), 3);
    id[2] = send_ok(c, "m", 2);
    id[3] = send_ok(c, "m", 3);
    assert_int_equal(nct_send(c, &q, samples, NULL), -EAGAIN);
    for (int i = 1; i < 4; i++) recv_value(c, id[i], (float)i + 1);
    assert_int_equal(nct_window(c), 1);
    nct_close(c);
    peer_stop(&p);
}

static void script_block(peer *p) {
    peer_message m;
    p->window = 1;
    HOLD(p, peer_hello(p, &m) && peer_expect(p, WIRE_FRAME, &m));
    sem_wait(&p->go);
    HOLD(p, peer_result(p, &m, 1));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m)); /* came only after the answer: one at a time */
    HOLD(p, m.h.seq == 1);
    HOLD(p, peer_result(p, &m, 2));
}

static void window_block(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_block);
    nct_options o = client_options();
    o.timeout_ms = 150;
    nct *c = client_open(&p, &o);
    uint64_t first = send_ok(c, "m", 0);
    nct_request q = frame_of("m", 1);
    assert_int_equal(nct_send(c, &q, samples, NULL), -ETIMEDOUT);
    assert_int_equal(nct_in_flight(c), 1);
    sem_post(&p.go);
    uint64_t second = 0;
    int error;
    while ((error = nct_send(c, &q, samples, &second)) == -ETIMEDOUT) { /* a slow machine may need another round */
    }
    assert_int_equal(error, 0);
    recv_value(c, first, 1);
    recv_value(c, second, 2);
    nct_close(c);
    peer_stop(&p);
}

static void script_echo(peer *p) {
    peer_message m;
    HOLD(p, peer_hello(p, &m));
    while (peer_expect(p, WIRE_FRAME, &m) && m.h.seq != 999) HOLD(p, peer_result(p, &m, (float)m.h.seq));
    HOLD(p, m.h.seq == 999);
    HOLD(p, peer_result(p, &m, 999));
}

/* A caller that only sends does not make the library collect answers without bound. */
static void answers_bounded(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_echo);
    nct *c = client_open(&p, NULL);
    nct_request q = frame_of("m", 0);
    int error = 0, sent = 0;
    for (; sent < 1000 && !error; sent += !error) q.seq = (uint64_t)sent, error = nct_send(c, &q, samples, NULL);
    assert_int_equal(error, -EAGAIN);
    assert_in_range(sent, NCT_READY_MAX, NCT_READY_MAX + 4);
    for (int i = 0; i < sent; i++) {
        nct_answer a = recv_ok(c, 3000);
        assert_true(a.seq == (uint64_t)i && a.tag == 100);
        nct_release(&a);
    }
    send_ok(c, "m", 999);
    nct_answer last = recv_ok(c, 3000);
    nct_close(c);
    float value;
    memcpy(&value, last.payload, 4); /* an answer outlives its handle */
    assert_true(value == 999);
    nct_release(&last);
    nct_release(&last);
    peer_stop(&p);
}

/* ---- requests and answers ---- */

static void script_facts(peer *p) {
    peer_message m;
    static const double given[6] = {12, 0.5, 3, 12, -0.5, 4};
    HOLD(p, peer_hello(p, &m) && peer_expect(p, WIRE_FRAME, &m));
    HOLD(p, !strcmp(m.topic, "m/a/") && m.payload_len == 24 + 48);
    HOLD(p, !memcmp(m.payload, samples, 24) && !memcmp(m.payload + 24, given, 48));
    HOLD(p, m.h.flags == (WIRE_INNER_LEFT | WIRE_NO_PUBLISH | WIRE_GIVEN) && m.h.want == 2 && m.h.dtype == 1);
    HOLD(p, m.h.channels == 2 && m.h.steps == 3 && m.h.ttl_us == 500 && m.h.seq == 7 && m.h.pos == 20160);
    HOLD(p, m.h.t_capture_ns == 123456789 && m.h.epoch == 3 && !m.h.window && !m.h.status);
    wire_header h = {.kind = WIRE_RESULT,
        .dtype = 2,
        .flags = WIRE_GAP_SEEN,
        .channels = 3,
        .steps = 2,
        .pos = 10080,
        .t_capture_ns = 123456789,
        .t_answer_ns = 5,
        .epoch = 3,
        .generation = 8,
        .queue_us = 11,
        .compute_us = 12};
    HOLD(p, peer_put(p, &m, h, "0123456789ab", 12));
    HOLD(p, peer_put(p, &m, h, "again", 5)); /* an id is answered once */
    HOLD(p, peer_expect(p, WIRE_FRAME, &m));
    HOLD(p, peer_put(p, &m, h, "0123456789", 10)); /* shorter than its header says */
    HOLD(p, peer_expect(p, WIRE_FRAME, &m));
    HOLD(p, peer_error(p, &m, -105, "the daemon is full: 3 of 4 MiB are taken"));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && (m.h.flags & WIRE_NO_REPLY));
    HOLD(p, peer_put(p, &m, (wire_header){.kind = WIRE_RESULT, .channels = 3, .steps = 2}, "", 0));
}

static void facts_both_ways(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_facts);
    nct *c = client_open(&p, NULL);
    double given[6] = {12, 0.5, 3, 12, -0.5, 4};
    float x[6];
    memcpy(x, samples, sizeof x);
    nct_request q = {.model = "m",
        .stream = "a",
        .dtype = NCT_DTYPE_F32,
        .want = NCT_DTYPE_F16,
        .channels = 2,
        .steps = 3,
        .flags = NCT_FLAG_INNER_LEFT | NCT_FLAG_NO_PUBLISH,
        .ttl_us = 500,
        .seq = 7,
        .pos = 20160,
        .t_capture_ns = 123456789,
        .epoch = 3,
        .given = given,
        .n_groups = 2,
        .tag = 42};
    uint64_t id;
    assert_int_equal(nct_send(c, &q, x, &id), 0);
    memset(x, 0xee, sizeof x); /* what happens to the buffer after nct_send() does not matter */
    memset(given, 0xee, sizeof given);
    nct_answer a = recv_ok(c, 3000);
    assert_int_equal(a.kind, NCT_RESULT);
    assert_true(a.request_id == id && a.tag == 42 && a.seq == 7 && a.pos == 10080 && a.status == 0);
    assert_true(a.dtype == NCT_DTYPE_F16 && a.channels == 3 && a.steps == 2 && a.flags == NCT_FLAG_GAP_SEEN);
    assert_true(a.t_capture_ns == 123456789 && a.t_answer_ns == 5 && a.epoch == 3 && a.generation == 8);
    assert_true(a.queue_us == 11 && a.compute_us == 12 && a.window == 4 && a.missed == 0);
    assert_int_equal(a.payload_bytes, 12);
    assert_memory_equal(a.payload, "0123456789ab", 12);
    assert_string_equal(a.model, "m");
    assert_string_equal(a.stream, "a");
    assert_string_equal(a.text, "");
    nct_release(&a);

    send_ok(c, "m", 8);
    a = recv_ok(c, 3000);
    assert_true(a.kind == NCT_ERROR && a.status == -EPROTO && a.tag == 108 && !a.payload && a.text[0]);
    nct_release(&a);
    send_ok(c, "m", 9);
    a = recv_ok(c, 3000);
    assert_true(a.kind == NCT_ERROR && a.status == -ENOBUFS && a.tag == 109 && a.seq == 9);
    assert_string_equal(a.text, "the daemon is full: 3 of 4 MiB are taken");
    nct_release(&a);
    q = frame_of("m", 10);
    q.flags = NCT_FLAG_NO_REPLY;
    assert_int_equal(nct_send(c, &q, samples, NULL), 0);
    a = recv_ok(c, 3000);
    assert_true(a.kind == NCT_RESULT && !a.payload && !a.payload_bytes && a.channels == 3 && a.steps == 2);
    nct_release(&a);
    assert_int_equal(nct_recv(c, 1000, &a), -ENOENT); /* the doubled answer came to nobody */
    nct_close(c);
    peer_stop(&p);
}

static void bad(nct *c, nct_request q, const void *payload, int want, const char *word) {
    uint64_t id = 77;
    int got = nct_send(c, &q, payload, &id);
    if (got != want || !strstr(nct_reason(c), word)) fail_msg("%d, \"%s\", not \"%s\"", got, nct_reason(c), word);
    assert_true(id == 77 && nct_in_flight(c) == 0);
}

static void bad_requests(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_echo);
    nct *c = client_open(&p, NULL);
    const nct_request good = frame_of("m", 0);
    nct_request q;
    bad(c, good, NULL, -EINVAL, "NULL");
    q = good, q.model = NULL;
    bad(c, q, samples, -EINVAL, "model");
    q = good, q.stream = "ch1/x";
    bad(c, q, samples, -EINVAL, "ch1/x");
    q = good, q.stream = "";
    bad(c, q, samples, -EINVAL, "stream");
    q = good, q.dtype = 0;
    bad(c, q, samples, -EINVAL, "dtype is 0");
    q = good, q.want = NCT_DTYPE_F64;
    bad(c, q, samples, -EINVAL, "want is 6");
    q = good, q.steps = 0;
    bad(c, q, samples, -EINVAL, "0 steps");
    q = good, q.channels = 0;
    bad(c, q, samples, -EINVAL, "0 channels");
    q = good, q.steps = 513; /* 2 x 513 x 4 is above WELCOME's 4096 */
    bad(c, q, samples, -EMSGSIZE, "4096");
    q = good, q.channels = q.steps = UINT32_MAX, q.dtype = NCT_DTYPE_F64;
    bad(c, q, samples, -EMSGSIZE, "4294967295");
    q = good, q.flags = 1u << 23;
    bad(c, q, samples, -ENOTSUP, "flag 23");
    q = good, q.n_groups = 2;
    bad(c, q, samples, -EINVAL, "n_groups");
    q = good, q.given = (const double[3]){1, 2, 3};
    bad(c, q, samples, -EINVAL, "n_groups");
    q.n_groups = 1, q.flags = NCT_FLAG_OBSERVE;
    bad(c, q, samples, -EINVAL, "OBSERVE");
    recv_value(c, send_ok(c, "m", 999), 999);
    nct_close(c);
    peer_stop(&p);
}

/* ---- timeouts, late answers ---- */

static void script_late(peer *p) {
    peer_message first, second, third;
    HOLD(p, peer_hello(p, &first) && peer_expect(p, WIRE_FRAME, &first));
    HOLD(p, peer_expect(p, WIRE_FRAME, &second));
    HOLD(p, peer_result(p, &first, 1)); /* late, and right before the answer that is waited for */
    HOLD(p, peer_result(p, &second, 2));
    HOLD(p, peer_expect(p, WIRE_FRAME, &third));
    HOLD(p, peer_result(p, &third, 3));
}

static void late_answer_is_nobodys(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_late);
    nct *c = client_open(&p, NULL);
    nct_request q = frame_of("m", 1);
    nct_answer a = {.kind = 77};
    float value;
    assert_int_equal(nct_call(c, &q, samples, 0, &a), -EINVAL);
    assert_int_equal(nct_call(c, &q, samples, 50, &a), -ETIMEDOUT);
    assert_int_equal(a.kind, 77);
    assert_int_equal(nct_in_flight(c), 1); /* the place comes back with the answer only */
    assert_int_equal(nct_recv(c, 1000, &a), -ENOENT);
    q.seq = 2;
    assert_int_equal(nct_call(c, &q, samples, 3000, &a), 0);
    memcpy(&value, a.payload, 4);
    assert_true(value == 2);
    nct_release(&a);
    assert_int_equal(nct_in_flight(c), 0);
    uint64_t id = send_ok(c, "m", 3);
    assert_int_equal(nct_forget(c, id), 0);
    assert_int_equal(nct_forget(c, id), -ENOENT);
    assert_int_equal(nct_forget(c, 12345), -ENOENT);
    assert_int_equal(nct_forget(c, 0), -ENOENT);
    assert_int_equal(nct_recv(c, 0, &a), -EAGAIN);
    nct_close(c);
    peer_stop(&p);
}

/* ---- streams and PING ---- */

static void script_streams(peer *p) {
    peer_message m, frame;
    HOLD(p, peer_hello(p, &m) && peer_expect(p, WIRE_OPEN, &m));
    HOLD(p, !strcmp(m.topic, "m/a/") && !strcmp((char *)m.payload, "{\"sample_rate\": 48000}"));
    HOLD(p, peer_put(p, &m, (wire_header){.kind = WIRE_OPENED, .epoch = 5}, m.payload, m.payload_len));
    HOLD(p, peer_expect(p, WIRE_OPEN, &m) && m.payload_len == 0);
    HOLD(p, peer_error(p, &m, -16, "stream m/b belongs to another session"));
    HOLD(p, peer_expect(p, WIRE_FRAME, &frame));
    HOLD(p, peer_expect(p, WIRE_CLOSE, &m) && !strcmp(m.topic, "m/a/"));
    HOLD(p, peer_result(p, &frame, 1));
    HOLD(p,
        peer_put(p, &m,
            (wire_header){.kind = WIRE_RESULT, .dtype = 1, .flags = WIRE_LAST, .channels = 1, .steps = 1, .seq = 8},
            "rest", 4));
    HOLD(p, peer_put(p, &m, (wire_header){.kind = WIRE_CLOSED}, "", 0));
    HOLD(p, peer_expect(p, WIRE_PING, &m) && !m.topic[0]);
    HOLD(p, peer_put(p, &m, (wire_header){.kind = WIRE_PONG}, "", 0));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m));
    HOLD(p, peer_put(p, &m, (wire_header){.kind = WIRE_CLOSED, .status = -62, .request_id = 1u << 30},
                "idle for 60 s", 13));
    HOLD(p, peer_result(p, &m, 2));
}

static void streams_and_ping(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_streams);
    nct *c = client_open(&p, NULL);
    uint32_t epoch = 77;
    assert_int_equal(nct_stream_open(c, "m", "a/b", NULL, &epoch), -EINVAL);
    assert_int_equal(nct_stream_open(c, "m", "a", "{\"sample_rate\": 48000}", &epoch), 0);
    assert_int_equal(epoch, 5);
    assert_int_equal(nct_stream_open(c, "m", "b", NULL, &epoch), -EBUSY);
    assert_string_equal(nct_reason(c), "stream m/b belongs to another session");
    assert_int_equal(epoch, 5);
    uint64_t id = send_ok(c, "m", 7);
    assert_int_equal(nct_stream_close(c, "m", "a"), 0);
    recv_value(c, id, 1);
    nct_answer a = recv_ok(c, 0);
    assert_true(a.kind == NCT_RESULT && a.flags == NCT_FLAG_LAST && a.seq == 8 && a.tag == 0);
    assert_memory_equal(a.payload, "rest", 4);
    nct_release(&a);
    int64_t ns = 0;
    assert_int_equal(nct_ping(c, 3000, &ns), 0);
    assert_true(ns > 0);
    id = send_ok(c, "m", 9);
    a = recv_ok(c, 3000);
    assert_true(a.kind == NCT_CLOSED && a.status == -ETIME && a.request_id == 0);
    assert_string_equal(a.text, "idle for 60 s");
    assert_string_equal(a.stream, "a");
    nct_release(&a);
    recv_value(c, id, 2);
    nct_close(c);
    peer_stop(&p);
}

/* ---- the fd ---- */

static int readable(int fd, int timeout_ms) {
    struct pollfd f = {.fd = fd, .events = POLLIN};
    return poll(&f, 1, timeout_ms);
}

static void script_fd(peer *p) {
    peer_message m[3];
    p->window = 8;
    HOLD(p, peer_hello(p, &m[0]));
    for (int i = 0; i < 3; i++) HOLD(p, peer_expect(p, WIRE_FRAME, &m[i]));
    sem_wait(&p->go);
    for (int i = 0; i < 3; i++) HOLD(p, peer_result(p, &m[i], (float)i));
    sem_wait(&p->go);
    HOLD(p, peer_expect(p, WIRE_FRAME, &m[0]) && peer_expect(p, WIRE_PING, &m[1]));
    HOLD(p, peer_put(p, &m[1], (wire_header){.kind = WIRE_PONG}, "", 0));
    HOLD(p, peer_result(p, &m[0], 9));
}

static void fd_tells_the_truth(void **state) {
    (void)state;
    peer p;
    nct_answer a;
    peer_start(&p, script_fd);
    nct_options o = client_options();
    o.ping_ms = 200;
    nct *c = client_open(&p, &o);
    int fd = nct_fd(c);
    assert_true(fd >= 0 && fd == nct_fd(c));
    uint64_t id[3];
    for (uint64_t i = 0; i < 3; i++) id[i] = send_ok(c, "m", i);
    assert_int_equal(nct_recv(c, 0, &a), -EAGAIN);
    sem_post(&p.go);
    for (int i = 0; i < 3; i++) { /* level-triggered: readable as long as one is left */
        int error;
        do assert_int_equal(readable(fd, 3000), 1);
        while ((error = nct_recv(c, 0, &a)) == -EAGAIN);
        assert_int_equal(error, 0);
        assert_true(a.request_id == id[i]);
        nct_release(&a);
    }
    while (nct_recv(c, 0, &a) != -EAGAIN) {
    }
    assert_int_equal(readable(fd, 0), 0); /* nothing in flight: no timer, no answers, silent */
    assert_int_equal(readable(fd, 300), 0);
    send_ok(c, "m", 9);
    sem_post(&p.go);
    int turns = 0;
    do { /* the PING is due without any call of ours: the fd says so */
        assert_int_equal(readable(fd, 3000), 1);
        assert_true(++turns < 50);
    } while (nct_recv(c, 0, &a) == -EAGAIN);
    assert_true(a.seq == 9);
    nct_release(&a);
    nct_close(c);
    peer_stop(&p);
}

/* ---- fork ---- */

static int child_sees_errors(nct *c, nct_sub *s) {
    nct_request q = frame_of("m", 5);
    nct_answer a;
    uint32_t epoch;
    int bad = nct_send(c, &q, samples, NULL) != -EINVAL || !strstr(nct_reason(c), "forked child");
    bad |= nct_recv(c, 0, &a) != -EINVAL || nct_call(c, &q, samples, 10, &a) != -EINVAL || nct_fd(c) != -EINVAL;
    bad |= nct_stream_open(c, "m", "a", NULL, &epoch) != -EINVAL || nct_stream_close(c, "m", "a") != -EINVAL;
    bad |= nct_ping(c, 10, NULL) != -EINVAL || nct_forget(c, 1) != -EINVAL;
    bad |= nct_sub_recv(s, 0, &a) != -EINVAL || nct_sub_add(s, "m/x") != -EINVAL || nct_sub_fd(s) != -EINVAL;
    nct_close(c);
    nct_sub_close(s);
    return bad;
}

static void fork_is_refused(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_echo);
    nct *c = client_open(&p, NULL);
    nct_sub *s = NULL;
    assert_int_equal(nct_sub_open(&s, "ipc:///tmp/nct-nobody-is-here", "", NULL), 0);
    assert_true(nct_fd(c) >= 0);
    uint64_t id = send_ok(c, "m", 5);
    pid_t child = fork();
    if (child == 0) _exit(child_sees_errors(c, s));
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    recv_value(c, id, 5); /* the parent goes on */
    recv_value(c, send_ok(c, "m", 999), 999);
    nct_close(c);
    nct_sub_close(s);
    peer_stop(&p);
}

static void words(void **state) {
    (void)state;
    assert_string_equal(nct_errname(-EAGAIN), "EAGAIN");
    assert_string_equal(nct_errname(-ETIMEDOUT), "ETIMEDOUT");
    assert_string_equal(nct_errname(-EXDEV), "?");
    assert_string_equal(nct_strerror(-ENOENT), "no such model");
    assert_true(strlen(nct_strerror(-ETIMEDOUT)) > 5);
    assert_true(strlen(nct_version()) >= 5);
    nct_answer none = {0};
    nct_release(&none);
    nct_release(NULL);
    nct_close(NULL);
    nct_sub_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_says_hello),
        cmocka_unit_test(open_refused),
        cmocka_unit_test(open_without_daemon),
        cmocka_unit_test(open_waits_for_ready),
        cmocka_unit_test(window_nonblock),
        cmocka_unit_test(window_block),
        cmocka_unit_test(answers_bounded),
        cmocka_unit_test(facts_both_ways),
        cmocka_unit_test(bad_requests),
        cmocka_unit_test(late_answer_is_nobodys),
        cmocka_unit_test(streams_and_ping),
        cmocka_unit_test(fd_tells_the_truth),
        cmocka_unit_test(fork_is_refused),
        cmocka_unit_test(words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
