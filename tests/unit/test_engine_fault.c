/* test_engine_fault.c: an engine whose device fails. The backend here computes on the CPU, but only reports a batch when
 * the test says so, and may claim that it still touches the memory: what a hung or lost GPU does, seen from engine.c. */
#include "engine_rig.h"
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include "engine_own.h"

enum { HELD_MAX = 8 };
static slot *held[HELD_MAX];
static int n_held, n_failed;
static bool hold, still_busy, refuse_next, take_over;
static char told[200];

static int odd_launch(engine *e, slot *s, nct_why *why) {
    if (refuse_next) {
        engine_latch(e, "the launch broke");
        return -EIO;
    }
    if (!hold) return engine_cpu_ops.launch(e, s, why);
    assert_true(n_held < HELD_MAX);
    held[n_held++] = s;
    return 0;
}
static bool odd_busy(const slot *s) {
    (void)s;
    return still_busy;
}

static void failed(void *ctx, engine *e, const char *why) {
    (void)ctx;
    nct_why text;
    n_failed++;
    snprintf(told, sizeof told, "%s", why);
    if (take_over) assert_int_equal(engine_take_over(e, &text), 0);
}

static const char *const conf[] = {
    "engine.slot_bytes=1M", "engine.slots=3", "limits.max_frame_bytes=256K", "batch.max_frames=4", NULL};

static rig *begin(engine_ops *ops) {
    *ops = engine_cpu_ops;
    ops->name = "odd";
    ops->launch = odd_launch;
    ops->busy = odd_busy;
    n_held = n_failed = 0;
    hold = still_busy = refuse_next = take_over = false;
    told[0] = 0;
    rig *r = rig_new(ops, 1, 4 << 20, conf);
    r->e[0]->setup.failed = failed;
    return r;
}

static void push(rig *r, int stream, int32_t t) {
    rig_push(r, rig_frame(r, 0, stream, t, NCT_F32, 0));
}

/* As a backend does: the latch, then the end of what runs. */
static void break_device(rig *r) {
    engine_latch(r->e[0], "the device broke");
    for (int i = 0; i < n_held; i++) engine_done(held[i], -EIO);
    n_held = 0;
}

static void test_all_fail(void **state) {
    (void)state;
    engine_ops ops;
    rig *r = begin(&ops);
    hold = true;
    for (int i = 0; i < 20; i++) push(r, i, 2000); /* three batches of 4 run, the others wait */
    engine_turn(r->e[0], uv_hrtime());
    assert_int_equal(n_held, 3);
    assert_int_equal(r->n_frames, 0);
    assert_null(engine_fault(r->e[0]));
    break_device(r);
    assert_string_equal(engine_fault(r->e[0]), "the device broke");
    rig_run(r, 20);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(r->frames[i]->error, -EIO);
        assert_string_equal(r->frames[i]->why, "engine 0 (odd) failed: the device broke");
    }
    assert_int_equal(r->n_copied_in, 20);
    assert_int_equal(n_failed, 1);
    assert_string_equal(told, "the device broke");
    push(r, 3, 100); /* no success from then on */
    rig_run(r, 21);
    assert_int_equal(r->frames[20]->error, -EIO);
    rig_free(r);
}

/* Computed, but not handed over: a batch before it was still running. */
static void test_done_is_not_believed(void **state) {
    (void)state;
    engine_ops ops;
    rig *r = begin(&ops);
    hold = true;
    for (int i = 0; i < 8; i++) push(r, i, 100);
    engine_turn(r->e[0], uv_hrtime());
    uv_sleep(2); /* the second batch is due by its deadline */
    engine_turn(r->e[0], uv_hrtime());
    assert_int_equal(n_held, 2);
    engine_done(held[1], 0);
    engine_turn(r->e[0], uv_hrtime());
    assert_int_equal(r->n_frames, 0);
    n_held = 1;
    break_device(r);
    rig_run(r, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(r->frames[i]->error, -EIO);
    rig_free(r);
}

static void test_launch_breaks(void **state) {
    (void)state;
    engine_ops ops;
    rig *r = begin(&ops);
    refuse_next = true;
    for (int i = 0; i < 6; i++) push(r, i, 100);
    rig_run(r, 6);
    for (int i = 0; i < 6; i++) assert_string_equal(r->frames[i]->why, "engine 0 (odd) failed: the launch broke");
    assert_int_equal(n_failed, 1);
    rig_free(r);
}

/* Pages that a hung device may write to stay out of use until it ends; its slot's memory is left to it. */
static void test_lost_memory(void **state) {
    (void)state;
    engine_ops ops;
    rig *r = begin(&ops);
    uint32_t all = arena_pages_free(r->a);
    hold = still_busy = take_over = true;
    push(r, 0, 8000); /* 8 channels x 8000 x 4 = 8 pages of 32 KiB */
    push(r, 1, 100);
    engine_turn(r->e[0], uv_hrtime());
    slot *s = held[0];
    const unsigned char *in = s->in, *out = s->out;
    assert_int_equal(all - arena_pages_free(r->a), 9);
    break_device(r);
    rig_run(r, 2);
    assert_int_equal(r->frames[0]->error, -EIO);
    assert_int_equal(all - arena_pages_free(r->a), 9);
    assert_ptr_not_equal(s->in, in);
    assert_ptr_not_equal(s->out, out);
    engine_lost_turn(r->e[0]);
    assert_int_equal(all - arena_pages_free(r->a), 9);
    still_busy = false;
    engine_lost_turn(r->e[0]);
    assert_int_equal(arena_pages_free(r->a), all);
    munmap((void *)(uintptr_t)in, slot_in_bytes(r->e[0]));
    munmap((void *)(uintptr_t)out, slot_out_bytes(r->e[0]));
    rig_free(r);
}

static void test_cpu_takes_over(void **state) {
    (void)state;
    engine_ops ops;
    rig *r = begin(&ops);
    hold = take_over = true;
    push(r, 0, 3000);
    engine_turn(r->e[0], uv_hrtime());
    frame *bound = rig_frame(r, 0, 0, 3000, NCT_F32, 0); /* of a stream that is bound to the engine */
    assert_ptr_equal(bound->engine, r->e[0]);
    rig_push(r, bound);
    break_device(r);
    rig_run(r, 1);
    assert_int_equal(r->frames[0]->error, -EIO);
    assert_string_equal(engine_name(r->e[0]), "cpu");
    assert_false(engine_latched(r->e[0]));
    assert_null(engine_fault(r->e[0]));
    for (int i = 0; i < 5; i++) {
        frame *f = i ? rig_frame(r, 0, i, 700, NCT_F32, 0) : bound;
        void *want = rig_expected(f);
        if (i) rig_push(r, f);
        rig_run(r, 2 + i);
        assert_ptr_equal(r->frames[1 + i], f);
        assert_int_equal(f->error, 0);
        assert_true(f->result_flags & WIRE_CPU_FALLBACK);
        assert_memory_equal(f->y, want, f->y_bytes);
        free(want);
    }
    rig_free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_fail), cmocka_unit_test(test_done_is_not_believed),
        cmocka_unit_test(test_launch_breaks), cmocka_unit_test(test_lost_memory),
        cmocka_unit_test(test_cpu_takes_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
