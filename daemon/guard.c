/* guard.c: see guard.h. Called by zsock's handler of keys, ingest (rights), the XPUB (subscriptions), a reload's swap and
 * the loop's housekeeping. Owns the list in force. */
#include "guard.h"
#include <stdio.h>
#include <string.h>
#include "log.h"

#define LOG_NS 10000000000u

bool guard_admit(void *ctx, const char *key, const char *address) {
    guard *g = ctx;
    if (g->list && auth_find(g->list, key)) return true;
    snprintf(g->key, sizeof g->key, "%s", key);
    snprintf(g->address, sizeof g->address, "%s", address);
    return false;
}

bool guard_knows(const guard *g, zpeer *p) {
    if (!g->list || !p->user[0] || p->key) return true;
    p->key = auth_find(g->list, p->user);
    return p->key != NULL;
}

bool guard_may_send(const zpeer *p, const char *topic) {
    return !p->key || auth_may_send(p->key, topic);
}

bool guard_may_subscribe(void *ctx, zpeer *p, const void *prefix, size_t len) {
    guard *g = ctx;
    bool may = guard_knows(g, p) && (!p->key || auth_may_subscribe(p->key, prefix, len));
    if (!may) ledger_count(g->counts, COUNT_subscribe_refused);
    return may;
}

/* ---- a reload -------------------------------------------------------------------------------------------------- */

typedef struct {
    const auth *before, *now;
} change;

static bool client_must_go(void *ctx, zpeer *p) {
    const change *c = ctx;
    if (!p->user[0]) return false;
    p->key = auth_find(c->now, p->user);
    return !p->key;
}

static bool subscriber_must_go(void *ctx, zpeer *p) {
    const change *c = ctx;
    if (!p->user[0]) return false;
    const auth_key *before = auth_find(c->before, p->user);
    p->key = auth_find(c->now, p->user);
    return !p->key || !auth_key_same(before, p->key);
}

void guard_swap(guard *g, auth *next, zrouter *r, zxpub *x) {
    change c = {g->list, next};
    if (!g->list || !next) return; /* keys are switched on and off by a restart alone */
    zrouter_cut_if(r, client_must_go, &c, CUT_key);
    if (x) zxpub_cut_if(x, subscriber_must_go, &c, CUT_key);
    auth_free(g->list);
    g->list = next;
}

/* ---- the log --------------------------------------------------------------------------------------------------- */

void guard_log(guard *g, uint64_t now_ns) {
    const uint64_t *n = g->counts->handshakes, subscriptions = g->counts->counts[COUNT_subscribe_refused];
    char text[200] = "";
    size_t at = 0;
    uint64_t sum = subscriptions;
    for (int i = 0; i < HANDSHAKES; i++) sum += n[i];
    if (sum == g->logged || (g->t_log_ns && now_ns - g->t_log_ns < LOG_NS)) return;
    g->logged = sum;
    g->t_log_ns = now_ns;
    for (int i = 0; i < HANDSHAKES; i++)
        at += (size_t)snprintf(
            text + at, sizeof text - at, " %s=%llu", handshake_name((handshake_cause)i), (unsigned long long)n[i]);
    if (g->key[0])
        log_warning(
            "refused since the start: handshakes%s, subscriptions=%llu; the last key not in auth.client_keys: %s "
            "from %s",
            text, (unsigned long long)subscriptions, g->key, g->address);
    else
        log_warning(
            "refused since the start: handshakes%s, subscriptions=%llu", text, (unsigned long long)subscriptions);
}

void guard_done(guard *g) {
    auth_free(g->list);
    g->list = NULL;
}
