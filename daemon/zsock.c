/* zsock.c: the ZeroMQ context, message memory and what the sockets have in common. Owns nothing but the context.
 * Called by zsock_router.c, zsock_xpub.c and main, on the loop thread. */
#include "zsock_own.h"
#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

_Static_assert(sizeof(zmq_msg_t) <= sizeof(((zbuf *)0)->opaque), "a zbuf holds a zmq_msg_t");
enum { BUF_NONE, BUF_MESSAGE, BUF_CELL };

#define KEEPALIVE_IDLE_S     30
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_PROBES     6
/* A stopped client acknowledges and stays; one that is unplugged with data on the way ends after this. */
#define MAXRT_MS 120000

int zwhy_set(zwhy *why, int error, const char *format, ...) {
    if (!why) return error;
    va_list ap;
    va_start(ap, format);
    vsnprintf(why->text, sizeof why->text, format, ap);
    va_end(ap);
    return error;
}

/* libzmq takes each large message from malloc on an I/O thread, and the loop frees it. By default glibc gives the top of
 * such a heap back to the system at once, and the next message faults it in again: 13 % of the daemon's CPU time with
 * frames of 512 KiB. So up to 64 MiB of a heap stay; for the whole process, before any thread. */
static void keep_freed_memory(void) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the most that glibc takes */
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

int zctx_new(zctx **ret, int io_threads) {
    unsigned seed;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) return -EIO;
    srand(seed);
    keep_freed_memory();
    zctx *c = calloc(1, sizeof *c);
    if (!c) return -ENOMEM;
    c->zmq = zmq_ctx_new();
    if (!c->zmq || zmq_ctx_set(c->zmq, ZMQ_IO_THREADS, io_threads)) {
        int error = -errno;
        if (c->zmq) zmq_ctx_term(c->zmq);
        free(c);
        return error;
    }
    *ret = c;
    return 0;
}

void zctx_term(zctx *c) {
    if (!c) return;
    while (zmq_ctx_term(c->zmq) && errno == EINTR) continue;
    explicit_bzero(c->secret_key, sizeof c->secret_key);
    free(c);
}

/* ---- message memory -------------------------------------------------------------------------------------------- */

void zbuf_done(zbuf *b) {
    if (b->kind == BUF_MESSAGE) zmq_msg_close((zmq_msg_t *)b->opaque);
    if (b->kind == BUF_CELL) {
        cells *pool;
        memcpy(&pool, b->opaque, sizeof pool);
        cells_give(pool, (void *)b->data, b->bytes);
    }
    b->kind = BUF_NONE;
    b->data = NULL;
    b->bytes = 0;
}

static int keep_copy(zbuf *to, zbuf *from, cells *pool) {
    void *p = cells_take(pool, from->bytes);
    if (!p) return -ENOMEM;
    if (from->bytes) memcpy(p, from->data, from->bytes);
    memcpy(to->opaque, &pool, sizeof pool);
    to->data = p;
    to->bytes = from->bytes;
    to->kind = BUF_CELL;
    zbuf_done(from);
    return 0;
}

int zbuf_keep(zbuf *to, zbuf *from, cells *pool) {
    if (from->bytes <= ZSOCK_CELL_MAX) return keep_copy(to, from, pool);
    zmq_msg_t *m = (zmq_msg_t *)to->opaque;
    zmq_msg_init(m);
    zmq_msg_move(m, (zmq_msg_t *)from->opaque);
    to->data = zmq_msg_data(m); /* short messages live inside the struct, so the address moves with it */
    to->bytes = zmq_msg_size(m);
    to->kind = BUF_MESSAGE;
    zbuf_done(from);
    return 0;
}

int zbuf_receive(zbuf *b, void *socket, int flags) {
    zmq_msg_t *m = (zmq_msg_t *)b->opaque;
    zmq_msg_init(m);
    if (zmq_msg_recv(m, socket, flags) < 0) {
        int error = -errno;
        zmq_msg_close(m);
        return error;
    }
    b->kind = BUF_MESSAGE;
    b->data = zmq_msg_data(m);
    b->bytes = zmq_msg_size(m);
    return zmq_msg_more(m);
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

int zopt_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) ? -errno : 0;
}

int zopt_common(void *socket) {
    static const int rows[][2] = {{ZMQ_LINGER, 0}, {ZMQ_TCP_KEEPALIVE, 1}, {ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S},
        {ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_S}, {ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES},
        {ZMQ_TCP_MAXRT, MAXRT_MS}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int error = zopt_int(socket, rows[i][0], rows[i][1]);
        if (error) return error;
    }
    return 0;
}

int zbind(zctx *ctx, void *socket, const char *endpoint, char ret_bound[256], zwhy *why) {
    size_t len = 256;
    int error = zap_for_bind(ctx, socket, endpoint);
    if (error) return zwhy_set(why, error, "keys for %s: %s", endpoint, zmq_strerror(-error));
    if (strchr(endpoint, '[')) zopt_int(socket, ZMQ_IPV6, 1);
    if (zmq_bind(socket, endpoint)) return zwhy_set(why, -errno, "cannot bind %s: %s", endpoint, zmq_strerror(errno));
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, ret_bound, &len))
        return zwhy_set(why, -errno, "cannot tell where %s is bound: %s", endpoint, zmq_strerror(errno));
    return 0;
}

int zfd(void *socket) {
    int fd = -1;
    size_t len = sizeof fd;
    return zmq_getsockopt(socket, ZMQ_FD, &fd, &len) ? -1 : fd;
}

bool zpollin(void *socket) {
    int events = 0;
    size_t len = sizeof events;
    return !zmq_getsockopt(socket, ZMQ_EVENTS, &events, &len) && (events & ZMQ_POLLIN);
}

int zsend_copy(void *socket, const void *p, size_t bytes, int flags) {
    return zmq_send(socket, p, bytes, flags | ZMQ_DONTWAIT) < 0 ? -errno : 0;
}

static bool tcp_loopback(const char *address) {
    char host[64];
    struct in_addr v4;
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof host) return false;
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    if (!strcmp(host, "lo") || !strcmp(host, "[::1]")) return true;
    return inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}

int zsock_endpoint(const char *endpoint, bool *ret_loopback, zwhy *why) {
    if (!strncmp(endpoint, "ipc://", 6) && endpoint[6]) {
        if (strlen(endpoint + 6) > 107)
            return zwhy_set(
                why, -EINVAL, "%s: a path of %zu characters; the system takes 107", endpoint, strlen(endpoint + 6));
        *ret_loopback = true;
        return 0;
    }
    if (!strncmp(endpoint, "inproc://", 9) && endpoint[9]) {
        *ret_loopback = true;
        return 0;
    }
    if (!strncmp(endpoint, "tcp://", 6) && strchr(endpoint + 6, ':')) {
        *ret_loopback = tcp_loopback(endpoint + 6);
        return 0;
    }
    return zwhy_set(why, -EINVAL, "%s is not tcp://ADDRESS:PORT, ipc://PATH or inproc://NAME", endpoint);
}

int zsock_try_address(const char *key, const char *endpoint, zwhy *why) {
    char address[300];
    const char *port = strrchr(endpoint, ':') + 1;
    bool any = !strcmp(port, "*");
    if (!any && (!*port || strlen(port) > 5 || strspn(port, "0123456789") != strlen(port) || atoi(port) > 65535))
        return zwhy_set(why, -EINVAL, "%s = %s: the port is a number from 0 to 65535, or *", key, endpoint);
    snprintf(address, sizeof address, "%.*s*", (int)(port - endpoint), endpoint);
    void *ctx = zmq_ctx_new(), *socket = ctx ? zmq_socket(ctx, ZMQ_ROUTER) : NULL;
    if (socket && strchr(endpoint, '[')) zopt_int(socket, ZMQ_IPV6, 1);
    int error = !socket ? -ENOMEM : zmq_bind(socket, address) ? -errno : 0;
    if (error) zwhy_set(why, error, "%s = %s: cannot be bound: %s", key, endpoint, zmq_strerror(-error));
    if (socket) zmq_close(socket);
    if (ctx) zmq_ctx_term(ctx);
    return error;
}
