/* zsock_zap.c: keys: CURVE on the sockets that are bound, and the handler that libzmq asks about each client's key (ZAP,
 * RFC 27), a ROUTER in the same context. Owns that socket. On the loop thread; who is admitted is the caller's. libzmq's
 * I/O threads do the cryptography and go on with other connections while a question waits here. */
#include "zsock_own.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HANDLER   "inproc://zeromq.zap.01"
#define DOMAIN    "nctd"
#define KEYLESS   "nctd-keyless" /* of ipc endpoints that go without keys: a domain that was set cannot be unset */
#define KEY_BYTES 32

/* Routing id, delimiter, version, request id, domain, address, identity, mechanism, credentials. */
enum { Z_ROUTE, Z_DELIMITER, Z_VERSION, Z_REQUEST, Z_DOMAIN, Z_ADDRESS, Z_IDENTITY, Z_MECHANISM, Z_KEY, Z_PARTS };

int zctx_keys(zctx *c, const zcurve *keys, zadmit admit, zwhy *why) {
    char derived[41];
    if (!keys->secret_key) return 0;
    if (!zmq_has("curve")) return zwhy_set(why, -ENOTSUP, "the ZeroMQ on this machine was built without CURVE");
    if (zmq_curve_public(derived, keys->secret_key) || strcmp(derived, keys->public_key) != 0)
        return zwhy_set(why, -EINVAL, "auth.secret_key_file: its public and secret key are no pair");
    c->zap = zmq_socket(c->zmq, ZMQ_ROUTER);
    if (!c->zap || zopt_int(c->zap, ZMQ_LINGER, 0) || zmq_bind(c->zap, HANDLER)) {
        int error = -errno;
        zctx_zap_close(c);
        return zwhy_set(why, error, "no handler for keys: %s", zmq_strerror(-error));
    }
    snprintf(c->secret_key, sizeof c->secret_key, "%s", keys->secret_key);
    c->ipc_keyless = keys->ipc_keyless;
    c->admit = admit;
    return 0;
}

int zap_for_bind(zctx *c, void *socket, const char *endpoint) {
    if (!c->zap) return 0;
    bool without = c->ipc_keyless && !strncmp(endpoint, "ipc://", 6);
    const char *domain = without ? KEYLESS : DOMAIN;
    int error = zopt_int(socket, ZMQ_CURVE_SERVER, !without);
    if (!error && !without && zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, c->secret_key, sizeof c->secret_key))
        error = -errno;
    if (!error && zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain, strlen(domain))) error = -errno;
    return error;
}

int zctx_zap_fd(const zctx *c) {
    return c->zap ? zfd(c->zap) : -1;
}

static bool is(const zbuf *b, const char *text) {
    return b->bytes == strlen(text) && !memcmp(b->data, text, b->bytes);
}

/* A question of the shape that ours have. True: let it in; then the key as text, "" for a peer that needs none. */
static bool judge(const zctx *c, const zbuf part[Z_PARTS], int n, char ret_key[41]) {
    unsigned char bytes[KEY_BYTES];
    char address[80];
    ret_key[0] = 0;
    if (n < Z_KEY || n > Z_PARTS || !is(&part[Z_VERSION], "1.0")) return false;
    if (n == Z_KEY) return c->ipc_keyless && is(&part[Z_DOMAIN], KEYLESS) && is(&part[Z_MECHANISM], "NULL");
    if (!is(&part[Z_DOMAIN], DOMAIN) || !is(&part[Z_MECHANISM], "CURVE") || part[Z_KEY].bytes != KEY_BYTES)
        return false;
    memcpy(bytes, part[Z_KEY].data, sizeof bytes);
    if (!zmq_z85_encode(ret_key, bytes, sizeof bytes)) return false;
    snprintf(address, sizeof address, "%.*s", (int)part[Z_ADDRESS].bytes, (const char *)part[Z_ADDRESS].data);
    return c->admit.fn(c->admit.ctx, ret_key, address);
}

static void answer(void *zap, const zbuf part[Z_PARTS], bool admitted, const char *key) {
    const char *code = admitted ? "200" : "400", *text = admitted ? "OK" : "this key is not admitted";
    if (!admitted) key = "";
    zsend_copy(zap, part[Z_ROUTE].data, part[Z_ROUTE].bytes, ZMQ_SNDMORE);
    zsend_copy(zap, "", 0, ZMQ_SNDMORE);
    zsend_copy(zap, "1.0", 3, ZMQ_SNDMORE);
    zsend_copy(zap, part[Z_REQUEST].data, part[Z_REQUEST].bytes, ZMQ_SNDMORE);
    zsend_copy(zap, code, 3, ZMQ_SNDMORE);
    zsend_copy(zap, text, strlen(text), ZMQ_SNDMORE);
    zsend_copy(zap, key, strlen(key), ZMQ_SNDMORE);
    zsend_copy(zap, "", 0, 0);
}

/* False: none waits. */
static bool question(zctx *c) {
    zbuf part[Z_PARTS] = {{.kind = 0}}, rest = {.kind = 0};
    char key[41];
    int n = 0, more = 1;
    while (more > 0) {
        more = zbuf_receive(n < Z_PARTS ? &part[n] : &rest, c->zap, ZMQ_DONTWAIT);
        if (more < 0) break;
        zbuf_done(&rest);
        n++;
    }
    if (n > Z_REQUEST) {
        bool admitted = judge(c, part, n, key);
        answer(c->zap, part, admitted, key);
    }
    for (int i = 0; i < Z_PARTS; i++) zbuf_done(&part[i]);
    return n > 0;
}

bool zctx_zap_turn(zctx *c) {
    if (!c->zap) return false;
    for (int i = 0; i < 64; i++)
        if (!question(c)) break;
    return zpollin(c->zap);
}

void zctx_zap_close(zctx *c) {
    if (c && c->zap) zmq_close(c->zap);
    if (c) c->zap = NULL;
}
