/* welcome.c: see welcome.h. Called by ingest for every HELLO. */
#include "welcome.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <uv.h>
#include "auth.h"
#include "engine.h"
#include "meters.h"
#include "stream.h"
#include "zsock.h"

#define STREAM_FACTS_MAX 16384 /* bytes of JSON, all streams together */

/* The variant is the first word of the plan; "avx2 direct, ...". */
void welcome_learn(welcome *w) {
    struct utsname host;
    const served *of = models_at(w->models, 0);
    const nct_params *p = of ? generation_params(of->current) : NULL;
    nct_layer *l = of ? generation_layer(of->current, engine_device(w->engines[0])) : NULL;
    const char *gpu = engine_about(w->engines[0])->device;
    nct_frame row = {.stat_in = -1, .stat_out = -1};
    nct_report report;
    int64_t t_in = p ? (int64_t)p->dilation * p->kernel_size + p->pad_left + p->pad_right + 1 : 1, t_out = 0;
    if (engine_device(w->engines[0]) >= 0)
        snprintf(w->device, sizeof w->device, "%s", gpu);
    else if (!uname(&host))
        snprintf(w->device, sizeof w->device, "%.60s", host.machine);
    if (!p || !l || nct_out_steps(p, t_in, p->pad_left, p->pad_right, &t_out, NULL)) return;
    row.x_pitch = t_in, row.t_in = (int32_t)t_in, row.y_pitch = t_out, row.t_out = (int32_t)t_out;
    row.pad_left = p->pad_left, row.pad_right = p->pad_right;
    float *x = calloc((size_t)p->in_channels, (size_t)t_in * sizeof *x);
    float *y = calloc((size_t)p->out_channels, (size_t)t_out * sizeof *y);
    nct_job job = {.n_frames = 1,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F32,
        .frames = &row,
        .x = x,
        .y = y,
        .x_count = p->in_channels * t_in,
        .y_count = p->out_channels * t_out};
    if (x && y && !nct_explain(&l, 1, &job, 0, &report, NULL)) {
        snprintf(w->variant, sizeof w->variant, "%.*s", (int)strcspn(report.plan, " "), report.plan);
        snprintf(w->plan, sizeof w->plan, "%s", report.plan);
    }
    free(x);
    free(y);
}

static json_t *limits(const config *c) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "max_frame_bytes",
        (json_int_t)c->limits.max_frame_bytes, "window", (json_int_t)c->limits.window, "max_clients",
        (json_int_t)c->limits.max_clients, "max_models", (json_int_t)c->limits.max_models, "max_streams",
        (json_int_t)c->limits.max_streams, "max_streams_client", (json_int_t)c->limits.max_streams_client,
        "queue_bytes", (json_int_t)c->limits.queue_bytes, "arena_bytes", (json_int_t)c->limits.arena_bytes,
        "json_bytes", (json_int_t)WIRE_JSON_MAX, "max_frames", (json_int_t)c->batch.max_frames, "max_delay_us",
        (json_int_t)c->batch.max_delay_us, "stall_ms", (json_int_t)c->daemon.stall_ms);
}

/* Streams of all sessions until the room is spent; *ret_left_out counts the others. */
static json_t *streams_list(const sessions *ss, json_int_t *ret_left_out) {
    json_t *all = json_array();
    size_t spent = 0;
    for (const session *s = ss->first; s; s = s->next)
        for (const stream *st = s->streams; st; st = st->next) {
            size_t bytes = 200 + (st->facts ? json_dumpb(st->facts, NULL, 0, JSON_COMPACT) : 0);
            if (spent + bytes > STREAM_FACTS_MAX) {
                ++*ret_left_out;
                continue;
            }
            spent += bytes;
            json_t *o = json_pack("{s:s, s:s, s:I, s:I}", "model", st->of->name, "stream", st->name, "epoch",
                (json_int_t)st->epoch, "in_flight", (json_int_t)st->in_flight);
            if (o && st->facts) json_object_set(o, "facts", st->facts);
            json_array_append_new(all, o);
        }
    return all;
}

/* Memory of the engines; "fallback": engines that go on on the CPU after a GPU fault. */
static json_t *engines(const welcome *w) {
    json_int_t pinned = 0, unpinned = 0, device = 0, fallback = 0;
    for (int32_t i = 0; i < w->n_engines; i++) {
        const engine_facts *f = engine_about(w->engines[i]);
        pinned += (json_int_t)f->pinned_bytes;
        unpinned += (json_int_t)f->unpinned_bytes;
        device += (json_int_t)f->device_bytes;
        fallback += f->device[0] && engine_device(w->engines[i]) < 0;
    }
    return json_pack("{s:I, s:I, s:I, s:I}", "pinned_bytes", pinned, "unpinned_bytes", unpinned, "device_bytes",
        device, "fallback", fallback);
}

/* "asked": SIGHUPs; "pending": one of them has not ended. "last": "" until there was a reload; then when (Unix time), and why it was refused. */
static json_t *reloads(const welcome *w) {
    const meters *m = w->meters;
    bool any = m->reload.t_ns;
    json_t *o = json_pack("{s:I, s:b, s:s, s:I, s:s}", "asked", (json_int_t)m->reload.asked, "pending",
        (int)m->reload.pending, "last", any ? reload_result_name(m->reload.last) : "", "last_s",
        (json_int_t)(m->reload.t_ns / 1000000000), "why", m->reload.why);
    for (int i = 0; o && i < RELOAD_RESULTS; i++)
        json_object_set_new(o, reload_result_name((reload_result)i), json_integer((json_int_t)m->reload.results[i]));
    return o;
}

static json_t *describe(const welcome *w, const session *s) {
    char id[17];
    json_int_t left_out = 0;
    snprintf(id, sizeof id, "%016" PRIx64, s->id);
    json_t *open = streams_list(w->ss, &left_out);
    json_t *o = json_pack("{s:s, s:i, s:s, s:I, s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:o, s:o, s:o, s:o, s:I}",
        "version", NCT_VERSION, "wire", WIRE_VERSION, "session", id, "window", (json_int_t)session_window(w->ss, s),
        "backend", w->backend, "variant", w->variant, "device", w->device, "precision", w->precision, "engines",
        (int)w->n_engines, "threads", (int)w->n_threads, "uptime_s",
        (json_int_t)((uv_hrtime() - w->t_start_ns) / 1000000000u), "sessions", (json_int_t)w->ss->n, "limits",
        limits(w->cfg), "models", models_describe(w->models), "ledger",
        ledger_json(w->counts, w->frames->n, *w->held), "streams", open, "streams_left_out", left_out);
    if (o && s->peer && s->peer->key) json_object_set_new(o, "key", json_string(s->peer->key->name));
    if (o) json_object_set_new(o, "plan", json_string(w->plan));
    if (o) json_object_set_new(o, "engine_memory", engines(w));
    if (o) json_object_set_new(o, "reload", reloads(w));
    return o;
}

char *welcome_text(const welcome *w, const session *s) {
    json_t *o = describe(w, s), *one;
    size_t i;
    char *text = json_dumps(o, JSON_COMPACT);
    if (text && strlen(text) > WIRE_JSON_MAX) {
        free(text);
        json_object_del(o, "streams");
        json_array_foreach(json_object_get(o, "models"), i, one) json_object_del(one, "ledger");
        text = json_dumps(o, JSON_COMPACT);
    }
    json_decref(o);
    return text;
}
