/* zsock.h: ZeroMQ, behind a wall: the one place that knows it, and no type of it outside.
 *
 * A ROUTER (clients) and an XPUB (subscribers). A `zpeer` is one connection, from ACCEPTED to its end, found by the
 * routing id that libzmq gave it: never a name the peer chose. Each keeps a duplicate of its connection's descriptor,
 * so a cut can never hit another connection that got the same number (seen with the number alone: flow.md E7).
 *
 * ZMQ_FD is edge-triggered and every send, receive and option read clears the edge. So the loop polls the descriptors
 * only to wake up, and ends every turn with one z*_pending() per socket, which reads ZMQ_EVENTS. Loop thread; only
 * the let-go callback inside runs on I/O threads. 0 or negative errno. */
#ifndef NCTD_ZSOCK_H
#define NCTD_ZSOCK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "cells.h"
#include "frame.h"
#include "ledger.h"
#include "letgo.h"
#include "map.h"
#include "parting.h"

#define ZSOCK_CELL_MAX 8192 /* payloads up to here are copied into cells, so that libzmq's buffers go back */

typedef struct {
    char text[256];
} zwhy;

typedef struct zctx zctx;
/* Seeds rand() from getrandom: libzmq draws the first routing id from it (flow.md E6). */
int zctx_new(zctx **ret, int io_threads);
/* Who may connect where there are keys; asked on the loop thread, in zctx_zap_turn. */
typedef struct {
    bool (*fn)(
        void *ctx, const char *key, const char *address); /* key: Z85 text; address: the peer's, as libzmq says it */
    void *ctx;
} zadmit;
typedef struct {
    const char *public_key, *secret_key; /* the daemon's, Z85; NULL: no keys, and every peer is let in */
    bool ipc_keyless;                    /* ipc endpoints take peers without keys */
} zcurve;
/* Keys for what is bound from now on, and the handler of ZAP that asks `admit`; borrowed until zctx_term. Without a handler
 * libzmq would let every key in, so there is none without the other. -EINVAL: the two are no pair; -ENOTSUP: a libzmq without
 * CURVE; with a sentence. */
int zctx_keys(zctx *c, const zcurve *keys, zadmit admit, zwhy *why);
int zctx_zap_fd(const zctx *c); /* to wake up for; -1: no keys */
bool zctx_zap_turn(zctx *c);    /* answers every question that waits; at the end of a turn, true: there are more */
void zctx_zap_close(zctx *c);   /* with the sockets; the poll on its fd is closed before */
void zctx_term(zctx *c);        /* blocks until every socket's linger is over; all let-go callbacks have run then */

/* ---- message memory -------------------------------------------------------------------------------------------- */
void zbuf_done(zbuf *b); /* kind 0 is fine */
/* Takes what *from holds (then empty): up to ZSOCK_CELL_MAX bytes as a copy in a cell, else the message itself.
 * 0, or -ENOMEM with *from as it was. */
int zbuf_keep(zbuf *to, zbuf *from, cells *pool);

/* ---- connections ----------------------------------------------------------------------------------------------- */
typedef struct zpeer {
    map_link by_id;
    struct zpeer *next, *prev; /* all of one socket */
    struct session *session;   /* ingest's: NULL before HELLO */
    uint64_t t_accept_ns, cookie;
    uint64_t n_subscribed;      /* XPUB: grants */
    struct zgrant *grants;      /* XPUB */
    uint32_t id;                /* the automatic routing id's number; 0: no message yet */
    char user[41];              /* its CURVE key, Z85; "": it came without, or has said nothing yet */
    const struct auth_key *key; /* guard's: what the key may do */
    uint32_t faults;            /* ingest's: refusals in a row for its own faults; XPUB: refused subscriptions */
    int fd, dup;                /* the connection's number as libzmq has it; our duplicate. -1: inproc */
    bool said_hello;            /* ingest's */
    bool cut;                   /* by us: what it still sends is dropped */
    bool left;                  /* its connection has ended, and what it had sent before is still being read */
    uint64_t t_left_ns;
} zpeer;

typedef struct {
    void (*fn)(void *ctx, zpeer *p); /* its connection ended; p is gone on return */
    void *ctx;
} zpeer_sink;
typedef bool (*zpeer_judge)(void *ctx, zpeer *p); /* true: it is to be cut */

/* ---- the ROUTER ------------------------------------------------------------------------------------------------ */
#define ZENVELOPE_MAX 4
typedef struct {
    int32_t n;
    uint8_t len[ZENVELOPE_MAX];
    unsigned char bytes[ZENVELOPE_MAX][255];
} zenvelope; /* parts in front of the three, to be given back with the answer */

typedef struct {
    zpeer *peer;
    bool self_named; /* the peer shows a routing id of its own choice */
    int32_t n_parts; /* after the routing id; the first 7 are kept */
    zbuf part[3 + ZENVELOPE_MAX];
    zenvelope envelope; /* n > 0 only when n_parts is not 3 */
} zmsg;

typedef struct {
    zctx *ctx;
    ledger *counts;
    zpeer_sink gone;
    uint64_t max_message_bytes;
    uint32_t max_connections; /* more are cut as they come */
    int send_hwm, receive_hwm;
} zrouter_setup;

typedef struct zrouter zrouter;
int zrouter_new(zrouter **ret, const zrouter_setup *setup, zwhy *why);
/* ret_bound: the endpoint as bound (a port that was 0 or * is filled in). tcp, ipc and inproc only. */
int zrouter_bind(zrouter *r, const char *endpoint, char ret_bound[256], zwhy *why);
void zrouter_fds(const zrouter *r, int ret_fds[2]);
void zrouter_monitor(zrouter *r, uint64_t now_ns); /* connections that came and went */
/* 1 and a message (then zmsg_done), 0 when there is none, -EAGAIN when one was read and dropped. At 0 the peers that had
 * left before go: `gone` is called here, after their last message. */
int zrouter_recv(zrouter *r, zmsg *ret, uint64_t now_ns);
void zmsg_done(zmsg *m);
/* The part that would be the header in a message of the wrong shape (before the last one); NULL: none. */
const zbuf *zmsg_header(const zmsg *m);

typedef struct {
    const void *topic, *header, *payload;
    size_t topic_bytes, header_bytes, payload_bytes;
    letgo_node *node;          /* NULL: the payload is copied. Else it is handed over in place, any size, and the node
                                  is pushed on its list when ZeroMQ let go of it */
    const zenvelope *envelope; /* may be NULL */
} zout;
/* A number that moves while the peer takes bytes: what tcp has confirmed, or what of a unix socket waits to be read. */
uint64_t zpeer_progress(const zpeer *p);
/* Never waits. -EHOSTUNREACH: the connection is gone; -EAGAIN: no room; then nothing was taken. */
int zrouter_send(zrouter *r, const zpeer *p, const zout *m);
void zrouter_cut(zrouter *r, zpeer *p, cut_reason why); /* once; `gone` follows by the monitor */
/* Cuts, for `why`, those that `judge` says. */
void zrouter_cut_if(zrouter *r, zpeer_judge judge, void *ctx, cut_reason why);
/* Cuts connections older than hello_ms that have not said HELLO. */
void zrouter_expire(zrouter *r, uint64_t now_ns, uint32_t hello_ms);
bool zrouter_pending(zrouter *r); /* reads ZMQ_EVENTS: there is more to receive */
uint32_t zrouter_connections(const zrouter *r);
/* Some peer with a session takes no more bytes now, so that ZeroMQ may keep more for it. */
bool zrouter_full(const zrouter *r);
/* `gone` for every peer, then the socket closes with this linger. The polls on its fds must be closed before. `last`, if not
 * NULL, gets the connections with a session: ended after zctx_term, they outlive ZeroMQ's own descriptors. */
void zrouter_close(zrouter *r, int linger_ms, parting *last);

/* ---- the XPUB -------------------------------------------------------------------------------------------------- */
typedef struct {
    zctx *ctx;
    ledger *counts;
    uint32_t max_connections;
    int send_hwm;
    bool (*may_subscribe)(void *ctx, zpeer *p, const void *prefix, size_t len); /* NULL: anybody, anything */
    void *may_ctx;
} zxpub_setup;

typedef struct zxpub zxpub;
int zxpub_new(zxpub **ret, const zxpub_setup *setup, zwhy *why);
int zxpub_bind(zxpub *x, const char *endpoint, char ret_bound[256], zwhy *why);
void zxpub_fds(const zxpub *x, int ret_fds[2]);
void zxpub_turn(zxpub *x, uint64_t now_ns); /* monitor, then subscriptions: grants and ends them */
bool zxpub_wanted(const zxpub *x, const char *topic, size_t len); /* a granted subscription matches */
/* Copies; node must be NULL. -EAGAIN: a lower mark than now is due, see zxpub_set_hwm. */
int zxpub_send(zxpub *x, const zout *m);
/* Of open connections too, at the next message; when one ended just now, a moment later. */
void zxpub_set_hwm(zxpub *x, int messages);
bool zxpub_pending(zxpub *x); /* as zrouter_pending, if the socket was touched since the last one */
uint32_t zxpub_connections(const zxpub *x);
void zxpub_cut_if(zxpub *x, zpeer_judge judge, void *ctx, cut_reason why);
void zxpub_close(zxpub *x, int linger_ms);

/* Shows that cutting a peer works on this system: a ROUTER, a DEALER, one held row. 0, or the error and why. Takes a
 * few ms; before the daemon's own sockets are made. */
int zsock_self_test(zwhy *why);
/* "tcp://", "ipc://" or "inproc://", and whether it stays on this host. 0 or -EINVAL. */
int zsock_endpoint(const char *endpoint, bool *ret_loopback, zwhy *why);
/* That a tcp endpoint's port is one and its address can be bound here: tried with a free port, and let go. */
int zsock_try_address(const char *key, const char *endpoint, zwhy *why);
#endif
