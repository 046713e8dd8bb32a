/* test_layer.c: every rule that layer.c and layer_job.c hold a caller to, once each: the error, and the numbers it names. */
#include "layer.h"
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A layer of 4 -> 6 channels, K 3, padding 1, and two frames of 10 steps: everything right. */
typedef struct {
    nct_params p;
    nct_weights w;
    nct_where at;
    nct_frame frames[2];
    nct_job job;
    nct_why why;
    float weight[6 * 4 * 3], x[2 * 4 * 10], y[2 * 6 * 10];
    nct_stat stats[8 * 2];
} fixture;

static void fixture_init(fixture *f) {
    memset(f, 0, sizeof *f);
    f->p = (nct_params){.in_channels = 4,
        .out_channels = 6,
        .kernel_size = 3,
        .stride = 1,
        .dilation = 1,
        .groups = 1,
        .num_groups = 2,
        .pad_left = 1,
        .pad_right = 1,
        .eps = 1e-5};
    f->w.weight = (nct_tensor){f->weight, NCT_F32, 0};
    f->at = (nct_where){.device = -1};
    for (int n = 0; n < 2; n++)
        f->frames[n] = (nct_frame){.x_off = n * 40,
            .y_off = n * 60,
            .x_pitch = 10,
            .y_pitch = 10,
            .t_in = 10,
            .t_out = 10,
            .pad_left = 1,
            .pad_right = 1,
            .stat_in = -1,
            .stat_out = -1};
    f->job = (nct_job){.n_frames = 2,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F32,
        .frames = f->frames,
        .x = f->x,
        .x_count = 80,
        .y = f->y,
        .y_count = 120,
        .stats = f->stats,
        .n_stats = 8};
}

static void expect(const fixture *f, int got, int error, const char *text) {
    if (got != error || !strstr(f->why.text, text))
        fail_msg("got %d \"%s\", wanted %d \"%s\"", got, f->why.text, error, text);
}

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

/* ---- jobs ---- */

static int job_try(fixture *f) {
    return job_check(&f->p, -1, &f->job, &f->why);
}

/* One line changes one thing about the right job and says what must come back. */
#define REFUSED(change, error, text)                                                                                 \
    do {                                                                                                             \
        fixture f;                                                                                                   \
        fixture_init(&f);                                                                                            \
        assert_int_equal(job_try(&f), 0);                                                                            \
        change;                                                                                                      \
        expect(&f, job_try(&f), error, text);                                                                        \
    } while (0)
#define TAKEN(change)                                                                                                \
    do {                                                                                                             \
        fixture f;                                                                                                   \
        fixture_init(&f);                                                                                            \
        change;                                                                                                      \
        if (job_try(&f)) fail_msg("refused: %s", f.why.text);                                                        \
    } while (0)

static void job_heads_are_checked(void **state) {
    (void)state;
    REFUSED(f.job.n_frames = -1, -EINVAL, "n_frames is -1");
    REFUSED(f.job.frames = NULL, -EINVAL, "2 frames and no rows");
    REFUSED(f.job.x = NULL, -EINVAL, "no x");
    REFUSED(f.job.x_dtype = 0, -EINVAL, "x has dtype 0");
    REFUSED(f.job.x_dtype = NCT_F64, -EINVAL, "x has dtype 6");
    REFUSED(f.job.y_dtype = NCT_I16, -EINVAL, "y has dtype 4");
    REFUSED(f.job.x = (char *)f.x + 1, -EINVAL, "not aligned to its elements of 4");
    REFUSED(f.job.y = (char *)f.y + 2, -EINVAL, "not aligned to its elements of 4");
    REFUSED(f.job.norm = 3, -EINVAL, "norm 3");
    REFUSED(f.job.flags = 2, -EINVAL, "flags 0x2");
    REFUSED(f.job.x_count = -1, -EINVAL, "x_count -1");
    REFUSED(f.job.n_stats = -1, -EINVAL, "n_stats -1");
    REFUSED(f.job.stats = NULL, -EINVAL, "8 slots");
    REFUSED(f.job.stats = (nct_stat *)((char *)f.stats + 4), -EINVAL, "not aligned to 8");
    REFUSED(f.job.frame_flags = (uint32_t *)((char *)f.stats + 1), -EINVAL, "frame_flags");
    REFUSED(f.job.workspace = (void *)64, -EINVAL, "not aligned to 256");
    TAKEN(f.job.x_dtype = f.job.y_dtype = NCT_BF16);
    TAKEN(f.job.x_dtype = NCT_I16);
    TAKEN(f.job.n_frames = 0; f.job.frames = NULL; f.job.x = NULL);
}

static void frames_are_checked(void **state) {
    (void)state;
    REFUSED(f.frames[1].pad_left = 2, -EINVAL, "frame 1: pad_left is 2, it must be the layer's 1 or 0");
    REFUSED(f.frames[1].pad_right = -1, -EINVAL, "frame 1: pad_right is -1");
    REFUSED(f.frames[1].t_skip = 1, -EINVAL, "t_skip is 1");
    REFUSED(f.frames[1].reserved = 1, -EINVAL, "reserved 1");
    REFUSED(f.frames[0].t_out = 9, -EINVAL, "frame 0: t_out is 9");
    REFUSED(f.frames[1].t_in = 0, -ERANGE, "frame 1: T is 0");
    REFUSED(f.p.kernel_size = 13, -ERANGE, "K = 13");
    REFUSED(f.p.padding_mode = NCT_REFLECT;
            f.p.pad_left = f.frames[0].pad_left = 10, -EINVAL, "reflect padding of 10");
    REFUSED(f.frames[0].x_pitch = 9, -EINVAL, "x_pitch 9 is below its 10 steps");
    REFUSED(f.frames[0].y_pitch = 9, -EINVAL, "y_pitch 9 is below its 10 steps");
    REFUSED(f.frames[1].x_off = 41, -EINVAL, "leave the 80 elements of x");
    REFUSED(f.frames[1].x_off = -1, -EINVAL, "x_off -1");
    REFUSED(f.frames[1].y_off = 61, -EINVAL, "leave the 120 elements of y");
    REFUSED(f.frames[1].x_pitch = INT64_MAX / 2, -EINVAL, "pitch 4611686018427387903");
    REFUSED(f.frames[1].x_off = INT64_MAX - 5, -EINVAL, "x_off 9223372036854775802");
    REFUSED(f.job.y_count = 119, -EINVAL, "frame 1");
    TAKEN(f.frames[1].pad_left = 0; f.frames[1].t_out = 9);
    TAKEN(f.frames[1].pad_left = f.frames[1].pad_right = 0; f.frames[1].t_out = 8);
}

static void slots_are_checked(void **state) {
    (void)state;
    REFUSED(f.frames[0].stat_out = 8, -EINVAL, "stat_out 8");
    REFUSED(f.frames[0].stat_out = -2, -EINVAL, "stat_out -2");
    REFUSED(f.frames[0].stat_in = 0, -EINVAL, "stat_in is 0: norm OWN takes -1");
    REFUSED(f.job.norm = NCT_NORM_RUNNING, -EINVAL, "stat_in is -1");
    REFUSED(f.job.norm = NCT_NORM_GIVEN; f.frames[0].stat_in = f.frames[1].stat_in = 0;
            f.frames[1].stat_out = 1, -EINVAL, "GIVEN writes no statistics");
    REFUSED(f.frames[0].stat_out = f.frames[1].stat_out = 3, -EINVAL, "frame 1: its slot");
    REFUSED(f.job.norm = NCT_NORM_RUNNING; f.frames[0].stat_in = 0; f.frames[0].stat_out = 1;
            f.frames[1].stat_in = 1, -EINVAL, "frame 1: its slot");
    REFUSED(f.job.norm = NCT_NORM_RUNNING; f.frames[0].stat_in = 1; f.frames[1].stat_in = 0;
            f.frames[1].stat_out = 1, -EINVAL, "frame 1: its slot");
    TAKEN(f.job.norm = NCT_NORM_GIVEN; f.frames[0].stat_in = f.frames[1].stat_in = 5);
    TAKEN(f.job.norm = NCT_NORM_RUNNING; f.frames[0].stat_in = f.frames[1].stat_in = 5);
    TAKEN(f.job.norm = NCT_NORM_RUNNING; f.frames[0].stat_in = f.frames[0].stat_out = 1; f.frames[1].stat_in = 0);
    TAKEN(f.job.n_stats = 0; f.job.stats = NULL);
}

/* Slots further apart than the window that looks for races. */
static void races_are_found_among_many_slots(void **state) {
    (void)state;
    static nct_stat stats[20000 * 2];
    static nct_frame frames[3];
    fixture f;
    fixture_init(&f);
    for (int n = 0; n < 3; n++) frames[n] = f.frames[0];
    f.job.frames = frames;
    f.job.n_frames = 3;
    f.job.stats = stats;
    f.job.n_stats = 20000;
    frames[0].stat_out = 19999;
    frames[1].stat_out = 4096;
    frames[2].stat_out = 19999;
    expect(&f, job_try(&f), -EINVAL, "stat_out 19999");
    frames[2].stat_out = 0;
    assert_int_equal(job_try(&f), 0);
    f.job.norm = NCT_NORM_RUNNING;
    for (int n = 0; n < 3; n++) frames[n].stat_in = 12000;
    assert_int_equal(job_try(&f), 0);
    frames[2].stat_out = 12000;
    expect(&f, job_try(&f), -EINVAL, "12000");
}

static void statistics_alone_need_a_place(void **state) {
    (void)state;
    REFUSED(f.job.y = NULL, -EINVAL, "y is NULL and stat_out -1");
    REFUSED(f.job.y = NULL; f.frames[0].stat_out = 0, -EINVAL, "frame 1: y is NULL");
    REFUSED(f.job.y = NULL; f.job.norm = NCT_NORM_GIVEN, -EINVAL, "GIVEN and y is NULL");
    TAKEN(f.job.y = NULL; f.job.y_dtype = 0; f.job.y_count = 0; f.frames[0].stat_out = 0; f.frames[1].stat_out = 1);
}

static void conv_only_is_checked(void **state) {
    (void)state;
    REFUSED(f.job.flags = NCT_CONV_ONLY; f.job.y = NULL; f.frames[0].stat_out = 0;
            f.frames[1].stat_out = 1, -EINVAL, "y is NULL");
    REFUSED(f.job.flags = NCT_CONV_ONLY; f.job.y_dtype = NCT_F16, -EINVAL, "dtype 2");
    REFUSED(f.job.flags = NCT_CONV_ONLY; f.job.norm = NCT_NORM_GIVEN, -EINVAL, "norm is 2");
    REFUSED(f.job.flags = NCT_CONV_ONLY; f.frames[1].stat_out = 2, -EINVAL, "stat_out is 2");
    REFUSED(f.job.flags = NCT_CONV_ONLY;
            f.job.frame_flags = (uint32_t *)f.stats, -EINVAL, "frame_flags must be NULL");
    TAKEN(f.job.flags = NCT_CONV_ONLY);
}

static void device_jobs_without_device_rows_are_alike(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    assert_int_equal(job_check(&f.p, 0, &f.job, &f.why), 0);
    f.frames[1].t_in = 9;
    f.frames[1].t_out = 9;
    expect(&f, job_check(&f.p, 0, &f.job, &f.why), -EINVAL, "needs frames_dev");
    f.job.frames_dev = f.frames;
    assert_int_equal(job_check(&f.p, 0, &f.job, &f.why), 0);
}

/* ---- through a layer ---- */

static void chains_limits_and_calls_are_checked(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    nct_layer *l = NULL, *none = NULL;
    assert_int_equal(nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), 0);
    nct_layer *chain[2] = {l, l};
    nct_limits lim = {.max_frames = 2, .n_workers = 1, .max_t_out = 10, .sum_t_out = 20};
    size_t bytes = 77;
    expect(&f, nct_workspace(chain, 2, &lim, &bytes, &f.why), -ENOTSUP, "chain of 2");
    expect(&f, nct_workspace(chain, 0, &lim, &bytes, &f.why), -EINVAL, "chain of 0");
    expect(&f, nct_workspace(&none, 1, &lim, &bytes, &f.why), -EINVAL, "no layer");
    expect(&f, nct_workspace(chain, 1, NULL, &bytes, &f.why), -EINVAL, "no limits");
    lim.max_t_out = -1;
    expect(&f, nct_workspace(chain, 1, &lim, &bytes, &f.why), -EINVAL, "-1 steps a frame");
    assert_int_equal(bytes, 77);
    expect(&f, nct_phases(chain, 1, &f.job, 0, &f.why), -EINVAL, "0 workers");
    expect(&f, nct_launch(chain, 1, &f.job, &f.why), -ENOTSUP, "on the CPU");
    f.frames[1].t_out = 11;
    expect(&f, nct_phases(chain, 1, &f.job, 1, &f.why), -EINVAL, "t_out is 11");
    f.frames[1].t_out = 10;
    nct_report report;
    expect(&f, nct_explain(chain, 1, &f.job, 2, &report, &f.why), -EINVAL, "frame 2 was asked for, the job has 2");
    f.job.n_frames = 0;
    assert_int_equal(nct_phases(chain, 1, &f.job, 1, &f.why), 0);
    f.w.weight.dtype = NCT_I32;
    expect(&f, nct_layer_repack(l, &f.w, NULL, &f.why), -EINVAL, "dtype 5");
    nct_layer_free(l);
    nct_layer_free(NULL);
    assert_int_equal(nct_layer_abi(), NCT_LAYER_ABI);
}

static void a_workspace_too_small_is_refused(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    nct_layer *l = NULL;
    assert_int_equal(nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), 0);
    nct_limits lim = {.max_frames = 2, .n_workers = 3, .max_t_out = 10, .sum_t_out = 20};
    size_t bytes = 0;
    assert_int_equal(nct_workspace(&l, 1, &lim, &bytes, &f.why), 0);
    f.job.workspace = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    f.job.workspace_bytes = bytes;
    assert_true(nct_phases(&l, 1, &f.job, 3, &f.why) > 0);
    f.job.workspace_bytes = 0;
    if (bytes) assert_int_equal(nct_phases(&l, 1, &f.job, 3, &f.why), -ENOSPC);
    free(f.job.workspace);
    nct_layer_free(l);
}

static void the_forced_name_is_copied(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f);
    char name[32];
    snprintf(name, sizeof name, "%s", nct_variant(-1, 0));
    f.at.force = name;
    nct_layer *l = NULL;
    assert_int_equal(nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), 0);
    memset(name, 'x', sizeof name - 1);
    assert_string_equal(l->at.force, nct_variant(-1, 0));
    assert_null(nct_variant(-1, 1000));
    assert_null(nct_variant(-1, -1));
    assert_null(nct_variant(-7, 0));
    nct_layer_free(l);
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
        cmocka_unit_test(job_heads_are_checked),
        cmocka_unit_test(frames_are_checked),
        cmocka_unit_test(slots_are_checked),
        cmocka_unit_test(races_are_found_among_many_slots),
        cmocka_unit_test(statistics_alone_need_a_place),
        cmocka_unit_test(conv_only_is_checked),
        cmocka_unit_test(device_jobs_without_device_rows_are_alike),
        cmocka_unit_test(chains_limits_and_calls_are_checked),
        cmocka_unit_test(a_workspace_too_small_is_refused),
        cmocka_unit_test(the_forced_name_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
