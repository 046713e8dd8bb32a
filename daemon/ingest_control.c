/* ingest_control.c: what is neither a frame nor a HELLO: OPEN, CLOSE, PING. Called by ingest.c on the loop thread. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "error.h"
#include "ingest_own.h"
#include "json_in.h"

/* The names in a topic, and what is served under the first. Sends the refusal itself. */
static bool read_topic(ingest *in, const request *r, char topic[WIRE_TOPIC_MAX + 1], served **ret_of,
    char stream_name[WIRE_NAME_MAX + 1]) {
    char model_name[WIRE_NAME_MAX + 1], sentence[200];
    wire_why why;
    int error = wire_topic_read(r->topic->data, r->topic->bytes, model_name, stream_name, &why);
    if (error) {
        in->counts->malformed[MALFORMED_topic]++;
        ingest_error(in, r->peer, &r->h, "", error, why.text, NULL);
        return false;
    }
    wire_topic_write(topic, model_name, stream_name);
    if (!guard_may_send(r->peer, topic)) {
        snprintf(sentence, sizeof sentence, "the key of this client may not send to %.130s", topic);
        ingest_error(in, r->peer, &r->h, topic, -EACCES, sentence, NULL);
        return false;
    }
    *ret_of = models_find(in->models, model_name);
    if (*ret_of) return true;
    snprintf(sentence, sizeof sentence, "no model %s is served", model_name);
    ingest_error(in, r->peer, &r->h, topic, -ENOENT, sentence, NULL);
    return false;
}

void ingest_open(ingest *in, const request *r) {
    char topic[WIRE_TOPIC_MAX + 1], name[WIRE_NAME_MAX + 1], why[200], misfit[180];
    session *s = ingest_session(in, r);
    session_why refusal = {""};
    stream *st = NULL;
    json_t *facts = NULL;
    served *of;
    if (!s || !read_topic(in, r, topic, &of, name)) return;
    int error = json_in(&facts, r->payload->data, r->payload->bytes, "OPEN", why, sizeof why);
    if (error) in->counts->malformed[MALFORMED_json]++;
    if (!error && (error = stream_facts_fit(facts, of, misfit, sizeof misfit)) != 0)
        snprintf(why, sizeof why, "OPEN: %s", misfit);
    if (!error) {
        error = streams_check(in->streams, s, topic, strlen(topic), 0, &st, &refusal);
        if (!error && streams_open(in->streams, s, of, name, in->now_ns, &st)) error = -ENOBUFS;
        snprintf(why, sizeof why, "%s", error == -ENOBUFS ? "no memory for a stream" : refusal.text);
    }
    if (error) {
        json_decref(facts);
        ingest_error(in, r->peer, &r->h, topic, error, why, NULL);
        return;
    }
    st->facts = facts;
    ingest_reply(in, r, WIRE_OPENED, topic, st->epoch, "", 0);
}

void ingest_close(ingest *in, const request *r) {
    char topic[WIRE_TOPIC_MAX + 1], name[WIRE_NAME_MAX + 1];
    session *s = ingest_session(in, r);
    session_why why;
    stream *st = NULL;
    served *of;
    if (!s || !read_topic(in, r, topic, &of, name)) return;
    int error = streams_check(in->streams, s, topic, strlen(topic), r->h.epoch, &st, &why);
    if (error || !st) {
        ingest_error(in, r->peer, &r->h, topic, error ? error : -ESTALE,
            error ? why.text : "CLOSE: this stream is not open", NULL);
        return;
    }
    r->peer->faults = 0;
    if (st->in_flight) in->flush(in->flush_ctx, of->current);
    streams_close(in->streams, st, r->h.request_id);
}

void ingest_stream_closed(void *ctx, stream *s, int status, const char *sentence) {
    ingest *in = ctx;
    session *o = s->owner;
    wire_header a = {.kind = WIRE_CLOSED,
        .status = error_to_wire(status),
        .request_id = s->close_request,
        .seq = s->seq,
        .epoch = s->epoch};
    if (session_gone(o)) return;
    answer_plain(in->answers, o->peer, &a, s->topic, sentence, strlen(sentence), NULL);
}

/* Answered whether or not there is a session, so that a daemon can be asked if it lives; a session that is named must
 * be this connection's, so that a client learns that its own is gone. The payload comes back. */
void ingest_ping(ingest *in, const request *r) {
    char sentence[120];
    if (r->h.session && !ingest_session(in, r)) return;
    if (r->topic->bytes || r->payload->bytes > WIRE_JSON_MAX) {
        if (r->topic->bytes) in->counts->malformed[MALFORMED_topic]++;
        snprintf(sentence, sizeof sentence,
            "PING has an empty topic and up to %d bytes of payload, not %zu and %zu bytes", WIRE_JSON_MAX,
            r->topic->bytes, r->payload->bytes);
        ingest_error(in, r->peer, &r->h, "", r->topic->bytes ? -EINVAL : -EMSGSIZE, sentence, NULL);
        return;
    }
    ingest_reply(in, r, WIRE_PONG, "", 0, r->payload->data, r->payload->bytes);
}
