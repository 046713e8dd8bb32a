/* test_publisher_peers.c: the publisher and those who listen: clients that take nothing, a full socket, what PUB gets. */
#include "publisher_rig.h"

/* Frames until the client, which reads nothing, holds `least` rows: past what the kernel's buffers take. */
static void fill_client(rig *r, uint32_t least) {
    while (r->answers.held < least) {
        assert_true(r->counts.counts[COUNT_handed] < 4000);
        frame *f = admitted(r, r->counts.counts[COUNT_handed] + 1, 0, BIG_STEPS);
        in_arena(r, f);
        push(r, 1, &f);
        publisher_turn(&r->publisher, test_now_ns());
        for (int i = 0; i < 20 && r->answers.held; i++) {
            usleep(500);
            turn(r);
        }
    }
}

/* One that reads nothing is cut when it has taken none of what it holds for stall_ms; having taken one, however old the
 * next is, starts the time again. */
static void test_stall(void **state) {
    (void)state;
    const uint64_t stall_ns = 1000 * 1000000ull;
    rig r;
    rig_init(&r, 100, 1);
    fill_client(&r, 4);
    uint32_t held = r.answers.held;
    uint64_t old = r.s->held_first->t_ns, taken = old + stall_ns / 2;
    assert_true(r.s->t_let_go_ns > 0); /* the kernel's buffers took the first ones */
    r.s->t_let_go_ns = old - 1;
    answers_expire(&r.answers, old + stall_ns, 1000);
    assert_int_equal(r.counts.cuts[CUT_stall], 0);
    r.s->t_let_go_ns = taken;
    answers_expire(&r.answers, taken + stall_ns, 1000);
    assert_int_equal(r.counts.cuts[CUT_stall], 0);
    answers_expire(&r.answers, taken + stall_ns + 1, 1000);
    assert_int_equal(r.counts.cuts[CUT_stall], 1);
    assert_true(session_gone(r.s));
    WAIT_UNTIL(r.answers.held == 0, turn(&r));            /* its memory returns */
    assert_in_range(r.counts.counts[COUNT_cut], 1, held); /* the kernel may have taken one more meanwhile */
    assert_int_equal(r.ss.n, 0);
    rig_done(&r);
}

/* No room for one more answer: cut, and the frame is an orphan. */
static void test_full(void **state) {
    (void)state;
    rig r;
    rig_init(&r, 1, 1);
    for (uint64_t i = 1; !r.counts.cuts[CUT_full]; i++) {
        assert_true(i < 4000);
        frame *f = admitted(&r, i, 0, BIG_STEPS);
        in_arena(&r, f);
        push(&r, 1, &f);
        publisher_turn(&r.publisher, test_now_ns());
        if (!r.counts.cuts[CUT_full]) turn(&r);
        if (r.answers.held > 6) break;
    }
    assert_int_equal(r.counts.cuts[CUT_full], 1);
    assert_int_equal(r.counts.all.outcomes[OUTCOME_orphaned], 1);
    turn(&r);
    assert_int_equal(r.ss.n, 0);
    WAIT_UNTIL(r.answers.held == 0, turn(&r));
    rig_done(&r);
}

/* PUB: whole rows also with NO_REPLY, rising seqs alone, nothing with NO_PUBLISH or without a subscription. */
static void test_pub(void **state) {
    (void)state;
    static const struct {
        uint64_t seq;
        uint32_t flags;
        bool published;
    } rows[] = {{1, 0, true}, {2, WIRE_NO_REPLY, true}, {2, 0, false}, {1, 0, false}, {7, WIRE_NO_PUBLISH, false},
        {5, 0, true}};
    rig r;
    got g;
    rig_init(&r, 100, 100);
    frame *before = admitted(&r, 50, 0, BIG_STEPS); /* nobody listens yet: no copy, and its seq does not count */
    in_arena(&r, before);
    push(&r, 1, &before);
    publisher_turn(&r.publisher, test_now_ns());
    await(&r, r.client, &g);
    assert_int_equal(r.counts.counts[COUNT_published], 0);
    r.sub = test_socket(r.client_ctx, ZMQ_SUB, r.pub_endpoint, 100);
    zmq_setsockopt(r.sub, ZMQ_SUBSCRIBE, "m/a/", 4);
    WAIT_UNTIL(zxpub_wanted(r.pub, "m/a/", 4), turn(&r));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        frame *f = admitted(&r, 100 + i, rows[i].flags, BIG_STEPS);
        f->h.seq = rows[i].seq;
        in_arena(&r, f);
        push(&r, 1, &f);
        publisher_turn(&r.publisher, test_now_ns());
        await(&r, r.client, &g);
        bool reply = !(rows[i].flags & WIRE_NO_REPLY);
        assert_int_equal(g.bytes, reply ? BIG_STEPS * C_OUT * 4 : 0);
        assert_int_equal(g.h.dtype, reply ? NCT_F32 : 0);
        assert_int_equal(g.h.steps, BIG_STEPS);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].published) continue;
        await(&r, r.sub, &g);
        assert_int_equal(g.h.seq, rows[i].seq);
        assert_int_equal(g.bytes, BIG_STEPS * C_OUT * 4);
        assert_int_equal(g.first, 100 + i);
        assert_int_equal(g.h.dtype, NCT_F32);
        assert_int_equal(g.h.window, 0);
        assert_int_equal(g.h.session, 0);
    }
    turn(&r);
    assert_false(receive(r.sub, &g));
    assert_int_equal(r.counts.counts[COUNT_published], 3);
    assert_int_equal(r.counts.counts[COUNT_publish_stale], 2);
    assert_int_equal(r.publisher.largest, BIG_STEPS * C_OUT * 4);
    rig_done(&r);
}

static void test_hwm(void **state) {
    (void)state;
    assert_int_equal(publisher_hwm(64 << 20, 1 << 20), 64);
    assert_int_equal(publisher_hwm(64 << 20, 16 << 20), 4);
    assert_int_equal(publisher_hwm(64 << 20, 64 << 20), 4);
    assert_int_equal(publisher_hwm(64 << 20, 100), 4096);
    assert_int_equal(publisher_hwm(64 << 20, 0), 4096);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stall), cmocka_unit_test(test_full),
        cmocka_unit_test(test_pub), cmocka_unit_test(test_hwm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
