/* site.c: see site.h. Called by main (open, close) and by http.c for each request. Reads the stages, changes nothing. */
#include "site.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "log.h"
#include "metrics.h"
#include "page.h"
#include "status.h"

#define TYPE_TEXT "text/plain; charset=utf-8"

static void say(http_reply *r, int status, const char *text) {
    *r = (http_reply){.status = status, .type = TYPE_TEXT, .fixed = text, .bytes = strlen(text)};
}

static void made(http_reply *r, const char *type, char *body, size_t bytes) {
    if (!body) return say(r, 503, "no memory\n");
    *r = (http_reply){.status = 200, .type = type, .body = body, .bytes = bytes};
}

static void get_metrics(site *p, const http_request *rq, http_reply *r) {
    metrics_source from = {.s = p->s, .ready = !p->not_ready(p->ctx), .viewers = p->live.n_viewers};
    size_t bytes = 0;
    (void)rq;
    char *body = metrics_text(&from, &bytes);
    made(r, METRICS_TYPE, body, bytes);
}

static void get_healthz(site *p, const http_request *rq, http_reply *r) {
    (void)p, (void)rq;
    say(r, 200, "alive\n");
}

static void get_readyz(site *p, const http_request *rq, http_reply *r) {
    const char *why = p->not_ready(p->ctx);
    (void)rq;
    if (!why) return say(r, 200, "ready\n");
    size_t bytes = strlen(why) + 1;
    char *body = malloc(bytes + 1);
    if (body) snprintf(body, bytes + 1, "%s\n", why);
    made(r, TYPE_TEXT, body, bytes);
    r->status = 503;
}

static const char *query(const http_request *rq, const char *name) {
    const char *value = http_query(rq, name);
    return value ? value : "";
}

static void get_status(site *p, const http_request *rq, http_reply *r) {
    const char *limit = http_query(rq, "streams");
    unsigned long most = limit ? strtoul(limit, NULL, 10) : STATUS_STREAMS;
    status_source from = {.s = p->s,
        .not_ready = p->not_ready(p->ctx),
        .viewers = p->live.n_viewers,
        .search = query(rq, "q"),
        .streams_max = most < STATUS_STREAMS ? (uint32_t)most : STATUS_STREAMS};
    size_t bytes = 0;
    char *body = status_text(&from, &bytes);
    made(r, "application/json", body, bytes);
}

static void get_events(site *p, const http_request *rq, http_reply *r) {
    http_events events;
    int error = live_join(&p->live, query(rq, "stream"), query(rq, "q"), &events);
    if (error)
        return say(r, error == -EINVAL ? 400 : 503, error == -EINVAL ? "stream=MODEL/STREAM\n" : "no memory\n");
    *r = (http_reply){.status = 200, .type = "text/event-stream", .events = events};
}

static void get_page(site *p, const http_request *rq, http_reply *r) {
    (void)p, (void)rq;
    *r = (http_reply){.status = 200, .type = "text/html; charset=utf-8", .fixed = page_html, .bytes = page_bytes()};
}

static void get(void *ctx, const http_request *rq, http_reply *ret) {
    static const struct {
        const char *path;
        void (*get)(site *p, const http_request *rq, http_reply *r);
    } rows[] = {{"/metrics", get_metrics}, {"/healthz", get_healthz}, {"/readyz", get_readyz},
        {"/api/status", get_status}, {"/events", get_events}, {"/", get_page}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].path, http_path(rq))) rows[i].get(ctx, rq, ret);
}

int site_open(site *p, const config *cfg, uv_loop_t *loop, nct_why *why) {
    http_setup setup = {.loop = loop,
        .endpoint = cfg->http.endpoint,
        .hosts = cfg->http.hosts,
        .insecure = cfg->http.insecure,
        .get = get,
        .ctx = p};
    if (!cfg->http.enabled) return 0;
    p->live = (live){.s = p->s, .not_ready = p->not_ready, .ctx = p->ctx};
    int error = http_new(&p->server, &setup, why);
    if (!error) log_info("http bound endpoint=%s", http_bound(p->server));
    return error;
}

void site_close(site *p) {
    http_free(p->server);
    p->server = NULL;
}
