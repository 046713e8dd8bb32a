/* test_publisher.c: from a batch to its answers: order, where rows stay until they are let go of, and what becomes of frames
 * whose client is gone. */
#include "publisher_rig.h"

/* Rows from pages, from the batch's shared pages and from the slot, in two batches: in order, right to the last byte
 * although the slot is overwritten at once; pages stay taken until let go of, everything else was free at push. */
static void test_rows(void **state) {
    (void)state;
    static unsigned char slot[BIG_STEPS * C_OUT * 4], shared[1024];
    rig r;
    got g;
    rig_init(&r, 100, 100);
    frame *f[4] = {
        admitted(&r, 1, 0, BIG_STEPS), admitted(&r, 2, 0, 7), admitted(&r, 3, 0, BIG_STEPS), admitted(&r, 4, 0, 0)};
    in_arena(&r, f[0]);
    in_slot(f[1], shared, ROW_ARENA);
    in_slot(f[2], slot, ROW_SLOT);
    in_slot(f[3], slot, ROW_SLOT);
    r.scribble = shared, r.scribble_bytes = sizeof shared;
    push(&r, 2, f);
    r.scribble = slot, r.scribble_bytes = sizeof slot;
    push(&r, 2, f + 2);
    assert_int_equal(r.n_batch_end, 2); /* before anything was sent */
    assert_int_equal(arena_pages_free(r.out), PAGES - 3);
    assert_int_equal(r.frames.n, 4);
    publisher_turn(&r.publisher, test_now_ns());
    assert_int_equal(r.frames.n, 0);
    assert_int_equal(r.s->in_flight, 4); /* places until let go of */
    for (int i = 1; i <= 4; i++) {
        size_t bytes = i == 2 ? 7 * C_OUT * 4 : i == 4 ? 0 : BIG_STEPS * C_OUT * 4;
        await(&r, r.client, &g);
        assert_int_equal(g.h.kind, WIRE_RESULT);
        assert_int_equal(g.h.request_id, i);
        assert_int_equal(g.bytes, bytes);
        assert_int_equal(g.h.session, r.s->id);
        assert_in_range(g.h.window, 1, 64);
        if (bytes) assert_true(g.first == i && g.last == i);
    }
    WAIT_UNTIL(r.answers.held == 0, turn(&r));
    assert_int_equal(r.s->in_flight, 0);
    assert_int_equal(r.counts.counts[COUNT_in_place], 1);
    assert_int_equal(r.counts.counts[COUNT_copied], 3);
    assert_int_equal(r.counts.all.outcomes[OUTCOME_ok], 4);
    rig_done(&r);
}

static void test_errors(void **state) {
    (void)state;
    rig r;
    got g;
    rig_init(&r, 100, 100);
    frame *f[2] = {admitted(&r, 1, 0, BIG_STEPS), admitted(&r, 2, 0, 7)};
    f[0]->error = -EIO;
    snprintf(f[0]->why, sizeof f[0]->why, "the engine said 700");
    f[1]->error = -EIO;
    push(&r, 2, f);
    publisher_turn(&r.publisher, test_now_ns());
    await(&r, r.client, &g);
    assert_int_equal(g.h.kind, WIRE_ERROR);
    assert_int_equal(g.h.status, -5);
    assert_string_equal(g.text, "the engine said 700");
    await(&r, r.client, &g);
    publisher_refuse(&r.publisher, admitted(&r, 3, 0, 7), -ETIME, "too late", test_now_ns());
    await(&r, r.client, &g);
    assert_int_equal(g.h.status, -62);
    assert_int_equal(g.h.request_id, 3);
    assert_int_equal(r.counts.all.outcomes[OUTCOME_failed], 2);
    assert_int_equal(r.counts.all.outcomes[OUTCOME_expired], 1);
    rig_done(&r);
}

/* Its client goes while the batch runs, or just before the turn that publishes. */
static void test_orphans(void **state) {
    (void)state;
    static unsigned char slot[1024];
    rig r;
    rig_init(&r, 100, 100);
    frame *f[3] = {admitted(&r, 1, 0, BIG_STEPS), admitted(&r, 2, 0, 7), admitted(&r, 3, 0, 7)};
    in_arena(&r, f[0]);
    in_slot(f[1], slot, ROW_SLOT);
    in_slot(f[2], slot, ROW_SLOT);
    push(&r, 3, f);
    zmq_close(r.client);
    r.client = NULL;
    WAIT_UNTIL(r.counts.counts[COUNT_disconnects] == 1, turn(&r));
    publisher_turn(&r.publisher, test_now_ns());
    assert_int_equal(r.counts.all.outcomes[OUTCOME_orphaned], 3);
    assert_int_equal(r.counts.counts[COUNT_handed], 0);
    rig_done(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows), cmocka_unit_test(test_errors), cmocka_unit_test(test_orphans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
