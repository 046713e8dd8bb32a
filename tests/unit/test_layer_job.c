/* test_layer_job.c: every rule of nct_job and nct_frame (layer_job.c), once each: the error, and the numbers it names. */
#include "layer_fixture.h"
#include <errno.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_heads_are_checked),
        cmocka_unit_test(frames_are_checked),
        cmocka_unit_test(slots_are_checked),
        cmocka_unit_test(races_are_found_among_many_slots),
        cmocka_unit_test(statistics_alone_need_a_place),
        cmocka_unit_test(conv_only_is_checked),
        cmocka_unit_test(device_jobs_without_device_rows_are_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
