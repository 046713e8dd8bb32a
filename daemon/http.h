/* http.h: a small HTTP server on the loop, and nothing of its library outside. GET and HEAD alone; a request that names
 * a host this server does not go by is refused, so that no web page of elsewhere reads it through a name it points here.
 *
 * It never waits for a client: sockets do not block, what a client has not taken stays in its own connection, idle and
 * never-reading ones are closed after HTTP_IDLE_S, and no more than HTTP_CONNECTIONS_MAX are open at once. Without a
 * connection it costs nothing. Loop thread. */
#ifndef NCTD_HTTP_H
#define NCTD_HTTP_H
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>
#include "nct_layer.h"

#define HTTP_CONNECTIONS_MAX 64
#define HTTP_VIEWERS_MAX     16 /* of them, at server-sent events */
#define HTTP_IDLE_S          20
#define HTTP_TICK_MS         100 /* how often a viewer's `next` is called */

typedef struct http http;
typedef struct http_request http_request;
const char *http_path(const http_request *rq);                    /* decoded, without the query */
const char *http_query(const http_request *rq, const char *name); /* decoded value, "" without one; NULL: not there */

/* Server-sent events to one viewer, who has taken everything told before. */
typedef struct {
    char *(*next)(void *ctx, size_t *ret_bytes); /* what is to be told now, malloc'ed; NULL: nothing */
    void (*done)(void *ctx);                     /* the viewer left, or never came */
    void *ctx;
} http_events;

typedef struct {
    int status;
    const char *type;  /* Content-Type */
    char *body;        /* malloc'ed, taken; or */
    const void *fixed; /* lives longer than the server; or */
    size_t bytes;
    http_events events; /* next != NULL */
} http_reply;

typedef struct {
    uv_loop_t *loop;
    const char *endpoint; /* "127.0.0.1:7772", "[::1]:0", "localhost:7772" */
    const char *hosts;    /* names it also goes by, separated by blanks */
    bool insecure;        /* may be bound beyond loopback */
    void (*get)(void *ctx, const http_request *rq, http_reply *ret); /* *ret is zero, status 404 */
    void *ctx;
} http_setup;

/* 0; -EINVAL, -EACCES (beyond loopback), -EADDRINUSE ..., with a sentence. */
int http_new(http **ret, const http_setup *setup, nct_why *why);
/* "127.0.0.1:7772", with the port that was bound. */
const char *http_bound(const http *h);
/* Ends every connection and viewer. Handles close when the loop runs next. NULL is fine. */
void http_free(http *h);
#endif
