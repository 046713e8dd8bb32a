/* test_engine.c: batches through real slots, a real arena and the real CPU layer: what comes back is bit for bit what
 * the layer gives the frame alone, wherever its row stood. */
#include "engine_rig.h"
#include <errno.h>
#include <math.h>
#include "engine_own.h"
#include "pool.h"

static const char *const small_slots[] = {"engine.slot_bytes=4M", "engine.slots=2", "engine.threads=2",
    "limits.max_frame_bytes=3M", "batch.max_frames=16", NULL};

static void check_results(rig *r, void **expected, uint64_t first_order, int n) {
    assert_int_equal(r->n_frames, n);
    for (int i = 0; i < n; i++) {
        frame *f = r->frames[i];
        assert_int_equal(f->error, 0);
        assert_int_equal(f->y_bytes, rows_y_bytes(f));
        assert_true(f->t_launch_ns > 0 && f->t_done_ns >= f->t_launch_ns);
        if (memcmp(f->y, expected[f->order - first_order], f->y_bytes) != 0)
            fail_msg("frame %d (T %d, dtype %d): other bits than alone", (int)f->order, f->t_in, f->h.dtype);
        free(expected[f->order - first_order]);
    }
}

/* Every dtype, layout, kind and size, two models, whatever the batches turn out to be. */
static void mixed_load(size_t arena_bytes, int *ret_slot_rows) {
    enum { N = 400 };
    void *expected[N];
    rig *r = rig_new(&engine_cpu_ops, 1, arena_bytes, small_slots);
    for (int i = 0; i < N; i++) {
        uint32_t flags = rand() % 3 ? 0 : WIRE_INTERLEAVED;
        if (rand() % 6 == 0) flags |= rand() % 2 ? WIRE_OBSERVE : WIRE_GIVEN;
        int32_t t = 1 + rand() % (rand() % 4 ? 500 : 6000);
        frame *f = rig_frame(r, rand() % 2, rand() % RIG_STREAMS / 2 * 2, t, 1 + rand() % 6, flags);
        if (!f->observe && rand() % 4 == 0) f->y_dtype = NCT_BF16;
        f->stream = &r->streams[f->stream->index + (f->model == &r->g[1])]; /* a stream has one model */
        expected[f->order - 1] = rig_expected(f);
        rig_push(r, f);
    }
    rig_run(r, N);
    check_results(r, expected, 1, N);
    *ret_slot_rows = 0;
    for (int i = 0; i < N; i++) {
        frame *f = r->frames[i];
        *ret_slot_rows += f->place == ROW_SLOT;
        if (f->place == ROW_ARENA) assert_int_equal(f->arena_pages > 0, rows_y_pages(f));
        if (f->arena_pages) assert_int_equal((uintptr_t)f->y % ARENA_PAGE, (uintptr_t)arena_base(r->a) % ARENA_PAGE);
    }
    assert_int_equal(r->n_copied_in, N);
    rig_free(r);
}

static void test_mixed(void **state) {
    (void)state;
    int slot_rows;
    mixed_load(64 << 20, &slot_rows);
    assert_int_equal(slot_rows, 0);
}

static void test_mixed_arena_short(void **state) {
    (void)state;
    int slot_rows;
    mixed_load(1 << 20, &slot_rows);
    assert_true(slot_rows > 50 && slot_rows < 350);
}

/* No run in one piece: each row takes its own. */
static void test_arena_in_pieces(void **state) {
    (void)state;
    enum { PAGES = 64 };
    void *expected[4];
    rig *r = rig_new(&engine_cpu_ops, 1, (size_t)PAGES * ARENA_PAGE, small_slots);
    for (int i = 0; i < PAGES; i++) assert_int_equal(arena_take(r->a, 1), i);
    for (int i = 0; i < PAGES; i++)
        if (i % 4) arena_give(r->a, (uint32_t)i, 1); /* holes of three pages */
    for (int i = 0; i < 4; i++) {
        frame *f = rig_frame(r, 0, i, i < 3 ? 3000 : 10, NCT_F32, 0); /* 96000 bytes: three pages */
        expected[i] = rig_expected(f);
        rig_push(r, f);
    }
    rig_run(r, 4);
    check_results(r, expected, 1, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(r->frames[i]->place, ROW_ARENA);
    for (int i = 0; i < 3; i++) assert_int_equal(r->frames[i]->arena_pages, 3);
    for (int i = 0; i < PAGES; i += 4) arena_give(r->a, (uint32_t)i, 1);
    rig_free(r);
}

/* Payloads go in 2 MiB a turn, the largest frame too; its charge comes back when its row is whole. */
static void test_fill_in_turns(void **state) {
    (void)state;
    for (uint32_t flags = 0; flags <= WIRE_INTERLEAVED; flags += WIRE_INTERLEAVED) {
        rig *r = rig_new(&engine_cpu_ops, 1, 64 << 20, small_slots);
        frame *f = rig_frame(r, 0, 0, 98000 * 3 / 2, NCT_F32, flags); /* 2.35 MB */
        void *expected = rig_expected(f);
        f->t_read_ns = 1;
        rig_push(r, f);
        assert_true(engine_turn(r->e[0], 1));
        assert_int_equal(r->n_copied_in, 0);
        assert_int_equal(engine_in_flight(r->e[0]), 1);
        assert_false(engine_turn(r->e[0], 2));
        assert_int_equal(r->n_copied_in, 1);
        rig_run(r, 1);
        check_results(r, &expected, 1, 1);
        rig_free(r);
    }
}

/* Threads that help to copy cut the rows of a turn anywhere: same bits, every charge comes back once. */
static void test_copied_by_several(void **state) {
    (void)state;
    enum { N = 60 };
    const char *const large[] = {
        "engine.slot_bytes=16M", "limits.max_frame_bytes=3M", "limits.arena_bytes=64M", NULL};
    void *expected[N];
    rig *r = rig_new(&engine_cpu_ops, 1, 64 << 20, large);
    assert_int_equal(pool_new(&r->e[0]->copiers, 3), 0);
    for (int i = 0; i < N; i++) {
        uint32_t flags = i % 3 ? 0 : WIRE_INTERLEAVED;
        if (i % 7 == 0) flags |= WIRE_GIVEN;
        frame *f = rig_frame(r, 0, i, i % 5 ? 20000 + rand() % 20000 : 1 + rand() % 300, 1 + i % 6, flags);
        expected[f->order - 1] = rig_expected(f);
        rig_push(r, f);
    }
    rig_run(r, N);
    check_results(r, expected, 1, N);
    assert_int_equal(r->n_copied_in, N);
    pool_free(r->e[0]->copiers);
    rig_free(r);
}

/* A slot is free when its batch is computed, whoever still holds the results; one whose rows stand in it is not. */
static void test_slot_is_not_held(void **state) {
    (void)state;
    const char *const one[] = {"engine.slot_bytes=4M", "engine.slots=1", "limits.max_frame_bytes=3M", NULL};
    rig *r = rig_new(&engine_cpu_ops, 1, 4 * ARENA_PAGE, one);
    r->keep = true;
    for (int i = 0; i < 2; i++) {
        rig_push(r, rig_frame(r, 0, 0, 100, NCT_F32, 0));
        rig_run(r, i + 1);
        assert_int_equal(r->frames[i]->place, ROW_ARENA);
    }
    rig_push(r, rig_frame(r, 0, 0, 4096, NCT_F32, 0)); /* four pages: no room */
    rig_run(r, 3);
    assert_int_equal(r->frames[2]->place, ROW_SLOT);
    rig_push(r, rig_frame(r, 0, 0, 100, NCT_F32, 0));
    for (int i = 0; i < 20; i++) {
        engine_turn(r->e[0], uv_hrtime());
        uv_run(&r->loop, UV_RUN_NOWAIT);
        uv_sleep(1);
    }
    assert_int_equal(r->n_frames, 3);
    assert_int_equal(batcher_queued(r->b), 1);
    r->n_woken = 0;
    rig_let_go(r);
    uv_run(&r->loop, UV_RUN_NOWAIT);
    assert_int_equal(r->n_woken, 1); /* or the loop would sleep with a due queue and a free slot */
    rig_run(r, 4);
    rig_free(r);
}

/* A small batch comes back in the turn that takes it; a large one does not hold the loop up, nor do many small ones. */
static void test_small_work_is_done_here(void **state) {
    (void)state;
    const char *const settings[] = {"engine.slot_bytes=20M", "engine.threads=1", NULL};
    rig *r = rig_new(&engine_cpu_ops, 1, 64 << 20, settings);
    rig_push(r, rig_frame(r, 0, 0, 480, NCT_F32, 0));
    engine_turn(r->e[0], uv_hrtime());
    assert_int_equal(r->n_frames, 1);
    rig_push(r, rig_frame(r, 0, 0, 40000, NCT_F32, 0));
    engine_turn(r->e[0], uv_hrtime());
    assert_int_equal(r->n_frames, 1);
    assert_int_equal(engine_in_flight(r->e[0]), 1);
    rig_run(r, 2);
    for (int i = 0; i < 2000; i++) rig_push(r, rig_frame(r, 0, i % RIG_STREAMS, 60, NCT_F32, 0));
    engine_turn(r->e[0], uv_hrtime());
    assert_true(r->n_frames > 100 && r->n_frames < 1900);
    rig_run(r, 2002);
    rig_free(r);
}

/* OBSERVE takes longer frames than any result may have: the workspace grows for them. Without memory for it, or for any
 * other reason before the launch, the frames are answered and their charges given back. */
static bool no_memory;
static void *scarce_alloc(engine *e, size_t bytes) {
    return no_memory ? NULL : engine_cpu_ops.alloc(e, bytes);
}

static void test_workspace_grows(void **state) {
    (void)state;
    const char *const small[] = {"engine.slot_bytes=4M", "limits.max_frame_bytes=3M", "batch.max_frames=1", NULL};
    engine_ops ops = engine_cpu_ops;
    ops.alloc = scarce_alloc;
    rig *r = rig_new(&ops, 1, 1 << 20, small);
    for (int i = 0; i < 3; i++) {
        frame *f = rig_frame(r, 1, 0, i == 1 ? 100 : 500000, NCT_I16, i == 1 ? 0 : WIRE_OBSERVE);
        void *expected = rig_expected(f);
        no_memory = i == 0;
        rig_push(r, f);
        rig_run(r, i + 1);
        f = r->frames[i];
        assert_int_equal(r->n_copied_in, i + 1);
        assert_int_equal(f->error, i == 0 ? -EIO : 0);
        if (i == 0) assert_non_null(strstr(f->why, "engine 0 (cpu) failed: no memory for a workspace of "));
        if (i > 0) assert_memory_equal(f->y, expected, f->y_bytes);
        free(expected);
    }
    rig_free(r);
}

static void test_flags_seen(void **state) {
    (void)state;
    rig *r = rig_new(&engine_cpu_ops, 1, 1 << 20, small_slots);
    for (int i = 0; i < 3; i++) {
        frame *f = rig_frame(r, 0, i, 50, NCT_F32, 0);
        float bad = NAN;
        if (i == 1) memcpy((void *)(uintptr_t)f->payload.data, &bad, sizeof bad);
        rig_push(r, f);
    }
    rig_run(r, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(r->frames[i]->saw & NCT_SAW_NONFINITE, i == 1);
    rig_free(r);
}

static void test_settings(void **state) {
    (void)state;
    const char *const bad[] = {"engine.slot_bytes=4M", "limits.max_frame_bytes=4M"};
    config *cfg;
    config_why cwhy;
    nct_why why = {""};
    engine *e = NULL;
    if (config_load(&cfg, NULL, bad, 2, &cwhy)) fail_msg("%s", cwhy.text);
    engine_setup setup = {.cfg = cfg};
    assert_int_equal(engine_new(&e, &engine_cpu_ops, &setup, &why), -EINVAL);
    assert_null(e);
    assert_non_null(strstr(why.text, "engine.slot_bytes = 4194304"));
    assert_non_null(strstr(why.text, "limits.max_frame_bytes = 4194304"));
    assert_non_null(strstr(why.text, "4718592")); /* 9/8 */
    config_free(cfg);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mixed), cmocka_unit_test(test_mixed_arena_short),
        cmocka_unit_test(test_arena_in_pieces), cmocka_unit_test(test_fill_in_turns),
        cmocka_unit_test(test_copied_by_several), cmocka_unit_test(test_slot_is_not_held),
        cmocka_unit_test(test_small_work_is_done_here), cmocka_unit_test(test_workspace_grows),
        cmocka_unit_test(test_flags_seen), cmocka_unit_test(test_settings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
