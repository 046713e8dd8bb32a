/* test_engine_order.c: several engines whose batches end in any order: the RESULTs of a stream still come in the order
 * of its frames, batches of one (engine, model) in the order of launch, nothing waits for more, and what fails is
 * answered. The delays are a backend of the test's own: engine_cpu's memory, and threads that sleep before they work. */
#include "engine_rig.h"
#include <errno.h>
#include <pthread.h>
#include "engine_own.h"

enum { DELAYERS = 3 };
typedef struct {
    engine *e;
    pthread_t threads[DELAYERS];
    pthread_mutex_t lock;
    pthread_cond_t more;
    slot *waiting[16];
    int n;
    bool stop;
    unsigned seed;
} delayed;

static bool reloaded; /* the two models are generations of one, and every stream has frames of both */
static const void *one_model(const struct generation *g) {
    (void)g;
    return &reloaded;
}

static int fail_every; /* 0: never; the n-th job fails, by launch or by engine_done in turn */
static _Atomic(int) jobs;

static int run_now(slot *s) {
    nct_why why;
    int phases = nct_phases(&s->layer, 1, &s->job, 1, &why);
    for (int p = 0; p < phases; p++)
        if (nct_phase(&s->layer, 1, &s->job, p, 0, 1)) return -EIO;
    return phases < 0 ? phases : 0;
}

/* Takes any of the jobs that wait, not the oldest. */
static void *delayer(void *ctx) {
    delayed *d = ctx;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (d->n == 0 && !d->stop) pthread_cond_wait(&d->more, &d->lock);
        if (d->n == 0) break;
        int i = rand_r(&d->seed) % d->n;
        slot *s = d->waiting[i];
        d->waiting[i] = d->waiting[--d->n];
        unsigned us = (unsigned)rand_r(&d->seed) % 2000;
        pthread_mutex_unlock(&d->lock);
        uv_sleep(us / 1000);
        int job = ++jobs;
        engine_done(s, fail_every && job % fail_every == 0 ? -ETIMEDOUT : run_now(s));
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static int delayed_open(engine *e, nct_why *why) {
    (void)why;
    delayed *d = calloc(1, sizeof *d);
    d->seed = (unsigned)engine_index(e);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->more, NULL);
    e->backend = d;
    e->n_workers = 1;
    for (int i = 0; i < DELAYERS; i++) pthread_create(&d->threads[i], NULL, delayer, d);
    return 0;
}

static void delayed_close(engine *e) {
    delayed *d = e->backend;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_mutex_unlock(&d->lock);
    pthread_cond_broadcast(&d->more);
    for (int i = 0; i < DELAYERS; i++) pthread_join(d->threads[i], NULL);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->more);
    free(d);
}

static int delayed_launch(engine *e, slot *s, nct_why *why) {
    delayed *d = e->backend;
    if (fail_every && rand() % fail_every == 0) {
        strcpy(why->text, "it did not begin");
        return -EINVAL;
    }
    pthread_mutex_lock(&d->lock);
    d->waiting[d->n++] = s;
    pthread_mutex_unlock(&d->lock);
    pthread_cond_signal(&d->more);
    return 0;
}

static engine_ops delayed_ops(void) {
    engine_ops ops = engine_cpu_ops;
    ops.name = "delayed";
    ops.open = delayed_open;
    ops.close = delayed_close;
    ops.launch = delayed_launch;
    return ops;
}

static const char *const settings[] = {"engine.slot_bytes=1M", "engine.slots=4", "limits.max_frame_bytes=512K",
    "batch.max_frames=5", "batch.max_delay_us=0", NULL};

/* Frames of 64 streams of two models trickle in while batches end in any order; rig_done asserts each stream's order. */
static int load(rig *r, int n, int *ret_engines_used) {
    void **expected = calloc((size_t)n, sizeof *expected);
    int pushed = 0, failed = 0, used[RIG_ENGINES] = {0};
    while (r->n_frames < n) {
        for (int k = rand() % 8; k > 0 && pushed < n; k--, pushed++) {
            int stream = rand() % RIG_STREAMS;
            frame *f = rig_frame(r, reloaded ? rand() % 2 : stream % 2, stream, 1 + rand() % 300, NCT_F32, 0);
            expected[f->order - 1] = rig_expected(f);
            rig_push(r, f);
        }
        for (int i = rand() % 64, k = 0; k < r->n_engines; k++)
            engine_turn(r->e[(i + k) % r->n_engines], uv_hrtime());
        uv_run(&r->loop, UV_RUN_NOWAIT);
    }
    for (int i = 0; i < n; i++) {
        frame *f = r->frames[i];
        used[engine_index(f->engine)]++;
        if (f->error) {
            assert_int_equal(f->error, -EIO);
            assert_non_null(strstr(f->why, "(delayed) failed: "));
            assert_int_equal(f->place, ROW_NONE);
            failed++;
        } else if (memcmp(f->y, expected[f->order - 1], f->y_bytes) != 0) {
            fail_msg("frame %d: other bits than alone", (int)f->order);
        }
        free(expected[f->order - 1]);
    }
    free(expected);
    *ret_engines_used = 0;
    for (int i = 0; i < RIG_ENGINES; i++) *ret_engines_used += used[i] > n / 20;
    assert_int_equal(r->n_copied_in, n);
    for (int i = 0; i < r->n_engines; i++) assert_int_equal(engine_in_flight(r->e[i]), 0);
    return failed;
}

static void test_order(void **state) {
    (void)state;
    engine_ops ops = delayed_ops();
    int engines_used;
    fail_every = 0;
    rig *r = rig_new(&ops, RIG_ENGINES, 8 << 20, settings);
    assert_int_equal(load(r, 2000, &engines_used), 0);
    assert_int_equal(engines_used, RIG_ENGINES);
    rig_free(r);
}

/* The arena is too small for most of it: slots hold rows, and the order still stands. */
static void test_order_in_slots(void **state) {
    (void)state;
    engine_ops ops = delayed_ops();
    int engines_used;
    fail_every = 0;
    rig *r = rig_new(&ops, 2, 2 * ARENA_PAGE, settings);
    assert_int_equal(load(r, 1000, &engines_used), 0);
    rig_free(r);
}

static void test_failures(void **state) {
    (void)state;
    engine_ops ops = delayed_ops();
    int engines_used;
    fail_every = 7;
    rig *r = rig_new(&ops, 2, 8 << 20, settings);
    int failed = load(r, 2000, &engines_used);
    assert_true(failed > 200 && failed < 1000);
    rig_free(r); /* every page is back */
}

/* As after many reloads: a stream's frames of a later generation never overtake those of an earlier one. */
static void test_order_over_generations(void **state) {
    (void)state;
    engine_ops ops = delayed_ops();
    int engines_used;
    fail_every = 0;
    rig *r = rig_new(&ops, 2, 8 << 20, settings);
    reloaded = true;
    for (int i = 0; i < r->n_engines; i++) r->e[i]->setup.model_of = one_model;
    assert_int_equal(load(r, 2000, &engines_used), 0);
    rig_free(r);
    reloaded = false;
}

/* A batch of one model does not wait for an earlier one of another. */
static slot *stuck;
static int stuck_launch(engine *e, slot *s, nct_why *why) {
    (void)e;
    (void)why;
    if (!stuck)
        stuck = s;
    else
        engine_done(s, run_now(s));
    return 0;
}

static rig *behind_a_stuck_one(const void *(*model_of)(const struct generation *g)) {
    static engine_ops ops; /* the engine's while it lives */
    ops = delayed_ops();
    ops.launch = stuck_launch;
    stuck = NULL;
    rig *r = rig_new(&ops, 1, 8 << 20, settings);
    r->e[0]->setup.model_of = model_of;
    for (int i = 0; i < 4; i++) { /* model 0, stuck; then 1, 0, 1 */
        rig_push(r, rig_frame(r, i % 2, i, 10, NCT_F32, 0));
        engine_turn(r->e[0], uv_hrtime());
    }
    engine_turn(r->e[0], uv_hrtime());
    return r;
}

static void test_generations_wait(void **state) {
    (void)state;
    rig *r = behind_a_stuck_one(one_model);
    assert_int_equal(r->n_frames, 0);
    engine_done(stuck, run_now(stuck));
    engine_turn(r->e[0], uv_hrtime());
    assert_int_equal(r->n_frames, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(r->frames[i]->order, i + 1);
    rig_free(r);
}

static void test_models_do_not_wait(void **state) {
    (void)state;
    rig *r = behind_a_stuck_one(NULL);
    assert_int_equal(r->n_frames, 2);
    for (int i = 0; i < 2; i++) assert_ptr_equal(r->frames[i]->model, &r->g[1]);
    engine_done(stuck, run_now(stuck));
    engine_turn(r->e[0], uv_hrtime());
    assert_int_equal(r->n_frames, 4);
    assert_int_equal(r->frames[2]->order, 1);
    assert_int_equal(r->frames[3]->order, 3);
    rig_free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_order_in_slots),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_order_over_generations),
        cmocka_unit_test(test_models_do_not_wait), cmocka_unit_test(test_generations_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
