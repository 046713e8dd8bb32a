/* test_bench.c: nct bench without a daemon: sizes by lot, objectives, verdicts, and where a search goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

static void steps_come_in_turn(void **state) {
    (void)state;
    bench_options o = {.seed = 1};
    assert_int_equal(bench_take_steps(&o, "10,480,100"), 0);
    static const uint32_t turn[] = {10, 480, 100};
    for (uint64_t n = 0; n < 9; n++) assert_int_equal(bench_steps(&o, n), turn[n % 3]);
    assert_int_equal(bench_take_steps(&o, "7"), 0);
    assert_int_equal(bench_steps(&o, 12345), 7);
    assert_int_equal(bench_take_steps(&o, "10,,5"), -EINVAL);
    assert_int_equal(bench_take_steps(&o, "0"), -EINVAL);
    assert_int_equal(bench_take_steps(&o, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"), -EINVAL);
}

/* 20000 draws: each share is within 5 standard deviations of its weight, and a draw depends on seed and number alone. */
static void a_mix_is_drawn_by_weight(void **state) {
    (void)state;
    enum { DRAWS = 20000 };
    bench_options o = {.seed = 7};
    int n[3] = {0}, moved = 0;
    assert_int_equal(bench_take_mix(&o, "480:90,4800:9.5,48000:0.5"), 0);
    assert_int_equal(o.n_sizes, 3);
    bench_options other = o;
    other.seed = 8;
    for (uint64_t i = 0; i < DRAWS; i++) {
        uint32_t steps = bench_steps(&o, i);
        n[steps == 480 ? 0 : steps == 4800 ? 1 : 2]++;
        assert_int_equal(bench_steps(&o, i), steps);
        moved += bench_steps(&other, i) != steps;
    }
    for (int i = 0; i < 3; i++) {
        double share = (double[]){0.9, 0.095, 0.005}[i], off = n[i] - share * DRAWS;
        if (!(fabs(off) <= 5 * sqrt(DRAWS * share * (1 - share)))) fail_msg("size %d was drawn %d times", i, n[i]);
    }
    assert_true(moved > DRAWS / 20);
    assert_int_equal(bench_take_mix(&o, "480"), -EINVAL);
    assert_int_equal(bench_take_mix(&o, "480:0"), -EINVAL);
    assert_int_equal(bench_take_mix(&o, "480:nan"), -EINVAL);
    assert_int_equal(bench_take_mix(&o, "480:1,:2"), -EINVAL);
}

static void objectives(void **state) {
    (void)state;
    bench_options o = {.seed = 1};
    assert_int_equal(bench_take_slo(&o, "p99=10ms"), 0);
    assert_int_equal(o.n_slos, 1);
    assert_int_equal(o.slos[0].limit_ns, 10000000);
    assert_true(fabs(o.slos[0].q - 0.99) < 1e-12);
    assert_int_equal(bench_take_slo(&o, "p50=200us,p99.9=1s,p999=2s,max=1min"), 0);
    assert_int_equal(o.n_slos, 4);
    assert_true(fabs(o.slos[1].q - 0.999) < 1e-12 && fabs(o.slos[2].q - 0.999) < 1e-12 && o.slos[3].q == 1);
    assert_int_equal(o.slos[0].limit_ns, 200000);
    const char *const bad[] = {"", "p99", "p99=", "p99=10", "p0=1ms", "p100=1ms", "q99=1ms", "p99=-1ms", "p=1ms",
        "p99=1ms,", "p1=1ms,p2=1ms,p3=1ms,p4=1ms,p5=1ms"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (bench_take_slo(&o, bad[i]) != -EINVAL) fail_msg("taken: '%s'", bad[i]);
}

static void what_misses_an_objective(void **state) {
    (void)state;
    bench *b = calloc(1, sizeof *b);
    assert_int_equal(bench_take_slo(&b->o, "p50=1ms,p99=10ms"), 0);
    assert_ptr_equal(bench_missed(b), &b->o.slos[0]); /* nothing measured */
    for (int i = 0; i < 100; i++) hist_add(&b->sum.latency, i < 99 ? 900000 : 50000000);
    assert_ptr_equal(bench_missed(b), &b->o.slos[1]); /* the slowest of a hundred is the 0.99 quantile */
    for (int i = 0; i < 100; i++) hist_add(&b->sum.latency, 900000);
    assert_null(bench_missed(b));
    b->o.subscribe = "ipc:///x";
    assert_ptr_equal(bench_missed(b), &b->o.slos[0]); /* the subscriber heard nothing */
    assert_int_equal(bench_unheard(b), 200);
    for (int i = 0; i < 200; i++) hist_add(&b->sum.heard_after, 800000);
    assert_null(bench_missed(b));
    assert_int_equal(bench_lost(b), 0);
    b->sum.refused = 1, b->sum.expired = 2, b->sum.failed = 4, b->sum.dropped = 8, b->sum.unanswered = 16;
    assert_int_equal(bench_lost(b), 31);
    free(b);
}

/* Its own lag counts when it is beyond --lag and a tenth of what was measured. */
static void own_lag(void **state) {
    (void)state;
    bench *b = calloc(1, sizeof *b);
    b->o.lag_ms = 1;
    for (int i = 0; i < 1000; i++) hist_add(&b->sum.latency, 8000000), hist_add(&b->sum.lag, 900000);
    assert_false(bench_lagged(b));
    for (int i = 0; i < 1000; i++) hist_add(&b->sum.lag, 2000000);
    assert_true(bench_lagged(b));
    for (int i = 0; i < 1000; i++) hist_add(&b->sum.latency, 40000000);
    assert_false(bench_lagged(b));
    free(b);
}

static void histograms_merge(void **state) {
    (void)state;
    hist *h = calloc(3, sizeof *h);
    for (uint64_t i = 1; i <= 3000; i++) hist_add(&h[i % 2], i * 1000), hist_add(&h[2], i * 1000);
    hist_merge(&h[0], &h[1]);
    assert_memory_equal(&h[0], &h[2], sizeof *h);
    memset(&h[1], 0, sizeof *h);
    hist_merge(&h[0], &h[1]);
    assert_memory_equal(&h[0], &h[2], sizeof *h);
    hist_merge(&h[1], &h[0]);
    assert_memory_equal(&h[1], &h[2], sizeof *h);
    free(h);
}

/* A daemon that keeps the objective up to `limit`: how the search ends, and after how many levels. */
static knee *search(double limit, double first, double most, double within, int whole) {
    static knee k;
    k = (knee){0};
    for (double level; (level = knee_next(&k, first, most, within, whole)) > 0;) {
        knee_step s = {.level = level, .verdict = level <= limit ? KNEE_HOLDS : KNEE_MISSES};
        if (whole) assert_true(level == floor(level) && level >= 1);
        assert_true(level <= most);
        for (int i = 0; i < k.n; i++) assert_true(k.steps[i].level != level);
        knee_add(&k, &s);
    }
    return &k;
}

static void a_search_ends_at_the_limit(void **state) {
    (void)state;
    const double limits[] = {1, 2, 3, 15, 16, 17, 100, 151, 1000, 4095};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        knee *k = search(limits[i], 16, 4096, 0.05, 1);
        if (!(k->holds <= limits[i] && k->misses > limits[i])) fail_msg("limit %g: holds %g", limits[i], k->holds);
        assert_true(k->misses <= k->holds * 1.05 || k->misses == k->holds + 1);
        assert_true(k->n <= 16);
    }
    for (double limit = 0.7; limit < 1e6; limit *= 3.1) {
        knee *k = search(limit, 100, 1e7, 0.05, 0);
        assert_true(k->holds <= limit && k->misses > limit && k->misses <= k->holds * 1.05);
    }
}

static void the_lowest_miss_and_the_highest_hold_count(void **state) {
    (void)state;
    knee k = {0};
    const struct {
        double level;
        knee_verdict verdict;
    } tried[] = {{10, KNEE_HOLDS}, {40, KNEE_LAGS}, {5, KNEE_HOLDS}, {80, KNEE_MISSES}};
    for (int i = 0; i < 4; i++) knee_add(&k, &(knee_step){.level = tried[i].level, .verdict = tried[i].verdict});
    assert_true(k.holds == 10 && k.misses == 40);
    assert_string_equal(knee_limited_by(&k), "this program");
}

static void a_search_without_an_end(void **state) {
    (void)state;
    knee *k = search(1e9, 16, 3000, 0.05, 1);
    assert_true(k->holds == 3000 && k->misses == 0 && k->n == 9);
    k = search(0, 16, 4096, 0.05, 1);
    assert_true(k->holds == 0 && k->misses == 1 && k->n == 5);
    assert_string_equal(knee_limited_by(k), "the daemon");
    k = search(0, 100, 1e7, 0.05, 0);
    assert_true(k->holds == 0 && k->n <= 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_come_in_turn),
        cmocka_unit_test(a_mix_is_drawn_by_weight), cmocka_unit_test(objectives),
        cmocka_unit_test(what_misses_an_objective), cmocka_unit_test(own_lag), cmocka_unit_test(histograms_merge),
        cmocka_unit_test(a_search_ends_at_the_limit), cmocka_unit_test(the_lowest_miss_and_the_highest_hold_count),
        cmocka_unit_test(a_search_without_an_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
