/* test_client_cut.c: libnct when the connection is cut, the daemon restarts, falls silent, forgets the session or says
 * goodbye: what is sent again, what is not, and that each answer is handed out once. */
#include "client_peer.h"

#include <errno.h>

static int is_previous(const peer_message *m, uint64_t session) {
    char word[64];
    snprintf(word, sizeof word, "\"previous\": \"%016llx\"", (unsigned long long)session);
    return strstr((const char *)m->payload, word) != NULL;
}

/* A new HELLO that names the session before, and its WELCOME. */
static int hello_again(peer *p, uint64_t previous) {
    peer_message m;
    return peer_hello(p, &m) && is_previous(&m, previous);
}

static void script_resend(peer *p) {
    peer_message first[3], again[3], m;
    HOLD(p, peer_hello(p, &m));
    for (int i = 0; i < 3; i++) HOLD(p, peer_expect(p, WIRE_FRAME, &first[i]) && !(first[i].h.flags & WIRE_RESENT));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && m.h.seq == 8); /* forgotten before the cut: not sent again */
    HOLD(p, peer_result(p, &first[1], 1));                   /* overtakes; answered before the cut */
    sem_wait(&p->go);
    peer_restart(p);
    HOLD(p, hello_again(p, PEER_SESSION));
    for (int i = 0; i < 3; i += 2) { /* 0 and 2, in order, with the same bytes */
        HOLD(p, peer_expect(p, WIRE_FRAME, &again[i]));
        HOLD(p, again[i].h.request_id == first[i].h.request_id && again[i].h.seq == first[i].h.seq);
        HOLD(p, (again[i].h.flags & WIRE_RESENT) && !strcmp(again[i].topic, "m/a/"));
        HOLD(p, again[i].payload_len == 24 && !memcmp(again[i].payload, samples, 24));
    }
    for (int i = 0; i < 3; i += 2) /* doubled: the second one is nobody's */
        HOLD(p, peer_result(p, &again[i], (float)i) && peer_result(p, &again[i], 77));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && !(m.h.flags & WIRE_RESENT));
    HOLD(p, peer_result(p, &m, 4));
}

static void resent_and_answered_once(void **state) {
    (void)state;
    peer p;
    nct_answer a;
    peer_start(&p, script_resend);
    nct *c = client_open(&p, NULL);
    uint64_t id[3];
    for (uint64_t i = 0; i < 3; i++) id[i] = send_ok(c, "m", i);
    assert_int_equal(nct_forget(c, send_ok(c, "m", 8)), 0);
    recv_value(c, id[1], 1);
    sem_post(&p.go);
    recv_value(c, id[0], 0);
    recv_value(c, id[2], 2);
    assert_int_equal(nct_recv(c, 500, &a), -ENOENT);
    recv_value(c, send_ok(c, "m", 3), 4);
    assert_int_equal(nct_reconnects(c), 1);
    assert_true(nct_session(c) == PEER_SESSION + 0x1000);
    nct_close(c);
    peer_stop(&p);
}

/* d8: the daemon restarts between two requests, and between a request and its answer. */
static void script_restart(peer *p) {
    peer_message m;
    HOLD(p, peer_hello(p, &m));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && peer_result(p, &m, 1));
    sem_wait(&p->go);
    peer_restart(p);
    HOLD(p, hello_again(p, PEER_SESSION));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && peer_result(p, &m, 2));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m));
    peer_unbind(p);
    sem_post(&p->done);
    sem_wait(&p->go); /* nobody listens until the pending call has ended */
    p->session += 0x1000;
    peer_bind(p);
    HOLD(p, hello_again(p, PEER_SESSION + 0x1000));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && m.h.seq == 4);
    HOLD(p, peer_result(p, &m, 4));
}

static void call_value(nct *c, uint64_t seq, float value) {
    nct_request q = frame_of("m", seq);
    nct_answer a;
    float got;
    int error = nct_call(c, &q, samples, 3000, &a);
    if (error || a.status) fail_msg("call: %d, %s", error, error ? nct_reason(c) : a.text);
    memcpy(&got, a.payload, 4);
    assert_true(got == value);
    nct_release(&a);
}

static void restart_between_calls(void **state) {
    (void)state;
    peer p;
    nct_answer a;
    peer_start(&p, script_restart);
    nct *c = client_open(&p, NULL);
    call_value(c, 1, 1);
    sem_post(&p.go);
    call_value(c, 2, 2);
    nct_request q = frame_of("m", 3);
    assert_int_equal(nct_call(c, &q, samples, 300, &a), -ETIMEDOUT);
    assert_string_equal(nct_reason(c), "no answer within 300 ms, no session at the moment");
    sem_wait(&p.done);
    sem_post(&p.go);
    call_value(c, 4, 4); /* request 3 was forgotten: it is not sent to the new daemon */
    assert_int_equal(nct_in_flight(c), 0);
    nct_close(c);
    peer_stop(&p);
}

/* ---- silence ---- */

static void script_silence(peer *p) {
    peer_message frame, m;
    HOLD(p, peer_hello(p, &m) && peer_expect(p, WIRE_FRAME, &frame));
    for (int i = 0; i < 2; i++) /* alive, only slow: the connection stays */
        HOLD(p, peer_expect(p, WIRE_PING, &m) && peer_put(p, &m, (wire_header){.kind = WIRE_PONG}, "", 0));
    HOLD(p, peer_result(p, &frame, 1));
    do { /* on a slow machine another PING may be under way */
        HOLD(p, peer_get(p, &frame));
        if (frame.h.kind == WIRE_PING) HOLD(p, peer_put(p, &frame, (wire_header){.kind = WIRE_PONG}, "", 0));
    } while (frame.h.kind == WIRE_PING);
    HOLD(p, frame.h.kind == WIRE_FRAME && frame.h.seq == 2);
    HOLD(p, peer_expect(p, WIRE_PING, &m)); /* no PONG: HELLO comes on a new connection */
    peer_message hello;
    p->session += 0x1000;
    HOLD(p, peer_hello(p, &hello) && is_previous(&hello, PEER_SESSION));
    HOLD(p, hello.id_len != frame.id_len || memcmp(hello.id, frame.id, frame.id_len));
    HOLD(p, peer_expect(p, WIRE_FRAME, &frame) && (frame.h.flags & WIRE_RESENT));
    HOLD(p, peer_result(p, &frame, 2));
}

static void silence_is_noticed(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_silence);
    nct_options o = client_options();
    o.ping_ms = 150;
    nct *c = client_open(&p, &o);
    recv_value(c, send_ok(c, "m", 1), 1);
    assert_int_equal(nct_reconnects(c), 0);
    recv_value(c, send_ok(c, "m", 2), 2);
    assert_int_equal(nct_reconnects(c), 1);
    nct_close(c);
    peer_stop(&p);
}

/* An idle client says nothing. */
static void script_idle(peer *p) {
    peer_message m;
    int wait_ms = 300;
    HOLD(p, peer_hello(p, &m));
    zmq_setsockopt(p->router, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    HOLD(p, !peer_get(p, &m));
}

static void idle_is_silent(void **state) {
    (void)state;
    peer p;
    nct_answer a;
    peer_start(&p, script_idle);
    nct_options o = client_options();
    o.ping_ms = 20;
    nct *c = client_open(&p, &o);
    for (int i = 0; i < 30; i++, usleep(10000)) assert_int_equal(nct_recv(c, 0, &a), -EAGAIN);
    sem_wait(&p.done);
    nct_close(c);
    peer_stop(&p);
}

/* ---- the session is unknown ---- */

static void script_stale(peer *p) {
    peer_message m, late;
    HOLD(p, peer_hello(p, &m));
    HOLD(p, peer_expect(p, WIRE_FRAME, &late) && peer_expect(p, WIRE_FRAME, &m));
    HOLD(p, peer_error(p, &late, -116, "no such session") && peer_error(p, &m, -116, "no such session"));
    p->session += 0x1000;
    HOLD(p, hello_again(p, PEER_SESSION));
    for (int i = 0; i < 2; i++)
        HOLD(p, peer_expect(p, WIRE_FRAME, &m) && (m.h.flags & WIRE_RESENT) && peer_result(p, &m, (float)i));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && peer_error(p, &m, -116, "no such session"));
    p->session += 0x1000;
    HOLD(p, hello_again(p, PEER_SESSION + 0x1000));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && peer_error(p, &m, -116, "still none")); /* twice: handed out */
    HOLD(p, peer_expect(p, WIRE_PING, &m) && peer_error(p, &m, -116, "no such session"));
    p->session += 0x1000;
    HOLD(p, hello_again(p, PEER_SESSION + 0x2000));
    HOLD(p, peer_expect(p, WIRE_PING, &m) && peer_put(p, &m, (wire_header){.kind = WIRE_PONG}, "", 0));
}

static void stale_session_is_renewed(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_stale);
    nct *c = client_open(&p, NULL);
    uint64_t first = send_ok(c, "m", 1), second = send_ok(c, "m", 2);
    recv_value(c, first, 0);
    recv_value(c, second, 1);
    assert_int_equal(nct_reconnects(c), 1);
    send_ok(c, "m", 3);
    nct_answer a = recv_ok(c, 3000);
    assert_true(a.kind == NCT_ERROR && a.status == -ESTALE && a.seq == 3);
    assert_string_equal(a.text, "still none");
    nct_release(&a);
    assert_int_equal(nct_ping(c, 3000, NULL), 0);
    assert_int_equal(nct_reconnects(c), 3);
    nct_close(c);
    peer_stop(&p);
}

/* While a frame waits, our own PING may be the first to hear that the session has ended. */
static void script_stale_ping(peer *p) {
    peer_message m;
    HOLD(p, peer_hello(p, &m) && peer_expect(p, WIRE_FRAME, &m));
    HOLD(p, peer_expect(p, WIRE_PING, &m) && peer_error(p, &m, -116, "no such session"));
    p->session += 0x1000;
    HOLD(p, hello_again(p, PEER_SESSION));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && (m.h.flags & WIRE_RESENT) && peer_result(p, &m, 5));
}

static void stale_ping_is_heard(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_stale_ping);
    nct_options o = client_options();
    o.ping_ms = 200;
    nct *c = client_open(&p, &o);
    recv_value(c, send_ok(c, "m", 1), 5);
    assert_int_equal(nct_reconnects(c), 1);
    nct_close(c);
    peer_stop(&p);
}

/* ---- GOAWAY ---- */

static void script_goaway(peer *p) {
    peer_message first, m;
    static const char json[] = "{\"drain_ms\": 5000}";
    HOLD(p, peer_hello(p, &m) && peer_expect(p, WIRE_FRAME, &first) && peer_expect(p, WIRE_FRAME, &m));
    HOLD(p, peer_result(p, &first, 1));
    first.topic[0] = 0;
    HOLD(p, peer_put(p, &first, (wire_header){.kind = WIRE_GOAWAY}, json, strlen(json)));
    HOLD(p, peer_error(p, &m, -108, "shutting down"));
    sem_post(&p->done);
    sem_wait(&p->go);
    peer_restart(p);
    HOLD(p, hello_again(p, PEER_SESSION));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && m.h.seq == 2 && (m.h.flags & WIRE_RESENT) && peer_result(p, &m, 2));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && m.h.seq == 3 && peer_result(p, &m, 3));
}

static void goaway_waits_for_the_next(void **state) {
    (void)state;
    peer p;
    nct_answer a;
    peer_start(&p, script_goaway);
    nct_options o = client_options();
    o.nonblock = 1;
    nct *c = client_open(&p, &o);
    uint64_t first = send_ok(c, "m", 1), second = send_ok(c, "m", 2);
    recv_value(c, first, 1);
    sem_wait(&p.done);
    assert_int_equal(nct_recv(c, 100, &a), -ETIMEDOUT); /* refused with ESHUTDOWN: kept, not handed out */
    nct_request q = frame_of("m", 3);
    assert_int_equal(nct_send(c, &q, samples, NULL), -EAGAIN);
    assert_non_null(strstr(nct_reason(c), "no session"));
    sem_post(&p.go);
    recv_value(c, second, 2);
    recv_value(c, send_ok(c, "m", 3), 3);
    nct_close(c);
    peer_stop(&p);
}

/* ---- what is not sent again ---- */

static void script_stream_mode(peer *p) {
    peer_message m;
    HOLD(p, peer_hello(p, &m));
    HOLD(p, peer_expect(p, WIRE_OPEN, &m) && peer_put(p, &m, (wire_header){.kind = WIRE_OPENED, .epoch = 1}, "", 0));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && peer_result(p, &m, 1));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && peer_expect(p, WIRE_FRAME, &m));
    sem_wait(&p->go);
    peer_restart(p);
    HOLD(p, hello_again(p, PEER_SESSION));
    HOLD(p, peer_expect(p, WIRE_OPEN, &m) &&
                !strcmp((char *)m.payload, "{\"unit\": \"V\"}")); /* facts again, by itself */
    HOLD(p, peer_put(p, &m, (wire_header){.kind = WIRE_OPENED, .epoch = 1}, "", 0));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && m.h.seq == 20 && (m.h.flags & WIRE_GAP)); /* nothing of before */
    HOLD(p, peer_result(p, &m, 20));
    HOLD(p, peer_expect(p, WIRE_FRAME, &m) && m.h.seq == 21 && peer_result(p, &m, 21));
}

static void stream_mode_ends(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_stream_mode);
    nct *c = client_open(&p, NULL);
    assert_int_equal(nct_stream_open(c, "s", "a", "{\"unit\": \"V\"}", NULL), 0);
    recv_value(c, send_ok(c, "s", 9), 1);
    uint64_t id[2] = {send_ok(c, "s", 10), send_ok(c, "s", 11)};
    sem_post(&p.go);
    for (int i = 0; i < 2; i++) {
        nct_answer a = recv_ok(c, 3000);
        assert_true(
            a.kind == NCT_ERROR && a.status == -ESTALE && a.request_id == id[i] && a.tag == 110 + (uint64_t)i);
        assert_true(a.last_seq == 9 && a.seq == 10 + (uint64_t)i);
        assert_non_null(strstr(a.text, "stream mode"));
        assert_string_equal(a.model, "s");
        nct_release(&a);
    }
    nct_request q = frame_of("s", 12);
    assert_int_equal(nct_send(c, &q, samples, NULL), -ESTALE); /* no silent restart in the middle */
    assert_non_null(strstr(nct_reason(c), "seq 9"));
    q.seq = 20, q.flags = NCT_FLAG_GAP;
    uint64_t again;
    assert_int_equal(nct_send(c, &q, samples, &again), 0);
    recv_value(c, again, 20);
    recv_value(c, send_ok(c, "s", 21), 21);
    nct_close(c);
    peer_stop(&p);
}

static void script_drop(peer *p) {
    peer_message m;
    HOLD(p, peer_hello(p, &m) && peer_expect(p, WIRE_FRAME, &m));
    sem_wait(&p->go);
    peer_restart(p);
    HOLD(p, hello_again(p, PEER_SESSION) && peer_expect(p, WIRE_FRAME, &m) && m.h.seq == 2);
    HOLD(p, peer_result(p, &m, 2));
}

static void drop_as_asked(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_drop);
    nct_options o = client_options();
    o.on_cut = NCT_DROP;
    nct *c = client_open(&p, &o);
    uint64_t id = send_ok(c, "m", 1);
    sem_post(&p.go);
    nct_answer a = recv_ok(c, 3000);
    assert_true(a.status == -ESTALE && a.request_id == id && a.tag == 101);
    nct_release(&a);
    recv_value(c, send_ok(c, "m", 2), 2);
    nct_close(c);
    peer_stop(&p);
}

/* A smaller window after the cut holds for what is sent again, too. */
static void script_narrow(peer *p) {
    peer_message m;
    HOLD(p, peer_hello(p, &m));
    for (int i = 0; i < 4; i++) HOLD(p, peer_expect(p, WIRE_FRAME, &m));
    peer_unbind(p);
    p->session += 0x1000;
    p->window = 1;
    peer_bind(p);
    HOLD(p, hello_again(p, PEER_SESSION));
    for (int i = 0; i < 4; i++) {
        int wait_ms = 100;
        peer_message none;
        HOLD(p, peer_expect(p, WIRE_FRAME, &m) && m.h.seq == (uint64_t)i);
        zmq_setsockopt(p->router, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
        HOLD(p, !peer_get(p, &none)); /* the next one comes only after this one's answer */
        wait_ms = 5000;
        zmq_setsockopt(p->router, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
        HOLD(p, peer_result(p, &m, (float)i));
    }
}

static void resending_keeps_the_window(void **state) {
    (void)state;
    peer p;
    peer_start(&p, script_narrow);
    nct *c = client_open(&p, NULL);
    uint64_t id[4];
    for (uint64_t i = 0; i < 4; i++) id[i] = send_ok(c, "m", i);
    for (int i = 0; i < 4; i++) recv_value(c, id[i], (float)i);
    nct_close(c);
    peer_stop(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resent_and_answered_once),
        cmocka_unit_test(restart_between_calls),
        cmocka_unit_test(silence_is_noticed),
        cmocka_unit_test(idle_is_silent),
        cmocka_unit_test(stale_session_is_renewed),
        cmocka_unit_test(stale_ping_is_heard),
        cmocka_unit_test(goaway_waits_for_the_next),
        cmocka_unit_test(stream_mode_ends),
        cmocka_unit_test(drop_as_asked),
        cmocka_unit_test(resending_keeps_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
