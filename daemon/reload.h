/* reload.h: configuration and weights as one transaction, at start and at each SIGHUP.
 *
 *     SIGHUP -> [read, compare, load, pack, check: the helper thread] -> swap between two turns -> READY=1, STATUS
 *
 * One runs at a time and at most one waits, however many SIGHUPs came: it begins anew, so it sees what was on disk at the
 * last of them. On any error what is served stays, and the reason is in the log, in STATUS, in WELCOME and on the status
 * page. Loop thread, but for the work itself. */
#ifndef NCTD_RELOAD_H
#define NCTD_RELOAD_H
#include <uv.h>
#include "options.h"
#include "spine.h"

typedef struct reload {
    spine *s;
    config *cfg;      /* what is served: spine's; changed by a swap alone */
    const options *o; /* where the configuration is read from */
    /* The first load ended: 0, or why nothing can be served. */
    void (*started)(void *ctx, int error, const char *why);
    void *ctx;
    uv_work_t work;
    uv_timer_t patience;
    uint64_t begin_ns;
    bool first, running, waiting, stopping;
    /* the helper thread's while it runs */
    models_target target;
    config *next; /* NULL at start */
    model_set *set;
    auth *keys; /* the allow-list as it is on disk; NULL: no keys */
    int error;
    char why[1024];
} reload;

/* Begins to load for the start. s is open; cfg, o, started, ctx are set, the rest is zero. */
void reload_start(reload *r);
void reload_ask(reload *r); /* SIGHUP, at any moment after reload_start */
/* The daemon stops: what is being loaded is not served, and no reload begins. */
void reload_stop(reload *r);
static inline bool reload_running(const reload *r) {
    return r->running; /* the helper thread uses what is borrowed */
}
#endif
