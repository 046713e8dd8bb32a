/* zsock_selftest.c: the start-up proof that one peer can be cut (flow.md 20): everything that bounds a stopped client
 * rests on it, and a kernel, a sandbox or another libzmq could take it away. Called once by main, before the daemon's
 * own sockets; about 10 ms. */
#include "zsock_own.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ROW_BYTES (1 << 20)
#define ROWS      12 /* more than the kernel buffers of a local socket take */
#define WAIT_MS   2000

typedef struct {
    zrouter *router;
    void *client;
    zpeer *peer;
    ledger counts;
    letgo list;
    letgo_node nodes[ROWS];
    char *row;
    int n_handed, n_let_go;
    bool gone;
} trial;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void wake(void *ctx) {
    (void)ctx;
}

static void peer_gone(void *ctx, zpeer *p) {
    trial *t = ctx;
    if (p == t->peer) t->gone = true;
}

static void turn(trial *t) {
    zmsg m;
    zrouter_monitor(t->router, now_ns());
    while (zrouter_recv(t->router, &m, now_ns()) > 0) {
        t->peer = m.peer;
        zmsg_done(&m);
    }
    for (letgo_node *n = letgo_take(&t->list); n; n = n->next) t->n_let_go++;
    poll(NULL, 0, 1);
}

static int connect_client(trial *t, zctx *ctx, zwhy *why) {
    char endpoint[64], bound[256];
    snprintf(endpoint, sizeof endpoint, "ipc://@nctd-self-test-%d", (int)getpid());
    int error = zrouter_bind(t->router, endpoint, bound, why);
    if (error) return error;
    t->client = zmq_socket(ctx->zmq, ZMQ_DEALER);
    if (!t->client) return -errno;
    if (zopt_int(t->client, ZMQ_LINGER, 0) || zopt_int(t->client, ZMQ_RCVHWM, 1) ||
        zopt_int(t->client, ZMQ_RECONNECT_IVL, -1) || zmq_connect(t->client, endpoint) ||
        zmq_send(t->client, "x", 1, 0) < 0)
        return zwhy_set(why, -errno, "the self-test's client: %s", zmq_strerror(errno));
    for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; !t->peer && now_ns() < end;) turn(t);
    return t->peer ? 0 : zwhy_set(why, -EIO, "the self-test's client was not heard in %d ms", WAIT_MS);
}

static int hold_and_cut(trial *t, zwhy *why) {
    for (; t->n_handed < ROWS; t->n_handed++) {
        letgo_node *n = &t->nodes[t->n_handed];
        n->list = &t->list;
        zout m = {.topic = "", .header = "", .payload = t->row, .payload_bytes = ROW_BYTES, .node = n};
        if (zrouter_send(t->router, t->peer, &m)) break;
    }
    for (int i = 0; i < 5; i++) turn(t);
    if (t->n_let_go == t->n_handed)
        return zwhy_set(why, -EIO, "a client that reads nothing held none of %d rows", t->n_handed);
    zrouter_cut(t->router, t->peer, CUT_stall);
    for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end;) {
        turn(t);
        if (t->gone && t->n_let_go == t->n_handed) return 0;
    }
    return zwhy_set(why, -EIO, "cut, but %d of its %d rows are still held after %d ms, and it is %s",
        t->n_handed - t->n_let_go, t->n_handed, WAIT_MS, t->gone ? "gone" : "still there");
}

int zsock_self_test(zwhy *why) {
    trial t = {.list.wake = wake, .row = calloc(1, ROW_BYTES)};
    zctx *ctx = NULL;
    int error = t.row ? zctx_new(&ctx, 1) : -ENOMEM;
    if (error) goto done;
    zrouter_setup setup = {.ctx = ctx,
        .counts = &t.counts,
        .gone = {peer_gone, &t},
        .max_connections = 4,
        .max_message_bytes = 4096,
        .send_hwm = 100,
        .receive_hwm = 4};
    error = zrouter_new(&t.router, &setup, why);
    if (!error) error = connect_client(&t, ctx, why);
    if (!error) error = hold_and_cut(&t, why);
    if (t.client) zmq_close(t.client);
    zrouter_close(t.router, 0, NULL);
done:
    zctx_term(ctx);
    free(t.row);
    return error;
}
