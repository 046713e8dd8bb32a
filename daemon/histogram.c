/* histogram.c: see histogram.h. Filled by meters.c, written by metrics.c and status.c. */
#include "histogram.h"

const histogram_shape histogram_latency = {.n = 19,
    .bounds = {10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000, 5000000, 10000000, 25000000, 50000000,
        100000000, 250000000, 500000000, 1000000000, 2500000000, 5000000000, 10000000000},
    .le = {"1e-05", "2.5e-05", "5e-05", "0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025",
        "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10"},
    .seconds = true};

const histogram_shape histogram_sizes = {.n = 13,
    .bounds = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
    .le = {"1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096"}};

void histogram_add(histogram *h, uint64_t value, uint64_t n) {
    int i = 0;
    while (i < h->shape->n && value > h->shape->bounds[i]) i++;
    h->counts[i] += n;
    h->sum += value * n;
}

uint64_t histogram_count(const histogram *h) {
    uint64_t all = 0;
    for (int i = 0; i <= h->shape->n; i++) all += h->counts[i];
    return all;
}

static void bucket(textbuf *t, const char *name, const char *le, uint64_t n) {
    text_put(t, name);
    text_put(t, "_bucket{le=\"");
    text_put(t, le);
    text_put(t, "\"} ");
    text_u64(t, n);
    text_put(t, "\n");
}

void histogram_write(const histogram *h, textbuf *t, const char *name) {
    uint64_t seen = 0;
    for (int i = 0; i < h->shape->n; i++) {
        seen += h->counts[i];
        bucket(t, name, h->shape->le[i], seen);
    }
    seen += h->counts[h->shape->n];
    bucket(t, name, "+Inf", seen);
    text_put(t, name);
    text_put(t, "_sum ");
    if (h->shape->seconds)
        text_seconds(t, h->sum);
    else
        text_u64(t, h->sum);
    text_put(t, "\n");
    text_put(t, name);
    text_put(t, "_count ");
    text_u64(t, seen);
    text_put(t, "\n");
}
