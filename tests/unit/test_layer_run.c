/* test_layer_run.c: the public calls on a CPU layer: their own checks, the forced variant, and a job shared by a pool. */
#include "layer_fixture.h"
#include <errno.h>
#include "pool.h"

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
    lim.max_t_out = 10;
    expect(&f, nct_workspace(chain, 1, &lim, NULL, &f.why), -EINVAL, "no place for the workspace");
    expect(&f, nct_warm(chain, 1, &lim, (void *)128, 0, NULL, &f.why), -EINVAL, "not aligned to 256");
    expect(&f, nct_phases(chain, 1, NULL, 1, &f.why), -EINVAL, "no job");
    expect(&f, nct_explain(chain, 1, &f.job, 0, NULL, &f.why), -EINVAL, "no place for the report");
    expect(&f, nct_layer_repack(NULL, &f.w, NULL, &f.why), -EINVAL, "no layer");
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

/* The job of `fixture` on a pool: phases are its runs. */
typedef struct {
    nct_layer *l;
    const nct_job *job;
    int32_t phase;
} pool_job;

static void phase_run(void *ctx, int32_t worker, int32_t n_workers) {
    pool_job *j = ctx;
    if (nct_phase(&j->l, 1, j->job, j->phase, worker, n_workers)) abort();
}

/* Twice, without nct_phases() between: a run leaves the workspace ready for the next. */
static void job_on_pool(nct_layer *l, nct_job *job, int32_t n_workers) {
    nct_why why;
    int64_t max_t = 0, sum_t = 0;
    for (int32_t n = 0; n < job->n_frames; n++) {
        sum_t += job->frames[n].t_out;
        if (job->frames[n].t_out > max_t) max_t = job->frames[n].t_out;
    }
    nct_limits lim = {.max_frames = job->n_frames, .n_workers = n_workers, .max_t_out = max_t, .sum_t_out = sum_t};
    assert_int_equal(nct_workspace(&l, 1, &lim, &job->workspace_bytes, &why), 0);
    job->workspace = aligned_alloc(256, (job->workspace_bytes + 255) / 256 * 256 + 256);
    pool *p = NULL;
    assert_int_equal(pool_new(&p, n_workers), 0);
    pool_job j = {.l = l, .job = job};
    int phases = nct_phases(&l, 1, job, n_workers, &why);
    if (phases < 1) fail_msg("%d: %s", phases, why.text);
    for (int run = 0; run < 2; run++) {
        memset(job->y, 0xA5, (size_t)job->y_count * sizeof(float));
        for (j.phase = 0; j.phase < phases; j.phase++) pool_run(p, phase_run, &j);
    }
    pool_free(p);
    free(job->workspace);
}

/* Frames of `even` and `odd` steps in turn, on every variant; under -fsanitize=thread a race shows. */
static void workers_share(int32_t n_frames, int32_t even, int32_t odd) {
    enum { FRAMES = 40, CO = 6 };
    fixture f;
    fixture_init(&f);
    for (int i = 0; i < 72; i++) f.weight[i] = (float)((i * 37) % 19 - 9) / 9;
    int64_t sum = (n_frames + 1) / 2 * even + n_frames / 2 * odd;
    size_t x_bytes = 4 * (size_t)sum * sizeof(float), y_bytes = CO * (size_t)sum * sizeof(float);
    float *x = malloc(x_bytes), *y = malloc(y_bytes), *want = malloc(y_bytes);
    for (int i = 0; i < 4 * sum; i++) x[i] = (float)((i * 131) % 97 - 48) / 48;
    nct_frame frames[FRAMES];
    nct_stat stats[FRAMES * 2];
    int64_t at = 0;
    for (int n = 0; n < n_frames; n++) {
        int32_t t = n % 2 ? odd : even;
        frames[n] = (nct_frame){.x_off = at * 4,
            .y_off = at * CO,
            .x_pitch = t,
            .y_pitch = t,
            .t_in = t,
            .t_out = t,
            .pad_left = 1,
            .pad_right = 1,
            .stat_in = -1,
            .stat_out = n};
        at += t;
    }
    uint32_t flags[FRAMES];
    nct_job job = {.n_frames = n_frames,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F32,
        .frames = frames,
        .x = x,
        .x_count = 4 * sum,
        .y = want,
        .y_count = CO * sum,
        .stats = stats,
        .n_stats = FRAMES,
        .frame_flags = flags};
    nct_layer *l = NULL;
    for (int32_t i = 0; nct_variant(-1, i); i++) {
        f.at.force = nct_variant(-1, i);
        assert_int_equal(nct_layer_new(&l, &f.p, &f.w, &f.at, NULL, &f.why), 0);
        job.y = want;
        job_on_pool(l, &job, 1);
        for (int32_t workers = 2; workers <= 8; workers += 3) {
            memset(flags, 0xA5, sizeof flags);
            job.y = y;
            job_on_pool(l, &job, workers);
            assert_memory_equal(y, want, y_bytes);
            for (int n = 0; n < n_frames; n++) assert_int_equal(flags[n], 0);
        }
        nct_layer_free(l);
    }
    free(x);
    free(y);
    free(want);
}

/* Long and short frames at once, so that a job has more than one phase. */
static void workers_share_a_job(void **state) {
    (void)state;
    workers_share(5, 5000, 40);
}

/* So many that workers take them as they get done. */
static void workers_take_frames(void **state) {
    (void)state;
    workers_share(40, 30, 400);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_limits_and_calls_are_checked),
        cmocka_unit_test(a_workspace_too_small_is_refused),
        cmocka_unit_test(the_forced_name_is_copied),
        cmocka_unit_test(workers_share_a_job),
        cmocka_unit_test(workers_take_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
