/* guard.h: the allow-list at work: who gets through the handshake, what each key may do, and the log line about those who
 * did not get in. Without keys (list NULL) everybody may do everything. Loop thread. */
#ifndef NCTD_GUARD_H
#define NCTD_GUARD_H
#include "auth.h"
#include "ledger.h"
#include "zsock.h"

typedef struct guard {
    auth *list; /* in force; owned. NULL: no keys */
    ledger *counts;
    char key[KEY_TEXT + 1], address[80]; /* the last one that was not admitted */
    uint64_t t_log_ns, logged;           /* when, and how many refusals were told then */
} guard;

bool guard_admit(void *ctx, const char *key, const char *address); /* zadmit, ctx = guard */
/* A key that was admitted and has been taken off the list before its connection spoke: false, cut it. Learns p->key. */
bool guard_knows(const guard *g, zpeer *p);
/* topic: "model/stream/". After guard_knows. */
bool guard_may_send(const zpeer *p, const char *topic);
bool guard_may_subscribe(void *ctx, zpeer *p, const void *prefix, size_t len); /* ctx = guard; counts refusals */
/* A reload: `next` (taken) is in force, the old list is freed. Cut are clients whose key is gone, and subscribers whose
 * key has other rights: they come back with a new subscription. */
void guard_swap(guard *g, auth *next, zrouter *r, zxpub *x);
/* At most one line in ten seconds about refused handshakes and subscriptions. */
void guard_log(guard *g, uint64_t now_ns);
void guard_done(guard *g);
#endif
