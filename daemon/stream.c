/* stream.c: names in use and what belongs to them. Owns the streams; called by ingest (check, open, close), the frame
 * table (ends of frames), the session's end, and the loop's housekeeping. Loop thread. Does not send: `closed` does. */
#include "stream.h"
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "names.h"

int streams_init(
    streams *t, uint32_t max, uint32_t max_session, ledger *counts, stream_sink closed, frame_sink next) {
    *t = (streams){.max = max, .max_session = max_session, .counts = counts, .closed = closed, .next = next};
    return map_init(&t->by_name, 256);
}

void streams_done(streams *t) {
    assert(!t->n);
    map_done(&t->by_name);
}

static void unref(stream *s) {
    if (--s->refs) return;
    assert(!s->owner && !s->in_flight);
    json_decref(s->facts);
    free(s->close_why);
    free(s);
}

stream *streams_find(const streams *t, const char *topic, size_t len) {
    name_key k = name_hash(topic, len);
    map_link *l = map_find(&t->by_name, k.a, k.b);
    return l ? (stream *)((char *)l - offsetof(stream, by_name)) : NULL;
}

int streams_check(
    streams *t, const session *s, const char *topic, size_t len, uint32_t epoch, stream **ret, session_why *why) {
    stream *st = streams_find(t, topic, len);
    if (st && st->owner != s) {
        snprintf(why->text, sizeof why->text, "stream %.*s belongs to another session", (int)len, topic);
        return -EBUSY;
    }
    if (epoch && (!st || st->epoch != epoch)) {
        snprintf(why->text, sizeof why->text, "stream %.*s has epoch %u%s, not %u", (int)len, topic,
            st ? st->epoch : 0, st ? "" : " (it is not open)", epoch);
        return -ESTALE;
    }
    if (!st && (t->n >= t->max || s->n_streams >= t->max_session)) {
        snprintf(why->text, sizeof why->text,
            "%u streams are open (limits.max_streams %u), %u of this session (limits.max_streams_client %u)", t->n,
            t->max, s->n_streams, t->max_session);
        return -EUSERS;
    }
    *ret = st;
    return 0;
}

static void unname(streams *t, stream *s) {
    if (!s->named) return;
    s->named = false;
    map_remove(&t->by_name, &s->by_name);
}

/* Its owner forgets it; frames on their way keep it alive. */
static void end(streams *t, stream *s) {
    session *o = s->owner;
    assert(o); /* only a stream that nobody has ended yet comes here */
    unname(t, s);
    if (s->prev) s->prev->next = s->next;
    if (s->next) s->next->prev = s->prev;
    if (o->streams == s) o->streams = s->next;
    o->n_streams--;
    s->owner = NULL;
    t->n--;
    unref(s);
}

int streams_open(streams *t, session *s, served *of, const char *name, uint64_t now_ns, stream **ret) {
    stream *st = calloc(1, sizeof *st);
    if (!st) return -ENOMEM;
    snprintf(st->name, sizeof st->name, "%s", name);
    st->topic_bytes = wire_topic_write(st->topic, of->name, name);
    stream *before = streams_find(t, st->topic, st->topic_bytes);
    if (before) end(t, before);
    if (++t->last_epoch == 0) t->last_epoch = 1; /* 0 means "current" on the wire */
    st->refs = 1;
    st->of = of;
    st->owner = s;
    st->epoch = t->last_epoch;
    st->named = true;
    st->t_used_ns = now_ns;
    st->next = s->streams;
    if (st->next) st->next->prev = st;
    s->streams = st;
    s->n_streams++;
    name_key k = name_hash(st->topic, st->topic_bytes);
    map_add(&t->by_name, &st->by_name, k.a, k.b);
    t->n++;
    ledger_count(t->counts, COUNT_streams);
    *ret = st;
    return 0;
}

static void close_if_idle(streams *t, stream *s) {
    if (!s->closing || s->in_flight || !s->owner) return;
    t->closed.fn(t->closed.ctx, s, s->close_status, s->close_why ? s->close_why : "");
    end(t, s);
}

void streams_close(streams *t, stream *s, uint64_t request_id) {
    unname(t, s);
    s->closing = true;
    s->close_request = request_id;
    close_if_idle(t, s);
}

void streams_drop(streams *t, stream *s, int status, const char *sentence) {
    if (s->closing) return;
    s->close_status = status;
    s->close_why = strdup(sentence); /* without memory: the status alone */
    streams_close(t, s, 0);
}

int stream_facts_fit(const json_t *facts, const served *of, char *why, size_t size) {
    const json_t *v = json_object_get(facts, "sample_rate");
    double rate = json_number_value(v), want = of->current->m->sample_rate;
    if (!v) return 0;
    if (!json_is_number(v) || !(rate > 0) || !isfinite(rate)) {
        snprintf(why, size, "\"sample_rate\" is a number of Hz above 0");
        return -EINVAL;
    }
    if (want > 0 && fabs(rate - want) > 1e-6 * want) {
        snprintf(why, size, "sample_rate is %g Hz, and model %s is for %g Hz", rate, of->name, want);
        return -EINVAL;
    }
    return 0;
}

void streams_end_session(streams *t, session *s) {
    while (s->streams) end(t, s->streams);
}

void streams_expire(streams *t, sessions *ss, uint64_t now_ns, uint32_t idle_s) {
    for (session *s = ss->first; s; s = s->next)
        for (stream *st = s->streams, *after; st; st = after) {
            char sentence[96];
            after = st->next;
            if (st->closing || st->in_flight || now_ns - st->t_used_ns < idle_s * 1000000000ull) continue;
            snprintf(sentence, sizeof sentence, "no frame for %u s (limits.stream_idle_s)", idle_s);
            t->closed.fn(t->closed.ctx, st, -ESTALE, sentence);
            end(t, st);
        }
}

/* ---- the way of a frame ---------------------------------------------------------------------------------------- */

void streams_push(void *ctx, frame *f) {
    streams *t = ctx;
    stream *s = f->stream;
    s->n_frames++;
    if (s->seen && f->h.seq > s->seq + 1) {
        f->result_flags |= WIRE_GAP_SEEN;
        s->n_gaps++;
        s->n_missing += f->h.seq - s->seq - 1;
    }
    if (!s->seen || f->h.seq > s->seq) s->seq = f->h.seq;
    s->seen = true;
    s->t_used_ns = f->t_read_ns;
    s->in_flight++;
    s->refs++;
    f->engine = s->engine;
    t->next.fn(t->next.ctx, f);
}

void streams_bind(stream *s, struct engine *e) {
    s->engine = e;
}

void stream_frame_ended(streams *t, stream *s) {
    if (!--s->in_flight) {
        s->engine = NULL;
        close_if_idle(t, s);
    }
    unref(s);
}
