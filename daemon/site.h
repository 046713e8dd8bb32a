/* site.h: what the daemon's HTTP server answers: which path means what, and whether the daemon is ready. Loop thread. */
#ifndef NCTD_SITE_H
#define NCTD_SITE_H
#include "http.h"
#include "live.h"
#include "spine.h"

typedef struct site {
    spine *s;
    const char *(*not_ready)(void *ctx); /* why no frame is served now; NULL: it is */
    void *ctx;
    live live;
    http *server; /* NULL: http.enabled = no */
} site;

/* Opens the server of the configuration; s, not_ready and ctx are set. 0, or what http_new says. */
int site_open(site *p, const config *cfg, uv_loop_t *loop, nct_why *why);
void site_close(site *p); /* before the spine's end */
#endif
