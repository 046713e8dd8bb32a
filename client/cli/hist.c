/* hist.c: latencies. Called by bench.c, send.c and ping.c. */
#include "hist.h"

/* Values below 128 have a bucket each; above, the top 7 bits after the leading one choose. */
static unsigned bucket(uint64_t v) {
    if (v < HIST_SUB) return (unsigned)v;
    unsigned octave = 63u - (unsigned)__builtin_clzll(v) - 7;
    unsigned at = (octave + 1) * HIST_SUB + (unsigned)(v >> octave & (HIST_SUB - 1));
    return at < HIST_BUCKETS ? at : HIST_BUCKETS - 1;
}

static uint64_t upper(unsigned at) {
    if (at < HIST_SUB) return at;
    unsigned octave = at / HIST_SUB - 1;
    return ((uint64_t)(HIST_SUB + at % HIST_SUB + 1) << octave) - 1;
}

void hist_add(hist *h, uint64_t value) {
    h->counts[bucket(value)]++;
    if (!h->n || value < h->least) h->least = value;
    if (value > h->most) h->most = value;
    h->sum += (double)value;
    h->n++;
}

void hist_merge(hist *h, const hist *more) {
    if (!more->n) return;
    for (unsigned i = 0; i < HIST_BUCKETS; i++) h->counts[i] += more->counts[i];
    if (!h->n || more->least < h->least) h->least = more->least;
    if (more->most > h->most) h->most = more->most;
    h->sum += more->sum;
    h->n += more->n;
}

uint64_t hist_quantile(const hist *h, double q) {
    uint64_t rank = (uint64_t)(q * (double)h->n), seen = 0;
    if (!h->n) return 0;
    if (rank >= h->n) rank = h->n - 1;
    for (unsigned i = 0; i < HIST_BUCKETS; i++) {
        seen += h->counts[i];
        if (seen > rank) return upper(i) < h->most ? upper(i) : h->most;
    }
    return h->most;
}

double hist_mean(const hist *h) {
    return h->n ? h->sum / (double)h->n : 0;
}
