/* metrics.c: see metrics.h. Called by site.c; reads the stages, changes nothing. */
#include "metrics.h"
#include "engine_slots.h"
#include "gpu_meter.h"
#include "process.h"

typedef enum {
#define METRIC(id, name, type, help) M_##id,
#include "metrics.def"
#undef METRIC
} metric;

static const struct {
    const char *name, *head;
} metrics[] = {
#define METRIC(id, name, type, help) [M_##id] = {name, "# HELP " name " " help "\n# TYPE " name " " type "\n"},
#include "metrics.def"
#undef METRIC
};

/* ---- samples --------------------------------------------------------------------------------------------------- */

static void family(textbuf *t, metric m) {
    text_put(t, metrics[m].head);
}

typedef struct {
    textbuf *t;
    bool labelled;
} sample;

static sample sample_of(textbuf *t, metric m) {
    text_put(t, metrics[m].name);
    return (sample){t, false};
}
static void label(sample *s, const char *name, const char *value) {
    text_put(s->t, s->labelled ? "," : "{");
    s->labelled = true;
    text_put(s->t, name);
    text_put(s->t, "=\"");
    text_label(s->t, value);
    text_put(s->t, "\"");
}
static void label_number(sample *s, const char *name, uint64_t value) {
    text_put(s->t, s->labelled ? "," : "{");
    s->labelled = true;
    text_put(s->t, name);
    text_put(s->t, "=\"");
    text_u64(s->t, value);
    text_put(s->t, "\"");
}
static void before_value(const sample *s) {
    text_put(s->t, s->labelled ? "} " : " ");
}
static void value(const sample *s, uint64_t n) {
    before_value(s);
    text_u64(s->t, n);
    text_put(s->t, "\n");
}
static void value_seconds(const sample *s, uint64_t ns) {
    before_value(s);
    text_seconds(s->t, ns);
    text_put(s->t, "\n");
}

/* A family of one sample without labels. */
static void one(textbuf *t, metric m, uint64_t n) {
    family(t, m);
    sample s = sample_of(t, m);
    value(&s, n);
}
static void one_seconds(textbuf *t, metric m, uint64_t ns) {
    family(t, m);
    sample s = sample_of(t, m);
    value_seconds(&s, ns);
}
static void one_histogram(textbuf *t, metric m, const histogram *h) {
    family(t, m);
    histogram_write(h, t, metrics[m].name);
}
/* A family with one label, one sample a row of a table. */
static void rows(textbuf *t, metric m, const char *name, const char *const *names, const uint64_t *values, int n) {
    family(t, m);
    for (int i = 0; i < n; i++) {
        sample s = sample_of(t, m);
        label(&s, name, names[i]);
        value(&s, values[i]);
    }
}

/* ---- the ledger ------------------------------------------------------------------------------------------------ */

#define XX(name, help) #name,
static const char *const outcome_names[] = {LEDGER_OUTCOMES(XX)};
static const char *const malformed_names[] = {LEDGER_MALFORMED(XX)};
static const char *const cut_names[] = {LEDGER_CUTS(XX)};
static const char *const handshake_names[] = {LEDGER_HANDSHAKES(XX)};
#undef XX
#define XX(name, number, text) #name,
static const char *const refused_names[] = {NCT_ERROR_MAP(XX)};
#undef XX
#define XX(name, help)                                                                                               \
    "# HELP nctd_" #name "_total " help ".\n# TYPE nctd_" #name "_total counter\nnctd_" #name "_total ",
static const char *const counter_heads[] = {LEDGER_OTHERS(XX)};
#undef XX

static void put_ledger(textbuf *t, const spine *s) {
    const ledger *l = &s->counts;
    one(t, M_received, l->all.received);
    rows(t, M_outcomes, "outcome", outcome_names, l->all.outcomes, OUTCOMES);
    one(t, M_in_flight, s->frames.n);
    one(t, M_queued, s->batcher ? batcher_queued(s->batcher) : 0);
    rows(t, M_refused, "reason", refused_names, l->refused, REFUSED_REASONS);
    one(t, M_held, s->answers.held);
    rows(t, M_malformed, "cause", malformed_names, l->malformed, MALFORMED_CAUSES);
    rows(t, M_cuts, "reason", cut_names, l->cuts, CUT_REASONS);
    rows(t, M_handshakes, "cause", handshake_names, l->handshakes, HANDSHAKES);
    for (int i = 0; i < COUNTERS; i++) {
        text_put(t, counter_heads[i]);
        text_u64(t, l->counts[i]);
        text_put(t, "\n");
    }
}

/* ---- models ---------------------------------------------------------------------------------------------------- */

static void model_outcomes(textbuf *t, const models *all) {
    const served *of;
    family(t, M_model_outcomes);
    for (int32_t i = 0; (of = models_at((models *)(uintptr_t)all, i)) != NULL; i++)
        for (int o = 0; o < OUTCOMES; o++) {
            sample s = sample_of(t, M_model_outcomes);
            label(&s, "model", of->name);
            label(&s, "outcome", outcome_names[o]);
            value(&s, of->counts.outcomes[o]);
        }
}

static void model_infos(textbuf *t, const models *all) {
    const served *of;
    family(t, M_model_info);
    for (int32_t i = 0; (of = models_at((models *)(uintptr_t)all, i)) != NULL; i++) {
        sample s = sample_of(t, M_model_info);
        label(&s, "model", of->name);
        label(&s, "digest", of->current->m->digest);
        value(&s, 1);
    }
}

typedef enum { AS_NUMBER, AS_SECONDS } number_kind;
typedef uint64_t (*model_number)(const served *of);
static uint64_t received(const served *of) {
    return of->counts.received;
}
static uint64_t in_flight(const served *of) {
    return of->in_flight;
}
static uint64_t queue_ns(const served *of) {
    return of->queue_ns;
}
static uint64_t compute_ns(const served *of) {
    return of->compute_ns;
}
static uint64_t generation_number(const served *of) {
    return of->current->number;
}
static uint64_t t_result_ns(const served *of) {
    return (uint64_t)of->t_result_ns;
}

static void put_models(textbuf *t, const models *all) {
    static const struct {
        model_number number;
        metric m;
        number_kind kind;
    } families[] = {{received, M_model_received, AS_NUMBER}, {in_flight, M_model_in_flight, AS_NUMBER},
        {queue_ns, M_model_queue, AS_SECONDS}, {compute_ns, M_model_compute, AS_SECONDS},
        {generation_number, M_model_generation, AS_NUMBER}, {t_result_ns, M_model_last, AS_SECONDS}};
    const served *of;
    model_outcomes(t, all);
    model_infos(t, all);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        family(t, families[f].m);
        for (int32_t i = 0; (of = models_at((models *)(uintptr_t)all, i)) != NULL; i++) {
            sample s = sample_of(t, families[f].m);
            label(&s, "model", of->name);
            (families[f].kind == AS_SECONDS ? value_seconds : value)(&s, families[f].number(of));
        }
    }
}

/* ---- everything else ------------------------------------------------------------------------------------------- */

static uint64_t engine_value(const engine *e, metric m) {
    const engine_facts *f = engine_about(e);
    switch (m) {
    case M_engine_slots: return (uint64_t)engine_slots(e);
    case M_engine_used: return (uint64_t)engine_slots_in_use(e);
    case M_engine_batches: return engine_in_flight(e);
    case M_engine_pinned: return f->pinned_bytes;
    case M_engine_unpinned: return f->unpinned_bytes;
    case M_engine_device: return f->device_bytes;
    default: return f->device[0] && engine_device(e) < 0; /* M_engine_fallback */
    }
}

static void put_engines(textbuf *t, const spine *s) {
    static const metric each[] = {M_engine_slots, M_engine_used, M_engine_batches, M_engine_pinned, M_engine_unpinned,
        M_engine_device, M_engine_fallback};
    family(t, M_engine_info);
    for (int32_t i = 0; i < s->n_engines; i++) {
        sample line = sample_of(t, M_engine_info);
        label_number(&line, "engine", (uint64_t)i);
        label(&line, "backend", engine_name(s->engines[i]));
        label(&line, "variant", s->facts.variant);
        label(&line, "precision", s->facts.precision);
        label(&line, "device", s->facts.device);
        value(&line, 1);
    }
    for (size_t k = 0; k < sizeof each / sizeof *each; k++) {
        family(t, each[k]);
        for (int32_t i = 0; i < s->n_engines; i++) {
            sample line = sample_of(t, each[k]);
            label_number(&line, "engine", (uint64_t)i);
            value(&line, engine_value(s->engines[i], each[k]));
        }
    }
}

/* A GPU that does not answer has no samples. */
static void put_gpus(textbuf *t, const spine *s) {
    static const metric each[] = {M_gpu_used, M_gpu_total, M_gpu_load};
    gpu_reading r[SPINE_ENGINES_MAX];
    bool there[SPINE_ENGINES_MAX];
    for (int32_t i = 0; i < s->n_engines; i++) there[i] = gpu_meter_read(i, &r[i]);
    for (size_t k = 0; k < sizeof each / sizeof *each; k++) {
        family(t, each[k]);
        for (int32_t i = 0; i < s->n_engines; i++) {
            if (!there[i] || (each[k] == M_gpu_load && r[i].load_percent < 0)) continue;
            sample line = sample_of(t, each[k]);
            label_number(&line, "engine", (uint64_t)i);
            if (each[k] == M_gpu_load) {
                before_value(&line);
                text_double(t, r[i].load_percent / 100.0);
                text_put(t, "\n");
            } else
                value(&line, each[k] == M_gpu_used ? r[i].used_bytes : r[i].total_bytes);
        }
    }
}

static void put_clients(textbuf *t, const spine *s) {
    uint64_t used = 0, window = 0;
    for (const session *c = s->sessions.first; c; c = c->next) {
        used += c->in_flight;
        window += session_window(&s->sessions, c);
    }
    one(t, M_connections, s->router ? zrouter_connections(s->router) : 0);
    one(t, M_subscribers, s->pub ? zxpub_connections(s->pub) : 0);
    one(t, M_sessions, s->sessions.n);
    one(t, M_streams, s->streams.n);
    one(t, M_window_used, used);
    one(t, M_window, window);
    one(t, M_queue_bytes, s->sessions.in_used);
    one(t, M_queue_limit, s->sessions.limits.queue_bytes);
    one(t, M_result_bytes, s->sessions.out_used);
    one(t, M_result_limit, s->sessions.limits.arena_bytes);
    one(t, M_arena_free, s->out ? (uint64_t)arena_pages_free(s->out) * ARENA_PAGE : 0);
}

static void put_meters(textbuf *t, const meters *m) {
    static const char *const results[] = {"applied", "unchanged", "refused"};
    one_histogram(t, M_queue, &m->queue);
    one_histogram(t, M_copy, &m->copy);
    one_histogram(t, M_compute, &m->compute);
    one_histogram(t, M_publish, &m->publish);
    one_histogram(t, M_batch_size, &m->batch_frames);
    one_seconds(t, M_last_result, (uint64_t)m->t_result_ns);
    rows(t, M_reloads, "result", results, m->reload.results, RELOAD_RESULTS);
    one(t, M_reload_pending, m->reload.pending);
    one(t, M_reload_asked, m->reload.asked);
    one(t, M_reload_ok, !m->reload.t_ns || m->reload.last != RELOAD_RESULT_REFUSED);
    one_seconds(t, M_reload_time, (uint64_t)m->reload.t_ns);
}

static void put_process(textbuf *t) {
    process_facts f;
    process_read(&f);
    one_seconds(t, M_cpu, f.cpu_ns);
    one(t, M_rss, f.rss_bytes);
    one(t, M_vsize, f.virtual_bytes);
    one(t, M_fds, f.fds);
    one(t, M_max_fds, f.max_fds);
    one(t, M_threads, f.threads);
    family(t, M_started);
    sample s = sample_of(t, M_started);
    before_value(&s);
    text_double(t, f.started_s);
    text_put(t, "\n");
}

static void put_build(textbuf *t) {
    family(t, M_build_info);
    sample s = sample_of(t, M_build_info);
    label(&s, "version", NCT_VERSION);
#ifdef NCT_CUDA
    label(&s, "cuda", "yes");
#else
    label(&s, "cuda", "no");
#endif
    value(&s, 1);
}

char *metrics_text(const metrics_source *from, size_t *ret_bytes) {
    textbuf t = {NULL};
    put_build(&t);
    one(&t, M_ready, from->ready);
    put_ledger(&t, from->s);
    put_meters(&t, &from->s->meters);
    put_models(&t, from->s->models);
    put_engines(&t, from->s);
    put_gpus(&t, from->s);
    put_clients(&t, from->s);
    one(&t, M_viewers, from->viewers);
    put_process(&t);
    return text_take(&t, ret_bytes);
}
