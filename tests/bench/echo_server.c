/* echo_server.c: the least that a server of this protocol over ZeroMQ can do, for `nct bench` to measure beside nctd: HELLO is
 * answered with a WELCOME that names one model, PING with PONG, and every FRAME goes back as its own RESULT, its parts
 * never copied. With a second endpoint each result also goes to whoever subscribed.
 *
 *     echo_server ENDPOINT [PUBLISH-ENDPOINT] [--channels 2]
 *
 * One thread, one I/O thread, no window, no queue, no checks beyond what keeps it alive. Runs until it is killed; it takes a
 * stale ipc socket over and leaves its own behind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>
#include "wire.h"

enum { WINDOW = 64, KIND = 4, STATUS_WINDOW = 68 };
typedef struct {
    void *router, *pub;
    char welcome[1024];
    uint64_t sessions;
} echo;

static void describe(echo *e, int channels) {
    snprintf(e->welcome, sizeof e->welcome,
        "{\"version\":\"echo\",\"backend\":\"echo\",\"variant\":\"zmq\",\"precision\":\"f32\",\"limits\":{\"max_"
        "frame_bytes\":"
        "16777216,\"window\":%d,\"max_streams\":4096,\"max_streams_client\":256},\"models\":[{\"name\":\"echo\","
        "\"mode\":\"frame\","
        "\"in_channels\":%d,\"out_channels\":%d,\"kernel_size\":1,\"num_groups\":%d}],\"ledger\":{}}",
        WINDOW, channels, channels, channels);
}

static int send_last(void *socket, const void *bytes, size_t len) {
    return zmq_send(socket, bytes, len, 0) < 0 ? -1 : 0;
}

static int greet(echo *e, zmq_msg_t *id, unsigned char *header) {
    wire_header h;
    wire_why why;
    if (wire_read(&h, header, WIRE_HEADER_BYTES, &why)) return 0;
    wire_header w = {.kind = h.kind == WIRE_PING ? WIRE_PONG : WIRE_WELCOME,
        .request_id = h.request_id,
        .session = h.session,
        .window = WINDOW};
    if (h.kind != WIRE_PING && h.kind != WIRE_HELLO) return 0;
    if (h.kind == WIRE_HELLO) w.session = ++e->sessions;
    wire_write(header, &w);
    if (zmq_msg_send(id, e->router, ZMQ_SNDMORE) < 0 || zmq_send(e->router, "", 0, ZMQ_SNDMORE) < 0 ||
        zmq_send(e->router, header, WIRE_HEADER_BYTES, ZMQ_SNDMORE) < 0)
        return -1;
    return w.kind == WIRE_WELCOME ? send_last(e->router, e->welcome, strlen(e->welcome))
                                  : send_last(e->router, "", 0);
}

/* part: id, topic, header, payload. A header of libnct's has 96 bytes; the parts are sent on as they are. */
static int answer(echo *e, zmq_msg_t part[4]) {
    static const uint32_t window = WINDOW;
    unsigned char *header = zmq_msg_data(&part[2]);
    if (zmq_msg_size(&part[2]) != WIRE_HEADER_BYTES) return 0;
    if (header[KIND] != WIRE_FRAME) return greet(e, &part[0], header);
    header[KIND] = WIRE_RESULT;
    memcpy(header + STATUS_WINDOW, &window, sizeof window);
    for (int i = 1; i < 4 && e->pub; i++) {
        zmq_msg_t copy;
        zmq_msg_init(&copy);
        zmq_msg_copy(&copy, &part[i]);
        if (zmq_msg_send(&copy, e->pub, i < 3 ? ZMQ_SNDMORE : 0) < 0) return -1;
    }
    for (int i = 0; i < 4; i++)
        if (zmq_msg_send(&part[i], e->router, i < 3 ? ZMQ_SNDMORE : 0) < 0) return -1;
    return 0;
}

static int serve(echo *e) {
    for (;;) {
        zmq_msg_t part[4];
        int n = 0, more = 1;
        for (; more; n++) {
            zmq_msg_t spare, *to = n < 4 ? &part[n] : &spare;
            zmq_msg_init(to);
            if (zmq_msg_recv(to, e->router, 0) < 0) return -1;
            more = zmq_msg_more(to);
            if (n >= 4) zmq_msg_close(to);
        }
        int bad = n == 4 ? answer(e, part) : 0;
        for (int i = 0; i < n && i < 4; i++) zmq_msg_close(&part[i]);
        if (bad) return -1;
    }
}

static void *bound(void *zmq, int type, const char *endpoint) {
    void *s = zmq_socket(zmq, type);
    int none = 0;
    zmq_setsockopt(s, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(s, ZMQ_RCVHWM, &none, sizeof none);
    if (zmq_bind(s, endpoint)) {
        fprintf(stderr, "echo_server: %s: %s\n", endpoint, zmq_strerror(zmq_errno()));
        exit(1);
    }
    return s;
}

int main(int argc, char **argv) {
    echo e = {0};
    int channels = 2, operands = 0;
    const char *endpoints[2] = {NULL, NULL};
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--channels") && i + 1 < argc)
            channels = atoi(argv[++i]);
        else if (operands < 2)
            endpoints[operands++] = argv[i];
    if (!operands || channels < 1)
        return fprintf(stderr, "usage: echo_server ENDPOINT [PUBLISH-ENDPOINT] [--channels 2]\n"), 2;
    void *zmq = zmq_ctx_new();
    describe(&e, channels);
    e.router = bound(zmq, ZMQ_ROUTER, endpoints[0]);
    if (endpoints[1]) e.pub = bound(zmq, ZMQ_PUB, endpoints[1]);
    serve(&e);
    fprintf(stderr, "echo_server: %s\n", zmq_strerror(zmq_errno()));
    return 1;
}
