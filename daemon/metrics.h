/* metrics.h: /metrics in Prometheus' text format 0.0.4, from what the stages hold. One look, one page: everything in it
 * is of the same moment, so the ledger's identities hold in it. Loop thread. */
#ifndef NCTD_METRICS_H
#define NCTD_METRICS_H
#include <stddef.h>
#include "spine.h"

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef struct {
    const spine *s;
    bool ready;
    uint32_t viewers;
} metrics_source;

/* malloc'ed; NULL without memory. */
char *metrics_text(const metrics_source *from, size_t *ret_bytes);
#endif
