/* zsock_conns.c: who is connected, as a socket's monitor tells it. Owns the zpeers of one socket and the monitor. Loop
 * thread; read at the beginning of a turn, before messages. Does not know what the peers are to the daemon: `gone`
 * tells the owner. */
#include "zsock_own.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Under a flood the socket may never be empty; libzmq reads its connections in turn, so by then this one had its. */
#define LEFT_NS 200000000u

uint64_t zsock_cookie(int fd) {
    uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) ? 0 : cookie;
}

int zconns_init(zconns *c, zctx *ctx, void *socket, ledger *counts, uint32_t max, zpeer_sink gone) {
    char name[48];
    snprintf(name, sizeof name, "inproc://nctd-monitor-%u", ctx->n_monitors++);
    *c = (zconns){.counts = counts, .max = max, .gone = gone};
    int events = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
    if (zmq_socket_monitor(socket, name, events)) return -errno;
    c->monitor = zmq_socket(ctx->zmq, ZMQ_PAIR);
    if (!c->monitor) return -errno;
    /* Without a mark of its own the pair never fills: a full one would stop libzmq's I/O threads. */
    if (zopt_int(c->monitor, ZMQ_RCVHWM, 0) || zopt_int(c->monitor, ZMQ_LINGER, 0) || zmq_connect(c->monitor, name)) {
        int error = -errno;
        zmq_close(c->monitor);
        c->monitor = NULL;
        return error;
    }
    return 0;
}

zpeer *zconns_at(const zconns *c, int fd) {
    return fd >= 0 && fd < c->n_fds ? c->by_fd[fd] : NULL;
}

static int room_for(zconns *c, int fd) {
    if (fd < c->n_fds) return 0;
    int n = fd + 64;
    zpeer **grown = realloc(c->by_fd, (size_t)n * sizeof *grown);
    if (!grown) return -ENOMEM;
    memset(grown + c->n_fds, 0, (size_t)(n - c->n_fds) * sizeof *grown);
    c->by_fd = grown;
    c->n_fds = n;
    return 0;
}

zpeer *zconns_add(zconns *c, int fd, uint64_t now_ns) {
    if (room_for(c, fd)) return NULL;
    zpeer *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    *p = (zpeer){.fd = fd, .dup = -1, .t_accept_ns = now_ns, .next = c->first};
    if (fd >= 0) {
        p->dup = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        p->cookie = p->dup >= 0 ? zsock_cookie(p->dup) : 0;
        c->by_fd[fd] = p;
    }
    if (c->first) c->first->prev = p;
    c->first = p;
    c->n++;
    return p;
}

static void drop(zconns *c, zpeer *p) {
    if (c->gone.fn) c->gone.fn(c->gone.ctx, p);
    if (p->prev) p->prev->next = p->next;
    if (p->next) p->next->prev = p->prev;
    if (c->first == p) c->first = p->next;
    if (p->fd >= 0) c->by_fd[p->fd] = NULL;
    if (p->dup >= 0) close(p->dup);
    c->n_left -= p->left;
    c->n--;
    free(p);
}

void zconns_cut(zconns *c, zpeer *p, cut_reason why) {
    if (p->cut) return;
    p->cut = true;
    c->counts->cuts[why]++;
    if (p->dup >= 0) shutdown(p->dup, SHUT_RDWR);
}

void zconns_cut_if(zconns *c, zpeer_judge judge, void *ctx, cut_reason why) {
    for (zpeer *p = c->first; p; p = p->next)
        if (judge(ctx, p)) zconns_cut(c, p, why);
}

uint64_t zpeer_progress(const zpeer *p) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    int bytes = 0;
    memset(&info, 0, sizeof info);
    if (p->dup >= 0 && !getsockopt(p->dup, IPPROTO_TCP, TCP_INFO, &info, &len) &&
        len >= offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked)
        return info.tcpi_bytes_acked;
    return p->dup >= 0 && !ioctl(p->dup, SIOCOUTQ, &bytes) ? (uint64_t)bytes : 0;
}

void zconns_learn_user(zpeer *p, zmq_msg_t *part) {
    const char *user = zmq_msg_gets(part, "User-Id");
    if (user) snprintf(p->user, sizeof p->user, "%s", user);
}

static bool talks(const zpeer *p) {
    return p->session && !p->cut && !p->left && p->dup >= 0;
}

bool zconns_full(const zconns *c) {
    for (const zpeer *p = c->first; p; p = p->next) {
        struct pollfd fd = {.fd = p->dup, .events = POLLOUT};
        if (talks(p) && !poll(&fd, 1, 0)) return true;
    }
    return false;
}

static void accepted(zconns *c, int fd, uint64_t now_ns) {
    zpeer *stale = zconns_at(c, fd);
    if (stale) drop(c, stale); /* its DISCONNECTED is always told first; be safe */
    c->counts->counts[COUNT_connections]++;
    c->n_accepted++;
    zpeer *p = zconns_add(c, fd, now_ns);
    if (p && c->n - c->n_left > c->max) zconns_cut(c, p, CUT_crowd);
}

/* Our duplicate keeps the connection's state readable: neither the peer nor we ended it, so ZeroMQ did, for a part
 * above ZMQ_MAXMSGSIZE or because it was not ZMTP. */
static bool ended_by_zeromq(const zpeer *p) {
    struct pollfd fd = {.fd = p->dup, .events = POLLIN | POLLRDHUP};
    if (p->cut || p->dup < 0 || poll(&fd, 1, 0) < 0) return false;
    return !(fd.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/* What it sent before is in the socket's queue by now, behind this event: a client that sends and closes at once is read
 * to its end. Its number may be another's next. */
static void disconnected(zconns *c, int fd, uint64_t now_ns) {
    zpeer *p = zconns_at(c, fd);
    c->n_ended++;
    if (!p) return;
    c->counts->counts[COUNT_disconnects]++;
    if (ended_by_zeromq(p)) c->counts->cuts[CUT_protocol]++;
    c->by_fd[fd] = NULL;
    p->fd = -1;
    p->left = true;
    p->t_left_ns = now_ns;
    c->n_left++;
    if (p->cut || !p->id) drop(c, p); /* nothing of it is wanted, or it never spoke */
}

void zconns_leave(zconns *c, bool all, uint64_t now_ns) {
    if (!c->n_left) return;
    for (zpeer *p = c->first, *after; p; p = after) {
        after = p->next;
        if (p->left && (all || now_ns - p->t_left_ns > LEFT_NS)) drop(c, p);
    }
}

static handshake_cause cause_of(uint16_t event, uint32_t value) {
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return HANDSHAKE_key;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) return HANDSHAKE_protocol;
    return value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC        ? HANDSHAKE_server_key
           : value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH ? HANDSHAKE_mechanism
                                                                 : HANDSHAKE_protocol;
}

void zconns_turn(zconns *c, uint64_t now_ns) {
    unsigned char event[6];
    char endpoint[256];
    while (zmq_recv(c->monitor, event, sizeof event, ZMQ_DONTWAIT) == sizeof event) {
        uint16_t what;
        uint32_t value;
        memcpy(&what, event, 2);
        memcpy(&value, event + 2, 4);
        zmq_recv(c->monitor, endpoint, sizeof endpoint, ZMQ_DONTWAIT);
        if (what == ZMQ_EVENT_ACCEPTED)
            accepted(c, (int)value, now_ns);
        else if (what == ZMQ_EVENT_DISCONNECTED)
            disconnected(c, (int)value, now_ns);
        else
            c->counts->handshakes[cause_of(what, value)]++;
    }
}

void zconns_close(zconns *c, void *socket, parting *last) {
    for (zpeer *p = c->first; last && p; p = p->next)
        if (talks(p)) {
            parting_add(last, p->dup);
            p->dup = -1;
        }
    while (c->first) drop(c, c->first);
    free(c->by_fd);
    /* Told to nobody, later events would block libzmq's I/O threads as a full pair does, and leak. */
    zmq_socket_monitor(socket, NULL, 0);
    if (c->monitor) zmq_close(c->monitor);
    *c = (zconns){0};
}
