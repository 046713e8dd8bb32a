/* http.c: see http.h. libmicrohttpd on the loop: its epoll descriptor in a uv_poll, its timeouts in a uv_timer. Owns the
 * server, its connections and viewers; knows nothing of what it serves. */
#include "http.h"
#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "http_host.h"
#include "log.h"

struct http_request {
    const char *path;
    struct MHD_Connection *connection;
};

typedef struct viewer {
    struct viewer *next, *prev;
    http *h;
    struct MHD_Connection *connection;
    http_events events;
    char *text; /* not taken yet */
    size_t bytes, taken;
    bool waits; /* suspended: everything is taken */
} viewer;

struct http {
    http_setup setup;
    char bound[80], *hosts;
    struct MHD_Daemon *daemon;
    viewer *viewers;
    uint32_t n_viewers;
    uv_poll_t *poll; /* freed by their close callbacks */
    uv_timer_t *timeout, *tick;
};

const char *http_path(const http_request *rq) {
    return rq->path;
}
const char *http_query(const http_request *rq, const char *name) {
    const char *value = NULL;
    if (MHD_lookup_connection_value_n(rq->connection, MHD_GET_ARGUMENT_KIND, name, strlen(name), &value, NULL) ==
        MHD_NO)
        return NULL;
    return value ? value : "";
}
const char *http_bound(const http *h) {
    return h->bound;
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

static void on_timeout(uv_timer_t *t);

static bool full(const http *h) {
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info && info->num_connections >= HTTP_CONNECTIONS_MAX;
}

/* One round of the library, then its own next timeout: only open connections have one. When it had stopped accepting,
 * it takes that up again in the round after the one that made room. */
static void run(http *h) {
    MHD_UNSIGNED_LONG_LONG ms;
    bool was_full = full(h);
    MHD_run(h->daemon);
    if (was_full && !full(h)) MHD_run(h->daemon);
    if (MHD_get_timeout(h->daemon, &ms) == MHD_YES)
        uv_timer_start(h->timeout, on_timeout, ms, 0);
    else
        uv_timer_stop(h->timeout);
}

static void on_timeout(uv_timer_t *t) {
    run(t->data);
}
static void on_poll(uv_poll_t *p, int status, int events) {
    (void)status, (void)events;
    run(p->data);
}

/* ---- viewers --------------------------------------------------------------------------------------------------- */

static void on_tick(uv_timer_t *t) {
    http *h = t->data;
    bool more = false;
    for (viewer *v = h->viewers; v; v = v->next) {
        if (!v->waits) continue; /* slow: it gets what is new when it has taken this */
        v->text = v->events.next(v->events.ctx, &v->bytes);
        if (!v->text) continue;
        v->taken = 0;
        v->waits = false;
        MHD_resume_connection(v->connection);
        more = true;
    }
    if (more) run(h);
}

static ssize_t viewer_read(void *ctx, uint64_t pos, char *to, size_t room) {
    viewer *v = ctx;
    size_t n = v->bytes - v->taken;
    (void)pos;
    if (n > room) n = room;
    if (n) memcpy(to, v->text + v->taken, n);
    v->taken += n;
    if (n) return (ssize_t)n;
    free(v->text);
    v->text = NULL;
    v->bytes = v->taken = 0;
    v->waits = true;
    MHD_suspend_connection(v->connection);
    return 0;
}

static void viewer_free(void *ctx) {
    viewer *v = ctx;
    http *h = v->h;
    if (v->prev)
        v->prev->next = v->next;
    else
        h->viewers = v->next;
    if (v->next) v->next->prev = v->prev;
    if (!--h->n_viewers) uv_timer_stop(h->tick);
    v->events.done(v->events.ctx);
    free(v->text);
    free(v);
}

static struct MHD_Response *viewer_new(http *h, struct MHD_Connection *c, const http_events *events) {
    viewer *v = calloc(1, sizeof *v);
    if (!v) {
        events->done(events->ctx);
        return NULL;
    }
    *v = (viewer){.h = h, .connection = c, .events = *events, .next = h->viewers};
    if (v->next) v->next->prev = v;
    h->viewers = v;
    if (!h->n_viewers++) uv_timer_start(h->tick, on_tick, 0, HTTP_TICK_MS);
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, viewer_read, v, viewer_free);
    if (!r) viewer_free(v);
    return r;
}

/* ---- requests -------------------------------------------------------------------------------------------------- */

static void sentence(http_reply *r, int status, const char *text) {
    *r = (http_reply){.status = status, .type = "text/plain; charset=utf-8", .fixed = text, .bytes = strlen(text)};
}

typedef struct {
    int n;
    const char *value;
} host_header;

static enum MHD_Result find_host(void *ctx, enum MHD_ValueKind kind, const char *key, const char *value) {
    host_header *f = ctx;
    (void)kind;
    if (!strcasecmp(key, "Host")) f->n++, f->value = value ? value : "";
    return MHD_YES;
}

static bool may_ask(
    const http *h, struct MHD_Connection *c, const char *method, const char *version, http_reply *ret) {
    host_header host = {0};
    MHD_get_connection_values(c, MHD_HEADER_KIND, find_host, &host);
    if (host.n > 1 || (!host.n && strcmp(version, MHD_HTTP_VERSION_1_0) != 0))
        sentence(ret, 400, "a request names one Host\n");
    else if (host.n && !http_host_known(host.value, h->bound, h->hosts))
        sentence(ret, 421, "this nctd does not go by that host name (http.hosts)\n");
    else if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        sentence(ret, 405, "GET and HEAD only\n");
    else
        return true;
    return false;
}

static bool has_body(struct MHD_Connection *c) {
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    return (length && strcmp(length, "0") != 0) ||
           MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Transfer-Encoding");
}

static struct MHD_Response *response_of(http *h, struct MHD_Connection *c, http_reply *r) {
    if (r->events.next) return viewer_new(h, c, &r->events);
    if (r->body) return MHD_create_response_from_buffer(r->bytes, r->body, MHD_RESPMEM_MUST_FREE);
    return MHD_create_response_from_buffer(r->bytes, (void *)(uintptr_t)r->fixed, MHD_RESPMEM_PERSISTENT);
}

/* The page is one file with its script and style in it; nothing else may run, load, or frame it. */
static void headers(struct MHD_Response *r, const http_reply *reply) {
    MHD_add_response_header(r, "Content-Type", reply->type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(r, "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src "
        "data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    if (reply->status == 405) MHD_add_response_header(r, "Allow", "GET, HEAD");
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url, const char *method,
    const char *version, const char *upload, size_t *upload_bytes, void **request_ctx) {
    http *h = ctx;
    http_request rq = {.path = url, .connection = c};
    http_reply reply;
    (void)upload, (void)upload_bytes;
    /* An answer to the first call, before the body, ends the connection: right for those who send one, alone. */
    if (!*request_ctx && !has_body(c)) {
        *request_ctx = h;
        return MHD_YES;
    }
    sentence(&reply, 404, "no such page: / /metrics /healthz /readyz /api/status\n");
    if (may_ask(h, c, method, version, &reply)) h->setup.get(h->setup.ctx, &rq, &reply);
    if (reply.events.next && (h->n_viewers >= HTTP_VIEWERS_MAX || strcmp(method, "GET") != 0)) {
        reply.events.done(reply.events.ctx);
        sentence(&reply, 503, "too many viewers\n");
    }
    struct MHD_Response *r = response_of(h, c, &reply);
    if (!r) return MHD_NO;
    headers(r, &reply);
    enum MHD_Result queued = MHD_queue_response(c, (unsigned)reply.status, r);
    MHD_destroy_response(r);
    return queued;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

/* What the library has to say is about one client each time. */
__attribute__((format(printf, 2, 0))) static void on_log(void *ctx, const char *format, va_list ap) {
    char line[256];
    (void)ctx;
    vsnprintf(line, sizeof line, format, ap);
    line[strcspn(line, "\n")] = 0;
    log_debug("http: %s", line);
}

static void on_closed(uv_handle_t *handle) {
    free(handle);
}

static int watch(http *h) {
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    h->timeout->data = h->tick->data = h;
    uv_timer_init(h->setup.loop, h->timeout);
    uv_timer_init(h->setup.loop, h->tick);
    int error = info ? uv_poll_init(h->setup.loop, h->poll, info->epoll_fd) : -EIO;
    if (error) {
        free(h->poll);
        h->poll = NULL;
        return error;
    }
    h->poll->data = h;
    return uv_poll_start(h->poll, UV_READABLE, on_poll);
}

int http_new(http **ret, const http_setup *setup, nct_why *why) {
    http *h = calloc(1, sizeof *h);
    if (!h) return -ENOMEM;
    h->setup = *setup;
    int error = -ENOMEM, fd = http_listen(setup->endpoint, setup->insecure, h->bound, why);
    if (fd < 0) {
        free(h);
        return fd;
    }
    h->poll = malloc(sizeof *h->poll);
    h->timeout = malloc(sizeof *h->timeout);
    h->tick = malloc(sizeof *h->tick);
    h->hosts = strdup(setup->hosts); /* a reload may end the configuration it is of */
    if (!h->hosts || !h->poll || !h->timeout || !h->tick) goto fail_daemon;
    h->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, HTTP_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, HTTP_IDLE_S,
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!h->daemon) {
        error = -EIO;
        goto fail_daemon;
    }
    error = watch(h);
    if (error) {
        snprintf(why->text, sizeof why->text, "http: the loop takes no handle: %s", uv_strerror(error));
        http_free(h);
        return error;
    }
    *ret = h;
    return 0;
fail_daemon:
    snprintf(why->text, sizeof why->text, "http: the server could not be started");
    close(fd);
    free(h->poll);
    free(h->timeout);
    free(h->tick);
    free(h->hosts);
    free(h);
    return error;
}

void http_free(http *h) {
    if (!h) return;
    if (h->poll) uv_close((uv_handle_t *)h->poll, on_closed);
    for (viewer *v = h->viewers; v; v = v->next) /* the library is not stopped over suspended ones */
        if (v->waits) MHD_resume_connection(v->connection);
    MHD_stop_daemon(h->daemon);
    uv_close((uv_handle_t *)h->timeout, on_closed);
    uv_close((uv_handle_t *)h->tick, on_closed);
    free(h->hosts);
    free(h);
}
