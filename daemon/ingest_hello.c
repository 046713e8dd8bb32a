/* ingest_hello.c: sessions begin and end here: HELLO, WELCOME, GOAWAY, and connections that go. Called by ingest.c, the
 * router's monitor and the drain, on the loop thread. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "ingest_own.h"
#include "json_in.h"
#include "log.h"

/* What a HELLO asks for, kept while the daemon starts. */
typedef struct hello {
    struct hello *next;
    zpeer *peer;
    uint64_t request_id, previous;
    char client[64];
} hello;

static int read_previous(const json_t *o, uint64_t *ret, char *why, size_t size) {
    const json_t *v = json_object_get(o, "previous");
    if (!v) return 0;
    const char *text = json_string_value(v);
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdefABCDEF") != 16) {
        snprintf(why, size, "HELLO: \"previous\" is a session as a string of 16 hex digits");
        return -EINVAL;
    }
    *ret = strtoull(text, NULL, 16);
    return 0;
}

static int read_hello(ingest *in, const request *r, hello *ret, char *why, size_t size) {
    json_t *o = NULL;
    if (r->topic->bytes) {
        in->counts->malformed[MALFORMED_topic]++;
        snprintf(why, size, "HELLO has an empty topic, not one of %zu bytes", r->topic->bytes);
        return -EINVAL;
    }
    int error = json_in(&o, r->payload->data, r->payload->bytes, "HELLO", why, size);
    if (!error) error = read_previous(o, &ret->previous, why, size);
    if (error) in->counts->malformed[MALFORMED_json]++;
    const char *client = json_string_value(json_object_get(o, "client"));
    snprintf(ret->client, sizeof ret->client, "%s", client ? client : "");
    json_decref(o);
    return error;
}

static void forget_waiting(ingest *in, const zpeer *p) {
    for (hello **at = &in->waiting; *at;) {
        hello *h = *at;
        if (h->peer != p) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        free(h);
    }
}

/* flow.md 21: a new HELLO ends what this connection had, and the session it names as its previous one, if the same key
 * opened it. */
static void end_before(ingest *in, zpeer *p, uint64_t previous) {
    if (p->session) sessions_end(in->ss, p->session);
    session *before = previous ? sessions_find(in->ss, previous) : NULL;
    if (before && !strcmp(before->peer->user, p->user)) sessions_end(in->ss, before);
}

static void welcome_peer(ingest *in, const hello *h) {
    session_why why = {"no memory for a session"};
    wire_header ids = {.request_id = h->request_id};
    session *s = NULL;
    end_before(in, h->peer, h->previous);
    int error = sessions_open(in->ss, &s, h->peer, h->client, &why);
    if (error) { /* it may ask again, and has hello_ms for it, or its place among the connections is another's */
        ingest_error(in, h->peer, &ids, "", error == -EUSERS ? error : -ENOBUFS, why.text, NULL);
        h->peer->said_hello = false;
        h->peer->t_accept_ns = uv_hrtime();
        return;
    }
    ledger_count(in->counts, COUNT_sessions);
    char *text = welcome_text(in->facts, s);
    wire_header a = {.kind = WIRE_WELCOME, .session = s->id, .request_id = h->request_id};
    answer_plain(in->answers, h->peer, &a, "", text ? text : "{}", text ? strlen(text) : 2, NULL);
    free(text);
    h->peer->faults = 0;
    log_debug("session begins id=%016" PRIx64 " client=%s key=%s", s->id, s->client,
        h->peer->key ? h->peer->key->name : "");
}

void ingest_hello(ingest *in, const request *r) {
    char why[200];
    hello h = {.peer = r->peer, .request_id = r->h.request_id};
    int error = read_hello(in, r, &h, why, sizeof why);
    if (error) {
        ingest_error(in, r->peer, &r->h, "", error, why, NULL);
        return;
    }
    r->peer->said_hello = true;
    if (in->draining) {
        ingest_error(in, r->peer, &r->h, "", -ESHUTDOWN, "the daemon is shutting down", NULL);
    } else if (in->ready) {
        welcome_peer(in, &h);
    } else {
        hello *kept = malloc(sizeof *kept);
        if (!kept) {
            ingest_error(in, r->peer, &r->h, "", -ENOBUFS, "no memory to keep this HELLO", NULL);
            return;
        }
        forget_waiting(in, r->peer);
        *kept = h;
        kept->next = in->waiting;
        in->waiting = kept;
    }
}

void ingest_ready(ingest *in) {
    in->ready = true;
    while (in->waiting) {
        hello *h = in->waiting;
        in->waiting = h->next;
        if (!h->peer->cut) welcome_peer(in, h);
        free(h);
    }
}

void ingest_done(ingest *in) {
    while (in->waiting) forget_waiting(in, in->waiting->peer);
}

void ingest_peer_gone(void *ctx, zpeer *p) {
    ingest *in = ctx;
    forget_waiting(in, p);
    if (!p->session) return;
    log_debug("session ends id=%016" PRIx64 " client=%s: its connection is gone", p->session->id, p->session->client);
    sessions_end(in->ss, p->session);
}

void ingest_goaway(ingest *in, uint32_t drain_ms) {
    char text[64];
    int n = snprintf(text, sizeof text, "{\"drain_ms\": %u}", drain_ms);
    in->draining = true;
    for (session *s = in->ss->first; s; s = s->next) {
        wire_header a = {.kind = WIRE_GOAWAY, .session = s->id};
        if (!session_gone(s)) answer_plain(in->answers, s->peer, &a, "", text, (size_t)n, NULL);
    }
}
