/* test_heat.c: results made small: every dtype says the same, what is not finite shows, sizes and work are bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "heat.h"
#include "nct_layer.h"

static double value(const heat *h, int r, int c) {
    unsigned char code = h->cells[r * h->columns + c];
    return (double)h->low + ((double)h->high - (double)h->low) * code / 254;
}

static void small_results_are_shown_as_they_are(void **state) {
    (void)state;
    float y[3 * 5];
    heat h;
    for (int i = 0; i < 15; i++) y[i] = (float)(i - 7);
    memset(&h, 0x5a, sizeof h);
    assert_int_equal(heat_make(&h, y, NCT_F32, 3, 5), 0);
    assert_int_equal(h.rows, 3);
    assert_int_equal(h.columns, 5);
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 5; c++) assert_true(fabs(value(&h, r, c) - (double)y[r * 5 + c]) <= 14.0 / 254);
}

/* 0, 1, -2, 65504, 2^-24, -0.5 as f16 and (but for the two extremes) bf16. */
static void half_dtypes_read_right(void **state) {
    (void)state;
    unsigned char odd[1 + 12];
    const uint16_t half[6] = {0x0000, 0x3c00, 0xc000, 0x7bff, 0x0001, 0xb800};
    const uint16_t brain[6] = {0x0000, 0x3f80, 0xc000, 0x4780, 0x3380, 0xbf00};
    heat h;
    memcpy(odd + 1, half, sizeof half); /* any alignment */
    assert_int_equal(heat_make(&h, odd + 1, NCT_F16, 1, 6), 0);
    assert_true(h.low == -2.0f && h.high == 65504.0f);
    memcpy(odd + 1, brain, sizeof brain);
    assert_int_equal(heat_make(&h, odd + 1, NCT_BF16, 1, 6), 0);
    assert_true(h.low == -2.0f && h.high == 65536.0f);
    const uint16_t bad[4] = {0x3c00, 0x7c00, 0x7e01, 0xfc00};
    assert_int_equal(heat_make(&h, bad, NCT_F16, 1, 4), 0);
    assert_true(h.cells[0] != HEAT_NONFINITE);
    for (int i = 1; i < 4; i++) assert_int_equal(h.cells[i], HEAT_NONFINITE);
    const uint16_t tiny[2] = {0x0001, 0x8001};
    assert_int_equal(heat_make(&h, tiny, NCT_F16, 1, 2), 0);
    assert_true(fabs((double)h.high - 5.9604644775390625e-8) <= 1e-20 && h.low == -h.high);
}

static void large_results_keep_their_peaks_and_order(void **state) {
    (void)state;
    enum { C = 256, T = 4800 };
    float *y = malloc((size_t)C * T * sizeof *y);
    heat h;
    assert_non_null(y);
    for (int c = 0; c < C; c++)
        for (int t = 0; t < T; t++) y[c * T + t] = (c < 128 ? 1.0f : -3.0f) * (t < T / 2 ? 1.0f : 0.25f);
    assert_int_equal(heat_make(&h, y, NCT_F32, C, T), 0);
    assert_int_equal(h.rows, HEAT_ROWS);
    assert_int_equal(h.columns, HEAT_COLUMNS);
    assert_true(h.low == -3.0f && h.high == 1.0f);
    for (int r = 0; r < HEAT_ROWS; r++)
        for (int c = 0; c < HEAT_COLUMNS; c++) {
            double expected = (r < HEAT_ROWS / 2 ? 1.0 : -3.0) * (c < HEAT_COLUMNS / 2 ? 1.0 : 0.25);
            assert_true(fabs(value(&h, r, c) - expected) <= 4.0 / 254);
        }
    free(y);
}

/* A cell shows the sample of largest magnitude among its own, wherever that stands. */
static void a_cell_is_its_peak(void **state) {
    (void)state;
    float y[HEAT_COLUMNS * 3];
    heat h;
    for (int peak = 0; peak < 3; peak++) {
        for (int i = 0; i < HEAT_COLUMNS * 3; i++) y[i] = i % 3 == peak ? -5.0f : 2.0f;
        y[peak] = 5.0f;
        assert_int_equal(heat_make(&h, y, NCT_F32, 1, HEAT_COLUMNS * 3), 0);
        assert_int_equal(h.columns, HEAT_COLUMNS);
        for (int c = 0; c < HEAT_COLUMNS; c++) assert_true(fabs(value(&h, 0, c) - (c ? -5.0 : 5.0)) <= 10.0 / 254);
    }
}

static void constants_zeros_and_nothing(void **state) {
    (void)state;
    float y[2] = {2.5f, 2.5f}, nan[2] = {NAN, INFINITY};
    heat h;
    assert_int_equal(heat_make(&h, y, NCT_F32, 2, 1), 0);
    assert_true(h.low == 2.5f && h.high == 2.5f && h.cells[0] == 0 && h.cells[1] == 0);
    assert_int_equal(heat_make(&h, nan, NCT_F32, 1, 2), 0);
    assert_true(h.low == 0.0f && h.high == 0.0f && h.cells[0] == HEAT_NONFINITE && h.cells[1] == HEAT_NONFINITE);
    assert_int_equal(heat_make(&h, y, NCT_F32, 0, 4), -EINVAL);
    assert_int_equal(heat_make(&h, y, NCT_F32, 4, 0), -EINVAL);
    assert_int_equal(heat_make(&h, y, NCT_I16, 1, 1), -EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_results_are_shown_as_they_are),
        cmocka_unit_test(half_dtypes_read_right),
        cmocka_unit_test(large_results_keep_their_peaks_and_order),
        cmocka_unit_test(a_cell_is_its_peak),
        cmocka_unit_test(constants_zeros_and_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
