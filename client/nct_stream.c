/* nct_stream.c: OPEN, CLOSE and PING, each a question that waits for its own answer.
 *
 * On the caller's thread. Answers of frames that come meanwhile stay in the list for nct_recv(). */
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int ask(nct *c, uint8_t kind, const char *topic, const char *json, int64_t deadline_ns, control *ret) {
    *ret = (control){.id = c->next_id++, .kind = kind};
    c->waiting = ret;
    int error = 0;
    while (!error && !ret->done) {
        error = core_turn(c);
        if (!error && !ret->done && !ret->sent && c->phase == CORE_LIVE) {
            if (!c->n_flight) c->heard_ns = core_now_ns(); /* silence counts from here */
            error = core_send_header(c, kind, ret->id, topic, json);
            ret->sent = !error;
            if (error == -EAGAIN) error = 0;
        }
        if (!error && !ret->done) error = core_wait(c, deadline_ns);
    }
    c->waiting = NULL;
    if (error == -ETIMEDOUT)
        core_reason(c, error, "no answer to %s%s", wire_kind_name(kind),
            c->phase == CORE_LIVE ? "" : ": there is no session at the moment");
    return error ? error : ret->status;
}

static int topic_of(nct *c, const char *model, const char *name, char ret[WIRE_TOPIC_MAX + 1]) {
    if (!model || !name || !wire_name_ok(model, strlen(model)) || !wire_name_ok(name, strlen(name)))
        return core_reason(c, -EINVAL,
            "model \"%.64s\" and stream \"%.64s\" must be 1..%d of A-Z a-z 0-9 . _ - beginning with a letter or "
            "digit",
            model ? model : "", name ? name : "", WIRE_NAME_MAX);
    wire_topic_write(ret, model, name);
    return 0;
}

static int open_stream(nct *c, const char *model, const char *name, const char *facts, control *w) {
    char topic[WIRE_TOPIC_MAX + 1];
    int error = topic_of(c, model, name, topic);
    if (error) return error;
    if (facts && strlen(facts) > WIRE_JSON_MAX)
        return core_reason(c, -EINVAL, "the facts have %zu bytes, JSON may have %d", strlen(facts), WIRE_JSON_MAX);
    char *copy = strdup(facts ? facts : "");
    if (!copy) return core_reason(c, -ENOMEM, "no memory for a stream's facts");
    error = ask(c, WIRE_OPEN, topic, copy, core_deadline(c->o.timeout_ms), w);
    stream *s;
    if (!error) error = core_stream_add(c, model, name, &s);
    if (error) {
        free(copy);
        return error;
    }
    free(s->facts);
    s->facts = copy;
    s->open_sent = 1;
    s->stale = 0;
    s->last_seq = 0;
    return 0;
}

int nct_stream_open(nct *c, const char *model, const char *stream_name, const char *facts, uint32_t *ret_epoch) {
    control w = {0};
    int error = core_owned(c);
    if (error) return error;
    error = open_stream(c, model, stream_name, facts, &w);
    core_sync(c);
    if (!error && ret_epoch) *ret_epoch = w.epoch;
    return error;
}

int nct_stream_close(nct *c, const char *model, const char *stream_name) {
    char topic[WIRE_TOPIC_MAX + 1];
    control w;
    int error = core_owned(c);
    if (!error) error = topic_of(c, model, stream_name, topic);
    if (error) return error;
    error = ask(c, WIRE_CLOSE, topic, NULL, core_deadline(c->o.timeout_ms), &w);
    stream *s = core_stream(c, model, stream_name);
    if (s && error != -ETIMEDOUT && error != -EINTR) core_stream_remove(c, s);
    core_sync(c);
    return error;
}

int nct_ping(nct *c, int timeout_ms, int64_t *ret_ns) {
    control w;
    int error = core_owned(c);
    if (error) return error;
    int64_t began_ns = core_now_ns();
    error = ask(c, WIRE_PING, "", NULL, core_deadline(timeout_ms), &w);
    core_sync(c);
    if (!error && ret_ns) *ret_ns = core_now_ns() - began_ns;
    return error;
}
