/* test_client_answer.c: what libnct puts into requests and hands out as answers: every header fact, refusals before and
 * after the wire, late and doubled answers, streams, PING. */
#include "client_peer.h"

#include <errno.h>

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
    peer_start(&p, peer_echo);
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

/* nct_call() takes its own answer and leaves the others in their order. */
static void call_leaves_the_others(void **state) {
    (void)state;
    peer p;
    nct_answer a;
    float value;
    peer_start(&p, peer_echo);
    nct *c = client_open(&p, NULL);
    uint64_t id[2] = {send_ok(c, "m", 1), send_ok(c, "m", 2)};
    nct_request q = frame_of("m", 999);
    assert_int_equal(nct_call(c, &q, samples, 3000, &a), 0);
    memcpy(&value, a.payload, 4);
    assert_true(value == 999 && a.seq == 999);
    nct_release(&a);
    assert_int_equal(nct_ready(c), 2);
    recv_value(c, id[0], 1);
    recv_value(c, id[1], 2);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_both_ways),
        cmocka_unit_test(bad_requests),
        cmocka_unit_test(late_answer_is_nobodys),
        cmocka_unit_test(call_leaves_the_others),
        cmocka_unit_test(streams_and_ping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
