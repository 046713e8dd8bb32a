/* status.c: see status.h. Called by site.c (for /api/status) and live.c (for viewers); reads the stages. */
#include "status.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "engine_slots.h"
#include "process.h"

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static void key(textbuf *t, const char *name) {
    char before = t->bytes ? t->at[t->bytes - 1] : '{';
    if (before != '{' && before != '[') text_put(t, ",");
    text_put(t, "\"");
    text_put(t, name);
    text_put(t, "\":");
}
static void put_number(textbuf *t, const char *name, uint64_t n) {
    key(t, name);
    text_u64(t, n);
}
static void put_seconds(textbuf *t, const char *name, uint64_t ns) {
    key(t, name);
    text_seconds(t, ns);
}
static void put_string(textbuf *t, const char *name, const char *s) {
    key(t, name);
    text_json(t, s);
}
static void put_bool(textbuf *t, const char *name, bool yes) {
    key(t, name);
    text_put(t, yes ? "true" : "false");
}
static void put_pair(textbuf *t, const char *name, uint64_t used, uint64_t limit) {
    key(t, name);
    text_put(t, "[");
    text_u64(t, used);
    text_put(t, ",");
    text_u64(t, limit);
    text_put(t, "]");
}
static void open_object(textbuf *t, const char *name) {
    key(t, name);
    text_put(t, "{");
}

/* ---- the parts ------------------------------------------------------------------------------------------------- */

static void put_histogram(textbuf *t, const char *name, const histogram *h) {
    open_object(t, name);
    key(t, "le");
    for (int i = 0; i < h->shape->n; i++) {
        text_put(t, i ? "," : "[");
        text_put(t, h->shape->le[i]);
    }
    text_put(t, "]");
    key(t, "counts");
    for (int i = 0; i <= h->shape->n; i++) {
        text_put(t, i ? "," : "[");
        text_u64(t, h->counts[i]);
    }
    text_put(t, "]");
    if (h->shape->seconds)
        put_seconds(t, "sum", h->sum);
    else
        put_number(t, "sum", h->sum);
    text_put(t, "}");
}

static void put_meters(textbuf *t, const meters *m) {
    open_object(t, "latency");
    put_histogram(t, "queue", &m->queue);
    put_histogram(t, "copy", &m->copy);
    put_histogram(t, "compute", &m->compute);
    put_histogram(t, "publish", &m->publish);
    text_put(t, "}");
    put_histogram(t, "batch_size", &m->batch_frames);
    put_seconds(t, "last_result_s", (uint64_t)m->t_result_ns);
    open_object(t, "reload");
    put_bool(t, "pending", m->reload.pending);
    for (int i = 0; i < RELOAD_RESULTS; i++)
        put_number(t, reload_result_name((reload_result)i), m->reload.results[i]);
    put_string(t, "last", m->reload.t_ns ? reload_result_name(m->reload.last) : "");
    put_seconds(t, "last_s", (uint64_t)m->reload.t_ns);
    put_string(t, "why", m->reload.why);
    text_put(t, "}");
}

static void put_ledger(textbuf *t, const spine *s) {
    json_t *o = ledger_json(&s->counts, s->frames.n, s->answers.held);
    char *dump = o ? json_dumps(o, JSON_COMPACT) : NULL;
    key(t, "ledger");
    text_put(t, dump ? dump : "null");
    free(dump);
    json_decref(o);
}

static void put_use(textbuf *t, const spine *s) {
    uint64_t used = 0, window = 0, slots = 0, slots_used = 0;
    for (const session *c = s->sessions.first; c; c = c->next) {
        used += c->in_flight;
        window += session_window(&s->sessions, c);
    }
    key(t, "engines");
    text_put(t, "[");
    for (int32_t i = 0; i < s->n_engines; i++) {
        const engine *e = s->engines[i];
        slots += (uint64_t)engine_slots(e);
        slots_used += (uint64_t)engine_slots_in_use(e);
        text_put(t, i ? ",{" : "{");
        put_number(t, "slots", (uint64_t)engine_slots(e));
        put_number(t, "slots_in_use", (uint64_t)engine_slots_in_use(e));
        put_number(t, "batches", engine_in_flight(e));
        text_put(t, "}");
    }
    text_put(t, "]");
    open_object(t, "use");
    put_pair(t, "window", used, window);
    put_pair(t, "queue_bytes", s->sessions.in_used, s->sessions.limits.queue_bytes);
    put_pair(t, "result_bytes", s->sessions.out_used, s->sessions.limits.arena_bytes);
    put_pair(t, "slots", slots_used, slots);
    text_put(t, "}");
}

static void put_process(textbuf *t) {
    process_facts f;
    process_read(&f);
    open_object(t, "process");
    put_seconds(t, "cpu_s", f.cpu_ns);
    put_number(t, "rss_bytes", f.rss_bytes);
    put_number(t, "fds", f.fds);
    put_number(t, "threads", f.threads);
    text_put(t, "}");
}

#define XX(name, help) #name,
static const char *const outcome_names[] = {LEDGER_OUTCOMES(XX)};
#undef XX

static void put_model(textbuf *t, const served *of) {
    const nct_params *p = generation_params(of->current);
    put_string(t, "name", of->name);
    put_number(t, "generation", of->current->number);
    put_string(t, "digest", of->current->m->digest);
    put_number(t, "in_channels", (uint64_t)p->in_channels);
    put_number(t, "out_channels", (uint64_t)p->out_channels);
    put_number(t, "kernel_size", (uint64_t)p->kernel_size);
    put_number(t, "stride", (uint64_t)p->stride);
    put_number(t, "num_groups", (uint64_t)p->num_groups);
    put_number(t, "received", of->counts.received);
    for (int i = 0; i < OUTCOMES; i++) put_number(t, outcome_names[i], of->counts.outcomes[i]);
    put_number(t, "in_flight", of->in_flight);
    put_seconds(t, "queue_s", of->queue_ns);
    put_seconds(t, "compute_s", of->compute_ns);
    put_seconds(t, "last_result_s", (uint64_t)of->t_result_ns);
}

static void put_models(textbuf *t, const spine *s) {
    const served *of;
    key(t, "models");
    text_put(t, "[");
    for (int32_t i = 0; (of = models_at(s->models, i)) != NULL; i++) {
        text_put(t, i ? ",{" : "{");
        put_model(t, of);
        text_put(t, "}");
    }
    text_put(t, "]");
}

/* A row of positions, not names: a thousand of them go to every viewer each second. */
static void put_stream(textbuf *t, const stream *st, const session *owner, uint64_t now_ns) {
    text_put(t, "[");
    text_json(t, st->of->name);
    text_put(t, ",");
    text_json(t, st->name);
    text_put(t, ",");
    text_json(t, owner->client);
    const uint64_t numbers[] = {st->n_frames, st->n_gaps, st->n_missing, st->in_flight};
    for (int i = 0; i < 4; i++) {
        text_put(t, ",");
        text_u64(t, numbers[i]);
    }
    text_put(t, ",");
    text_seconds(t, now_ns > st->t_used_ns ? now_ns - st->t_used_ns : 0);
    text_put(t, ",");
    text_u64(t, st->seq);
    text_put(t, "]");
}

static void put_streams(textbuf *t, const status_source *from) {
    const spine *s = from->s;
    uint64_t now_ns = uv_hrtime(), shown = 0;
    key(t, "streams");
    text_put(t, "[");
    for (const session *c = s->sessions.first; c && shown < from->streams_max; c = c->next)
        for (const stream *st = c->streams; st && shown < from->streams_max; st = st->next) {
            if (from->search && *from->search && !strstr(st->topic, from->search)) continue;
            if (shown++) text_put(t, ",");
            put_stream(t, st, c, now_ns);
        }
    text_put(t, "]");
    put_number(t, "streams_open", s->streams.n);
    put_number(t, "streams_shown", shown);
}

void status_write(const status_source *from, textbuf *t) {
    const spine *s = from->s;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    text_put(t, "{");
    put_string(t, "version", NCT_VERSION);
    put_seconds(t, "unix_s", (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    put_seconds(t, "uptime_s", uv_hrtime() - s->facts.t_start_ns);
    put_bool(t, "ready", !from->not_ready);
    put_string(t, "reason", from->not_ready ? from->not_ready : "");
    put_string(t, "backend", s->facts.backend ? s->facts.backend : "");
    put_string(t, "variant", s->facts.variant);
    put_string(t, "precision", s->facts.precision ? s->facts.precision : "");
    put_string(t, "device", s->facts.device);
    put_number(t, "clients", s->router ? zrouter_connections(s->router) : 0);
    put_number(t, "subscribers", s->pub ? zxpub_connections(s->pub) : 0);
    put_number(t, "sessions", s->sessions.n);
    put_number(t, "viewers", from->viewers);
    put_ledger(t, s);
    put_meters(t, &s->meters);
    put_use(t, s);
    put_process(t);
    put_models(t, s);
    put_streams(t, from);
    text_put(t, "}");
}

char *status_text(const status_source *from, size_t *ret_bytes) {
    textbuf t = {NULL};
    status_write(from, &t);
    return text_take(&t, ret_bytes);
}
