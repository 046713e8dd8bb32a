/* test_publisher.c: from a batch to its answers, with a real ROUTER, XPUB and clients and an engine of our own: order,
 * where rows stay until they are let go of, what PUB gets, and what becomes of frames whose client is gone. Time is an
 * argument. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "error.h"
#include "models.h"
#include "names.h"
#include "publisher.h"
#include "zmq_end.h"

#define C_OUT      4
#define BIG_STEPS  5000 /* 4 * 5000 * 4 bytes: three pages */
#define PAGES      40
#define FRAMES_MAX 32

typedef struct {
    zctx *ctx;
    void *client_ctx, *client, *sub;
    zrouter *router;
    zxpub *pub;
    ledger counts;
    sessions ss;
    streams st;
    frames frames;
    answers answers;
    publisher publisher;
    cells pool;
    arena *out;
    models *models;
    zpeer *peer;
    session *s;
    char endpoint[256], pub_endpoint[256];
    frame *pushed; /* what came out of the stream stage */
    int n_batch_end;
    void *scribble; /* overwritten when the batch ends, as a slot would be */
    size_t scribble_bytes;
} rig;

static void wake(void *ctx) {
    (void)ctx;
}
static void peer_gone(void *ctx, zpeer *p) {
    rig *r = ctx;
    if (p->session) sessions_end(&r->ss, p->session);
}
static void session_ended(void *ctx, session *s) {
    rig *r = ctx;
    streams_end_session(&r->st, s);
}
static void stream_closed(void *ctx, stream *s, int status, const char *sentence) {
    (void)ctx, (void)s, (void)status, (void)sentence;
}
static void take_frame(void *ctx, frame *f) {
    rig *r = ctx;
    r->pushed = f;
}
static rig *ending; /* engine_setup has no context for batch ends: the engine is the batch's own */
static void batch_end(struct engine *e, batch *b) {
    (void)e, (void)b;
    ending->n_batch_end++;
    if (ending->scribble) memset(ending->scribble, 0xee, ending->scribble_bytes);
}

static void load_model(rig *r) {
    static const char conf[] = "[model m]\nin_channels = 2\nout_channels = 4\nkernel_size = 1\nnum_groups = 2\n";
    config *c;
    config_why cwhy = {""};
    nct_why why = {""};
    model_set *set;
    models_target nowhere = {0};
    assert_int_equal(config_parse(&c, "test", conf, sizeof conf - 1, &cwhy), 0);
    assert_int_equal(model_set_load(&set, c, &nowhere, &why), 0);
    assert_int_equal(models_new(&r->models), 0);
    assert_int_equal(models_adopt(r->models, set), 0);
    model_set_free(set);
    config_free(c);
}

static void turn(rig *r) {
    zmsg m;
    uint64_t now = test_now_ns();
    answers_turn(&r->answers, now);
    zrouter_monitor(r->router, now);
    sessions_reap(&r->ss);
    while (zrouter_recv(r->router, &m, now) > 0) {
        r->peer = m.peer;
        zmsg_done(&m);
    }
    zxpub_turn(r->pub, now);
    assert_true(ledger_check(&r->counts, r->frames.n, r->answers.held));
}

static void connect_client(rig *r, int hwm) {
    session_why why;
    r->client = test_socket(r->client_ctx, ZMQ_DEALER, r->endpoint, hwm);
    r->peer = NULL;
    test_send(r->client, 3, (const char *const[]){"", "h", ""}, (const size_t[]){0, 1, 0});
    WAIT_UNTIL(r->peer, turn(r));
    assert_int_equal(sessions_open(&r->ss, &r->s, r->peer, "test", &why), 0);
}

static void rig_init(rig *r, int send_hwm, int client_hwm) {
    zwhy why;
    memset(r, 0, sizeof *r);
    ending = r;
    names_init();
    r->client_ctx = zmq_ctx_new();
    session_limits limits = {4, 64, 1 << 20, PAGES * ARENA_PAGE};
    assert_int_equal(zctx_new(&r->ctx, 1), 0);
    zrouter_setup rs = {.ctx = r->ctx,
        .counts = &r->counts,
        .gone = {peer_gone, r},
        .max_message_bytes = 1 << 20,
        .max_connections = 8,
        .send_hwm = send_hwm,
        .receive_hwm = 100};
    zxpub_setup xs = {.ctx = r->ctx, .counts = &r->counts, .max_connections = 8, .send_hwm = 100};
    assert_int_equal(zrouter_new(&r->router, &rs, &why), 0);
    assert_int_equal(zrouter_bind(r->router, "tcp://127.0.0.1:*", r->endpoint, &why), 0);
    assert_int_equal(zxpub_new(&r->pub, &xs, &why), 0);
    assert_int_equal(zxpub_bind(r->pub, "tcp://127.0.0.1:*", r->pub_endpoint, &why), 0);
    assert_int_equal(sessions_init(&r->ss, &limits, (session_sink){session_ended, r}), 0);
    assert_int_equal(
        streams_init(&r->st, 100, 100, &r->counts, (stream_sink){stream_closed, r}, (frame_sink){take_frame, r}), 0);
    assert_int_equal(frames_init(&r->frames, &r->counts, &r->ss, &r->st), 0);
    assert_int_equal(arena_new(&r->out, PAGES * ARENA_PAGE), 0);
    answers_init(&r->answers, r->router, &r->ss, &r->counts, r->out, &r->pool, wake, r);
    publisher_init(&r->publisher, &r->answers, &r->frames, r->pub, 1 << 20, batch_end);
    load_model(r);
    connect_client(r, client_hwm);
}

static void rig_done(rig *r) {
    if (r->client) zmq_close(r->client);
    if (r->sub) zmq_close(r->sub);
    zrouter_close(r->router, 0);
    zxpub_close(r->pub, 0);
    zctx_term(r->ctx);
    zmq_ctx_term(r->client_ctx);
    answers_turn(&r->answers, test_now_ns());
    assert_int_equal(arena_pages_free(r->out), PAGES); /* everything came back, whatever happened */
    assert_int_equal(r->ss.in_used + r->ss.out_used, 0);
    assert_true(ledger_check(&r->counts, 0, 0));
    const frame_counts *of = &models_at(r->models, 0)->counts;
    assert_true(counts_balanced(of, 0));
    assert_memory_equal(of, &r->counts.all, sizeof *of);
    answers_done(&r->answers);
    frames_done(&r->frames);
    streams_done(&r->st);
    sessions_done(&r->ss);
    models_free(r->models);
    arena_free(r->out);
    cells_done(&r->pool);
}

/* An admitted frame with t_out steps of result. */
static frame *admitted(rig *r, uint64_t request, uint32_t flags, int32_t t_out) {
    session_why why;
    stream *st;
    generation *g = models_at(r->models, 0)->current;
    size_t y = (size_t)t_out * C_OUT * sizeof(float), out = session_out_charge(y);
    assert_int_equal(streams_check(&r->st, r->s, "m/a/", 4, 0, &st, &why), 0);
    if (!st) assert_int_equal(streams_open(&r->st, r->s, g->of, "a", 0, &st), 0);
    ledger_received(&r->counts, &g->of->counts);
    assert_int_equal(session_admit(&r->ss, r->s, 8, out, &why), 0);
    frame *f = frames_add(&r->frames, r->s, g, request, 8, out);
    f->stream = st;
    f->h = (wire_header){.kind = WIRE_FRAME, .request_id = request, .seq = request, .flags = flags};
    f->y_dtype = NCT_F32;
    f->t_in = f->t_out = t_out;
    f->c_out = C_OUT;
    f->n_groups = 2;
    f->y_bytes = y;
    streams_push(&r->st, f);
    assert_ptr_equal(r->pushed, f);
    frames_copied_in(&r->frames, f);
    return f;
}

static void *in_arena(rig *r, frame *f) {
    uint32_t pages = (uint32_t)((f->y_bytes + ARENA_PAGE - 1) / ARENA_PAGE);
    int64_t first = arena_take(r->out, pages);
    assert_true(first >= 0);
    f->place = ROW_ARENA;
    f->arena_first = (uint32_t)first;
    f->arena_pages = pages;
    f->y = (char *)arena_base(r->out) + (size_t)first * ARENA_PAGE;
    memset(f->y, (int)f->h.request_id, f->y_bytes);
    return f->y;
}

static void in_slot(frame *f, void *slot, row_place place) {
    f->place = place; /* ROW_SLOT, or ROW_ARENA without pages of its own: the batch's */
    f->y = slot;
    memset(slot, (int)f->h.request_id, f->y_bytes);
}

static void push(rig *r, int n, frame **f) {
    batch b = {.n_frames = n, .frames = f, .cause = CLOSE_FULL};
    publisher_push(&r->publisher, &b);
}

typedef struct {
    wire_header h;
    size_t bytes;
    unsigned char first, last;
    char text[200];
} got;

static bool receive(void *s, got *ret) {
    static unsigned char topic[200], header[200], payload[1 << 20];
    int n = zmq_recv(s, topic, sizeof topic, ZMQ_DONTWAIT);
    if (n < 0) return false;
    assert_int_equal(n, 4);
    assert_memory_equal(topic, "m/a/", 4);
    assert_int_equal(zmq_recv(s, header, sizeof header, 0), WIRE_HEADER_BYTES);
    n = zmq_recv(s, payload, sizeof payload, 0);
    assert_true(n >= 0);
    assert_int_equal(wire_read(&ret->h, header, WIRE_HEADER_BYTES, NULL), 0);
    ret->bytes = (size_t)n;
    ret->first = n ? payload[0] : 0;
    ret->last = n ? payload[n - 1] : 0;
    snprintf(ret->text, sizeof ret->text, "%.*s", n < 199 ? n : 199, payload);
    return true;
}

static void await(rig *r, void *s, got *ret) {
    WAIT_UNTIL(receive(s, ret), turn(r));
}

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
    WAIT_UNTIL(r.answers.held == 0, turn(&r)); /* its memory returns */
    assert_int_equal(r.counts.counts[COUNT_cut], held);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_orphans), cmocka_unit_test(test_stall), cmocka_unit_test(test_full),
        cmocka_unit_test(test_pub), cmocka_unit_test(test_hwm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
