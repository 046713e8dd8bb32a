/* zsock_router.c: the socket that clients talk to. Owns the ROUTER, its connections and the map from routing ids to
 * them. Called by ingest (reading) and the answers (sending) on the loop thread. It never judges a message beyond its
 * shape; what a message means is ingest's. */
#include "zsock_own.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUTING_ID_BYTES 5
#define PARTS_KEPT       (3 + ZENVELOPE_MAX)

struct zrouter {
    zctx *ctx;
    void *socket;
    zconns conns;
    map by_id;
    zpeer_sink gone;
    uint32_t first_id;      /* our own probe's: connections get the numbers after it, in the order they attach */
    bool inproc;            /* bound there: messages without a descriptor are expected */
    malformed_cause nobody; /* why the last message had no peer */
};

static const void *id_key(uint32_t id) {
    return (const void *)(uintptr_t)id;
}

/* Its session ends; whether the connection does too is the caller's. */
static void forget(zrouter *r, zpeer *p) {
    r->gone.fn(r->gone.ctx, p);
    if (p->id) map_remove(&r->by_id, &p->by_id);
    p->id = 0;
}

static void connection_ended(void *ctx, zpeer *p) {
    forget(ctx, p);
}

static int options(void *s, const zrouter_setup *setup) {
    int64_t max = (int64_t)setup->max_message_bytes;
    int error = zopt_common(s);
    if (!error) error = zopt_int(s, ZMQ_ROUTER_MANDATORY, 1);
    if (!error) error = zopt_int(s, ZMQ_SNDHWM, setup->send_hwm);
    if (!error) error = zopt_int(s, ZMQ_RCVHWM, setup->receive_hwm);
    if (!error && zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &max, sizeof max)) error = -errno;
    return error;
}

/* The number in an automatic routing id (0, then 32 bits); 0 for any other. */
static uint32_t id_number(const zbuf *id) {
    uint32_t n;
    if (id->bytes != ROUTING_ID_BYTES || *(const unsigned char *)id->data) return 0;
    memcpy(&n, (const unsigned char *)id->data + 1, sizeof n);
    return ntohl(n);
}

/* Learns the number that automatic ids start from, through a connection of our own, before anybody else can come. A
 * chosen id may look like an automatic one, and libzmq shows it as a C string that ends at its leading 0: only its
 * number tells. */
static int probe(zrouter *r, zctx *ctx, zwhy *why) {
    char name[48];
    zbuf part = {.kind = 0};
    int more, error = 0;
    snprintf(name, sizeof name, "inproc://nctd-probe-%u", ctx->n_monitors);
    void *own = zmq_socket(ctx->zmq, ZMQ_DEALER);
    if (!own || zopt_int(own, ZMQ_LINGER, 0) || zmq_bind(r->socket, name) || zmq_connect(own, name) ||
        zmq_send(own, "", 0, 0) < 0)
        error = zwhy_set(why, -errno, "the ROUTER's probe: %s", zmq_strerror(errno));
    for (more = 1; !error && more > 0;) {
        more = zbuf_receive(&part, r->socket, 0);
        if (more > 0) r->first_id = id_number(&part);
        if (more < 0) error = more;
        zbuf_done(&part);
    }
    zmq_unbind(r->socket, name);
    if (own) zmq_close(own);
    return error;
}

int zrouter_new(zrouter **ret, const zrouter_setup *setup, zwhy *why) {
    int error = -ENOMEM;
    zrouter *r = calloc(1, sizeof *r);
    if (!r) return -ENOMEM;
    r->gone = setup->gone;
    r->ctx = setup->ctx;
    if (map_init(&r->by_id, 256)) goto fail_map;
    r->socket = zmq_socket(setup->ctx->zmq, ZMQ_ROUTER);
    if (!r->socket) {
        error = zwhy_set(why, -errno, "no ROUTER socket: %s", zmq_strerror(errno));
        goto fail_socket;
    }
    error = options(r->socket, setup);
    if (error) {
        zwhy_set(why, error, "a ROUTER option was refused: %s", zmq_strerror(-error));
        goto fail_options;
    }
    error = probe(r, setup->ctx, why);
    if (error) goto fail_options;
    error = zconns_init(
        &r->conns, setup->ctx, r->socket, setup->counts, setup->max_connections, (zpeer_sink){connection_ended, r});
    if (error) {
        zwhy_set(why, error, "no monitor for the ROUTER: %s", zmq_strerror(-error));
        goto fail_options;
    }
    *ret = r;
    return 0;
fail_options:
    zmq_close(r->socket);
fail_socket:
    map_done(&r->by_id);
fail_map:
    free(r);
    return error;
}

int zrouter_bind(zrouter *r, const char *endpoint, char ret_bound[256], zwhy *why) {
    if (!strncmp(endpoint, "inproc://", 9)) r->inproc = true;
    return zbind(r->ctx, r->socket, endpoint, ret_bound, why);
}

void zrouter_fds(const zrouter *r, int ret_fds[2]) {
    ret_fds[0] = zfd(r->socket);
    ret_fds[1] = zfd(r->conns.monitor);
}

void zrouter_monitor(zrouter *r, uint64_t now_ns) {
    zconns_leave(&r->conns, false, now_ns);
    zconns_turn(&r->conns, now_ns);
}
void zrouter_cut(zrouter *r, zpeer *p, cut_reason why) {
    zconns_cut(&r->conns, p, why);
}
void zrouter_cut_if(zrouter *r, zpeer_judge judge, void *ctx, cut_reason why) {
    zconns_cut_if(&r->conns, judge, ctx, why);
}
uint32_t zrouter_connections(const zrouter *r) {
    return r->conns.n - r->conns.n_left;
}

bool zrouter_full(const zrouter *r) {
    return zconns_full(&r->conns);
}

bool zrouter_pending(zrouter *r) {
    return zpollin(r->socket);
}

void zrouter_expire(zrouter *r, uint64_t now_ns, uint32_t hello_ms) {
    for (zpeer *p = r->conns.first; p; p = p->next)
        if (!p->said_hello && p->dup >= 0 && now_ns - p->t_accept_ns > hello_ms * 1000000ull)
            zrouter_cut(r, p, CUT_hello);
}

void zrouter_close(zrouter *r, int linger_ms, parting *last) {
    if (!r) return;
    zconns_close(&r->conns, r->socket, last);
    zopt_int(r->socket, ZMQ_LINGER, linger_ms);
    zmq_close(r->socket);
    map_done(&r->by_id);
    free(r);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* The connection that holds descriptor `fd` now; NULL when the message's own has ended. */
static zpeer *peer_on(zrouter *r, int fd, uint64_t now_ns) {
    uint64_t cookie = zsock_cookie(fd);
    zpeer *p = zconns_at(&r->conns, fd);
    if (!p || p->cookie != cookie) {
        zrouter_monitor(r, now_ns); /* accepted after this turn read the monitor */
        p = zconns_at(&r->conns, fd);
    }
    return p && p->cookie == cookie ? p : NULL;
}

/* Has libzmq given this number to a connection? Every one of them was accepted before. */
static bool given(zrouter *r, uint32_t number, uint64_t now_ns) {
    uint32_t nth = number - r->first_id;
    if (nth > r->conns.n_accepted) zrouter_monitor(r, now_ns);
    return nth >= 1 && nth <= r->conns.n_accepted;
}

/* First message under this routing id: which connection is it? `part` is any part behind the routing id: libzmq 4.3.4
 * leaves the metadata out of the routing id itself when ZMQ_EVENTS had looked for the message before it was received.
 * Sets *ret_self_named. */
static zpeer *meet(zrouter *r, zbuf *part, uint32_t number, uint64_t now_ns, bool *ret_self_named) {
    zmq_msg_t *m = (zmq_msg_t *)part->opaque;
    const char *chosen = zmq_msg_gets(m, "Identity");
    int fd = zmq_msg_get(m, ZMQ_SRCFD); /* -1: inproc */
    /* ZMTP before 3 has no metadata either: such a connection could never be told from others, nor cut. It says no HELLO
     * that counts, and ends after hello_ms. */
    r->nobody = fd < 0 && !r->inproc ? MALFORMED_version : MALFORMED_gone;
    if (r->nobody == MALFORMED_version) return NULL;
    zpeer *p = fd >= 0 ? peer_on(r, fd, now_ns) : zconns_add(&r->conns, -1, now_ns);
    if (!p) return NULL;
    if (fd < 0) r->conns.n_accepted++;
    *ret_self_named = (chosen && *chosen) || !given(r, number, now_ns);
    if (*ret_self_named) return p;
    /* One connection has one routing id: an older one was of a connection that had this descriptor before. */
    if (p->id) {
        forget(r, p);
        p->said_hello = false;
        p->faults = 0;
    }
    p->id = number;
    zconns_learn_user(p, m);
    map_add(&r->by_id, &p->by_id, id_key(number), NULL);
    return p;
}

static zpeer *peer_of(zrouter *r, uint32_t number, zbuf *part, uint64_t now_ns, bool *ret_self_named) {
    map_link *l = number ? map_find(&r->by_id, id_key(number), NULL) : NULL;
    *ret_self_named = false;
    return l ? (zpeer *)((char *)l - offsetof(zpeer, by_id)) : meet(r, part, number, now_ns, ret_self_named);
}

/* How many of n parts stand in front of topic, header, payload: a REQ's empty delimiter with what a proxy put before
 * it, or what a proxy alone put there. The empty part right before the last two is a topic. */
static int32_t envelope_parts(const zmsg *m) {
    int32_t kept = m->n_parts < PARTS_KEPT ? m->n_parts : PARTS_KEPT;
    for (int32_t i = 0; i < kept && i < ZENVELOPE_MAX; i++)
        if (m->part[i].bytes == 0 && (m->n_parts < 3 || i < m->n_parts - 3)) return i + 1;
    return m->n_parts > 3 && m->n_parts <= PARTS_KEPT ? m->n_parts - 3 : 0;
}

/* Not three parts: keep the envelope for the answer, and bring the last three (if seen) to the front. */
static void unfold(zmsg *m) {
    int32_t n = envelope_parts(m);
    zenvelope *e = &m->envelope;
    for (int32_t i = 0; i < n; i++) {
        if (m->part[i].bytes > sizeof e->bytes[0]) {
            n = 0;
            break;
        }
        e->len[i] = (uint8_t)m->part[i].bytes;
        memcpy(e->bytes[i], m->part[i].data, m->part[i].bytes);
    }
    e->n = n;
}

const zbuf *zmsg_header(const zmsg *m) {
    if (m->n_parts < 3 || m->n_parts > PARTS_KEPT) return NULL;
    return &m->part[m->n_parts - 2];
}

int zrouter_recv(zrouter *r, zmsg *ret, uint64_t now_ns) {
    zbuf id = {.kind = 0}, surplus = {.kind = 0};
    int more = zbuf_receive(&id, r->socket, ZMQ_DONTWAIT);
    if (more < 0) {
        zconns_leave(&r->conns, more == -EAGAIN, now_ns);
        return more == -EAGAIN ? 0 : -EAGAIN;
    }
    uint32_t number = id_number(&id);
    *ret = (zmsg){.peer = NULL};
    if (more <= 0) ret->peer = peer_of(r, number, &id, now_ns, &ret->self_named);
    zbuf_done(&id);
    while (more > 0) {
        zbuf *b = ret->n_parts < PARTS_KEPT ? &ret->part[ret->n_parts] : &surplus;
        more = zbuf_receive(b, r->socket, ZMQ_DONTWAIT);
        if (!ret->n_parts && more >= 0) ret->peer = peer_of(r, number, b, now_ns, &ret->self_named);
        zbuf_done(&surplus);
        ret->n_parts++;
    }
    if (!ret->peer || ret->peer->cut) {
        if (!ret->peer) r->conns.counts->malformed[r->nobody]++;
        zmsg_done(ret);
        return -EAGAIN;
    }
    if (ret->n_parts != 3) unfold(ret);
    return 1;
}

void zmsg_done(zmsg *m) {
    for (int i = 0; i < PARTS_KEPT; i++) zbuf_done(&m->part[i]);
}

/* ---- sending --------------------------------------------------------------------------------------------------- */

static void let_go(void *data, void *hint) {
    (void)data;
    letgo_push(hint);
}

/* The payload part. Nothing can fail any more but memory; then the part goes out empty and the node is let go of. */
static void send_payload(void *socket, const zout *m) {
    zmq_msg_t part;
    int rc = m->node ? zmq_msg_init_data(&part, (void *)m->payload, m->payload_bytes, let_go, m->node)
                     : zmq_msg_init_size(&part, m->payload_bytes);
    if (rc) {
        zmq_msg_init(&part);
        if (m->node) letgo_push(m->node);
    } else if (!m->node && m->payload_bytes) {
        memcpy(zmq_msg_data(&part), m->payload, m->payload_bytes);
    }
    if (zmq_msg_send(&part, socket, ZMQ_DONTWAIT) < 0) zmq_msg_close(&part);
}

int zrouter_send(zrouter *r, const zpeer *p, const zout *m) {
    unsigned char id[ROUTING_ID_BYTES] = {0};
    uint32_t number = htonl(p->id);
    if (!p->id) return -EHOSTUNREACH;
    memcpy(id + 1, &number, sizeof number);
    int error = zsend_copy(r->socket, id, sizeof id, ZMQ_SNDMORE);
    if (error) return error;
    for (int32_t i = 0; m->envelope && i < m->envelope->n; i++)
        zsend_copy(r->socket, m->envelope->bytes[i], m->envelope->len[i], ZMQ_SNDMORE);
    zsend_copy(r->socket, m->topic, m->topic_bytes, ZMQ_SNDMORE);
    zsend_copy(r->socket, m->header, m->header_bytes, ZMQ_SNDMORE);
    send_payload(r->socket, m);
    return 0;
}
