/* zsock_own.h: what the zsock files share: the context, the table of connections, small ZeroMQ steps. Included by
 * zsock*.c alone, with <zmq.h>. */
#ifndef NCTD_ZSOCK_OWN_H
#define NCTD_ZSOCK_OWN_H
#include <zmq.h>
#include "zsock.h"

struct zctx {
    void *zmq;
    uint32_t n_monitors; /* names them */
    void *zap;           /* ROUTER at inproc://zeromq.zap.01; NULL: no keys */
    char secret_key[41];
    bool ipc_keyless;
    zadmit admit;
};

/* The connections of one bound socket, kept by its monitor. */
typedef struct {
    void *monitor; /* PAIR */
    zpeer **by_fd; /* [n_fds] by libzmq's descriptor number */
    int n_fds;
    zpeer *first;
    uint32_t n, max, n_accepted, n_left; /* n_left of n have ended, and may have messages that were not read yet */
    uint32_t n_ended;                    /* ever */
    ledger *counts;
    zpeer_sink gone;
} zconns;

int zwhy_set(zwhy *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
int zopt_int(void *socket, int option, int value); /* 0 or -errno */
/* What both sockets share: keepalive, no heartbeats, linger 0 until the end. */
int zopt_common(void *socket);
/* With the keys of the context, unless the endpoint goes without. */
int zbind(zctx *ctx, void *socket, const char *endpoint, char ret_bound[256], zwhy *why);
/* The socket's options for the next bind: CURVE and ZAP, or neither. */
int zap_for_bind(zctx *c, void *socket, const char *endpoint);
int zfd(void *socket);
bool zpollin(void *socket); /* one read of ZMQ_EVENTS */
/* One part into b (kind none). 1 when more follow, 0 when it was the last, or -errno with b still empty. */
int zbuf_receive(zbuf *b, void *socket, int flags);
/* Sends one part of `bytes` copied from p. 0 or -errno. */
int zsend_copy(void *socket, const void *p, size_t bytes, int flags);

int zconns_init(zconns *c, zctx *ctx, void *socket, ledger *counts, uint32_t max, zpeer_sink gone);
void zconns_turn(zconns *c, uint64_t now_ns);
/* `gone` for those that left: all of them (nothing waits to be read), or those that left LEFT_NS ago. */
void zconns_leave(zconns *c, bool all, uint64_t now_ns);
zpeer *zconns_at(const zconns *c, int fd); /* NULL: none */
/* A peer that no ACCEPTED announced (inproc): fd -1. NULL without memory. */
zpeer *zconns_add(zconns *c, int fd, uint64_t now_ns);
void zconns_cut_if(zconns *c, zpeer_judge judge, void *ctx, cut_reason why);
/* The key that the connection of this part showed, into p->user. */
void zconns_learn_user(zpeer *p, zmq_msg_t *part);
void zconns_cut(zconns *c, zpeer *p, cut_reason why);
bool zconns_full(const zconns *c); /* zrouter_full */
/* `gone` for each, then the monitor; before its socket. last: zrouter_close */
void zconns_close(zconns *c, void *socket, parting *last);
uint64_t zsock_cookie(int fd); /* SO_COOKIE; 0: none */
#endif
