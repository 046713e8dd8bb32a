/* ingest.c: reads the ROUTER, judges shape and header, and hands each kind to its function (ingest_frame.c,
 * ingest_control.c, ingest_hello.c). Called by the loop once a turn. Owns nothing but the HELLOs that wait for READY. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "error.h"
#include "ingest_own.h"
#include "log.h"

/* ---- answers to what is no frame ------------------------------------------------------------------------------- */

void ingest_fault(ingest *in, zpeer *p, int error) {
    if (error == -EAGAIN || error == -ENOBUFS || error == -EUSERS || error == -ESHUTDOWN) return;
    if (++p->faults < INGEST_FAULTS || p->cut) return;
    log_warning("client cut: %d refusals in a row, the last %s session=%016" PRIx64, INGEST_FAULTS, error_name(error),
        p->session ? p->session->id : 0);
    zrouter_cut(in->router, p, CUT_faults);
    if (p->session) sessions_fail(in->ss, p->session);
}

void ingest_error(ingest *in, zpeer *p, const wire_header *h, const char *topic, int error, const char *sentence,
    const zenvelope *envelope) {
    wire_header a = {.kind = WIRE_ERROR,
        .status = error_to_wire(error),
        .session = h->session,
        .request_id = h->request_id,
        .seq = h->seq,
        .t_capture_ns = h->t_capture_ns};
    answer_plain(in->answers, p, &a, topic, sentence, strlen(sentence), envelope);
    ingest_fault(in, p, error);
}

void ingest_reply(ingest *in, const request *r, wire_kind kind, const char *topic, uint32_t epoch,
    const void *payload, size_t bytes) {
    wire_header a = {.kind = (uint8_t)kind, .request_id = r->h.request_id, .seq = r->h.seq, .epoch = epoch};
    answer_plain(in->answers, r->peer, &a, topic, payload, bytes, NULL);
    r->peer->faults = 0;
}

session *ingest_session(ingest *in, const request *r) {
    char sentence[200];
    session *s = r->peer->session;
    if (s && s->id == r->h.session && !session_gone(s)) return s;
    in->counts->malformed[MALFORMED_session]++;
    if (s)
        snprintf(sentence, sizeof sentence, "session %016" PRIx64 " is not this connection's, which is %016" PRIx64,
            r->h.session, s->id);
    else
        snprintf(sentence, sizeof sentence, "%s: no session on this connection; say HELLO first%s",
            wire_kind_name(r->h.kind), in->ready ? "" : " (the daemon is still starting)");
    ingest_error(in, r->peer, &r->h, "", -ESTALE, sentence, NULL);
    return NULL;
}

/* ---- messages -------------------------------------------------------------------------------------------------- */

static void wrong_shape(ingest *in, zmsg *m) {
    char sentence[160];
    wire_header h = {0};
    const zbuf *b = zmsg_header(m);
    if (b) wire_read(&h, b->data, b->bytes, NULL); /* for the ids alone */
    snprintf(sentence, sizeof sentence,
        "a message of %d parts; it has exactly 3: topic, header, payload (no delimiter: use DEALER)", m->n_parts);
    in->counts->malformed[MALFORMED_parts]++;
    ingest_error(in, m->peer, &h, "", -EPROTO, sentence, &m->envelope);
}

static void self_named(ingest *in, zmsg *m) {
    in->counts->malformed[MALFORMED_identity]++;
    if (in->now_ns - in->t_identity_log_ns > 1000000000u || !in->t_identity_log_ns) {
        log_warning("client cut: it set a routing id of its own (ZMQ_ROUTING_ID); leave that to ZeroMQ");
        in->t_identity_log_ns = in->now_ns;
    }
    zrouter_cut(in->router, m->peer, CUT_identity);
    if (m->peer->session) sessions_fail(in->ss, m->peer->session);
}

static void wrong_kind(ingest *in, const request *r) {
    char sentence[120];
    bool kept = r->h.kind == WIRE_RESUME || r->h.kind == WIRE_RESUMED;
    snprintf(sentence, sizeof sentence, "kind %u %s %s", r->h.kind, wire_kind_name(r->h.kind),
        kept ? "is not spoken in version 1" : "is not one that clients send");
    in->counts->malformed[MALFORMED_kind]++;
    ingest_error(in, r->peer, &r->h, "", kept ? -ENOTSUP : -EPROTO, sentence, NULL);
}

static void dispatch(ingest *in, request *r) {
    switch (r->h.kind) {
    case WIRE_FRAME: ingest_frame(in, r); break;
    case WIRE_HELLO: ingest_hello(in, r); break;
    case WIRE_OPEN: ingest_open(in, r); break;
    case WIRE_CLOSE: ingest_close(in, r); break;
    case WIRE_PING: ingest_ping(in, r); break;
    default: wrong_kind(in, r); break;
    }
}

static void message(ingest *in, zmsg *m) {
    wire_why why;
    request r = {.peer = m->peer, .topic = &m->part[0], .payload = &m->part[2]};
    if (m->self_named) {
        self_named(in, m);
    } else if (!guard_knows(in->guard, m->peer)) {
        zrouter_cut(in->router, m->peer, CUT_key);
    } else if (m->n_parts != 3) {
        wrong_shape(in, m);
    } else if (wire_read(&r.h, m->part[1].data, m->part[1].bytes, &why)) {
        in->counts->malformed[MALFORMED_header]++;
        ingest_error(in, m->peer, &r.h, "", -EPROTO, why.text, NULL);
    } else {
        dispatch(in, &r);
    }
}

void ingest_turn(ingest *in, uint64_t now_ns) {
    zmsg m;
    in->now_ns = now_ns;
    for (int i = 0; i < INGEST_TURN_MESSAGES; i++) {
        int got = zrouter_recv(in->router, &m, now_ns);
        if (!got) return;
        if (got > 0) {
            message(in, &m);
            zmsg_done(&m);
        }
        in->now_ns = uv_hrtime();
        if (in->now_ns - now_ns > INGEST_TURN_NS) return;
    }
}
