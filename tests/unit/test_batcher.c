/* test_batcher.c: flow.md 9-13 in virtual time: causes, kinds, turns, ttl, overload. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "batcher.h"
#include "rows.h"

#define US 1000ull
enum { MAX_DELAY_US = 500, MAX_FRAMES = 4 };

/* Sessions, streams, models and engines are names to the batcher: addresses in these arrays stand for them. */
static char sessions[64], streams[4096], models[4], engines[2];
#define SESSION(i) ((struct session *)&sessions[i])
#define STREAM(i)  ((struct stream *)&streams[i])
#define MODEL(i)   ((struct generation *)&models[i])
#define ENGINE(i)  ((struct engine *)&engines[i])

static frame pool[8192];
static int n_pool;
static uint64_t order;

static int setup(void **state) {
    batcher *b;
    batcher_limits limits = {.max_frames = MAX_FRAMES, .max_delay_us = MAX_DELAY_US, .slot_bytes = 1 << 20};
    n_pool = 0;
    order = 0;
    memset(pool, 0, sizeof pool);
    if (batcher_new(&b, &limits)) return -1;
    *state = b;
    return 0;
}

static int teardown(void **state) {
    batcher_free(*state);
    return 0;
}

static frame *frame_at(int session, int stream, uint64_t now_ns) {
    assert_true(n_pool < (int)(sizeof pool / sizeof *pool));
    frame *f = &pool[n_pool++];
    *f = (frame){.session = SESSION(session),
        .stream = STREAM(stream),
        .model = MODEL(0),
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F32,
        .c_in = 1,
        .c_out = 1,
        .n_groups = 1,
        .t_in = 64,
        .t_out = 64,
        .t_read_ns = now_ns,
        .order = ++order};
    return f;
}

static frame *push(batcher *b, int session, int stream, uint64_t now_ns) {
    frame *f = frame_at(session, stream, now_ns);
    assert_int_equal(batcher_push(b, f), 0);
    return f;
}

static frame *taken[BATCH_FRAMES_MAX];
static close_cause cause;
static int32_t take(batcher *b, bool busy, uint64_t now_ns) {
    return batcher_take(b, ENGINE(0), busy, now_ns, taken, &cause);
}

static frame *left[8192];
static int n_left;
static void on_left(void *ctx, frame *f) {
    (void)ctx;
    left[n_left++] = f;
}
static const frame_sink to_left = {on_left, NULL};

static void test_causes(void **state) {
    batcher *b = *state;
    assert_int_equal(take(b, false, 0), 0);
    assert_int_equal(batcher_next_ns(b), UINT64_MAX);

    push(b, 0, 0, 1000 * US); /* an idle engine takes a frame alone, at once */
    assert_int_equal(take(b, false, 1000 * US), 1);
    assert_int_equal(cause, CLOSE_IDLE);

    push(b, 0, 0, 2000 * US); /* a busy one waits for the deadline of the oldest */
    push(b, 0, 0, 2300 * US);
    assert_int_equal(take(b, true, 2499 * US), 0);
    assert_int_equal(batcher_next_ns(b), 2500 * US);
    assert_int_equal(take(b, true, 2500 * US), 2);
    assert_int_equal(cause, CLOSE_DEADLINE);
    assert_int_equal(batcher_next_ns(b), UINT64_MAX);

    for (int i = 0; i < MAX_FRAMES; i++) { /* or for the batch to be full */
        assert_int_equal(take(b, true, 3000 * US), 0);
        push(b, 0, 0, 3000 * US);
    }
    push(b, 0, 0, 3000 * US);
    assert_int_equal(take(b, true, 3000 * US), MAX_FRAMES);
    assert_int_equal(cause, CLOSE_FULL);
    assert_int_equal(batcher_queued(b), 1);

    assert_int_equal(take(b, true, 3001 * US), 0);
    batcher_flush(b, MODEL(1));
    assert_int_equal(take(b, true, 3001 * US), 0);
    batcher_flush(b, MODEL(0));
    assert_int_equal(take(b, true, 3001 * US), 1);
    assert_int_equal(cause, CLOSE_FLUSH);
    push(b, 0, 0, 3002 * US); /* a flush ends with the queue */
    assert_int_equal(take(b, true, 3002 * US), 0);
    batcher_flush(b, NULL);
    assert_int_equal(take(b, true, 3002 * US), 1);
    for (int c = 0; c < CLOSE_CAUSES; c++) assert_int_equal(batcher_closed(b, c), c == CLOSE_FLUSH ? 2 : 1);
}

/* What is due and finds no slot must not keep the timer firing. */
static void test_past_deadline_is_no_timer(void **state) {
    batcher *b = *state;
    push(b, 0, 0, 1000 * US);
    batcher_expire(b, 1600 * US, to_left);
    assert_int_equal(batcher_next_ns(b), UINT64_MAX);
    frame *f = frame_at(0, 1, 1600 * US);
    f->t_expire_ns = 1900 * US;
    assert_int_equal(batcher_push(b, f), 0);
    assert_int_equal(batcher_next_ns(b), 1900 * US);
    assert_int_equal(take(b, true, 1700 * US), 2);
    assert_int_equal(cause, CLOSE_DEADLINE);
}

/* Slot bytes close a batch before max_frames do, in and out alike; one frame always goes. */
static void test_slot_bytes(void **state) {
    batcher *b = *state;
    for (int side = 0; side < 2; side++) {
        uint64_t now = 1000 * US * (unsigned)(side + 1);
        int32_t got[4];
        for (int i = 0; i < 3; i++) {
            frame *f = frame_at(0, i, now);
            *(side ? &f->t_out : &f->t_in) = 128 << 10; /* 512 KiB: two fill the slot */
            assert_int_equal(batcher_push(b, f), 0);
        }
        got[0] = take(b, true, now);
        assert_int_equal(cause, CLOSE_FULL);
        got[1] = take(b, true, now);
        got[2] = take(b, false, now);
        assert_int_equal(got[0], 2);
        assert_int_equal(got[1], 0);
        assert_int_equal(got[2], 1);
    }
    frame *f = frame_at(0, 0, 3000 * US);
    f->t_in = 100 << 10;
    assert_int_equal(batcher_push(b, f), 0);
    f = frame_at(0, 0, 3000 * US); /* together above the slot: the second waits */
    f->t_in = 200 << 10;
    assert_int_equal(batcher_push(b, f), 0);
    assert_int_equal(take(b, true, 3000 * US), 1);
    assert_int_equal(take(b, false, 3000 * US), 1);
}

/* Frames of another kind stay, and hold back the later ones of their stream; other streams go on. */
static void test_kinds_hold_back(void **state) {
    batcher *b = *state;
    batcher_set_limits(b, &(batcher_limits){.max_frames = 64, .max_delay_us = 500, .slot_bytes = 1 << 20});
    for (int kind = 0; kind < 4; kind++) {
        uint64_t now = 10000 * US * (unsigned)(kind + 1);
        frame *f[6];
        for (int i = 0; i < 6; i++) {
            f[i] = frame_at(i / 3, i / 3, now); /* stream 0: f0 f1 f2, stream 1: f3 f4 f5 */
            f[i]->norm = NCT_NORM_OWN;
        }
        if (kind == 0) f[1]->x_dtype = NCT_I16;
        if (kind == 1) f[1]->y_dtype = NCT_BF16;
        if (kind == 2) f[1]->norm = NCT_NORM_GIVEN;
        if (kind == 3) f[1]->observe = true;
        for (int i = 0; i < 6; i++) assert_int_equal(batcher_push(b, f[i]), 0);
        assert_int_equal(take(b, false, now), 4);
        for (int i = 0; i < 4; i++) assert_true(taken[i] == f[0] || (taken[i] >= f[3] && taken[i] <= f[5]));
        assert_int_equal(take(b, false, now), 1);
        assert_ptr_equal(taken[0], f[1]);
        assert_int_equal(take(b, false, now), 1);
        assert_ptr_equal(taken[0], f[2]);
    }
}

/* "full" counts the oldest one's kind alone, and without what is held back. */
static void test_full_counts_one_kind(void **state) {
    batcher *b = *state;
    frame *f = frame_at(0, 0, 1000 * US);
    f->x_dtype = NCT_I16;
    assert_int_equal(batcher_push(b, f), 0);
    for (int i = 0; i < 8; i++) push(b, 1, 1, 1001 * US);
    assert_int_equal(take(b, true, 1002 * US), 0);
    assert_int_equal(take(b, true, 1500 * US), 1);
    assert_ptr_equal(taken[0], f);
    assert_int_equal(take(b, true, 1500 * US), MAX_FRAMES);
    assert_int_equal(take(b, true, 1500 * US), MAX_FRAMES);
}

/* Generations never mix, and a stream's frames of the new one wait for those of the old one. */
static void test_generations(void **state) {
    batcher *b = *state;
    frame *old = push(b, 0, 0, 1000 * US), *fresh = frame_at(0, 0, 1001 * US), *other = frame_at(1, 1, 1002 * US);
    fresh->model = other->model = MODEL(1);
    assert_int_equal(batcher_push(b, fresh), 0);
    assert_int_equal(batcher_push(b, other), 0);
    batcher_flush(b, MODEL(1));
    assert_int_equal(take(b, true, 1003 * US), 1);
    assert_ptr_equal(taken[0], other);
    assert_int_equal(take(b, true, 1003 * US), 0);
    assert_int_equal(take(b, false, 1003 * US), 1);
    assert_ptr_equal(taken[0], old);
    assert_int_equal(take(b, true, 1003 * US), 1); /* the flush still holds for it */
    assert_ptr_equal(taken[0], fresh);
}

/* Of several due queues, the one whose oldest frame is oldest. */
static void test_oldest_queue_first(void **state) {
    batcher *b = *state;
    frame *f[3];
    for (int i = 0; i < 3; i++) {
        f[i] = frame_at(i, i, (1000 + (uint64_t)i) * US);
        f[i]->model = MODEL((i + 2) % 3);
        assert_int_equal(batcher_push(b, f[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(take(b, true, 5000 * US), 1);
        assert_ptr_equal(taken[0], f[i]);
    }
}

/* One session floods, 63 send one frame at a time: each of the small ones is in the next four batches of 16, always. */
static void test_fairness(void **state) {
    batcher *b = *state;
    int waiting[64] = {0}, served[64] = {0};
    batcher_set_limits(b, &(batcher_limits){.max_frames = 16, .max_delay_us = 500, .slot_bytes = 1 << 20});
    for (int i = 0; i < 1000; i++) push(b, 0, i % 50, 1000 * US);
    for (int s = 1; s < 64; s++) push(b, s, 100 + s, 1000 * US);
    for (int round = 0; round < 200; round++) {
        uint64_t now = (1000 + 100 * (uint64_t)round) * US;
        assert_int_equal(take(b, true, now), 16);
        int n[64] = {0};
        for (int i = 0; i < 16; i++) n[(char *)taken[i]->session - sessions]++;
        assert_true(n[0] <= 1);
        for (int s = 1; s < 64; s++) {
            assert_true(n[s] <= 1);
            served[s] += n[s];
            waiting[s] = n[s] ? 0 : waiting[s] + 1;
            assert_true(waiting[s] <= 4);
            if (n[s]) push(b, s, 100 + s, now);
        }
        served[0] += n[0];
        for (int i = 0; i < n[0]; i++) push(b, 0, 7, now);
    }
    for (int s = 0; s < 64; s++) assert_int_equal(served[s], 50); /* 200 x 16 / 64, the flood too */
    batcher_drop_session(b, SESSION(0), to_left);
    batcher_flush(b, NULL);
    while (take(b, true, 100000 * US) > 0) {
    }
    n_left = 0;
}

/* A session's streams come in turn too: a deep one does not keep the others of its own client waiting. */
static void test_streams_in_turn(void **state) {
    batcher *b = *state;
    for (int i = 0; i < 20; i++) push(b, 0, 0, 1000 * US);
    push(b, 0, 1, 1000 * US);
    push(b, 0, 2, 1000 * US);
    assert_int_equal(take(b, true, 1000 * US), MAX_FRAMES);
    for (int i = 0; i < MAX_FRAMES; i++) assert_ptr_equal(taken[i]->stream, STREAM(i % 3));
    batcher_drop_session(b, SESSION(0), to_left);
    n_left = 0;
}

static void test_ttl(void **state) {
    batcher *b = *state;
    uint64_t ttl_us[] = {900, 300, 0, 600, 300};
    frame *f[5];
    n_left = 0;
    for (int i = 0; i < 5; i++) {
        f[i] = frame_at(0, i % 2, 1000 * US);
        f[i]->t_expire_ns = ttl_us[i] ? (1000 + ttl_us[i]) * US : 0;
        assert_int_equal(batcher_push(b, f[i]), 0);
    }
    batcher_set_limits(b, &(batcher_limits){.max_frames = 64, .max_delay_us = 100000, .slot_bytes = 1 << 20});
    assert_int_equal(batcher_next_ns(b), 1300 * US);
    batcher_expire(b, 1300 * US - 1, to_left);
    assert_int_equal(n_left, 0);
    batcher_expire(b, 1300 * US, to_left);
    assert_int_equal(n_left, 2);
    assert_true((left[0] == f[1] && left[1] == f[4]) || (left[0] == f[4] && left[1] == f[1]));
    batcher_expire(b, 5000 * US, to_left);
    assert_int_equal(n_left, 4);
    assert_ptr_equal(left[2], f[3]);
    assert_ptr_equal(left[3], f[0]);
    assert_int_equal(batcher_queued(b), 1);
    assert_int_equal(take(b, false, 5000 * US), 1);
    assert_ptr_equal(taken[0], f[2]);
}

/* An expired frame of another kind no longer holds back what stood behind it. */
static void test_expiry_lets_go(void **state) {
    batcher *b = *state;
    n_left = 0;
    push(b, 0, 0, 1000 * US);
    frame *f = frame_at(0, 0, 1000 * US);
    f->norm = NCT_NORM_GIVEN;
    f->t_expire_ns = 1100 * US;
    assert_int_equal(batcher_push(b, f), 0);
    for (int i = 0; i < MAX_FRAMES - 1; i++) push(b, 0, 0, 1000 * US);
    assert_int_equal(take(b, true, 1050 * US), 0);
    batcher_expire(b, 1100 * US, to_left);
    assert_int_equal(take(b, true, 1100 * US), MAX_FRAMES);
    for (int i = 1; i < MAX_FRAMES; i++) assert_true(taken[i]->order > taken[i - 1]->order);
}

static void test_drop_session(void **state) {
    batcher *b = *state;
    n_left = 0;
    for (int i = 0; i < 60; i++) push(b, i % 3, i % 6, 1000 * US);
    batcher_drop_session(b, SESSION(1), to_left);
    batcher_drop_session(b, SESSION(9), to_left);
    assert_int_equal(n_left, 20);
    for (int i = 0; i < n_left; i++) assert_ptr_equal(left[i]->session, SESSION(1));
    assert_int_equal(batcher_queued(b), 40);
    for (int n; (n = take(b, false, 1000 * US)) > 0;)
        for (int i = 0; i < n; i++) assert_ptr_not_equal(taken[i]->session, SESSION(1));
}

/* Streams bound to another engine stay; the first take binds a loose one while it has frames queued. */
static void test_engines(void **state) {
    batcher *b = *state;
    for (int i = 0; i < 6; i++) push(b, 0, i % 2, 1000 * US);
    frame *bound = frame_at(1, 2, 1001 * US);
    bound->engine = ENGINE(1);
    assert_int_equal(batcher_push(b, bound), 0);
    batcher_set_limits(b, &(batcher_limits){.max_frames = 1, .max_delay_us = 500, .slot_bytes = 1 << 20});
    assert_int_equal(take(b, false, 1002 * US), 1); /* stream 0 -> engine 0 */
    assert_int_equal(pool[0].engine == ENGINE(0), 1);
    batcher_set_limits(b, &(batcher_limits){.max_frames = 64, .max_delay_us = 500, .slot_bytes = 1 << 20});
    assert_int_equal(batcher_take(b, ENGINE(1), false, 1002 * US, taken, &cause), 4);
    for (int i = 0; i < 4; i++) {
        assert_ptr_not_equal(taken[i]->stream, STREAM(0));
        assert_ptr_equal(taken[i]->engine, ENGINE(1));
    }
    assert_int_equal(batcher_take(b, ENGINE(1), false, 1002 * US, taken, &cause), 0);
    assert_int_equal(take(b, false, 1002 * US), 2);
}

/* 4096 streams of 64 sessions at twice what is taken: nothing is lost, and when the load ends the queue empties. */
static void test_overload(void **state) {
    batcher *b = *state;
    uint64_t now = 0;
    uint32_t pushed = 0, done = 0, expired = 0;
    n_left = 0;
    batcher_set_limits(b, &(batcher_limits){.max_frames = 16, .max_delay_us = 500, .slot_bytes = 1 << 20});
    for (int i = 0; i < 8000; i++) {
        now += 10 * US;
        frame *f = frame_at(i % 64, i % 4096, now);
        f->t_expire_ns = now + 5000 * US;
        assert_int_equal(batcher_push(b, f), 0);
        pushed++;
        batcher_expire(b, now, to_left);
        if (i % 32 == 31) {
            int32_t n = take(b, true, now);
            assert_int_equal(n, 16);
            assert_int_equal(cause, CLOSE_FULL);
            for (int k = 0; k < n; k++) assert_true(taken[k]->t_expire_ns > now);
            done += (uint32_t)n;
        }
        assert_int_equal(pushed, done + (uint32_t)n_left + batcher_queued(b));
        assert_true(batcher_queued(b) <= 501);
    }
    expired = (uint32_t)n_left;
    assert_true(expired > 3000 && expired < 4000);
    for (int32_t n; (n = take(b, true, now += 1000 * US)) > 0;) done += (uint32_t)n;
    assert_int_equal(pushed, done + expired);
    assert_int_equal(batcher_queued(b), 0);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(test_causes), T(test_past_deadline_is_no_timer), T(test_slot_bytes),
        T(test_kinds_hold_back), T(test_full_counts_one_kind), T(test_generations), T(test_oldest_queue_first),
        T(test_fairness), T(test_streams_in_turn), T(test_ttl), T(test_expiry_lets_go), T(test_drop_session),
        T(test_engines), T(test_overload)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
