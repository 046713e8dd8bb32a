/* test_batcher_oracle.c: the batcher against a naive reading of flow.md 9-13 under random load: one list of all queued
 * frames in order of admission, searched from the front for everything. Each frame must leave exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "batcher.h"
#include "rows.h"

enum { SESSIONS = 6, STREAMS = 24, MODELS = 3, ENGINES = 3, STEPS = 30000, SLOT_BYTES = 64 << 10 };
static char sessions[SESSIONS], streams[STREAMS], models[MODELS], engines[ENGINES];

static frame *queued[1 << 16]; /* in order of admission */
static int n_queued;
static struct engine *bound[STREAMS];
static bool flushing[MODELS];
static batcher_limits limits = {.max_frames = 8, .max_delay_us = 300, .slot_bytes = SLOT_BYTES};
static uint64_t now_ns, order, n_pushed, n_taken, n_expired, n_dropped;

static uint32_t pick(uint32_t n) {
    return (uint32_t)rand() % n;
}
static int stream_index(const frame *f) {
    return (int)((const char *)f->stream - streams);
}
static int model_index(const frame *f) {
    return (int)((const char *)f->model - models);
}
static int session_index(const frame *f) {
    return (int)((const char *)f->session - sessions);
}

static bool same_kind(const frame *a, const frame *b) {
    return a->model == b->model && a->x_dtype == b->x_dtype && a->y_dtype == b->y_dtype && a->norm == b->norm &&
           a->observe == b->observe;
}

/* May f go in a batch of first's kind to engine e, as far as its own stream is concerned? */
static bool eligible(int i, const frame *first, const struct engine *e) {
    const frame *f = queued[i];
    if (!same_kind(f, first)) return false;
    if (bound[stream_index(f)] && bound[stream_index(f)] != e) return false;
    for (int k = 0; k < i; k++)
        if (queued[k]->stream == f->stream && !same_kind(queued[k], first)) return false;
    return true;
}

/* The oldest frame of model m that e may take; NULL when there is none. */
static frame *oldest_of(int m, const struct engine *e) {
    for (int i = 0; i < n_queued; i++)
        if (model_index(queued[i]) == m && eligible(i, queued[i], e)) return queued[i];
    return NULL;
}

static close_cause due(const frame *first, const struct engine *e, bool busy) {
    uint32_t n = 0;
    size_t in = 0, out = 0;
    for (int i = 0; i < n_queued; i++) {
        if (!eligible(i, first, e)) continue;
        n++;
        in += rows_in_room(queued[i]);
        out += rows_out_room(queued[i]);
    }
    if (n >= limits.max_frames || in >= limits.slot_bytes || out >= limits.slot_bytes) return CLOSE_FULL;
    if (flushing[model_index(first)]) return CLOSE_FLUSH;
    if (now_ns >= first->t_read_ns + limits.max_delay_us * 1000ull) return CLOSE_DEADLINE;
    return busy ? CLOSE_CAUSES : CLOSE_IDLE;
}

static void forget(const frame *f) {
    int i = 0, left = 0, of_model = 0;
    while (i < n_queued && queued[i] != f) i++;
    assert_true(i < n_queued); /* it was there: no frame leaves twice */
    memmove(queued + i, queued + i + 1, (size_t)(n_queued - i - 1) * sizeof *queued);
    n_queued--;
    for (i = 0; i < n_queued; i++) {
        left += queued[i]->stream == f->stream;
        of_model += queued[i]->model == f->model;
    }
    if (!left) bound[stream_index(f)] = NULL;
    if (!of_model) flushing[model_index(f)] = false;
}

static void step_push(batcher *b) {
    frame *f = calloc(1, sizeof *f);
    int s = (int)pick(STREAMS);
    bool odd = pick(4) == 0; /* mostly one kind, or batches would never grow */
    *f = (frame){.session = (struct session *)&sessions[s % SESSIONS],
        .stream = (struct stream *)&streams[s],
        .model = (struct generation *)&models[s % 2 ? 0 : 1 + (order > STEPS / 3)],
        .x_dtype = odd && pick(2) ? NCT_I16 : NCT_F32,
        .y_dtype = odd && pick(2) ? NCT_BF16 : NCT_F32,
        .norm = odd && pick(2) ? NCT_NORM_GIVEN : NCT_NORM_OWN,
        .observe = odd && pick(2),
        .c_in = 2,
        .c_out = 2,
        .n_groups = 2,
        .t_in = 1 + (int32_t)pick(pick(8) ? 300 : 4000),
        .t_out = 1 + (int32_t)pick(pick(8) ? 300 : 4000),
        .t_read_ns = now_ns,
        .order = ++order};
    if (pick(3) == 0) f->t_expire_ns = now_ns + 1 + pick(2000000);
    bool first = true;
    for (int i = 0; i < n_queued; i++) first = first && queued[i]->stream != f->stream;
    if (first && pick(4) == 0) bound[s] = (struct engine *)&engines[pick(ENGINES)]; /* in flight there already */
    f->engine = bound[s];
    assert_int_equal(batcher_push(b, f), 0);
    queued[n_queued++] = f;
    n_pushed++;
}

/* What a batch must be, given the frames that were queued before it. */
static void check_batch(frame **frames, int32_t n, const frame *first, struct engine *e) {
    int taken[SESSIONS] = {0}, left[SESSIONS] = {0};
    size_t in = 0, out = 0;
    for (int32_t i = 0; i < n; i++) {
        int at = 0;
        while (at < n_queued && queued[at] != frames[i]) at++;
        assert_true(at < n_queued);
        assert_true(eligible(at, first, e));
        for (int k = 0; k < at; k++) assert_ptr_not_equal(queued[k]->stream, frames[i]->stream); /* in order */
        assert_ptr_equal(frames[i]->engine, e);
        in += rows_in_room(frames[i]);
        out += rows_out_room(frames[i]);
        taken[session_index(frames[i])]++;
        forget(frames[i]);
        for (int k = 0; k < n_queued; k++)
            if (queued[k]->stream == frames[i]->stream) bound[stream_index(frames[i])] = e;
    }
    assert_true(n == 1 || (in <= limits.slot_bytes && out <= limits.slot_bytes));
    bool more = false, none_fits = false;
    for (int i = 0; i < n_queued; i++) {
        if (!eligible(i, first, e)) continue;
        more = true;
        left[session_index(queued[i])]++;
        if (in + rows_in_room(queued[i]) > limits.slot_bytes || out + rows_out_room(queued[i]) > limits.slot_bytes)
            none_fits = true;
    }
    if ((uint32_t)n < limits.max_frames) assert_true(!more || none_fits); /* nobody left out without reason */
    for (int s = 0; s < SESSIONS; s++)
        for (int r = 0; r < SESSIONS; r++)
            if (left[s]) assert_true(taken[r] <= taken[s] + 1); /* sessions in turn */
}

static void step_take(batcher *b) {
    static frame *frames[BATCH_FRAMES_MAX];
    struct engine *e = (struct engine *)&engines[pick(ENGINES)];
    bool busy = pick(4) != 0;
    frame *best = NULL;
    close_cause want = CLOSE_CAUSES, got = CLOSE_CAUSES;
    for (int m = 0; m < MODELS; m++) {
        frame *f = oldest_of(m, e);
        close_cause c = f ? due(f, e, busy) : CLOSE_CAUSES;
        if (c == CLOSE_CAUSES || (best && best->order < f->order)) continue;
        best = f;
        want = c;
    }
    frame copy = best ? *best : (frame){0};
    int32_t n = batcher_take(b, e, busy, now_ns, frames, &got);
    assert_int_equal(n > 0, best != NULL);
    if (!best) return;
    assert_int_equal(got, want);
    check_batch(frames, n, &copy, e);
    for (int32_t i = 0; i < n; i++) free(frames[i]);
    n_taken += (uint64_t)n;
}

static void on_expired(void *ctx, frame *f) {
    uint64_t *last = ctx;
    assert_true(f->t_expire_ns != 0 && f->t_expire_ns <= now_ns && f->t_expire_ns >= *last);
    *last = f->t_expire_ns;
    forget(f);
    free(f);
    n_expired++;
}
static void on_dropped(void *ctx, frame *f) {
    assert_ptr_equal(f->session, ctx);
    forget(f);
    free(f);
    n_dropped++;
}

static void step_other(batcher *b) {
    uint64_t last = 0;
    batcher_expire(b, now_ns, (frame_sink){on_expired, &last});
    for (int i = 0; i < n_queued; i++) assert_true(!queued[i]->t_expire_ns || queued[i]->t_expire_ns > now_ns);
    if (pick(200) == 0) {
        struct session *s = (struct session *)&sessions[pick(SESSIONS)];
        batcher_drop_session(b, s, (frame_sink){on_dropped, s});
        for (int i = 0; i < n_queued; i++) assert_ptr_not_equal(queued[i]->session, s);
    }
    if (pick(200) == 0) {
        int m = (int)pick(MODELS + 1);
        batcher_flush(b, m < MODELS ? (struct generation *)&models[m] : NULL);
        for (int i = 0; i < n_queued; i++)
            if (m == MODELS || model_index(queued[i]) == m) flushing[model_index(queued[i])] = true;
    }
    if (pick(500) == 0) {
        limits.max_frames = 1 + pick(16);
        batcher_set_limits(b, &limits);
    }
}

static void test_against_oracle(void **state) {
    (void)state;
    batcher *b;
    srand(7);
    assert_int_equal(batcher_new(&b, &limits), 0);
    for (int i = 0; i < STEPS; i++) {
        now_ns += pick(40000);
        if (pick(100) < (i / 2000 % 2 ? 60u : 90u) && n_queued < 400) step_push(b);
        if (pick(100) < 25) step_take(b);
        step_other(b);
        assert_int_equal(batcher_queued(b), n_queued);
        assert_true(batcher_next_ns(b) > now_ns || n_queued == 0);
    }
    batcher_flush(b, NULL);
    for (int m = 0; m < MODELS; m++) flushing[m] = true;
    while (n_queued > 0) step_take(b);
    assert_int_equal(n_pushed, n_taken + n_expired + n_dropped);
    assert_int_equal(batcher_queued(b), 0);
    assert_true(n_taken > 5000 && n_expired > 1000 && n_dropped > 100);
    for (int c = 0; c < CLOSE_CAUSES; c++) assert_true(batcher_closed(b, (close_cause)c) > 20);
    batcher_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_oracle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
