/* zmq_end.h: for the tests of the daemon's sockets: the other end, plain libzmq, and a loop to wait in. */
#ifndef TEST_ZMQ_END_H
#define TEST_ZMQ_END_H
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>
#include "wire.h"
#include "zsock.h"

#define WAIT_MS 10000 /* a busy machine; the tests wait for events, never for time */

static inline uint64_t test_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* do { step } until `condition` or WAIT_MS; then asserts it. */
#define WAIT_UNTIL(condition, step)                                                                                  \
    do {                                                                                                             \
        uint64_t end_ns = test_now_ns() + WAIT_MS * 1000000ull;                                                      \
        bool came = false;                                                                                           \
        while (!(came = (condition)) && test_now_ns() < end_ns) {                                                    \
            step;                                                                                                    \
            usleep(500);                                                                                             \
        }                                                                                                            \
        if (!came) print_error("waited in vain for: %s\n", #condition);                                              \
        assert_true(came);                                                                                           \
    } while (0)

static inline void *test_socket(void *ctx, int type, const char *endpoint, int hwm) {
    void *s = zmq_socket(ctx, type);
    int zero = 0;
    zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof hwm);
    return zmq_connect(s, endpoint) ? NULL : s;
}

/* Sends n parts. */
static inline void test_send(void *s, int n, const char *const *parts, const size_t *bytes) {
    for (int i = 0; i < n; i++) zmq_send(s, parts[i], bytes[i], i + 1 < n ? ZMQ_SNDMORE : 0);
}

/* Parts of the next message; sizes of the first 8 and bytes of the last. -1: none there. */
static inline int test_recv(void *s, size_t sizes[8], unsigned char *last, size_t room) {
    int n = 0, more = 1;
    size_t len = sizeof more;
    while (more) {
        int got = zmq_recv(s, last, room, ZMQ_DONTWAIT);
        if (got < 0) return -1;
        if (n < 8) sizes[n] = (size_t)got;
        n++;
        zmq_getsockopt(s, ZMQ_RCVMORE, &more, &len);
    }
    return n;
}
#endif
