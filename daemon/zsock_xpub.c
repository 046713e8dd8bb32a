/* zsock_xpub.c: the socket that subscribers listen on. Owns the XPUB, its connections and what was granted to whom.
 * Called by the publisher on the loop thread.
 *
 * XPUB_MANUAL: a subscription counts only when we grant it. Grants are kept per connection: a peer that ends a
 * subscription twice, or ends one it never had, must not end another's. */
#include "zsock_own.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "names.h"

#define GRANTS_PER_PEER 1024
#define GRANTS_ALL      65536
#define READ_PER_TURN   64
/* libzmq keeps every prefix that a peer sends, granted or not, as a trie of a node a byte: so messages are bounded (a
 * prefix counts up to WIRE_TOPIC_MAX bytes; a handshake with keys and an identity takes 600), and who is refused that
 * often is cut. */
#define SUBSCRIPTION_MAX 1024
#define REFUSED_MAX      1000
/* How long libzmq's threads may take to let go of a connection that ended. */
#define ENDING_NS 200000000u

typedef struct ztopic {
    map_link link;
    uint32_t n; /* connections that have it */
    size_t len;
} ztopic;
typedef struct zgrant {
    struct zgrant *next;
    ztopic *topic;
} zgrant;

struct zxpub {
    zctx *ctx;
    void *socket;
    zconns conns;
    map topics;
    uint32_t n_grants;
    bool touched; /* something was sent or read since zxpub_pending */
    int hwm;      /* the mark that every connection should have */
    int hwm_set;  /* that all had which were there when it was set */
    bool hwm_due; /* it is to be set again: another one, or a connection came since */
    uint32_t n_ended;
    uint64_t ended_ns; /* when n_ended was last found to have grown */
    bool (*may_subscribe)(void *ctx, zpeer *p, const void *prefix, size_t len);
    void *may_ctx;
    uint32_t of_length[WIRE_TOPIC_MAX + 1]; /* topics granted, by length: only these are looked up */
};

static ztopic *topic_find(const zxpub *x, const void *text, size_t len) {
    name_key k = name_hash(text, len);
    map_link *l = map_find(&x->topics, k.a, k.b);
    return l ? (ztopic *)((char *)l - offsetof(ztopic, link)) : NULL;
}

static ztopic *topic_ref(zxpub *x, const void *text, size_t len) {
    ztopic *t = topic_find(x, text, len);
    if (!t) {
        name_key k = name_hash(text, len);
        t = calloc(1, sizeof *t);
        if (!t) return NULL;
        t->len = len;
        map_add(&x->topics, &t->link, k.a, k.b);
        x->of_length[len]++;
    }
    t->n++;
    return t;
}

static void topic_unref(zxpub *x, ztopic *t) {
    if (--t->n) return;
    x->of_length[t->len]--;
    map_remove(&x->topics, &t->link);
    free(t);
}

/* The link that points at this grant, or at the NULL after the last. */
static zgrant **grant_of(zpeer *p, const ztopic *t) {
    zgrant **at = &p->grants;
    while (*at && (*at)->topic != t) at = &(*at)->next;
    return at;
}

static void grant_end(zxpub *x, zpeer *p, zgrant **at) {
    zgrant *g = *at;
    *at = g->next;
    topic_unref(x, g->topic);
    free(g);
    p->n_subscribed--;
    x->n_grants--;
}

static void connection_ended(void *ctx, zpeer *p) {
    while (p->grants) grant_end(ctx, p, &p->grants);
}

static bool grant(zxpub *x, zpeer *p, const void *text, size_t len) {
    if (len > WIRE_TOPIC_MAX) return false; /* longer than any topic: matches nothing */
    ztopic *t = topic_find(x, text, len);
    if (t && *grant_of(p, t)) return true;
    if (p->n_subscribed >= GRANTS_PER_PEER || x->n_grants >= GRANTS_ALL) return false;
    zgrant *g = malloc(sizeof *g);
    t = g ? topic_ref(x, text, len) : NULL;
    if (!t) {
        free(g);
        return false;
    }
    *g = (zgrant){.next = p->grants, .topic = t};
    p->grants = g;
    p->n_subscribed++;
    x->n_grants++;
    return true;
}

static uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Sets the mark on all connections, when none is about to end: libzmq 4.3.4 sends it to the far half of each, and that of
 * a connection whose end we have confirmed is freed before we hear so. The monitor tells of an end before it is to be
 * confirmed. Until it is set, newcomers have the mark from before the bind, which is the least. */
static void mark_all(zxpub *x, uint64_t now_ns) {
    zpollin(x->socket); /* takes in what libzmq's threads said */
    zconns_turn(&x->conns, now_ns);
    if (x->conns.n_ended != x->n_ended) {
        x->n_ended = x->conns.n_ended;
        x->ended_ns = now_ns;
    }
    if (x->n_ended && now_ns - x->ended_ns < ENDING_NS) return;
    x->hwm_due = false;
    x->hwm_set = x->hwm;
    zopt_int(x->socket, ZMQ_SNDHWM, x->hwm);
}

/* One message of a subscriber: 1 or 0, then the prefix. Anything else is dropped. */
static void subscription(zxpub *x, const zbuf *b, uint64_t now_ns) {
    const unsigned char *text = b->data;
    int fd = zmq_msg_get((zmq_msg_t *)b->opaque, ZMQ_SRCFD);
    if (b->bytes < 1 || text[0] > 1) return;
    zpeer *p = zconns_at(&x->conns, fd);
    if (!p && fd >= 0) {
        zconns_turn(&x->conns, now_ns); /* accepted after this turn read the monitor */
        p = zconns_at(&x->conns, fd);
    }
    if (!p || p->cut) return; /* libzmq itself ends what a closed connection had */
    if (!p->user[0]) zconns_learn_user(p, (zmq_msg_t *)(uintptr_t)b->opaque);
    if (text[0] == 1) {
        bool may = !x->may_subscribe || x->may_subscribe(x->may_ctx, p, text + 1, b->bytes - 1);
        if (!may || !grant(x, p, text + 1, b->bytes - 1)) {
            if (++p->faults > REFUSED_MAX) zconns_cut(&x->conns, p, CUT_faults);
            return;
        }
        zmq_setsockopt(x->socket, ZMQ_SUBSCRIBE, text + 1, b->bytes - 1);
        x->hwm_due = true; /* libzmq begins a connection with what was set before the bind */
        return;
    }
    ztopic *t = topic_find(x, text + 1, b->bytes - 1);
    zgrant **at = t ? grant_of(p, t) : NULL;
    if (!at || !*at) return;
    grant_end(x, p, at);
    zmq_setsockopt(x->socket, ZMQ_UNSUBSCRIBE, text + 1, b->bytes - 1);
}

int zxpub_new(zxpub **ret, const zxpub_setup *setup, zwhy *why) {
    int error = -ENOMEM;
    zxpub *x = calloc(1, sizeof *x);
    if (!x) return -ENOMEM;
    x->hwm = x->hwm_set = setup->send_hwm;
    x->ctx = setup->ctx;
    x->may_subscribe = setup->may_subscribe;
    x->may_ctx = setup->may_ctx;
    if (map_init(&x->topics, 64)) goto fail_map;
    x->socket = zmq_socket(setup->ctx->zmq, ZMQ_XPUB);
    if (!x->socket) {
        error = zwhy_set(why, -errno, "no XPUB socket: %s", zmq_strerror(errno));
        goto fail_socket;
    }
    error = zopt_common(x->socket);
    if (!error && zmq_setsockopt(x->socket, ZMQ_MAXMSGSIZE, &(int64_t){SUBSCRIPTION_MAX}, sizeof(int64_t)))
        error = -errno;
    if (!error) error = zopt_int(x->socket, ZMQ_XPUB_MANUAL, 1);
    if (!error) error = zopt_int(x->socket, ZMQ_SNDHWM, setup->send_hwm);
    if (!error)
        error = zconns_init(&x->conns, setup->ctx, x->socket, setup->counts, setup->max_connections,
            (zpeer_sink){connection_ended, x});
    if (error) {
        zwhy_set(why, error, "an XPUB option was refused: %s", zmq_strerror(-error));
        goto fail_options;
    }
    *ret = x;
    return 0;
fail_options:
    zmq_close(x->socket);
fail_socket:
    map_done(&x->topics);
fail_map:
    free(x);
    return error;
}

int zxpub_bind(zxpub *x, const char *endpoint, char ret_bound[256], zwhy *why) {
    return zbind(x->ctx, x->socket, endpoint, ret_bound, why);
}

void zxpub_fds(const zxpub *x, int ret_fds[2]) {
    ret_fds[0] = zfd(x->socket);
    ret_fds[1] = zfd(x->conns.monitor);
}

void zxpub_turn(zxpub *x, uint64_t now_ns) {
    zconns_turn(&x->conns, now_ns);
    x->touched = true;
    for (int i = 0; i < READ_PER_TURN; i++) {
        zbuf b = {.kind = 0}, rest = {.kind = 0};
        int more = zbuf_receive(&b, x->socket, ZMQ_DONTWAIT);
        if (more < 0) return;
        if (!more) subscription(x, &b, now_ns);
        while (more > 0) { /* user messages of an XSUB, in parts */
            more = zbuf_receive(&rest, x->socket, ZMQ_DONTWAIT);
            zbuf_done(&rest);
        }
        zbuf_done(&b);
    }
}

bool zxpub_wanted(const zxpub *x, const char *topic, size_t len) {
    if (!x->n_grants) return false;
    for (size_t n = 0; n <= len && n <= WIRE_TOPIC_MAX; n++)
        if (x->of_length[n] && topic_find(x, topic, n)) return true;
    return false;
}

int zxpub_send(zxpub *x, const zout *m) {
    x->touched = true;
    if (x->hwm_due) mark_all(x, clock_ns());
    if (x->hwm < x->hwm_set)
        return -EAGAIN; /* a lower one is due: under the old, a slow subscriber would cost too much */
    int error = zsend_copy(x->socket, m->topic, m->topic_bytes, ZMQ_SNDMORE);
    if (!error) error = zsend_copy(x->socket, m->header, m->header_bytes, ZMQ_SNDMORE);
    if (!error) error = zsend_copy(x->socket, m->payload, m->payload_bytes, 0);
    return error;
}

void zxpub_set_hwm(zxpub *x, int messages) {
    x->hwm = messages;
    x->hwm_due = true;
}

bool zxpub_pending(zxpub *x) {
    bool touched = x->touched;
    x->touched = false;
    return touched && zpollin(x->socket);
}

uint32_t zxpub_connections(const zxpub *x) {
    return x->conns.n;
}

void zxpub_cut_if(zxpub *x, zpeer_judge judge, void *ctx, cut_reason why) {
    zconns_cut_if(&x->conns, judge, ctx, why);
}

void zxpub_close(zxpub *x, int linger_ms) {
    if (!x) return;
    zconns_close(&x->conns, x->socket, NULL);
    zopt_int(x->socket, ZMQ_LINGER, linger_ms);
    zmq_close(x->socket);
    map_done(&x->topics);
    free(x);
}
