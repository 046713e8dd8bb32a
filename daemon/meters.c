/* meters.c: see meters.h. Called by the publisher (batches, results) and main (reloads); read by metrics, status, live. */
#include "meters.h"
#include <stdio.h>
#include <time.h>
#include "models.h"

static int64_t unix_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void meters_init(meters *m) {
    *m = (meters){.queue = {.shape = &histogram_latency},
        .copy = {.shape = &histogram_latency},
        .compute = {.shape = &histogram_latency},
        .publish = {.shape = &histogram_latency},
        .batch_frames = {.shape = &histogram_sizes}};
}

static uint64_t since(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

void meters_batch(meters *m, const batch *b) {
    const frame *first = b->frames[0];
    served *of = b->model->of;
    uint64_t n = (uint64_t)b->n_frames, compute_ns = since(first->t_launch_ns, first->t_done_ns);
    histogram_add(&m->batch_frames, n, 1);
    histogram_add(&m->copy, since(b->t_take_ns, first->t_launch_ns), n);
    histogram_add(&m->compute, compute_ns, n);
    of->compute_ns += compute_ns * n;
    for (int32_t i = 0; i < b->n_frames; i++) {
        uint64_t queue_ns = since(b->frames[i]->t_read_ns, b->t_take_ns);
        histogram_add(&m->queue, queue_ns, 1);
        of->queue_ns += queue_ns;
    }
}

void meters_result(meters *m, const frame *f, uint64_t now_ns) {
    histogram_add(&m->publish, since(f->t_done_ns, now_ns), 1);
    m->t_result_ns = f->model->of->t_result_ns = unix_now_ns();
    if (m->tap) m->tap(m->tap_ctx, f);
}

void meters_reload(meters *m, reload_result r, const char *why) {
    m->reload.results[r]++;
    m->reload.last = r;
    m->reload.t_ns = unix_now_ns();
    snprintf(m->reload.why, sizeof m->reload.why, "%s", why);
}

const char *reload_result_name(reload_result r) {
    static const char *const names[] = {"applied", "unchanged", "refused"};
    return names[r];
}
