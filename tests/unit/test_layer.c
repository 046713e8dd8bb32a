/* test_layer.c: what layer.c holds params, geometry, weights and placement to: the error, and the numbers it names. */
#include "layer_fixture.h"
#include <errno.h>
#include <math.h>

/* ---- parameters ---- */

typedef struct {
    size_t field; /* of nct_params, an int32_t */
    int32_t value;
    int error;
    const char *text;
} param_case;
#define P(field) offsetof(nct_params, field)
static const param_case param_cases[] = {
    {P(in_channels), 0, -EINVAL, "in_channels is 0"},
    {P(out_channels), -6, -EINVAL, "out_channels is -6"},
    {P(kernel_size), 0, -EINVAL, "kernel_size is 0"},
    {P(stride), 0, -EINVAL, "stride is 0"},
    {P(stride), -2, -EINVAL, "stride is -2"},
    {P(dilation), 0, -EINVAL, "dilation is 0"},
    {P(dilation), 1 << 30, -EINVAL, "dilation 1073741824 x (kernel_size 3 - 1)"},
    {P(groups), 0, -EINVAL, "groups is 0"},
    {P(groups), 3, -EINVAL, "in_channels 4 cannot be divided into 3"},
    {P(groups), 4, -EINVAL, "out_channels 6 cannot be divided into 4"},
    {P(num_groups), 0, -EINVAL, "num_groups is 0"},
    {P(num_groups), -1, -EINVAL, "num_groups is -1"},
    {P(num_groups), 4, -EINVAL, "out_channels 6 cannot be divided into num_groups 4"},
    {P(pad_left), -1, -EINVAL, "padding is -1 on the left"},
    {P(pad_right), -3, -EINVAL, "-3 on the right"},
    {P(pad_right), INT32_MAX, -EINVAL, "padding 1 + 2147483647"},
    {P(padding_mode), 4, -EINVAL, "padding_mode 4"},
    {P(padding_mode), -1, -EINVAL, "padding_mode -1"},
    {P(activation), 7, -EINVAL, "activation 7"},
    {P(activation), -1, -EINVAL, "activation -1"},
    {P(pre_activation), NCT_RELU, -ENOTSUP, "pre_activation is 1"},
    {P(reserved[7]), 5, -EINVAL, "reserved[7] of the layer parameters is 5"},
};

static void params_are_checked(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof param_cases / sizeof *param_cases; i++) {
        fixture f;
        fixture_init(&f);
        memcpy((char *)&f.p + param_cases[i].field, &param_cases[i].value, sizeof(int32_t));
        nct_layer *l = (nct_layer *)&f;
        expect(&f, nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), param_cases[i].error, param_cases[i].text);
        assert_ptr_equal(l, &f); /* untouched on failure */
        expect(&f, nct_reference(&f.p, &f.w, &f.job, &f.why), param_cases[i].error, param_cases[i].text);
    }
}

static void eps_must_be_finite_and_positive(void **state) {
    (void)state;
    const double bad[] = {0, -1e-5, NAN, INFINITY, 1e-40};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fixture f;
        fixture_init(&f);
        f.p.eps = bad[i];
        expect(&f, params_check(&f.p, &f.why), -EINVAL, "eps is ");
    }
}

static void a_weight_beyond_memory_is_refused(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    f.p.in_channels = f.p.out_channels = f.p.kernel_size = INT32_MAX;
    f.p.num_groups = 1;
    expect(&f, params_check(&f.p, &f.why), -EINVAL, "(2147483647, 2147483647, 2147483647)");
}

static void why_may_be_null(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    f.p.stride = 0;
    assert_int_equal(params_check(&f.p, NULL), -EINVAL);
    assert_int_equal(params_check(NULL, NULL), -EINVAL);
}

/* ---- geometry ---- */

static void padding_as_pytorch_names_it(void **state) {
    (void)state;
    const int32_t rows[][5] = {/* K, dilation, same, left, right */
        {3, 1, 1, 1, 1}, {4, 1, 1, 1, 2}, {4, 2, 1, 3, 3}, {2, 3, 1, 1, 2}, {1, 9, 1, 0, 0}, {3, 1, 0, 5, 5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture f;
        fixture_init(&f);
        f.p.kernel_size = rows[i][0];
        f.p.dilation = rows[i][1];
        f.p.pad_left = 5;
        int32_t left = -9, right = -9;
        assert_int_equal(nct_padding(&f.p, rows[i][2], &left, &right, &f.why), 0);
        assert_int_equal(left, rows[i][3]);
        assert_int_equal(right, rows[i][4]);
    }
    fixture f;
    fixture_init(&f);
    f.p.stride = 2;
    int32_t left = -9, right = -9;
    expect(&f, nct_padding(&f.p, 1, &left, &right, &f.why), -EINVAL, "stride 2");
    f.p.pad_left = -4;
    expect(&f, nct_padding(&f.p, 0, &left, &right, &f.why), -EINVAL, "padding is -4");
    expect(&f, nct_padding(&f.p, 0, &left, NULL, &f.why), -EINVAL, "no place for the two pads");
    expect(&f, nct_padding(&f.p, 0, NULL, &right, &f.why), -EINVAL, "no place for the two pads");
    f.p.stride = 0;
    expect(&f, nct_padding(&f.p, 1, &left, &right, &f.why), -EINVAL, "stride is 0");
    assert_int_equal(left, -9);
    assert_int_equal(right, -9);
}

static void out_steps_follow_the_formula(void **state) {
    (void)state;
    const int64_t rows[][6] = {/* T, K, stride, dilation, pad, T_out */
        {1003, 3, 1, 1, 0, 1001}, {1003, 3, 2, 1, 0, 501}, {1003, 3, 4, 1, 0, 251}, {1003, 3, 7, 1, 0, 143},
        {16000, 10, 5, 1, 0, 3199}, {3444, 8, 4, 1, 0, 860}, {3200, 3, 1, 16, 16, 3200}, {1, 3, 1, 1, 1, 1},
        {1ll << 40, 3, 1, 1, 1, 1ll << 40}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture f;
        fixture_init(&f);
        f.p.kernel_size = (int32_t)rows[i][1];
        f.p.stride = (int32_t)rows[i][2];
        f.p.dilation = (int32_t)rows[i][3];
        int32_t pad = (int32_t)rows[i][4];
        int64_t t_out = -9;
        assert_int_equal(nct_out_steps(&f.p, rows[i][0], pad, pad, &t_out, &f.why), 0);
        assert_int_equal(t_out, rows[i][5]);
    }
}

static void impossible_steps_are_refused(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    int64_t t_out = -9;
    expect(&f, nct_out_steps(&f.p, 2, 0, 0, &t_out, &f.why), -ERANGE, "T = 2 steps");
    expect(&f, nct_out_steps(&f.p, 2, 0, 0, &t_out, &f.why), -ERANGE, "K = 3");
    expect(&f, nct_out_steps(&f.p, 0, 2, 2, &t_out, &f.why), -ERANGE, "T is 0 steps");
    expect(&f, nct_out_steps(&f.p, -1, 2, 2, &t_out, &f.why), -ERANGE, "T is -1 steps");
    expect(&f, nct_out_steps(&f.p, 5, -1, 0, &t_out, &f.why), -EINVAL, "padding is -1");
    expect(&f, nct_out_steps(&f.p, INT64_MAX, 1, 0, &t_out, &f.why), -EINVAL, "9223372036854775807 steps");
    f.p.padding_mode = NCT_REFLECT;
    expect(&f, nct_out_steps(&f.p, 4, 4, 0, &t_out, &f.why), -EINVAL, "reflect padding of 4");
    assert_int_equal(nct_out_steps(&f.p, 5, 4, 0, &t_out, &f.why), 0);
    f.p.padding_mode = NCT_CIRCULAR;
    expect(&f, nct_out_steps(&f.p, 4, 0, 5, &t_out, &f.why), -EINVAL, "circular padding of 5");
    assert_int_equal(nct_out_steps(&f.p, 4, 4, 4, &t_out, &f.why), 0);
    expect(&f, nct_out_steps(&f.p, 4, 0, 0, NULL, &f.why), -EINVAL, "no place for the number of steps");
    f.p.stride = 0;
    t_out = -9;
    expect(&f, nct_out_steps(&f.p, 4, 0, 0, &t_out, &f.why), -EINVAL, "stride is 0");
    assert_int_equal(t_out, -9);
}

/* ---- weights and placement ---- */

static void weights_are_checked(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    expect(&f, weights_check(NULL, -1, &f.why), -EINVAL, "no weights");
    f.w.weight.data = NULL;
    expect(&f, weights_check(&f.w, -1, &f.why), -EINVAL, "conv weight is absent");
    fixture_init(&f);
    f.w.weight.dtype = NCT_I16;
    expect(&f, weights_check(&f.w, -1, &f.why), -EINVAL, "the conv weight has dtype 4");
    fixture_init(&f);
    f.w.beta = (nct_tensor){f.y, 0, 0};
    expect(&f, weights_check(&f.w, -1, &f.why), -EINVAL, "(beta) has dtype 0");
    fixture_init(&f);
    f.w.gamma = (nct_tensor){f.y, NCT_F32, 1};
    expect(&f, weights_check(&f.w, -1, &f.why), -EINVAL, "(gamma) lies on a device");
    assert_int_equal(weights_check(&f.w, 0, &f.why), 0);
    f.w.gamma.on_device = 2;
    expect(&f, weights_check(&f.w, 0, &f.why), -EINVAL, "on_device of the norm weight (gamma) is 2");
    fixture_init(&f);
    f.w.bias = (nct_tensor){(char *)f.y + 2, NCT_F32, 0};
    expect(&f, weights_check(&f.w, -1, &f.why), -EINVAL, "not aligned to its elements of 4");
}

static void no_memory(void *ctx, void *p) {
    (void)ctx;
    (void)p;
}

static void placement_is_checked(void **state) {
    (void)state;
    fixture f;
    nct_layer *l;
    fixture_init(&f);
    expect(&f, nct_layer_new(&l, &f.p, &f.w, NULL, NULL, &f.why), -EINVAL, "nct_where is NULL");
    expect(&f, nct_layer_new(NULL, &f.p, &f.w, &f.at, NULL, &f.why), -EINVAL, "no place for the layer");
    f.at.device = -2;
    expect(&f, nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), -EINVAL, "device is -2");
    fixture_init(&f);
    f.at.precision = 3;
    expect(&f, nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), -EINVAL, "precision 3");
    f.at.precision = NCT_PREC_TF32;
    expect(&f, nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), -ENOTSUP, "tf32");
    fixture_init(&f);
    f.at.flags = 6;
    expect(&f, nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), -EINVAL, "flags 0x6");
    fixture_init(&f);
    f.at.release = no_memory;
    expect(&f, nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), -EINVAL, "one of them is NULL");
    fixture_init(&f);
    f.at.force = "a name that no row of any table will ever have";
    expect(&f, nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), -EINVAL, "longer than 31");
    f.at.force = "no such row";
    expect(&f, nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), -EINVAL, "no such row");
#ifndef NCT_CUDA
    fixture_init(&f);
    f.at.device = 3;
    expect(&f, nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), -ENOSYS, "device 3");
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(params_are_checked),
        cmocka_unit_test(eps_must_be_finite_and_positive),
        cmocka_unit_test(a_weight_beyond_memory_is_refused),
        cmocka_unit_test(why_may_be_null),
        cmocka_unit_test(padding_as_pytorch_names_it),
        cmocka_unit_test(out_steps_follow_the_formula),
        cmocka_unit_test(impossible_steps_are_refused),
        cmocka_unit_test(weights_are_checked),
        cmocka_unit_test(placement_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
