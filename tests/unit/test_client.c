/* test_client.c: libnct against a scripted daemon while the connection holds: opening, the window, the fd, fork. Answers
 * are test_client_answer.c's, cuts test_client_cut.c's. */
#include "client_peer.h"

#include <errno.h>
#include <poll.h>
#include <sys/wait.h>

/* ---- opening ---- */

static void script_hello(peer *p) {
    peer_message m;
    HOLD(p, peer_hello(p, &m));
    HOLD(p, !strcmp((char *)m.payload, "{\"client\": \"bench 1, libnct " NCT_VERSION "\"}"));
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
    sem_wait(&p->go);
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
    sem_post(&p.go);
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

/* A caller that only sends does not make the library collect answers without bound. */
static void answers_bounded(void **state) {
    (void)state;
    peer p;
    peer_start(&p, peer_echo);
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
    peer_start(&p, peer_echo);
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
        cmocka_unit_test(fd_tells_the_truth),
        cmocka_unit_test(fork_is_refused),
        cmocka_unit_test(words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
