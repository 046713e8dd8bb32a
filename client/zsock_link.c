/* zsock_link.c: every zmq_* call of libnct.
 *
 * Called by core.c and nct_sub.c on the caller's thread; libzmq's own I/O thread stands behind it. It knows no header
 * and no session. What a DEALER needs to be safe with nctd is set here and only here: no routing id (a self-chosen one
 * is cut by the daemon), ZMQ_IMMEDIATE (else frames queued for a dead daemon reach the next one before any HELLO), no
 * ZMTP heartbeats (libzmq aborts a client that has them and reads slowly), finite linger, TCP keepalive. */
#include "zsock_link.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* Room for any result; daemons allow 16 MiB unless told. A larger announcement is not believed. */
#define MAX_MESSAGE_BYTES ((int64_t)1 << 30)
/* Published results read ahead. What does not fit waits, and is dropped, at the daemon. */
#define SUB_MESSAGES 256
/* A daemon that cannot read our HELLO, for it was encrypted to another server's key, hangs up without a word; so does, most
 * of the time, one that speaks another mechanism; and one that ends in the middle of a handshake, but not as often in a
 * row. */
#define HANG_UPS 6

static_assert(sizeof(zmq_msg_t) == sizeof(((zlink_part *)0)->room), "a zmq_msg_t fits a zlink_part exactly");

struct zlink {
    void *ctx, *socket, *monitor;
    zlink_type type;
    char *endpoint;
    char keys[3][41]; /* server, public, secret; "" without CURVE */
    zlink_news news;
    int hang_ups; /* handshakes in a row that ended without a word */
    unsigned renewals;
};

static zmq_msg_t *msg_of(zlink_part *p) {
    return (zmq_msg_t *)p->room;
}

/* libzmq has errors of its own beyond errno's numbers. */
static int error_now(void) {
    int e = zmq_errno();
    if (e == ETERM || e == EMTHREAD || e >= ZMQ_HAUSNUMERO) return -EINVAL;
    return e == ENODEV || e == ENAMETOOLONG ? -EINVAL : -e;
}

int zlink_new(zlink **ret, zlink_type type, const char *endpoint, const char *const keys[3]) {
    int n_keys = !!keys[0] + !!keys[1] + !!keys[2];
    if ((strncmp(endpoint, "tcp://", 6) && strncmp(endpoint, "ipc://", 6)) || (n_keys != 0 && n_keys != 3))
        return -EINVAL;
    if (n_keys && !zmq_has("curve")) return -ENOTSUP;
    for (int i = 0; i < n_keys; i++)
        if (strlen(keys[i]) != 40) return -EINVAL;
    if (n_keys && zlink_keys_fit(keys[1], keys[2])) return -EINVAL;
    zlink *l = calloc(1, sizeof *l);
    if (!l) return -ENOMEM;
    l->type = type;
    int error = -ENOMEM;
    if (!(l->endpoint = strdup(endpoint))) goto fail_endpoint;
    for (int i = 0; i < n_keys; i++) memcpy(l->keys[i], keys[i], 41);
    if (!(l->ctx = zmq_ctx_new())) {
        error = error_now();
        goto fail_ctx;
    }
    *ret = l;
    return 0;
fail_ctx:
    free(l->endpoint);
fail_endpoint:
    free(l);
    return error;
}

static int set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

static int set_options(zlink *l, void *s) {
    int64_t max = MAX_MESSAGE_BYTES;
    int bad = set_int(s, ZMQ_LINGER, 0) | set_int(s, ZMQ_IPV6, 1) | set_int(s, ZMQ_TCP_KEEPALIVE, 1) |
              set_int(s, ZMQ_TCP_KEEPALIVE_IDLE, 30) | set_int(s, ZMQ_TCP_KEEPALIVE_INTVL, 10) |
              set_int(s, ZMQ_TCP_KEEPALIVE_CNT, 3) | set_int(s, ZMQ_TCP_MAXRT, 30000) |
              set_int(s, ZMQ_RECONNECT_IVL, 50) | set_int(s, ZMQ_RECONNECT_IVL_MAX, 1000) |
              zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &max, sizeof max);
    if (l->type == ZLINK_DEALER) bad |= set_int(s, ZMQ_IMMEDIATE, 1);
    if (l->type == ZLINK_SUB) bad |= set_int(s, ZMQ_RCVHWM, SUB_MESSAGES);
    if (l->keys[0][0])
        bad |= zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, l->keys[0], 41) |
               zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, l->keys[1], 41) |
               zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, l->keys[2], 41);
    return bad ? error_now() : 0;
}

/* The monitor's pair has no high-water mark: libzmq's I/O thread waits at one, and nobody reads while the caller is
 * elsewhere. Events are 6 bytes each and come at most a few times a second. */
static int watch(zlink *l, void *s) {
    char name[48];
    snprintf(name, sizeof name, "inproc://nct-monitor-%u", l->renewals++);
    int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
    if (zmq_socket_monitor(s, name, events)) return error_now();
    void *m = zmq_socket(l->ctx, ZMQ_PAIR);
    if (!m) return error_now();
    if (set_int(m, ZMQ_LINGER, 0) || set_int(m, ZMQ_RCVHWM, 0) || zmq_connect(m, name)) {
        int error = error_now();
        zmq_close(m);
        return error;
    }
    l->monitor = m;
    return 0;
}

static void drop_socket(zlink *l, int linger_ms) {
    if (l->socket) {
        set_int(l->socket, ZMQ_LINGER, linger_ms);
        zmq_socket_monitor(l->socket, NULL, 0);
        zmq_close(l->socket);
    }
    if (l->monitor) zmq_close(l->monitor);
    l->socket = l->monitor = NULL;
}

int zlink_renew(zlink *l) {
    drop_socket(l, 0);
    l->news = (zlink_news){0};
    l->hang_ups = 0;
    l->socket = zmq_socket(l->ctx, l->type == ZLINK_SUB ? ZMQ_SUB : ZMQ_DEALER);
    if (!l->socket) return error_now();
    int error = set_options(l, l->socket);
    if (!error) error = watch(l, l->socket);
    if (!error && zmq_connect(l->socket, l->endpoint)) error = error_now();
    if (error) drop_socket(l, 0);
    return error;
}

void zlink_free(zlink *l, int linger_ms) {
    if (!l) return;
    drop_socket(l, linger_ms);
    while (zmq_ctx_term(l->ctx) && zmq_errno() == EINTR) {
    }
    free(l->endpoint);
    free(l);
}

void zlink_abandon(zlink *l) {
    if (!l) return;
    free(l->endpoint);
    free(l);
}

int zlink_subscribe(zlink *l, const void *prefix, size_t len) {
    return zmq_setsockopt(l->socket, ZMQ_SUBSCRIBE, prefix, len) ? error_now() : 0;
}

static int send_bytes(void *socket, const void *bytes, size_t len) {
    int r;
    do r = zmq_send(socket, bytes, len, ZMQ_DONTWAIT | ZMQ_SNDMORE);
    while (r < 0 && zmq_errno() == EINTR);
    return r < 0 ? error_now() : 0;
}

static int send_last(void *socket, zlink_part *payload) {
    zmq_msg_t m;
    zmq_msg_init(&m);
    if (payload && payload->held) zmq_msg_copy(&m, msg_of(payload)); /* shares the bytes */
    int r;
    do r = zmq_msg_send(&m, socket, ZMQ_DONTWAIT);
    while (r < 0 && zmq_errno() == EINTR);
    int error = r < 0 ? error_now() : 0;
    if (error) zmq_msg_close(&m);
    return error;
}

int zlink_send(
    zlink *l, const void *topic, size_t topic_len, const void *header, size_t header_len, zlink_part *payload) {
    if (!l->socket) return -EAGAIN;
    int error = send_bytes(l->socket, topic, topic_len);
    if (error) return error;
    /* Once a first part was taken, libzmq refuses a later one only because the connection died; it then swallows parts
     * up to the end of the message, so the end has to be sent to stay in step. */
    send_bytes(l->socket, header, header_len);
    send_last(l->socket, payload);
    return 0;
}

/* A message comes whole or not at all, so only its first part can be missing. */
static int recv_message(void *socket, zlink_message *ret) {
    zlink_part rest = {.held = 0};
    int parts = 0;
    for (int more = 1; more; parts++) {
        zlink_part *p = parts < 3 ? &ret->part[parts] : &rest;
        zmq_msg_init(msg_of(p));
        int r;
        do r = zmq_msg_recv(msg_of(p), socket, ZMQ_DONTWAIT);
        while (r < 0 && zmq_errno() == EINTR);
        if (r < 0) {
            int error = error_now();
            zmq_msg_close(msg_of(p));
            return error;
        }
        p->held = 1;
        more = zmq_msg_more(msg_of(p));
        zlink_part_done(&rest);
    }
    for (int i = parts; i < 3; i++) ret->part[i].held = 0;
    ret->parts = parts;
    return 0;
}

int zlink_recv(zlink *l, zlink_message *ret) {
    return l->socket ? recv_message(l->socket, ret) : -EAGAIN;
}

int zlink_wait(zlink *l, int timeout_ms, int want_out) {
    zmq_pollitem_t items[2] = {{.socket = l->socket, .events = (short)(ZMQ_POLLIN | (want_out ? ZMQ_POLLOUT : 0))},
        {.socket = l->monitor, .events = ZMQ_POLLIN}};
    return zmq_poll(items, l->socket ? 2 : 0, timeout_ms) < 0 ? error_now() : 0;
}

int zlink_events(zlink *l) {
    int events = 0;
    size_t size = sizeof events;
    if (l->monitor) zmq_getsockopt(l->monitor, ZMQ_EVENTS, &events, &size);
    int bits = events & ZMQ_POLLIN ? ZLINK_IN : 0;
    events = 0;
    if (l->socket) zmq_getsockopt(l->socket, ZMQ_EVENTS, &events, &size);
    return bits | (events & ZMQ_POLLIN ? ZLINK_IN : 0) | (events & ZMQ_POLLOUT ? ZLINK_OUT : 0);
}

static void refused(zlink *l, int error, zlink_cause cause) {
    l->news.refused = error;
    l->news.cause = cause;
}

static void take_event(zlink *l, const void *bytes, size_t len) {
    uint16_t event;
    uint32_t value = 0;
    if (len < sizeof event) return;
    memcpy(&event, bytes, sizeof event);
    if (len >= sizeof event + sizeof value) memcpy(&value, (const char *)bytes + sizeof event, sizeof value);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        l->news.connected = 1;
        refused(l, 0, ZLINK_NO_CAUSE);
        l->hang_ups = 0;
    } else if (event == ZMQ_EVENT_DISCONNECTED) {
        l->news.cut = l->news.connected;
    } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
        refused(l, -EACCES, ZLINK_KEY_UNKNOWN);
    } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) {
        if (!l->news.refused && ++l->hang_ups >= HANG_UPS) refused(l, -EACCES, ZLINK_HANGS_UP);
    } else if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
        refused(l, -EACCES, l->keys[0][0] ? ZLINK_TAKES_NO_KEYS : ZLINK_WANTS_KEYS);
    } else if (l->news.refused != -EACCES) {
        refused(l, -EPROTO, ZLINK_NOT_ZMTP);
    }
}

void zlink_refusal(const zlink *l, char *out, size_t size) {
    switch (l->news.cause) {
    case ZLINK_KEY_UNKNOWN:
        snprintf(out, size, "%s does not admit the public key %s: its auth.client_keys must list it, then reload it",
            l->endpoint, l->keys[1]);
        return;
    case ZLINK_WANTS_KEYS:
        snprintf(out, size,
            "%s asks for CURVE keys and none were given: its public key, and a key pair of yours (nct: --server-key, "
            "--key)",
            l->endpoint);
        return;
    case ZLINK_TAKES_NO_KEYS:
        snprintf(out, size, "keys were given, and %s takes none: its auth.secret_key_file is not set", l->endpoint);
        return;
    case ZLINK_HANGS_UP:
        if (!l->keys[0][0]) {
            snprintf(out, size,
                "%s hangs up in the handshake: it asks for CURVE keys (nct: --server-key, --key), or is no NCT "
                "daemon",
                l->endpoint);
            return;
        }
        snprintf(out, size, "%s hangs up in the CURVE handshake: is %s its public key, and does it use keys?",
            l->endpoint, l->keys[0]);
        return;
    default: snprintf(out, size, "no NCT daemon listens at %s", l->endpoint);
    }
}

zlink_news zlink_ask(zlink *l) {
    zlink_message m;
    /* Two parts: the event, and the address, which says nothing new. */
    while (l->monitor && !recv_message(l->monitor, &m)) {
        take_event(l, zlink_part_data(&m.part[0]), zlink_part_bytes(&m.part[0]));
        zlink_message_done(&m);
    }
    return l->news;
}

void zlink_fds(zlink *l, int ret_fds[2]) {
    void *sockets[2] = {l->socket, l->monitor};
    for (int i = 0; i < 2; i++) {
        size_t size = sizeof ret_fds[i];
        if (!sockets[i] || zmq_getsockopt(sockets[i], ZMQ_FD, &ret_fds[i], &size)) ret_fds[i] = -1;
    }
}

int zlink_part_init(zlink_part *ret, size_t bytes) {
    if (zmq_msg_init_size(msg_of(ret), bytes)) return -ENOMEM;
    ret->held = 1;
    return 0;
}

void *zlink_part_data(zlink_part *p) {
    return p->held ? zmq_msg_data(msg_of(p)) : NULL;
}

size_t zlink_part_bytes(zlink_part *p) {
    return p->held ? zmq_msg_size(msg_of(p)) : 0;
}

void zlink_part_move(zlink_part *to, zlink_part *from) {
    to->held = from->held;
    if (!from->held) return;
    zmq_msg_init(msg_of(to));
    zmq_msg_move(msg_of(to), msg_of(from));
    zlink_part_done(from);
}

void zlink_part_done(zlink_part *p) {
    if (p->held) zmq_msg_close(msg_of(p));
    p->held = 0;
}

void zlink_message_done(zlink_message *m) {
    for (int i = 0; i < 3; i++) zlink_part_done(&m->part[i]);
    m->parts = 0;
}
