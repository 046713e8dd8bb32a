/* test_session.c: admission in virtual time: who may have how much, what the window says, and how sessions end. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "arena.h"
#include "session.h"

typedef struct {
    sessions ss;
    int ended;
    session *last;
} world;

static void on_gone(void *ctx, session *s) {
    world *w = ctx;
    w->ended++;
    w->last = s;
}

static void world_init(world *w, uint32_t max_clients, uint32_t window, uint64_t queue, uint64_t arena_bytes) {
    session_limits limits = {max_clients, window, queue, arena_bytes};
    *w = (world){.ended = 0};
    assert_int_equal(sessions_init(&w->ss, &limits, (session_sink){on_gone, w}), 0);
}

static session *opened(world *w) {
    session *s = NULL;
    session_why why;
    assert_int_equal(sessions_open(&w->ss, &s, NULL, "test", &why), 0);
    return s;
}

static int admit(world *w, session *s, size_t in, size_t out) {
    session_why why = {""};
    int error = session_admit(&w->ss, s, in, out, &why);
    assert_true(!error == !why.text[0]); /* a refusal always has its sentence */
    return error;
}

static void give_back(world *w, session *s, size_t in, size_t out) {
    session_give_in(&w->ss, s, in);
    session_give_out(&w->ss, s, out);
    session_give_place(s);
}

static void test_one_gets_half(void **state) {
    (void)state;
    world w;
    world_init(&w, 4, 64, 1000, 1 << 20);
    session *s = opened(&w);
    int n = 0;
    while (!admit(&w, s, 100, 1)) n++;
    assert_int_equal(n, 5); /* 400 + 100 <= 600, and 500 + 100 > 500 */
    assert_int_equal(admit(&w, s, 100, 1), -ENOBUFS);
    assert_int_equal(s->in_flight, 5);
    session *late = opened(&w);
    assert_int_equal(admit(&w, late, 100, 1), 0); /* there is room for who comes new */
    for (int i = 0; i < 5; i++) give_back(&w, s, 100, 1);
    give_back(&w, late, 100, 1);
    assert_int_equal(w.ss.in_used, 0);
    assert_int_equal(w.ss.out_used, 0);
    sessions_end(&w.ss, s);
    sessions_end(&w.ss, late);
    sessions_done(&w.ss);
}

static void test_sharing(void **state) {
    (void)state;
    enum { N = 7, UNIT = 10 };
    world w;
    session *s[N];
    int have[N] = {0};
    world_init(&w, N, 4096, 8000, 1 << 30);
    for (int i = 0; i < N; i++) s[i] = opened(&w);
    for (int round = 0; round < 500; round++)
        for (int i = 0; i < N; i++)
            if (!admit(&w, s[i], UNIT, 0)) have[i]++;
    for (int i = 0; i < N; i++) {
        assert_in_range(have[i], 99, 101); /* 1/(N + 1) of 800 each, and as much stays free */
        while (have[i]--) give_back(&w, s[i], UNIT, 0);
        sessions_end(&w.ss, s[i]);
    }
    sessions_done(&w.ss);
}

static void test_window_first(void **state) {
    (void)state;
    world w;
    world_init(&w, 1, 8, 24 * 10, 1 << 20);
    session *s = opened(&w);
    for (int i = 0; i < 8 + SESSION_SLACK; i++) assert_int_equal(admit(&w, s, 1, 1), 0);
    assert_int_equal(admit(&w, s, 1 << 20, 1), -EAGAIN); /* would be ENOBUFS too: the window speaks first */
    for (int i = 0; i < 8 + SESSION_SLACK; i++) give_back(&w, s, 1, 1);
    assert_int_equal(admit(&w, s, 1 << 20, 1), -ENOBUFS);
    assert_int_equal(admit(&w, s, 1, 1 << 21), -ENOBUFS);
    assert_int_equal(admit(&w, s, 1, 1 << 20), 0); /* a whole pool, when nobody else has any of it */
    give_back(&w, s, 1, 1 << 20);
    sessions_end(&w.ss, s);
    sessions_done(&w.ss);
}

static void test_window_says(void **state) {
    (void)state;
    world w;
    world_init(&w, 1, 16, 1600, 1 << 20);
    session *s = opened(&w);
    assert_int_equal(session_window(&w.ss, s), 16); /* nothing is known of its frames yet */
    assert_int_equal(admit(&w, s, 200, 0), 0);
    assert_int_equal(session_window(&w.ss, s), 7); /* 1400 free / 200 */
    assert_int_equal(admit(&w, s, 200, 0), 0);
    assert_int_equal(session_window(&w.ss, s), 6);
    give_back(&w, s, 200, 0);
    give_back(&w, s, 200, 0);
    assert_int_equal(session_window(&w.ss, s), 8);
    assert_int_equal(admit(&w, s, 1600, 0), 0);
    assert_int_equal(session_window(&w.ss, s), 1); /* nothing free: still one, or it could never go on */
    give_back(&w, s, 1600, 0);
    for (int i = 0; i < 200; i++) { /* small frames from now on: the mean follows */
        assert_int_equal(admit(&w, s, 1, 0), 0);
        give_back(&w, s, 1, 0);
    }
    assert_int_equal(session_window(&w.ss, s), 16);
    sessions_end(&w.ss, s);
    sessions_done(&w.ss);
}

static void test_out_window(void **state) {
    (void)state;
    world w;
    world_init(&w, 1, 64, 1 << 20, 10 * ARENA_PAGE);
    session *s = opened(&w);
    assert_int_equal(admit(&w, s, 1, session_out_charge(ARENA_PAGE + 1)), 0);
    assert_int_equal(session_window(&w.ss, s), 4); /* 8 pages free, 2 a frame */
    give_back(&w, s, 1, 2 * ARENA_PAGE);
    sessions_end(&w.ss, s);
    sessions_done(&w.ss);
    assert_int_equal(session_out_charge(0), 0);
    assert_int_equal(session_out_charge(ARENA_PAGE - 1), ARENA_PAGE - 1); /* small rows share pages */
    assert_int_equal(session_out_charge(ARENA_PAGE), ARENA_PAGE);
    assert_int_equal(session_out_charge(ARENA_PAGE + 1), 2 * ARENA_PAGE);
}

/* Clients that keep the window they are told are never refused for it, also while it shrinks under them; the pools
 * never run over; and when the load is gone, every window is whole again. */
static void test_overload(void **state) {
    (void)state;
    enum { N = 12, WINDOW = 32, TICKS = 20000 };
    world w;
    session *s[N];
    uint32_t told[N], flying[N] = {0}, refused_window = 0, refused_pool = 0, admitted = 0;
    size_t size[N];
    world_init(&w, N, WINDOW, 40000, 1 << 30);
    srand(7);
    for (int i = 0; i < N; i++) {
        s[i] = opened(&w);
        told[i] = session_window(&w.ss, s[i]);
        size[i] = 50 + 100 * (size_t)i;
    }
    for (int t = 0; t < TICKS; t++) {
        int i = rand() % N;
        bool load = t < TICKS / 2;
        if (load && flying[i] < told[i]) {
            int error = admit(&w, s[i], size[i], 0);
            if (!error) flying[i]++, admitted++;
            if (error == -EAGAIN) refused_window++;
            if (error == -ENOBUFS) refused_pool++;
        }
        int j = rand() % N; /* the service: slower than the load */
        if (flying[j] && rand() % 3 == 0) {
            give_back(&w, s[j], size[j], 0);
            flying[j]--;
            told[j] = session_window(&w.ss, s[j]);
        }
        assert_true(w.ss.in_used <= 40000);
    }
    assert_int_equal(refused_window, 0);
    assert_true(refused_pool > 0 && admitted > 0); /* it was an overload */
    for (int i = 0; i < N; i++) {
        while (flying[i]--) give_back(&w, s[i], size[i], 0);
        sessions_end(&w.ss, s[i]);
    }
    assert_int_equal(w.ss.in_used, 0);
    session *fresh = opened(&w);
    assert_int_equal(session_window(&w.ss, fresh), WINDOW);
    sessions_end(&w.ss, fresh);
    sessions_done(&w.ss);
}

static void test_ends(void **state) {
    (void)state;
    world w;
    session_why why = {""};
    session *extra = NULL;
    world_init(&w, 2, 4, 100, 100);
    session *a = opened(&w), *b = opened(&w);
    assert_true(a->id && b->id && a->id != b->id);
    assert_int_equal(sessions_open(&w.ss, &extra, NULL, "", &why), -EUSERS);
    assert_non_null(strstr(why.text, "2"));
    assert_ptr_equal(sessions_find(&w.ss, a->id), a);
    uint64_t id = a->id;

    session_ref(a); /* a frame of it is still in an engine */
    assert_int_equal(admit(&w, a, 10, 10), 0);
    sessions_fail(&w.ss, a);
    sessions_fail(&w.ss, a);
    assert_true(session_gone(a)); /* at once, for whoever has it in hand */
    assert_int_equal(w.ended, 0); /* the rest later, not in the middle of something */
    sessions_reap(&w.ss);
    assert_int_equal(w.ended, 1);
    assert_ptr_equal(w.last, a);
    sessions_end(&w.ss, a);
    assert_int_equal(w.ended, 1); /* once */
    assert_null(sessions_find(&w.ss, id));
    assert_int_equal(w.ss.in_used, 10); /* what is not let go of stays charged */
    give_back(&w, a, 10, 10);
    session_unref(a);
    assert_int_equal(w.ss.in_used + w.ss.out_used, 0);

    assert_int_equal(sessions_open(&w.ss, &extra, NULL, "", &why), 0);
    sessions_end(&w.ss, extra);
    sessions_end(&w.ss, b);
    sessions_done(&w.ss);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_gets_half), cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_window_first), cmocka_unit_test(test_window_says), cmocka_unit_test(test_out_window),
        cmocka_unit_test(test_overload), cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
