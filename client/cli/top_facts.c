/* top_facts.c: numbers of two snapshots of /api/status. Called by top.c and top_view.c. What a daemon of another version does not
 * say is 0 or empty. */
#include "top.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const json_t *find(const json_t *at, const char *path) {
    char key[64];
    while (at && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof key) return NULL;
        memcpy(key, path, n);
        key[n] = 0;
        at = json_object_get(at, key);
        path += n + (path[n] == '.');
    }
    return at;
}

double top_number(const json_t *at, const char *path) {
    return json_number_value(find(at, path));
}

void top_printable(char *to, size_t room, const char *from) {
    size_t n = 0;
    for (; from && *from && n + 1 < room; from++) to[n++] = *from >= 0x20 && *from < 0x7f ? *from : '?';
    to[n] = 0;
}

const char *top_text(const json_t *at, const char *path, char ret[256]) {
    top_printable(ret, 256, json_string_value(find(at, path)));
    return ret;
}

double top_per_s(const top_facts *f, const char *path) {
    double grown = top_number(f->now, path) - top_number(f->before, path);
    return f->seconds > 0 && grown > 0 ? grown / f->seconds : 0;
}

void top_facts_add(top_facts *f, json_t *snapshot) {
    json_decref(f->before);
    f->before = f->now;
    f->now = snapshot;
    f->seconds = top_number(f->now, "uptime_s") - top_number(f->before, "uptime_s");
    if (f->before && f->seconds <= 0) { /* another process */
        json_decref(f->before);
        f->before = NULL;
        f->n_rates = 0;
        f->seconds = top_number(f->now, "uptime_s");
    }
    if (!f->before) return;
    if (f->n_rates == TOP_HISTORY) memmove(f->rates, f->rates + 1, (size_t)--f->n_rates * sizeof *f->rates);
    f->rates[f->n_rates++] = top_per_s(f, "ledger.ok");
}

void top_facts_done(top_facts *f) {
    json_decref(f->now);
    json_decref(f->before);
    free(f->streams);
    *f = (top_facts){NULL};
}

/* ---- histograms --------------------------------------------------------------------------------------------- */
/* The q-th value by straight lines inside its bucket; beyond the last bound, that bound. */
static double quantile(const top_band *b, double q) {
    double seen = 0;
    for (int i = 0; i < b->n_buckets; i++) {
        double low = i ? b->le_ms[i - 1] : 0, high = b->le_ms[i];
        if (seen + b->share[i] >= q && b->share[i] > 0)
            return isinf(high) ? low : low + (high - low) * (q - seen) / b->share[i];
        seen += b->share[i];
    }
    return 0;
}

void top_band_of(const top_facts *f, const char *path, double scale, top_band *ret) {
    const json_t *now = find(f->now, path), *before = find(f->before, path);
    const json_t *le = json_object_get(now, "le"), *counts = json_object_get(now, "counts");
    *ret = (top_band){.n_buckets = (int)json_array_size(counts)};
    if (ret->n_buckets > TOP_BUCKETS) ret->n_buckets = 0;
    for (int i = 0; i < ret->n_buckets; i++) {
        double n = json_number_value(json_array_get(counts, (size_t)i)) -
                   json_number_value(json_array_get(json_object_get(before, "counts"), (size_t)i));
        ret->share[i] = n > 0 ? n : 0;
        ret->n += ret->share[i];
        ret->le_ms[i] = i + 1 < ret->n_buckets ? json_number_value(json_array_get(le, (size_t)i)) * scale : INFINITY;
    }
    if (!(ret->n > 0)) return;
    for (int i = 0; i < ret->n_buckets; i++) ret->share[i] /= ret->n;
    ret->mean_ms = (top_number(now, "sum") - top_number(before, "sum")) * scale / ret->n;
    ret->p50_ms = quantile(ret, 0.5);
    ret->p90_ms = quantile(ret, 0.9);
    ret->p99_ms = quantile(ret, 0.99);
}

/* ---- streams ------------------------------------------------------------------------------------------------ */
const char *top_order_name(top_order o) {
    static const char *const names[] = {"rate", "age", "gaps", "name"};
    return names[o];
}

static int by_name(const top_stream *a, const top_stream *b) {
    int r = strcmp(a->model, b->model);
    return r ? r : strcmp(a->stream, b->stream);
}

static int down(double a, double b) {
    return a > b ? -1 : a < b;
}

#define COMPARE(name, value)                                                                                         \
    static int by_##name(const void *x, const void *y) {                                                             \
        const top_stream *a = x, *b = y;                                                                             \
        int r = down(a->value, b->value);                                                                            \
        return r ? r : by_name(a, b);                                                                                \
    }
COMPARE(rate, frames_s)
COMPARE(age, age_s)
COMPARE(gaps, missing)

static int by_names(const void *x, const void *y) {
    return by_name(x, y);
}

/* Frames of the same stream in the snapshot before, or -1. Both lists come in the daemon's order: the search goes on where
 * the last one ended. */
static double frames_before(const json_t *list, const json_t *row, size_t *at) {
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        size_t k = (*at + i) % n;
        const json_t *other = json_array_get(list, k);
        if (!json_equal(json_array_get(other, 1), json_array_get(row, 1)) ||
            !json_equal(json_array_get(other, 0), json_array_get(row, 0)))
            continue;
        *at = k + 1;
        return json_number_value(json_array_get(other, 3));
    }
    return -1;
}

static void take_stream(const top_facts *f, const json_t *row, size_t *at, top_stream *s) {
    double *const to[] = {&s->frames, &s->gaps, &s->missing, &s->in_flight, &s->age_s, &s->seq};
    *s = (top_stream){.frames = 0};
    top_printable(s->model, sizeof s->model, json_string_value(json_array_get(row, 0)));
    top_printable(s->stream, sizeof s->stream, json_string_value(json_array_get(row, 1)));
    top_printable(s->client, sizeof s->client, json_string_value(json_array_get(row, 2)));
    for (size_t i = 0; i < 6; i++) *to[i] = json_number_value(json_array_get(row, 3 + i));
    double before = frames_before(json_object_get(f->before, "streams"), row, at);
    if (f->before && before < 0) before = 0; /* new since then */
    if (f->before && f->seconds > 0 && s->frames > before) s->frames_s = (s->frames - before) / f->seconds;
}

int top_streams_sort(top_facts *f, top_order order) {
    static int (*const compare[])(const void *, const void *) = {by_rate, by_age, by_gaps, by_names};
    const json_t *list = json_object_get(f->now, "streams");
    size_t n = json_array_size(list), at = 0;
    top_stream *s = n ? calloc(n, sizeof *s) : NULL;
    if (n && !s) return -ENOMEM;
    for (size_t i = 0; i < n; i++) take_stream(f, json_array_get(list, i), &at, &s[i]);
    if (n) qsort(s, n, sizeof *s, compare[order]);
    free(f->streams);
    f->streams = s;
    f->n_streams = n;
    return 0;
}
