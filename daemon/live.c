/* live.c: see live.h. Called by site.c for a new viewer, by http.c while it looks (next, done), and by meters.c for each
 * result while somebody chose a stream. A viewer that does not read is asked for nothing, so it holds a few pictures at
 * most, and the oldest give way. */
#include "live.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "heat.h"
#include "status.h"

#define STATUS_NS  1000000000u
#define PICTURE_NS (1000000000u / LIVE_PICTURES_S)
enum { PICTURES = 4 }; /* that wait for a viewer */

typedef struct {
    heat h;
    uint64_t seq, passed; /* results passed over since the picture before */
    uint32_t queue_us, compute_us;
} picture;

typedef struct live_viewer {
    struct live_viewer *next, *prev;
    live *l;
    char topic[WIRE_TOPIC_MAX + 1], search[WIRE_TOPIC_MAX + 1];
    size_t topic_bytes; /* 0: none chosen */
    uint64_t t_status_ns, t_picture_ns, passed;
    picture pictures[PICTURES]; /* [0, n) wait, oldest first */
    int n;
} live_viewer;

/* ---- results pass ---------------------------------------------------------------------------------------------- */

static void take(live_viewer *v, const frame *f) {
    uint64_t now_ns = uv_hrtime();
    picture p = {.seq = f->h.seq, .passed = v->passed};
    if (now_ns - v->t_picture_ns < PICTURE_NS || f->observe ||
        heat_make(&p.h, f->y, f->y_dtype, f->c_out, f->t_out)) {
        v->passed++;
        return;
    }
    p.queue_us = (uint32_t)((f->t_launch_ns - f->t_read_ns) / 1000);
    p.compute_us = (uint32_t)((f->t_done_ns - f->t_launch_ns) / 1000);
    if (v->n == PICTURES) memmove(v->pictures, v->pictures + 1, (size_t)--v->n * sizeof *v->pictures);
    v->pictures[v->n++] = p;
    v->t_picture_ns = now_ns;
    v->passed = 0;
}

static void tap(void *ctx, const frame *f) {
    live *l = ctx;
    const stream *s = f->stream;
    for (live_viewer *v = l->viewers; v; v = v->next)
        if (v->topic_bytes == s->topic_bytes && !memcmp(v->topic, s->topic, s->topic_bytes)) take(v, f);
}

/* ---- a viewer is told ------------------------------------------------------------------------------------------ */

static void put_picture(textbuf *t, const picture *p) {
    const struct {
        const char *name;
        uint64_t n;
    } numbers[] = {{"seq", p->seq}, {"passed", p->passed}, {"channels", (uint64_t)p->h.channels},
        {"steps", (uint64_t)p->h.steps}, {"rows", (uint64_t)p->h.rows}, {"columns", (uint64_t)p->h.columns},
        {"queue_us", p->queue_us}, {"compute_us", p->compute_us}};
    text_put(t, "event: picture\ndata: {");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        text_put(t, i ? ",\"" : "\"");
        text_put(t, numbers[i].name);
        text_put(t, "\":");
        text_u64(t, numbers[i].n);
    }
    text_put(t, ",\"low\":");
    text_json_double(t, (double)p->h.low);
    text_put(t, ",\"high\":");
    text_json_double(t, (double)p->h.high);
    text_put(t, ",\"cells\":\"");
    text_base64(t, p->h.cells, (size_t)p->h.rows * (size_t)p->h.columns);
    text_put(t, "\"}\n\n");
}

static char *next(void *ctx, size_t *ret_bytes) {
    live_viewer *v = ctx;
    live *l = v->l;
    uint64_t now_ns = uv_hrtime();
    textbuf t = {NULL};
    for (int i = 0; i < v->n; i++) put_picture(&t, &v->pictures[i]);
    v->n = 0;
    if (now_ns - v->t_status_ns >= STATUS_NS) {
        status_source from = {.s = l->s,
            .not_ready = l->not_ready(l->ctx),
            .viewers = l->n_viewers,
            .search = v->search,
            .streams_max = STATUS_STREAMS};
        v->t_status_ns = now_ns;
        text_put(&t, "event: status\ndata: ");
        status_write(&from, &t);
        text_put(&t, "\n\n");
    }
    return text_take(&t, ret_bytes);
}

/* ---- coming and going ------------------------------------------------------------------------------------------ */

static void watch(live *l) {
    meters *m = &l->s->meters;
    m->tap_ctx = l;
    m->tap = l->n_watching ? tap : NULL;
}

static void done(void *ctx) {
    live_viewer *v = ctx;
    live *l = v->l;
    if (v->prev)
        v->prev->next = v->next;
    else
        l->viewers = v->next;
    if (v->next) v->next->prev = v->prev;
    l->n_viewers--;
    if (v->topic_bytes) l->n_watching--;
    watch(l);
    free(v);
}

int live_join(live *l, const char *of, const char *search, http_events *ret) {
    char names[2][WIRE_NAME_MAX + 1], topic[WIRE_TOPIC_MAX + 1];
    wire_why why;
    size_t bytes = 0;
    if (*of) {
        int n = snprintf(topic, sizeof topic, "%s/", of);
        if (n < 0 || (size_t)n >= sizeof topic || wire_topic_read(topic, (size_t)n, names[0], names[1], &why))
            return -EINVAL;
        bytes = (size_t)n;
    }
    live_viewer *v = calloc(1, sizeof *v);
    if (!v) return -ENOMEM;
    v->l = l;
    v->topic_bytes = bytes;
    if (bytes) memcpy(v->topic, topic, bytes + 1);
    snprintf(v->search, sizeof v->search, "%s", search);
    v->next = l->viewers;
    if (v->next) v->next->prev = v;
    l->viewers = v;
    l->n_viewers++;
    if (bytes) l->n_watching++;
    watch(l);
    *ret = (http_events){next, done, v};
    return 0;
}
