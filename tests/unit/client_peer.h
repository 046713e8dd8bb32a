/* client_peer.h: a scripted daemon for the tests of libnct: a real ROUTER on an ipc socket, in a thread of its own, that
 * speaks real wire bytes. Each test gives it a script; a step that does not hold is noted and fails the test at the end
 * (cmocka's own asserts belong to the main thread). */
#ifndef CLIENT_PEER_H
#define CLIENT_PEER_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "nct.h"
#include "wire.h"

#define PEER_SESSION 0x1000
#define PEER_JSON                                                                                                    \
    "{\"version\": \"0.1.0\", \"models\": [{\"name\": \"m\", \"mode\": \"frame\"}, {\"name\": \"s\", \"mode\": "     \
    "\"stream\"}], \"limits\": {\"max_frame_bytes\": 4096}}"

typedef struct peer peer;
struct peer {
    char folder[64], endpoint[96];
    void *ctx, *router;
    pthread_t thread;
    void (*script)(peer *p);
    sem_t go, done; /* steps that the main thread lets pass, and hears of */
    char failed[256];
    uint64_t session; /* of the next WELCOME */
    uint32_t window;
    int welcomes;
};

/* A message as it came. */
typedef struct {
    uint8_t id[256], payload[8192];
    size_t id_len, payload_len;
    char topic[256];
    wire_header h;
} peer_message;

#define HOLD(p, condition)                                                                                           \
    do {                                                                                                             \
        if (!(condition)) {                                                                                          \
            if (!(p)->failed[0])                                                                                     \
                snprintf((p)->failed, sizeof(p)->failed, "%s:%d: %s", __FILE__, __LINE__, #condition);               \
            return;                                                                                                  \
        }                                                                                                            \
    } while (0)

static inline void peer_bind(peer *p) {
    int none = 0, wait_ms = 5000;
    p->router = zmq_socket(p->ctx, ZMQ_ROUTER);
    zmq_setsockopt(p->router, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(p->router, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    if (zmq_bind(p->router, p->endpoint))
        snprintf(p->failed, sizeof p->failed, "bind: %s", zmq_strerror(zmq_errno()));
}

static inline void peer_unbind(peer *p) {
    zmq_close(p->router), p->router = NULL;
}

static inline void *peer_run(void *arg) {
    peer *p = arg;
    p->script(p);
    sem_post(&p->done);
    return NULL;
}

static inline void peer_start(peer *p, void (*script)(peer *)) {
    memset(p, 0, sizeof *p);
    p->session = PEER_SESSION;
    p->window = 4;
    p->script = script;
    strcpy(p->folder, "/tmp/nct-peer-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(p->endpoint, sizeof p->endpoint, "ipc://%s/s", p->folder);
    sem_init(&p->go, 0, 0);
    sem_init(&p->done, 0, 0);
    p->ctx = zmq_ctx_new();
    peer_bind(p);
    assert_string_equal(p->failed, "");
    assert_int_equal(pthread_create(&p->thread, NULL, peer_run, p), 0);
}

static inline void peer_stop(peer *p) {
    char path[96];
    pthread_join(p->thread, NULL);
    if (p->router) zmq_close(p->router);
    zmq_ctx_term(p->ctx);
    snprintf(path, sizeof path, "%s/s", p->folder);
    unlink(path);
    rmdir(p->folder);
    sem_destroy(&p->go);
    sem_destroy(&p->done);
    if (p->failed[0]) fail_msg("the peer's script: %s", p->failed);
}

/* 1: a message of three parts came. */
static inline int peer_get(peer *p, peer_message *m) {
    memset(m, 0, sizeof *m);
    uint8_t header[256];
    int n[4], more = 1, i = 0;
    void *room[4] = {m->id, m->topic, header, m->payload};
    size_t size[4] = {sizeof m->id, sizeof m->topic - 1, sizeof header, sizeof m->payload};
    size_t more_size = sizeof more;
    for (; more && i < 4; i++) {
        n[i] = zmq_recv(p->router, room[i], size[i], 0);
        if (n[i] < 0) return 0;
        zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &more_size);
    }
    if (more || i != 4 || (size_t)n[3] > sizeof m->payload) return 0;
    m->id_len = (size_t)n[0];
    m->payload_len = (size_t)n[3];
    return wire_read(&m->h, header, (size_t)n[2], NULL) == 0;
}

static inline int peer_expect(peer *p, uint8_t kind, peer_message *m) {
    return peer_get(p, m) && m->h.kind == kind && (kind == WIRE_HELLO || m->h.session == p->session);
}

/* Answer m with a header of our own (session, request id, seq and window are filled in when 0). */
static inline int peer_put(peer *p, const peer_message *m, wire_header h, const void *payload, size_t len) {
    uint8_t bytes[WIRE_HEADER_BYTES];
    if (!h.session) h.session = p->session;
    if (!h.request_id) h.request_id = m->h.request_id;
    if (!h.seq) h.seq = m->h.seq;
    if (!h.window) h.window = p->window;
    wire_write(bytes, &h);
    return zmq_send(p->router, m->id, m->id_len, ZMQ_SNDMORE) >= 0 &&
           zmq_send(p->router, m->topic, strlen(m->topic), ZMQ_SNDMORE) >= 0 &&
           zmq_send(p->router, bytes, sizeof bytes, ZMQ_SNDMORE) >= 0 && zmq_send(p->router, payload, len, 0) >= 0;
}

/* A result of one f32 that tells which request it answers. */
static inline int peer_result(peer *p, const peer_message *m, float value) {
    return peer_put(
        p, m, (wire_header){.kind = WIRE_RESULT, .dtype = 1, .channels = 1, .steps = 1, .epoch = 1}, &value, 4);
}

static inline int peer_error(peer *p, const peer_message *m, int32_t status, const char *text) {
    return peer_put(p, m, (wire_header){.kind = WIRE_ERROR, .status = status}, text, strlen(text));
}

static inline int peer_hello(peer *p, peer_message *m) {
    if (!peer_expect(p, WIRE_HELLO, m) || m->h.session || m->topic[0]) return 0;
    p->welcomes++;
    return peer_put(p, m, (wire_header){.kind = WIRE_WELCOME}, PEER_JSON, strlen(PEER_JSON));
}

/* Answers every frame with its seq; ends with seq 999. */
static inline void peer_echo(peer *p) {
    peer_message m;
    HOLD(p, peer_hello(p, &m));
    while (peer_expect(p, WIRE_FRAME, &m) && m.h.seq != 999) HOLD(p, peer_result(p, &m, (float)m.h.seq));
    HOLD(p, m.h.seq == 999);
    HOLD(p, peer_result(p, &m, 999));
}

/* The daemon is gone, and another one is there, which knows no session of the first. */
static inline void peer_restart(peer *p) {
    peer_unbind(p);
    p->session += 0x1000;
    peer_bind(p);
}

/* ---- the client's side ---- */

static inline nct *client_open(const peer *p, const nct_options *o) {
    nct *c = NULL;
    char why[256] = "";
    int error = nct_open_why(&c, p->endpoint, o, why);
    if (error) fail_msg("open: %d, %s", error, why);
    return c;
}

static inline nct_options client_options(void) {
    nct_options o;
    nct_options_init(&o);
    o.timeout_ms = 3000;
    return o;
}

static const float samples[6] = {1, 2, 3, 4, 5, 6};

static inline nct_request frame_of(const char *model, uint64_t seq) {
    return (nct_request){.model = model,
        .stream = "a",
        .dtype = NCT_DTYPE_F32,
        .channels = 2,
        .steps = 3,
        .seq = seq,
        .tag = 100 + seq};
}

static inline uint64_t send_ok(nct *c, const char *model, uint64_t seq) {
    nct_request q = frame_of(model, seq);
    uint64_t id = 0;
    int error = nct_send(c, &q, samples, &id);
    if (error) fail_msg("send: %d, %s", error, nct_reason(c));
    assert_true(id != 0);
    return id;
}

static inline nct_answer recv_ok(nct *c, int timeout_ms) {
    nct_answer a;
    memset(&a, 0xee, sizeof a);
    int error = nct_recv(c, timeout_ms, &a);
    if (error) fail_msg("recv: %d, %s", error, nct_reason(c));
    return a;
}

static inline void recv_value(nct *c, uint64_t id, float value) {
    nct_answer a = recv_ok(c, 3000);
    float got;
    assert_true(a.request_id == id);
    if (a.status) fail_msg("request %llu: %d, %s", (unsigned long long)id, a.status, a.text);
    assert_int_equal(a.payload_bytes, 4);
    memcpy(&got, a.payload, 4);
    assert_true(got == value);
    nct_release(&a);
}
#endif
