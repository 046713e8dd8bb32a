/* test_stream.c: who owns a name, what an epoch is good for, how streams close and expire. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "names.h"
#include "stream.h"

typedef struct {
    sessions ss;
    streams t;
    ledger counts;
    served of;
    frame *pushed;
    int n_closed, status;
    stream *closed;
} world;

static void on_gone(void *ctx, session *s) {
    streams_end_session(&((world *)ctx)->t, s);
}
static void on_closed(void *ctx, stream *s, int status, const char *sentence) {
    world *w = ctx;
    assert_non_null(s->owner); /* it can still be told */
    assert_true(!status == !sentence[0]);
    w->n_closed++;
    w->closed = s;
    w->status = status;
}
static void on_frame(void *ctx, frame *f) {
    ((world *)ctx)->pushed = f;
}

static session *opened(world *w) {
    session *s;
    session_why why;
    assert_int_equal(sessions_open(&w->ss, &s, NULL, "", &why), 0);
    return s;
}

static void world_init(world *w, uint32_t max, uint32_t max_session) {
    session_limits limits = {8, 64, 1 << 20, 1 << 20};
    *w = (world){.of.name = "m"};
    names_init();
    assert_int_equal(sessions_init(&w->ss, &limits, (session_sink){on_gone, w}), 0);
    assert_int_equal(
        streams_init(&w->t, max, max_session, &w->counts, (stream_sink){on_closed, w}, (frame_sink){on_frame, w}), 0);
}

static void world_done(world *w) {
    while (w->ss.first) sessions_end(&w->ss, w->ss.first);
    streams_done(&w->t);
    sessions_done(&w->ss);
}

static int check(world *w, session *s, const char *topic, uint32_t epoch, stream **ret) {
    session_why why = {""};
    *ret = NULL;
    int error = streams_check(&w->t, s, topic, strlen(topic), epoch, ret, &why);
    assert_true(!error == !why.text[0]);
    return error;
}

static stream *open_stream(world *w, session *s, const char *name) {
    stream *st;
    assert_int_equal(streams_open(&w->t, s, &w->of, name, 1000, &st), 0);
    return st;
}

static void test_owner_and_epoch(void **state) {
    (void)state;
    world w;
    stream *st;
    world_init(&w, 10, 10);
    session *a = opened(&w), *b = opened(&w);
    assert_int_equal(check(&w, a, "m/x/", 0, &st), 0);
    assert_null(st); /* not opened by looking */
    assert_int_equal(check(&w, a, "m/x/", 1, &st), -ESTALE);
    stream *x = open_stream(&w, a, "x");
    assert_string_equal(x->topic, "m/x/");
    assert_int_equal(check(&w, a, "m/x/", x->epoch, &st), 0);
    assert_ptr_equal(st, x);
    assert_int_equal(check(&w, a, "m/x/", x->epoch + 1, &st), -ESTALE);
    assert_int_equal(check(&w, b, "m/x/", 0, &st), -EBUSY);
    assert_int_equal(check(&w, b, "m/x1/", 0, &st), 0);
    uint32_t before = x->epoch;
    x = open_stream(&w, a, "x"); /* opened again: another epoch, and the old one is gone without a word */
    assert_int_not_equal(x->epoch, before);
    assert_int_equal(check(&w, a, "m/x/", before, &st), -ESTALE);
    assert_int_equal(w.n_closed, 0);
    assert_int_equal(w.t.n, 1);
    sessions_end(&w.ss, a);
    assert_int_equal(w.t.n, 0);
    assert_int_equal(check(&w, b, "m/x/", 0, &st), 0); /* free for others */
    world_done(&w);
}

static void test_limits(void **state) {
    (void)state;
    world w;
    stream *st;
    world_init(&w, 3, 2);
    session *a = opened(&w), *b = opened(&w);
    open_stream(&w, a, "1");
    open_stream(&w, a, "2");
    assert_int_equal(check(&w, a, "m/3/", 0, &st), -EUSERS);
    assert_int_equal(check(&w, a, "m/2/", 0, &st), 0);
    open_stream(&w, b, "3");
    assert_int_equal(check(&w, b, "m/4/", 0, &st), -EUSERS);
    world_done(&w);
}

static void push(world *w, stream *st, frame *f, uint64_t seq, uint64_t now) {
    *f = (frame){.stream = st, .session = st->owner, .h.seq = seq, .t_read_ns = now};
    streams_push(&w->t, f);
    assert_ptr_equal(w->pushed, f);
}

static void test_close(void **state) {
    (void)state;
    world w;
    stream *st;
    frame f[2];
    world_init(&w, 10, 10);
    session *a = opened(&w);
    stream *x = open_stream(&w, a, "x");
    push(&w, x, &f[0], 1, 0);
    push(&w, x, &f[1], 2, 0);
    streams_close(&w.t, x, 77);
    assert_int_equal(w.n_closed, 0); /* its frames first */
    assert_int_equal(check(&w, a, "m/x/", 0, &st), 0);
    assert_null(st); /* the name is free at once */
    stream_frame_ended(&w.t, x);
    assert_int_equal(w.n_closed, 0);
    stream_frame_ended(&w.t, x);
    assert_int_equal(w.n_closed, 1);
    assert_int_equal(w.status, 0);
    assert_int_equal(w.t.n, 0);
    x = open_stream(&w, a, "y"); /* without frames it closes at once */
    streams_close(&w.t, x, 78);
    assert_int_equal(w.n_closed, 2);
    x = open_stream(&w, a, "z"); /* its session goes before its frame: nobody to tell, and the frame keeps it alive */
    push(&w, x, &f[0], 1, 0);
    streams_close(&w.t, x, 79);
    sessions_end(&w.ss, a);
    assert_null(x->owner);
    stream_frame_ended(&w.t, x);
    assert_int_equal(w.n_closed, 2);
    world_done(&w);
}

/* What a reload ends: told once, with its reason, after the last frame; the name is free at once. */
static void test_drop(void **state) {
    (void)state;
    world w;
    frame f;
    world_init(&w, 10, 10);
    session *a = opened(&w);
    stream *idle = open_stream(&w, a, "idle"), *busy = open_stream(&w, a, "busy"), *again;
    push(&w, busy, &f, 1, 0);
    streams_drop(&w.t, idle, -ENOENT, "gone");
    assert_int_equal(w.n_closed, 1);
    assert_int_equal(w.status, -ENOENT);
    streams_drop(&w.t, busy, -EINVAL, "another rate");
    streams_drop(&w.t, busy, -ENOENT, "gone"); /* the first reason stands */
    assert_int_equal(w.n_closed, 1);
    assert_int_equal(check(&w, a, "m/busy/", 0, &again), 0);
    assert_null(again);
    stream_frame_ended(&w.t, busy);
    assert_int_equal(w.n_closed, 2);
    assert_ptr_equal(w.closed, busy);
    assert_int_equal(w.status, -EINVAL);
    busy = open_stream(&w, a, "busy");
    push(&w, busy, &f, 1, 0);
    streams_close(&w.t, busy, 5); /* its own CLOSE is answered as that */
    streams_drop(&w.t, busy, -ENOENT, "gone");
    stream_frame_ended(&w.t, busy);
    assert_int_equal(w.n_closed, 3);
    assert_int_equal(w.status, 0);
    world_done(&w);
}

static void test_facts_fit(void **state) {
    (void)state;
    static const struct {
        const char *facts;
        double rate;
        int error;
    } rows[] = {{"{}", 8000, 0}, {"{\"sample_rate\": 8000}", 8000, 0}, {"{\"sample_rate\": 16000}", 8000, -EINVAL},
        {"{\"sample_rate\": 16000}", 0, 0}, {"{\"sample_rate\": -1}", 0, -EINVAL},
        {"{\"sample_rate\": \"8000\"}", 8000, -EINVAL}};
    model m = {.sample_rate = 0};
    generation g = {.m = &m};
    served of = {.name = "m", .current = &g};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char why[200] = "";
        json_t *facts = json_loads(rows[i].facts, 0, NULL);
        m.sample_rate = rows[i].rate;
        assert_int_equal(stream_facts_fit(facts, &of, why, sizeof why), rows[i].error);
        assert_true(!rows[i].error == !why[0]);
        json_decref(facts);
    }
    assert_int_equal(stream_facts_fit(NULL, &of, NULL, 0), 0);
}

static void test_engine_binding(void **state) {
    (void)state;
    world w;
    frame f[3];
    int engine;
    world_init(&w, 10, 10);
    stream *x = open_stream(&w, opened(&w), "x");
    push(&w, x, &f[0], 1, 0);
    assert_null(f[0].engine);
    streams_bind(x, (struct engine *)&engine);
    push(&w, x, &f[1], 2, 0);
    assert_ptr_equal(f[1].engine, &engine); /* while one is in flight, the next goes there too */
    assert_int_equal(f[1].result_flags & WIRE_GAP_SEEN, 0);
    stream_frame_ended(&w.t, x);
    stream_frame_ended(&w.t, x);
    push(&w, x, &f[2], 4, 0);
    assert_null(f[2].engine);
    assert_true(f[2].result_flags & WIRE_GAP_SEEN);
    stream_frame_ended(&w.t, x);
    world_done(&w);
}

static void test_expire(void **state) {
    (void)state;
    world w;
    frame f;
    const uint64_t s = 1000000000u;
    world_init(&w, 10, 10);
    session *a = opened(&w);
    stream *idle = open_stream(&w, a, "idle"), *busy = open_stream(&w, a, "busy"),
           *fresh = open_stream(&w, a, "fresh");
    push(&w, busy, &f, 1, 1000);
    fresh->t_used_ns = 5 * s;
    streams_expire(&w.t, &w.ss, 1000 + 10 * s - 1, 10);
    assert_int_equal(w.n_closed, 0);
    streams_expire(&w.t, &w.ss, 1000 + 10 * s, 10);
    assert_int_equal(w.n_closed, 1);
    assert_ptr_equal(w.closed, idle);
    assert_int_equal(w.status, -ESTALE);
    stream_frame_ended(&w.t, busy);
    streams_expire(&w.t, &w.ss, 1000 + 15 * s, 10);
    assert_int_equal(w.n_closed, 3);
    world_done(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_owner_and_epoch), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_close), cmocka_unit_test(test_drop), cmocka_unit_test(test_facts_fit),
        cmocka_unit_test(test_engine_binding), cmocka_unit_test(test_expire)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
