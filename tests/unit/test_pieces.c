/* test_pieces.c: pieces of a sequence, computed one by one, against the whole: every padding mode, stride, dilation and
 * frame length, through the same buffer that nct run reads files with. The float64 reference computes both. */
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
#include <unistd.h>
#include "pieces.h"
#include "run_source.h"

enum { CI = 2, CO = 4, GROUPS = 2, KMAX = 5 };

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1 + 0.25f;
}

typedef struct {
    char path[32];
    audio *a;
    float *x; /* (CI, t) */
    int64_t t;
} input;

/* A headerless file of `t` steps, and the same samples as a frame. */
static void input_make(input *in, int64_t t) {
    uint32_t state = (uint32_t)t * 7919u + 1;
    nct_why why;
    strcpy(in->path, "/tmp/test_pieces.XXXXXX");
    int fd = mkstemp(in->path);
    in->t = t;
    in->x = malloc(sizeof *in->x * CI * (size_t)t);
    for (int64_t i = 0; i < t; i++)
        for (int c = 0; c < CI; c++) {
            float v = in->x[c * t + i] = noise(&state);
            assert_int_equal(write(fd, &v, 4), 4);
        }
    close(fd);
    audio_raw raw = {NCT_F32, 16000, CI};
    assert_int_equal(audio_open(&in->a, in->path, &raw, 0, NULL, NULL, &why), 0);
    assert_int_equal(audio_about(in->a)->steps, t);
}

static void input_done(input *in) {
    audio_close(in->a);
    unlink(in->path);
    free(in->x);
}

static float weight_values[CO * CI * KMAX], bias_values[CO] = {0.1f, -0.2f, 0.3f, 0},
                                            gamma_values[CO] = {1, 2, -1, 0.5f},
                                            beta_values[CO] = {0, 0.5f, -0.25f, 1};

static nct_weights weights(void) {
    uint32_t state = 12345;
    for (size_t i = 0; i < sizeof weight_values / sizeof *weight_values; i++) weight_values[i] = noise(&state);
    nct_tensor w = {weight_values, NCT_F32, 0}, b = {bias_values, NCT_F32, 0}, g = {gamma_values, NCT_F32, 0},
               e = {beta_values, NCT_F32, 0};
    return (nct_weights){w, b, g, e};
}

/* One frame through the reference. stats: GROUPS entries, written (observe) or used (given). */
static void compute(
    const nct_params *p, const float *x, int64_t t, int64_t t_out, int pads, nct_stat *stats, int given, double *y) {
    nct_weights w = weights();
    nct_why why = {""};
    nct_frame f = {.x_pitch = t,
        .y_pitch = t_out,
        .t_in = (int32_t)t,
        .t_out = (int32_t)t_out,
        .pad_left = pads ? p->pad_left : 0,
        .pad_right = pads ? p->pad_right : 0,
        .stat_in = given ? 0 : -1,
        .stat_out = given ? -1 : 0};
    nct_job j = {.n_frames = 1,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F64,
        .norm = given ? NCT_NORM_GIVEN : NCT_NORM_OWN,
        .frames = &f,
        .x = x,
        .x_count = CI * t,
        .y = y,
        .y_count = CO * t_out,
        .stats = stats,
        .n_stats = 1};
    int r = nct_reference(p, &w, &j, &why);
    if (r) fail_msg("reference: %d %s", r, why.text);
}

/* Both passes over the pieces; y is (CO, t_out) of the whole. */
static void by_pieces(const nct_params *p, const input *in, const pieces *g, double *y) {
    nct_stat total[GROUPS] = {{0}};
    source s;
    nct_why why;
    int64_t most = (g->outs - 1) * g->stride + g->span;
    float *x = malloc(sizeof *x * CI * (size_t)most);
    double *part = malloc(sizeof *part * CO * (size_t)g->outs);
    assert_int_equal(source_init(&s, in->a, g, &why), 0);
    for (int given = 0; given < 2; given++)
        for (int64_t k = 0; k < g->n; k++) {
            piece q;
            int64_t lo, hi;
            nct_stat own[GROUPS] = {{0}};
            pieces_at(g, k, &q);
            pieces_range(g, &q, &lo, &hi);
            assert_int_equal(source_want(&s, lo, hi, &why), 0);
            for (int64_t i = 0; i < CI * most; i++) x[i] = NAN;
            source_gather(&s, g, &q, x);
            compute(p, x, q.n_in, q.n_out, 0, given ? total : own, given, part);
            if (!given) pieces_merge(&total[0].count, &own[0].count, GROUPS);
            for (int c = 0; given && c < CO; c++)
                for (int64_t t = 0; t < q.n_out; t++) y[c * g->t_out + q.out0 + t] = part[c * q.n_out + t];
        }
    source_done(&s);
    free(x);
    free(part);
}

static void compare(const nct_params *p, const input *in, int64_t steps) {
    pieces g;
    nct_why why = {""};
    pieces_limits l = {.max_frame_bytes = 1 << 24, .aim_bytes = 1 << 20, .force_steps = steps};
    int64_t t_out;
    int r = nct_out_steps(p, in->t, p->pad_left, p->pad_right, &t_out, &why);
    if (r) {
        assert_int_equal(pieces_plan(&g, p, in->t, &l, &why), r);
        return;
    }
    r = pieces_plan(&g, p, in->t, &l, &why);
    if (r) fail_msg("plan: %s", why.text);
    assert_int_equal(g.t_out, t_out);
    double *want = malloc(sizeof *want * CO * (size_t)t_out), *got = malloc(sizeof *got * CO * (size_t)t_out);
    nct_stat stats[GROUPS] = {{0}};
    for (int64_t i = 0; i < CO * t_out; i++) got[i] = NAN;
    compute(p, in->x, in->t, t_out, 1, stats, 0, want);
    by_pieces(p, in, &g, got);
    for (int64_t i = 0; i < CO * t_out; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-11 * (1 + fabs(want[i]))))
            fail_msg(
                "T %lld K %d stride %d dilation %d pads %d+%d mode %d, pieces of %lld: y[%lld] is %.17g, not %.17g",
                (long long)in->t, p->kernel_size, p->stride, p->dilation, p->pad_left, p->pad_right, p->padding_mode,
                (long long)steps, (long long)i, got[i], want[i]);
    free(want);
    free(got);
}

static const int64_t lengths[] = {
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 100, 128, 256, 1002, 1003, 1004, 4096};

static nct_params layer(int k, int stride, int dilation, int left, int right, int mode) {
    return (nct_params){.in_channels = CI,
        .out_channels = CO,
        .kernel_size = k,
        .stride = stride,
        .dilation = dilation,
        .groups = 1,
        .num_groups = GROUPS,
        .pad_left = left,
        .pad_right = right,
        .padding_mode = mode,
        .eps = 1e-5};
}

static void every_frame_length(void **state) {
    (void)state;
    static const int strides[] = {1, 2, 4, 7};
    input in;
    input_make(&in, 1003);
    for (int mode = NCT_ZEROS; mode <= NCT_CIRCULAR; mode++)
        for (int s = 0; s < 4; s++)
            for (int pad = 0; pad < 3; pad++)
                for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                    static const int pads[] = {0, 1, 11};
                    nct_params p = layer(3, strides[s], 1, pads[pad], pads[pad], mode);
                    compare(&p, &in, lengths[i]);
                }
    input_done(&in);
}

static void dilation_and_uneven_pads(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 9, 10, 17, 64};
    for (size_t t = 0; t < sizeof sizes / sizeof *sizes; t++) {
        input in;
        input_make(&in, sizes[t]);
        for (int mode = NCT_ZEROS; mode <= NCT_CIRCULAR; mode++)
            for (int k = 1; k <= KMAX; k++)
                for (int d = 1; d <= 4; d++)
                    for (int stride = 1; stride <= 3; stride++)
                        for (int64_t cut = 1; cut <= 5; cut++) {
                            nct_params p = layer(k, stride, d, d * (k - 1) / 2, d * (k - 1) - d * (k - 1) / 2, mode);
                            compare(&p, &in, cut);
                        }
        input_done(&in);
    }
}

static void a_frame_too_small_is_named(void **state) {
    (void)state;
    pieces g;
    nct_why why = {""};
    nct_params p = layer(5, 1, 1000, 0, 0, NCT_ZEROS);
    pieces_limits l = {.max_frame_bytes = 16384, .aim_bytes = 8192};
    assert_int_equal(pieces_plan(&g, &p, 100000, &l, &why), -EMSGSIZE);
    assert_non_null(strstr(why.text, "4001"));
    assert_non_null(strstr(why.text, "16384"));
    p = layer(3, 1, 1, 0, 0, NCT_ZEROS);
    assert_int_equal(pieces_plan(&g, &p, 2, &l, &why), -ERANGE);
    p = layer(3, 1, 1, 1, 1, NCT_CIRCULAR);
    assert_int_equal(pieces_plan(&g, &p, -1, &l, &why), -EINVAL);
}

static void pieces_grow_where_overlaps_would_cost(void **state) {
    (void)state;
    pieces g;
    nct_why why;
    nct_params p = layer(5, 1, 10000, 0, 0, NCT_ZEROS);
    pieces_limits l = {.max_frame_bytes = 16 << 20, .aim_bytes = 1 << 16};
    assert_int_equal(pieces_plan(&g, &p, 10000000, &l, &why), 0);
    assert_true(g.outs >= 4 * 40001);
    assert_true(((g.outs - 1) * g.stride + g.span) * CI * 4 <= 16 << 20);
}

static void merging_keeps_what_cannot_be_counted(void **state) {
    (void)state;
    double total[6] = {0}, nothing[6] = {0}, part[6] = {4, 2.5, 5, 2, NAN, NAN};
    pieces_merge(total, nothing, 2);
    assert_true(total[0] == 0 && total[1] == 0 && total[2] == 0);
    pieces_merge(total, part, 2);
    pieces_merge(total, nothing, 2);
    assert_true(total[0] == 4 && total[1] == 2.5 && total[2] == 5);
    assert_true(total[3] == 2 && isnan(total[4]) && isnan(total[5]));
    double more[6] = {2, 8.5, 0.5, 1, 1, 0};
    pieces_merge(total, more, 2);
    assert_true(total[0] == 6 && fabs(total[1] - 4.5) < 1e-15 && fabs(total[2] - (5.5 + 36 * 8.0 / 6)) < 1e-12);
    assert_true(isnan(total[4]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_frame_length),
        cmocka_unit_test(dilation_and_uneven_pads),
        cmocka_unit_test(a_frame_too_small_is_named),
        cmocka_unit_test(pieces_grow_where_overlaps_would_cost),
        cmocka_unit_test(merging_keeps_what_cannot_be_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
