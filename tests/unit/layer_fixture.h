/* layer_fixture.h: a layer and a job with everything right, for the test_layer*.c files to change one thing about. */
#ifndef NCT_TEST_LAYER_FIXTURE_H
#define NCT_TEST_LAYER_FIXTURE_H
#include "layer.h"
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

static inline void fixture_init(fixture *f) {
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

static inline void expect(const fixture *f, int got, int error, const char *text) {
    if (got != error || !strstr(f->why.text, text))
        fail_msg("got %d \"%s\", wanted %d \"%s\"", got, f->why.text, error, text);
}
#endif
