/* top_view.c: a daemon's figures as lines of text. Called by top.c, for a screen of a given size or for plain output. */
#include "top.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 4096, MODELS_MAX = 3 };

typedef struct {
    const top_facts *f;
    const top_view *v;
    int left; /* lines that still fit */
} page;

static void put(page *p, top_look look, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void put(page *p, top_look look, const char *format, ...) {
    char text[LINE_MAX_BYTES];
    va_list args;
    if (p->left <= 0) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* Cut at the width; a UTF-8 sequence counts as the one column that its first byte begins. */
    int columns = 0;
    for (char *c = text; *c; c++) {
        if ((*c & 0xc0) == 0x80) continue;
        if (++columns <= p->v->width) continue;
        *c = 0;
        break;
    }
    for (size_t n = strlen(text); n && text[n - 1] == ' ';) text[--n] = 0;
    p->v->line(p->v->ctx, text, look);
    p->left--;
}

/* ---- words of numbers --------------------------------------------------------------------------------------- */
static const char *span(double s, char to[32]) {
    if (s < 0.0995)
        snprintf(to, 32, "%.0f ms", s * 1e3);
    else if (s < 9.95)
        snprintf(to, 32, "%.1f s", s);
    else if (s < 90)
        snprintf(to, 32, "%.0f s", s);
    else if (s < 5400)
        snprintf(to, 32, "%.0f min", s / 60);
    else if (s < 48 * 3600)
        snprintf(to, 32, "%.1f h", s / 3600);
    else
        snprintf(to, 32, "%.1f d", s / 86400);
    return to;
}

static const char *bytes(double n, char to[32]) {
    if (n < 10240)
        snprintf(to, 32, "%.0f B", n);
    else if (n < 10.0 * (1 << 20))
        snprintf(to, 32, "%.0f KiB", n / 1024);
    else if (n < 10.0 * (1 << 30))
        snprintf(to, 32, "%.0f MiB", n / (1 << 20));
    else
        snprintf(to, 32, "%.1f GiB", n / (1 << 30));
    return to;
}

/* One cell of a bar, 0..1. */
static const char *cell(const page *p, double share) {
    static const char *const blocks[] = {
        " ", "\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
    static const char *const ascii[] = {" ", ".", ":", "-", "=", "+", "*", "#", "@"};
    int i = share > 0 ? 1 + (int)(share * 7.999) : 0;
    if (i > 8) i = 8;
    return p->v->blocks ? blocks[i] : ascii[i];
}

/* ---- the parts ---------------------------------------------------------------------------------------------- */
static void show_daemon(page *p) {
    const json_t *n = p->f->now;
    char t[6][256], up[32];
    int ready = json_is_true(json_object_get(n, "ready"));
    put(p, LOOK_TITLE, "nctd %s  %s  %s %s %s  %s  up %s", top_text(n, "version", t[0]),
        ready ? "ready" : "NOT READY", top_text(n, "backend", t[1]), top_text(n, "variant", t[2]),
        top_text(n, "precision", t[3]), top_text(n, "device", t[4]), span(top_number(n, "uptime_s"), up));
    if (!ready) put(p, LOOK_ALERT, "not ready: %s", top_text(n, "reason", t[5]));
    put(p, LOOK_PLAIN, "%.0f clients, %.0f sessions, %.0f subscribers, %.0f streams, %.0f page viewers",
        top_number(n, "clients"), top_number(n, "sessions"), top_number(n, "subscribers"),
        top_number(n, "streams_open"), top_number(n, "viewers"));
}

/* The ledger's identity, without the outcomes that never came. */
static const char *sum_text(const json_t *l, char text[512]) {
    static const char *const outcomes[] = {"failed", "refused", "expired", "orphaned"};
    int n = snprintf(text, 512, "in all    received %.0f = ok %.0f", top_number(l, "received"), top_number(l, "ok"));
    for (int i = 0; i < 4; i++)
        if (top_number(l, outcomes[i]) > 0)
            n += snprintf(text + n, 512 - (size_t)n, " + %s %.0f", outcomes[i], top_number(l, outcomes[i]));
    snprintf(text + n, 512 - (size_t)n, " + in flight %.0f", top_number(l, "in_flight"));
    return text;
}

static const char *refusals_text(const json_t *l, char text[512]) {
    const char *why;
    json_t *n;
    int at = snprintf(text, 512, "refused  ");
    json_object_foreach(json_object_get(l, "refused_by"), why, n) {
        char word[16];
        if (!(json_number_value(n) > 0) || at > 440) continue;
        top_printable(word, sizeof word, why);
        at += snprintf(text + at, 512 - (size_t)at, " %s %.0f", word, json_number_value(n));
    }
    return text;
}

static void show_ledger(page *p) {
    char text[512];
    const top_facts *f = p->f;
    const json_t *l = json_object_get(f->now, "ledger");
    double trouble = top_per_s(f, "ledger.failed") + top_per_s(f, "ledger.refused") + top_per_s(f, "ledger.expired");
    put(p, LOOK_PLAIN, "%-9s received %.1f  ok %.1f  published %.1f", f->before ? "a second" : "mean/s",
        top_per_s(f, "ledger.received"), top_per_s(f, "ledger.ok"), top_per_s(f, "ledger.published"));
    put(p, trouble > 0 ? LOOK_ALERT : LOOK_PLAIN, "%-9s failed %.1f  refused %.1f  expired %.1f  orphaned %.1f", "",
        top_per_s(f, "ledger.failed"), top_per_s(f, "ledger.refused"), top_per_s(f, "ledger.expired"),
        top_per_s(f, "ledger.orphaned"));
    put(p, LOOK_PLAIN, "%s", sum_text(l, text));
    if (top_number(l, "refused") > 0) put(p, LOOK_PLAIN, "%s", refusals_text(l, text));
}

/* Results a second over the last refreshes, the newest on the right. */
static void show_history(page *p) {
    char text[LINE_MAX_BYTES] = "";
    int room = p->v->width - 24, n = p->f->n_rates < room ? p->f->n_rates : room;
    const double *r = p->f->rates + p->f->n_rates - n;
    double most = 0;
    if (n < 2) return;
    for (int i = 0; i < n; i++) most = r[i] > most ? r[i] : most;
    for (int i = 0; i < n; i++) strcat(text, cell(p, most > 0 ? r[i] / most : 0));
    put(p, LOOK_PLAIN, "%-9s %s %.0f", "ok/s", text, most);
}

static void show_band(page *p, const char *name, const char *path) {
    top_band b;
    char bar[4 * TOP_BUCKETS + 1] = "";
    top_band_of(p->f, path, 1e3, &b);
    if (!(b.n > 0)) {
        put(p, LOOK_FAINT, "%-9s        -", name);
        return;
    }
    for (int i = 0; i < b.n_buckets; i++) strcat(bar, cell(p, sqrt(b.share[i])));
    put(p, LOOK_PLAIN, "%-9s %8.3f %8.3f %8.3f %8.3f  |%s|", name, b.p50_ms, b.p90_ms, b.p99_ms, b.mean_ms, bar);
}

static void show_latency(page *p) {
    put(p, LOOK_HEAD, "%-9s %8s %8s %8s %8s   10us  1ms   .1s   10s", "ms", "p50", "p90", "p99", "mean");
    show_band(p, "queue", "latency.queue");
    show_band(p, "copy", "latency.copy");
    show_band(p, "compute", "latency.compute");
    show_band(p, "publish", "latency.publish");
}

static void show_batches(page *p) {
    const top_facts *f = p->f;
    double n = top_per_s(f, "ledger.batches"), k = n > 0 ? 100 / n : 0;
    put(p, LOOK_PLAIN, "%-9s %.1f/s of %.2f frames; closed: idle %.0f %%, full %.0f %%, delay %.0f %%, flush %.0f %%",
        "batches", n, n > 0 ? top_per_s(f, "ledger.batch_frames") / n : 0, k * top_per_s(f, "ledger.batch_idle"),
        k * top_per_s(f, "ledger.batch_full"), k * top_per_s(f, "ledger.batch_deadline"),
        k * top_per_s(f, "ledger.batch_flush"));
}

static double pair(const json_t *use, const char *name, size_t at) {
    return json_number_value(json_array_get(json_object_get(use, name), at));
}

static void show_use(page *p) {
    const json_t *u = json_object_get(p->f->now, "use");
    char a[4][32];
    put(p, LOOK_PLAIN, "%-9s slots %.0f/%.0f, windows %.0f/%.0f, queue %s of %s, results %s of %s", "in use",
        pair(u, "slots", 0), pair(u, "slots", 1), pair(u, "window", 0), pair(u, "window", 1),
        bytes(pair(u, "queue_bytes", 0), a[0]), bytes(pair(u, "queue_bytes", 1), a[1]),
        bytes(pair(u, "result_bytes", 0), a[2]), bytes(pair(u, "result_bytes", 1), a[3]));
    put(p, LOOK_PLAIN, "%-9s %.0f %% of a core, %s, %.0f files, %.0f threads", "process",
        100 * top_per_s(p->f, "process.cpu_s"), bytes(top_number(p->f->now, "process.rss_bytes"), a[0]),
        top_number(p->f->now, "process.fds"), top_number(p->f->now, "process.threads"));
}

static void show_reload(page *p) {
    const json_t *r = json_object_get(p->f->now, "reload");
    char last[256], why[256], ago[32];
    top_text(r, "last", last);
    top_text(r, "why", why);
    if (!*last) {
        put(p, LOOK_FAINT, "%-9s none yet", "reload");
        return;
    }
    put(p, strcmp(last, "refused") ? LOOK_PLAIN : LOOK_ALERT,
        "%-9s %s %s ago%s%s (%.0f applied, %.0f unchanged, %.0f refused)", "reload", last,
        span(top_number(p->f->now, "unix_s") - top_number(r, "last_s"), ago), *why ? ": " : "", why,
        top_number(r, "applied"), top_number(r, "unchanged"), top_number(r, "refused"));
}

static void show_models(page *p, size_t most) {
    const json_t *list = json_object_get(p->f->now, "models"), *before = json_object_get(p->f->before, "models"), *m;
    size_t i, n = json_array_size(list);
    put(p, LOOK_HEAD, "%-17s %4s %9s %3s %9s %11s %8s %6s %5s", "MODEL", "GEN", "CHANNELS", "K", "OK/S", "OK",
        "REFUSED", "FAILED", "FLY");
    json_array_foreach(list, i, m) {
        const json_t *old = json_array_get(before, i);
        char name[256], channels[32];
        double grown = top_number(m, "ok") - top_number(old, "ok");
        if (n > most && i + 1 == most) {
            put(p, LOOK_FAINT, "... and %zu models more", n - i);
            return;
        }
        snprintf(channels, sizeof channels, "%.0f>%.0f", top_number(m, "in_channels"), top_number(m, "out_channels"));
        put(p, LOOK_PLAIN, "%-17.17s %4.0f %9s %3.0f %9.1f %11.0f %8.0f %6.0f %5.0f", top_text(m, "name", name),
            top_number(m, "generation"), channels, top_number(m, "kernel_size"),
            p->f->seconds > 0 && grown > 0 ? grown / p->f->seconds : 0, top_number(m, "ok"), top_number(m, "refused"),
            top_number(m, "failed"), top_number(m, "in_flight"));
    }
}

static size_t show_streams(page *p) {
    const top_facts *f = p->f;
    const top_view *v = p->v;
    int keep = v->hint != NULL, extra = v->width > 80 ? v->width - 80 : 0, name = 23 + extra * 2 / 3,
        client = 12 + extra / 3;
    size_t shown = 0;
    put(p, LOOK_HEAD, "%-*s %-*s %8s %9s %5s %7s %3s %6s", name, "STREAM", client, "CLIENT", "FRAMES/S", "FRAMES",
        "GAPS", "MISSING", "FLY", "AGE");
    for (size_t i = v->first; i < f->n_streams && p->left > keep && (v->height || shown < v->most); i++, shown++) {
        const top_stream *s = &f->streams[i];
        char topic[160], age[32];
        snprintf(topic, sizeof topic, "%s/%s", s->model, s->stream);
        put(p, s->age_s > 10 ? LOOK_FAINT : LOOK_PLAIN, "%-*.*s %-*.*s %8.1f %9.0f %5.0f %7.0f %3.0f %6s", name, name,
            topic, client, client, s->client, s->frames_s, s->frames, s->gaps, s->missing, s->in_flight,
            span(s->age_s, age));
    }
    return shown;
}

size_t top_show(const top_facts *f, const top_view *view) {
    page p = {f, view, view->height ? view->height : 1 << 30};
    show_daemon(&p);
    show_ledger(&p);
    show_history(&p);
    show_latency(&p);
    show_batches(&p);
    show_use(&p);
    show_reload(&p);
    show_models(&p, view->height ? MODELS_MAX : 1000);
    size_t shown = show_streams(&p);
    while (view->hint && view->height && p.left > 1) put(&p, LOOK_PLAIN, "%s", "");
    if (view->hint) put(&p, view->hint_look, "%s", view->hint);
    return shown;
}
