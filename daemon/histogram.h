/* histogram.h: how often a value fell into each bucket: counts, their sum, nothing else. A bucket's bound is inclusive
 * (Prometheus' `le`). Counts are kept apart and made cumulative when written, and the number of all is their sum, so
 * bucket{le="+Inf"} and _count are one number. Loop thread. */
#ifndef NCTD_HISTOGRAM_H
#define NCTD_HISTOGRAM_H
#include <stdint.h>
#include "text.h"

#define HISTOGRAM_BUCKETS_MAX 24 /* with the last one, +Inf */

typedef struct {
    int n;                                      /* bounds; one bucket more */
    uint64_t bounds[HISTOGRAM_BUCKETS_MAX - 1]; /* rising */
    const char *le[HISTOGRAM_BUCKETS_MAX - 1];  /* as they are written, in the metric's unit */
    bool seconds;                               /* values are ns and the sum is written in seconds */
} histogram_shape;

/* 10 us to 10 s in steps of 1, 2.5, 5; and 1, 2, 4 ... 4096. */
extern const histogram_shape histogram_latency, histogram_sizes;

typedef struct {
    const histogram_shape *shape;
    uint64_t counts[HISTOGRAM_BUCKETS_MAX], sum;
} histogram;

/* The value was seen n times. */
void histogram_add(histogram *h, uint64_t value, uint64_t n);
uint64_t histogram_count(const histogram *h);
/* name_bucket{le=...}, name_sum, name_count. */
void histogram_write(const histogram *h, textbuf *t, const char *name);
#endif
