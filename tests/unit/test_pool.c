/* test_pool.c: the worker pool: every worker once a run, runs in order, and nothing left behind. */
#include "pool.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

typedef struct {
    int32_t calls[256]; /* not atomic: only worker i writes calls[i], and pool_run orders it */
    int32_t n_workers;
    pthread_t caller;
    int caller_is_zero, signals_open;
} record;

static void note(void *ctx, int32_t worker, int32_t n_workers) {
    record *r = ctx;
    r->calls[worker]++;
    if (worker == 0) {
        r->n_workers = n_workers;
        r->caller_is_zero = pthread_equal(pthread_self(), r->caller);
    }
}

static void every_worker_runs_once_a_run(void **state) {
    (void)state;
    const int32_t sizes[] = {1, 2, 3, 8, 64};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        pool *p = NULL;
        assert_int_equal(pool_new(&p, sizes[s]), 0);
        assert_int_equal(pool_workers(p), sizes[s]);
        record r = {.caller = pthread_self()};
        for (int run = 0; run < 50; run++) {
            pool_run(p, note, &r);
            for (int32_t i = 0; i < 256; i++) assert_int_equal(r.calls[i], i < sizes[s] ? run + 1 : 0);
        }
        assert_int_equal(r.n_workers, sizes[s]);
        assert_true(r.caller_is_zero);
        pool_free(p);
    }
}

/* Each phase reads what the neighbour wrote in the phase before: a missing barrier shows as a wrong number here and as a
 * race under -fsanitize=thread. */
typedef struct {
    int64_t now[16], before[16];
    int flip;
} ring;

static void pass_on(void *ctx, int32_t worker, int32_t n_workers) {
    ring *r = ctx;
    int64_t *from = r->flip ? r->now : r->before, *to = r->flip ? r->before : r->now;
    to[worker] = from[(worker + 1) % n_workers] + 1;
}

static void runs_are_ordered(void **state) {
    (void)state;
    for (int32_t n = 2; n <= 16; n *= 2) {
        pool *p = NULL;
        assert_int_equal(pool_new(&p, n), 0);
        ring r;
        memset(&r, 0, sizeof r);
        for (int run = 0; run < 2000; run++) {
            pool_run(p, pass_on, &r);
            r.flip = !r.flip;
            if (run % 500 == 0) usleep(1000); /* long enough for the workers to fall asleep */
        }
        for (int32_t i = 0; i < n; i++) assert_int_equal((r.flip ? r.now : r.before)[i], 2000);
        pool_free(p);
    }
}

static void *run_elsewhere(void *arg) {
    void **args = arg;
    pool_run(args[0], note, args[1]);
    return NULL;
}

static void any_thread_may_call(void **state) {
    (void)state;
    pool *p = NULL;
    assert_int_equal(pool_new(&p, 3), 0);
    record r = {.caller = pthread_self()};
    void *args[] = {p, &r};
    for (int i = 1; i <= 10; i++) {
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, run_elsewhere, args), 0);
        pthread_join(t, NULL);
        pool_run(p, note, &r);
        assert_int_equal(r.calls[2], 2 * i);
    }
    pool_free(p);
}

static void look_at_signals(void *ctx, int32_t worker, int32_t n_workers) {
    (void)n_workers;
    record *r = ctx;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (worker == 1) r->signals_open = !sigismember(&mask, SIGTERM) + !sigismember(&mask, SIGINT);
    if (worker == 0) r->calls[0] = sigismember(&mask, SIGTERM);
}

static void signals_stay_with_the_caller(void **state) {
    (void)state;
    pool *p = NULL;
    assert_int_equal(pool_new(&p, 2), 0);
    record r = {.signals_open = -1};
    r.calls[0] = -1;
    pool_run(p, look_at_signals, &r);
    assert_int_equal(r.signals_open, 0);
    assert_int_equal(r.calls[0], 0); /* the caller's own mask is as it was */
    pool_free(p);
}

static void wrong_sizes_are_refused(void **state) {
    (void)state;
    pool *p = (pool *)state;
    const int32_t bad[] = {0, -1, 257, INT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(pool_new(&p, bad[i]), -EINVAL);
    assert_int_equal(pool_new(NULL, 1), -EINVAL);
    assert_ptr_equal(p, state);
    pool_free(NULL);
}

static void a_pool_that_never_ran_ends(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        pool *p = NULL;
        assert_int_equal(pool_new(&p, 5), 0);
        pool_free(p);
    }
}

static void default_workers_follow_affinity(void **state) {
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int32_t workers = pool_default_workers();
    assert_in_range(workers, 1, CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_SET(cpu, &one);
        break;
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    int32_t pinned = pool_default_workers();
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(pinned, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_worker_runs_once_a_run),
        cmocka_unit_test(runs_are_ordered),
        cmocka_unit_test(any_thread_may_call),
        cmocka_unit_test(signals_stay_with_the_caller),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(a_pool_that_never_ran_ends),
        cmocka_unit_test(default_workers_follow_affinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
