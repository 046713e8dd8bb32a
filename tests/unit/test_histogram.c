/* test_histogram.c: buckets whose bounds are inclusive, cumulative when written, +Inf the same number as _count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "histogram.h"

static histogram latency(void) {
    return (histogram){.shape = &histogram_latency};
}

static void bounds_are_inclusive_and_above_the_last_is_counted(void **state) {
    (void)state;
    for (int i = 0; i < histogram_latency.n; i++) {
        histogram h = latency();
        histogram_add(&h, histogram_latency.bounds[i], 1);
        assert_int_equal(h.counts[i], 1);
        histogram_add(&h, histogram_latency.bounds[i] + 1, 1);
        assert_int_equal(h.counts[i + 1], 1);
    }
    histogram h = latency();
    histogram_add(&h, 0, 3);
    assert_int_equal(h.counts[0], 3);
    histogram_add(&h, UINT64_MAX / 8, 1);
    assert_int_equal(h.counts[histogram_latency.n], 1);
    assert_int_equal(histogram_count(&h), 4);
}

/* The written bounds are the numbers that are compared with. */
static void le_says_the_bound(void **state) {
    (void)state;
    for (int i = 0; i < histogram_latency.n; i++) {
        double s = strtod(histogram_latency.le[i], NULL), bound = (double)histogram_latency.bounds[i] * 1e-9;
        assert_true(fabs(s - bound) <= 1e-15 + 1e-12 * bound);
        assert_true(i == 0 || histogram_latency.bounds[i] > histogram_latency.bounds[i - 1]);
    }
    for (int i = 0; i < histogram_sizes.n; i++)
        assert_int_equal(strtoull(histogram_sizes.le[i], NULL, 10), histogram_sizes.bounds[i]);
    assert_true(histogram_latency.n < HISTOGRAM_BUCKETS_MAX);
}

static char *written(const histogram *h) {
    textbuf t = {NULL};
    size_t bytes = 0;
    histogram_write(h, &t, "x");
    char *text = text_take(&t, &bytes);
    assert_non_null(text);
    assert_int_equal(strlen(text), bytes);
    return text;
}

static void what_is_written_is_cumulative(void **state) {
    (void)state;
    histogram h = latency();
    uint64_t last = 0, inf = UINT64_MAX, n = 0, sum = 0;
    srand(3);
    for (int i = 0; i < 5000; i++) {
        uint64_t ns = (uint64_t)rand() * (uint64_t)(rand() % 9), times = (uint64_t)(rand() % 3);
        histogram_add(&h, ns, times);
        n += times;
        sum += ns * times;
    }
    char *text = written(&h), *rest = text, *line;
    int buckets = 0;
    double count = NAN, total = NAN;
    while ((line = strsep(&rest, "\n")) != NULL && *line) {
        char le[32];
        unsigned long long value;
        if (sscanf(line, "x_bucket{le=\"%31[^\"]\"} %llu", le, &value) == 2) {
            assert_true(value >= last);
            last = value;
            buckets++;
            if (!strcmp(le, "+Inf")) inf = value;
        } else if (!strncmp(line, "x_sum ", 6))
            total = strtod(line + 6, NULL);
        else if (!strncmp(line, "x_count ", 8))
            count = strtod(line + 8, NULL);
        else
            fail_msg("%s", line);
    }
    assert_int_equal(buckets, histogram_latency.n + 1);
    assert_int_equal(inf, n);
    assert_true(count == (double)n);
    assert_true(fabs(total - (double)sum * 1e-9) <= 1e-6);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_are_inclusive_and_above_the_last_is_counted),
        cmocka_unit_test(le_says_the_bound),
        cmocka_unit_test(what_is_written_is_cumulative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
