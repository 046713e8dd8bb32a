/* status.h: /api/status: what the daemon does now, as JSON for the page, `nct top` and scripts. Seconds and bytes;
 * counters count since start, so that whoever looks twice has rates. Loop thread.
 *
 *     {"version", "unix_s", "uptime_s", "ready", "reason", "backend", "variant", "precision", "device",
 *      "clients", "subscribers", "sessions", "viewers",
 *      "ledger": as in WELCOME, "latency": {queue|copy|compute|publish: {"le": [s], "counts": [one more], "sum"}},
 *      "batch_size": {"le", "counts", "sum"}, "engines": [{"slots", "slots_in_use", "batches"}],
 *      "use": {window|queue_bytes|result_bytes|slots: [used, limit]}, "last_result_s", "reload": {...}, "process": {...},
 *      "models": [{"name", "generation", "digest", "in_channels", ..., "received", "ok", ..., "queue_s", "compute_s"}],
 *      "streams_open", "streams_shown", "streams": [[model, stream, client, frames, gaps, missing, in_flight, age_s, seq]]} */
#ifndef NCTD_STATUS_H
#define NCTD_STATUS_H
#include "spine.h"

#define STATUS_STREAMS 1000 /* at most in one answer, unless asked for fewer */

typedef struct {
    const spine *s;
    const char *not_ready; /* NULL: ready */
    uint32_t viewers;
    const char *search; /* streams whose "model/stream" has this in it; "" or NULL: all */
    uint32_t streams_max;
} status_source;

/* malloc'ed; NULL without memory. */
char *status_text(const status_source *from, size_t *ret_bytes);
/* The same into t. */
void status_write(const status_source *from, textbuf *t);
#endif
