/* publisher_rig.h: what the publisher's unit tests share: a real ROUTER, XPUB and clients, and an engine of our own. Time is an
 * argument. */
#ifndef PUBLISHER_RIG_H
#define PUBLISHER_RIG_H
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

static inline void wake(void *ctx) {
    (void)ctx;
}
static inline void peer_gone(void *ctx, zpeer *p) {
    rig *r = ctx;
    if (p->session) sessions_end(&r->ss, p->session);
}
static inline void session_ended(void *ctx, session *s) {
    rig *r = ctx;
    streams_end_session(&r->st, s);
}
static inline void stream_closed(void *ctx, stream *s, int status, const char *sentence) {
    (void)ctx, (void)s, (void)status, (void)sentence;
}
static inline void take_frame(void *ctx, frame *f) {
    rig *r = ctx;
    r->pushed = f;
}
static rig *ending; /* engine_setup has no context for batch ends: the engine is the batch's own */
static inline void batch_end(struct engine *e, batch *b) {
    (void)e, (void)b;
    ending->n_batch_end++;
    if (ending->scribble) memset(ending->scribble, 0xee, ending->scribble_bytes);
}

static inline void load_model(rig *r) {
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

static inline void turn(rig *r) {
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

static inline void connect_client(rig *r, int hwm) {
    session_why why;
    r->client = test_socket(r->client_ctx, ZMQ_DEALER, r->endpoint, hwm);
    r->peer = NULL;
    test_send(r->client, 3, (const char *const[]){"", "h", ""}, (const size_t[]){0, 1, 0});
    WAIT_UNTIL(r->peer, turn(r));
    assert_int_equal(sessions_open(&r->ss, &r->s, r->peer, "test", &why), 0);
}

static inline void rig_init(rig *r, int send_hwm, int client_hwm) {
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

static inline void rig_done(rig *r) {
    if (r->client) zmq_close(r->client);
    if (r->sub) zmq_close(r->sub);
    zrouter_close(r->router, 0, NULL);
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
static inline frame *admitted(rig *r, uint64_t request, uint32_t flags, int32_t t_out) {
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

static inline void *in_arena(rig *r, frame *f) {
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

static inline void in_slot(frame *f, void *slot, row_place place) {
    f->place = place; /* ROW_SLOT, or ROW_ARENA without pages of its own: the batch's */
    f->y = slot;
    memset(slot, (int)f->h.request_id, f->y_bytes);
}

static inline void push(rig *r, int n, frame **f) {
    batch b = {.n_frames = n, .frames = f, .cause = CLOSE_FULL};
    publisher_push(&r->publisher, &b);
}

typedef struct {
    wire_header h;
    size_t bytes;
    unsigned char first, last;
    char text[200];
} got;

static inline bool receive(void *s, got *ret) {
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

static inline void await(rig *r, void *s, got *ret) {
    WAIT_UNTIL(receive(s, ret), turn(r));
}
#endif
