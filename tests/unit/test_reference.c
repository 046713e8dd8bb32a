/* test_reference.c: the oracle by hand-made numbers: dtypes both ways, the conv, the norm. PyTorch judges the rest
 * (tests/layer). */
#include "nct_layer.h"
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* One frame of (1, t) through a 1x1 conv of weight 1, nothing else. */
static void pass_through(const void *x, int32_t x_dtype, void *y, int32_t y_dtype, int32_t t) {
    const float one = 1;
    nct_params p = {.in_channels = 1,
        .out_channels = 1,
        .kernel_size = 1,
        .stride = 1,
        .dilation = 1,
        .groups = 1,
        .num_groups = 1,
        .eps = 1e-5};
    nct_weights w = {.weight = {&one, NCT_F32, 0}};
    nct_frame f = {.x_pitch = t, .y_pitch = t, .t_in = t, .t_out = t, .stat_in = -1, .stat_out = -1};
    nct_job job = {.n_frames = 1,
        .x_dtype = x_dtype,
        .y_dtype = NCT_F64,
        .frames = &f,
        .x = x,
        .x_count = t,
        .y = y,
        .y_count = t,
        .flags = NCT_CONV_ONLY};
    nct_stat unit = {.count = 1, .mean = 0, .m2 = 1 - 0x1p-10};
    if (y_dtype != NCT_F64) { /* a 16-bit y only comes after the norm: given mean 0, variance 1 - eps */
        p.eps = 0x1p-10;
        f.stat_in = 0;
        job.flags = 0;
        job.norm = NCT_NORM_GIVEN;
        job.stats = &unit;
        job.n_stats = 1;
        job.y_dtype = y_dtype;
    }
    nct_why why;
    if (nct_reference(&p, &w, &job, &why)) fail_msg("%s", why.text);
}

static void every_16_bit_value_is_read(void **state) {
    (void)state;
    uint16_t *x = malloc(65536 * sizeof *x);
    double *y = malloc(65536 * sizeof *y);
    for (int i = 0; i < 65536; i++) x[i] = (uint16_t)i;
    pass_through(x, NCT_I16, y, NCT_F64, 65536);
    for (int i = 0; i < 65536; i++) assert_true(y[i] == (int16_t)i / 32768.0);
    pass_through(x, NCT_BF16, y, NCT_F64, 65536);
    for (int i = 0; i < 65536; i++) {
        uint32_t bits = (uint32_t)i << 16;
        float want;
        memcpy(&want, &bits, 4);
        assert_true(y[i] == (double)want || (isnan(y[i]) && isnan(want)));
    }
    pass_through(x, NCT_F16, y, NCT_F64, 65536);
    for (int i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i;
        _Float16 want;
        memcpy(&want, &bits, 2);
        assert_true(y[i] == (double)want || (isnan(y[i]) && isnan((double)want)));
    }
    free(x);
    free(y);
}

static void wide_integers_and_doubles_are_read(void **state) {
    (void)state;
    const int32_t x[] = {INT32_MIN, -1, 0, 1, INT32_MAX};
    double y[5];
    pass_through(x, NCT_I32, y, NCT_F64, 5);
    for (int i = 0; i < 5; i++) assert_true(y[i] == x[i] / 2147483648.0);
    const double d[] = {1.0 / 3, -1e-30, 1e30, 1e39, NAN};
    pass_through(d, NCT_F64, y, NCT_F64, 5);
    for (int i = 0; i < 3; i++) assert_true(y[i] == d[i]);
    assert_true(isinf(y[3])); /* beyond f32's range */
    assert_true(isnan(y[4]));
}

/* Values about every f16 and bf16 and about the middles between neighbours, against the compiler's conversion. */
static void results_round_to_nearest_even(void **state) {
    (void)state;
    enum { N = 3 * 65536 };
    double *x = malloc(N * sizeof *x);
    uint16_t *y = malloc(N * sizeof *y);
    int n = 0;
    for (uint32_t i = 0; i + 1 < 0x7c00; i++) {
        _Float16 low, high;
        uint16_t bits = (uint16_t)i, next = (uint16_t)(i + 1);
        memcpy(&low, &bits, 2);
        memcpy(&high, &next, 2);
        double middle = ((double)low + (double)high) / 2;
        x[n++] = middle;
        x[n++] = -nextafter(middle, 0);
        x[n++] = nextafter(middle, 1e9);
    }
    x[n++] = 65519.99;
    x[n++] = 65520;
    x[n++] = -1e30;
    x[n++] = NAN;
    pass_through(x, NCT_F64, y, NCT_F16, n);
    for (int i = 0; i < n; i++) {
        _Float16 want = (_Float16)x[i], got;
        memcpy(&got, &y[i], 2);
        assert_true(got == want || (isnan((double)got) && isnan(x[i])));
    }
    const double b[] = {
        1.00390625, 1.01171875, 1.003906250001, -1.00390625, 3.3895313892515355e38, 3.4e38, 1e-40, NAN};
    const uint16_t want[] = {0x3f80, 0x3f82, 0x3f81, 0xbf80, 0x7f7f, 0x7f80, 0x0001, 0x7fc0};
    pass_through(b, NCT_F64, y, NCT_BF16, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(y[i], want[i]);
    free(x);
    free(y);
}

/* x (1,2,5) = 0..9, w (4,2,3) = 0..23, bias 1, stride 2: PyTorch's literal. */
static void the_conv_by_hand(void **state) {
    (void)state;
    float x[10], w[24], bias[4] = {1, 1, 1, 1}, y[8];
    for (int i = 0; i < 24; i++) w[i] = (float)i;
    for (int i = 0; i < 10; i++) x[i] = (float)i;
    nct_params p = {.in_channels = 2,
        .out_channels = 4,
        .kernel_size = 3,
        .stride = 2,
        .dilation = 1,
        .groups = 1,
        .num_groups = 2,
        .eps = 1e-5};
    nct_weights weights = {.weight = {w, NCT_F32, 0}, .bias = {bias, NCT_F32, 0}};
    nct_frame f = {.x_pitch = 5, .y_pitch = 2, .t_in = 5, .t_out = 2, .stat_in = -1, .stat_out = -1};
    nct_job job = {.n_frames = 1,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F32,
        .frames = &f,
        .x = x,
        .x_count = 10,
        .y = y,
        .y_count = 8,
        .flags = NCT_CONV_ONLY};
    assert_int_equal(nct_reference(&p, &weights, &job, NULL), 0);
    const float want[] = {80, 110, 206, 308, 332, 506, 458, 704};
    for (int i = 0; i < 8; i++) assert_true(y[i] == want[i]);
}

/* Values 1 2 3 4 in one group: mean 2.5, biased variance 1.25. */
static void the_norm_by_hand(void **state) {
    (void)state;
    float x[] = {1, 2, 3, 4}, one = 1, gamma = 2, beta = 10;
    double y[4];
    nct_stat stat = {0};
    uint32_t flags = 77;
    nct_params p = {.in_channels = 1,
        .out_channels = 1,
        .kernel_size = 1,
        .stride = 1,
        .dilation = 1,
        .groups = 1,
        .num_groups = 1,
        .eps = 0.75};
    nct_weights w = {.weight = {&one, NCT_F32, 0}, .gamma = {&gamma, NCT_F32, 0}, .beta = {&beta, NCT_F32, 0}};
    nct_frame f = {.x_pitch = 4, .y_pitch = 4, .t_in = 4, .t_out = 4, .stat_in = -1, .stat_out = 0};
    nct_job job = {.n_frames = 1,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F64,
        .frames = &f,
        .x = x,
        .x_count = 4,
        .y = y,
        .y_count = 4,
        .stats = &stat,
        .n_stats = 1,
        .frame_flags = &flags};
    assert_int_equal(nct_reference(&p, &w, &job, NULL), 0);
    for (int i = 0; i < 4; i++) assert_true(fabs(y[i] - ((x[i] - 2.5) / sqrt(2) * 2 + 10)) <= 1e-14);
    assert_true(stat.count == 4 && stat.mean == 2.5 && stat.m2 == 5);
    assert_int_equal(flags, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_value_is_read),
        cmocka_unit_test(wide_integers_and_doubles_are_read),
        cmocka_unit_test(results_round_to_nearest_even),
        cmocka_unit_test(the_conv_by_hand),
        cmocka_unit_test(the_norm_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
