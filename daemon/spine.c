/* spine.c: builds the stages and takes them down again. Called by main on the loop thread; the picture is spine_open,
 * read bottom-up: sinks first, sources last, undone in reverse. */
#include "spine.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "endpoints.h"
#include "log.h"
#include "sizes.h"

static int say(nct_why *why, int error, const char *text) {
    snprintf(why->text, sizeof why->text, "%s", text[0] ? text : strerror(-error));
    return error;
}

/* ---- between the stages ---------------------------------------------------------------------------------------- */

static void into_batcher(void *ctx, frame *f) {
    spine *s = ctx;
    if (!f->error && !batcher_push(s->batcher, f)) return;
    publisher_refuse(&s->publisher, f, -ENOBUFS, "no memory to queue one more frame", uv_hrtime());
}

static void orphaned(void *ctx, frame *f) {
    spine *s = ctx;
    publisher_orphan(&s->publisher, f);
}

static void session_ended(void *ctx, session *gone) {
    spine *s = ctx;
    batcher_drop_session(s->batcher, gone, (frame_sink){orphaned, s});
    streams_end_session(&s->streams, gone);
}

static void flush(void *ctx, const generation *g) {
    spine *s = ctx;
    batcher_flush(s->batcher, g);
}

static void wake(void *ctx) {
    uv_async_send(ctx);
}
static void on_let_go(uv_async_t *h) {
    (void)h; /* the check handle turns */
}

/* ---- the stages ------------------------------------------------------------------------------------------------ */

static int open_bookkeeping(spine *s, nct_why *why) {
    const config *c = s->cfg;
    session_limits limits = {.max_clients = c->limits.max_clients,
        .window = c->limits.window,
        .queue_bytes = c->limits.queue_bytes,
        .arena_bytes = c->limits.arena_bytes / ARENA_PAGE * ARENA_PAGE};
    batcher_limits queues = {
        .max_frames = c->batch.max_frames, .max_delay_us = c->batch.max_delay_us, .slot_bytes = c->engine.slot_bytes};
    int error = sessions_init(&s->sessions, &limits, (session_sink){session_ended, s});
    if (!error)
        error = streams_init(&s->streams, c->limits.max_streams, c->limits.max_streams_client, &s->counts,
            (stream_sink){ingest_stream_closed, &s->ingest}, (frame_sink){into_batcher, s});
    if (!error) error = frames_init(&s->frames, &s->counts, &s->sessions, &s->streams);
    if (!error) error = models_new(&s->models);
    if (!error) error = batcher_new(&s->batcher, &queues);
    if (!error) error = arena_new(&s->out, (size_t)c->limits.arena_bytes);
    return error ? say(why, error, "no memory for limits.arena_bytes and the tables beside it") : 0;
}

static int open_keys(spine *s, zwhy *why) {
    const auth *a = s->guard.list;
    zcurve keys = {.ipc_keyless = s->cfg->auth.ipc_keyless};
    s->guard.counts = &s->counts;
    if (a) keys.public_key = a->server.public_key, keys.secret_key = a->server.secret_key;
    return zctx_keys(s->ctx, &keys, (zadmit){guard_admit, &s->guard}, why);
}

static int open_router(spine *s, zwhy *why) {
    const config *c = s->cfg;
    uint64_t largest = 2 * c->limits.max_frame_bytes;
    zrouter_setup setup = {.ctx = s->ctx,
        .counts = &s->counts,
        .gone = {ingest_peer_gone, &s->ingest},
        .max_message_bytes = largest > 2 * WIRE_JSON_MAX ? largest : 2 * WIRE_JSON_MAX,
        .max_connections = c->limits.max_clients + sizes_crowd(c),
        .send_hwm = (int)(2 * (c->limits.window + SESSION_SLACK) + 1000),
        .receive_hwm = (int)c->limits.window + SESSION_SLACK};
    return zrouter_new(&s->router, &setup, why);
}

static int open_pub(spine *s, zwhy *why) {
    zxpub_setup setup = {.ctx = s->ctx,
        .counts = &s->counts,
        .send_hwm = publisher_hwm(0, 1),
        .max_connections = s->cfg->limits.max_clients + sizes_crowd(s->cfg),
        .may_subscribe = guard_may_subscribe,
        .may_ctx = &s->guard};
    return s->cfg->publish.enabled ? zxpub_new(&s->pub, &setup, why) : 0;
}

static int open_engines(spine *s, nct_why *why) {
    engine_setup setup = {.loop = s->loop,
        .cfg = s->cfg,
        .out = s->out,
        .batcher = s->batcher,
        .done = {publisher_push, &s->publisher},
        .copied_in = {frames_copied_in, &s->frames},
        .layer_of = generation_layer,
        .model_of = generation_model,
        .bind = streams_bind,
        .failed = s->engine_failed,
        .failed_ctx = s->engine_failed_ctx,
        .device = -1};
    int32_t n = s->chosen.cuda ? s->chosen.n_devices : (int32_t)s->cfg->engine.instances;
    const engine_ops *ops = &engine_cpu_ops;
#ifdef NCT_CUDA
    if (s->chosen.cuda) ops = &engine_cuda_ops;
#endif
    while (s->n_engines < n) {
        setup.index = s->n_engines;
        if (s->chosen.cuda) setup.device = s->n_engines;
        int error = engine_new(&s->engines[s->n_engines], ops, &setup, why);
        if (error) return error;
        s->n_engines++;
    }
    return 0;
}

/* ---- binding --------------------------------------------------------------------------------------------------- */

/* One endpoint of a blank-separated list: claimed, bound, and its socket's rights set. */
static int bind_one(spine *s, const char *endpoint, bool pub, zwhy *why) {
    const config *c = s->cfg;
    char bound[256];
    if (s->n_paths == (int)(sizeof s->paths / sizeof *s->paths))
        return snprintf(why->text, sizeof why->text, "more than %d endpoints", s->n_paths), -EINVAL;
    ipcpath *path = &s->paths[s->n_paths++];
    int error = ipcpath_claim(path, endpoint, why);
    if (error) return error;
    mode_t before = umask(0177); /* until ipcpath_open, nobody else may connect */
    error = pub ? zxpub_bind(s->pub, endpoint, bound, why) : zrouter_bind(s->router, endpoint, bound, why);
    umask(before);
    if (!error) error = ipcpath_open(path, c->ingest.socket_mode, c->ingest.socket_group, why);
    if (error) return error;
    if (!pub && !s->bound[0]) snprintf(s->bound, sizeof s->bound, "%s", bound);
    log_info("%s bound endpoint=%s", pub ? "publish" : "ingest", bound);
    return 0;
}

static int bind_ingest(void *ctx, const char *endpoint, zwhy *why) {
    return bind_one(ctx, endpoint, false, why);
}
static int bind_publish(void *ctx, const char *endpoint, zwhy *why) {
    return bind_one(ctx, endpoint, true, why);
}

static int bind_all(spine *s, zwhy *why) {
    const config *c = s->cfg;
    int error = endpoints_check(c, why);
    if (!error) error = endpoints_each("ingest.endpoint", c->ingest.endpoint, bind_ingest, s, why);
    if (!error && s->pub) error = endpoints_each("publish.endpoint", c->publish.endpoint, bind_publish, s, why);
    return error;
}

static int open_sockets(spine *s, nct_why *why) {
    zwhy text = {""};
    int error = zctx_new(&s->ctx, (int)s->cfg->ingest.io_threads);
    if (!error) error = open_keys(s, &text);
    if (!error) error = open_router(s, &text);
    if (!error) error = open_pub(s, &text);
    if (!error) error = bind_all(s, &text);
    return error ? say(why, error, text.text) : 0;
}

int spine_open(spine *s, uv_loop_t *loop, const config *cfg, nct_why *why) {
    s->cfg = cfg;
    s->loop = loop;
    int error = uv_async_init(loop, &s->let_go, on_let_go);
    if (error) return say(why, error, "the loop takes no handle");
    error = open_bookkeeping(s, why);
    if (!error) error = open_sockets(s, why);
    if (error) goto fail;
    meters_init(&s->meters);
    answers_init(&s->answers, s->router, &s->sessions, &s->counts, s->out, &s->pool, wake, &s->let_go);
    publisher_init(&s->publisher, &s->answers, &s->frames, s->pub, cfg->publish.publish_bytes, engine_batch_end);
    s->publisher.meters = &s->meters;
    error = open_engines(s, why);
    if (error) goto fail;
    s->facts = (welcome){.cfg = cfg,
        .models = s->models,
        .ss = &s->sessions,
        .frames = &s->frames,
        .counts = &s->counts,
        .held = &s->answers.held,
        .meters = &s->meters,
        .backend = engine_name(s->engines[0]),
        .precision = precision_name(s->chosen.precision),
        .engines = s->engines,
        .n_engines = s->n_engines,
        .n_threads = engine_workers(s->engines[0]),
        .t_start_ns = uv_hrtime()};
    s->ingest = (ingest){.cfg = cfg,
        .router = s->router,
        .ss = &s->sessions,
        .streams = &s->streams,
        .frames = &s->frames,
        .models = s->models,
        .answers = &s->answers,
        .pool = &s->pool,
        .counts = &s->counts,
        .facts = &s->facts,
        .guard = &s->guard,
        .next = {streams_push, &s->streams},
        .flush = flush,
        .flush_ctx = s};
    error = turn_open(s, why);
    if (error) goto fail;
    return 0;
fail:
    spine_close(s, 0);
    return error;
}

void spine_target(const spine *s, models_target *ret) {
    static const char *const variants[] = {
        [VARIANT_AVX512] = "avx512", [VARIANT_AVX2] = "avx2", [VARIANT_PORTABLE] = "portable"};
    int v = s->cfg->engine.cpu_variant;
    *ret = (models_target){.precision = s->chosen.precision, .force = v == VARIANT_AUTO ? NULL : variants[v]};
#ifdef NCT_CUDA
    for (int32_t i = 0; s->chosen.cuda && i < s->chosen.n_devices; i++) {
        if (i < s->n_engines && engine_device(s->engines[i]) != i) continue; /* it went over to the CPU */
        ret->check[ret->n_devices] = model_check_cuda;
        ret->devices[ret->n_devices++] = i;
    }
#endif
    bool on_cpu = !s->chosen.cuda || s->cfg->engine.on_gpu_error == GPU_ERROR_CPU;
    for (int32_t i = 0; i < s->n_engines; i++) on_cpu |= engine_device(s->engines[i]) < 0;
    if (on_cpu) models_target_cpu(ret);
}

int spine_take_over(spine *s, engine *e, nct_why *why) {
    const served *of = models_at(s->models, 0);
    if (of && !generation_layer(of->current, -1))
        return say(why, -ENOTSUP, "the models are not loaded for the CPU: engine.on_gpu_error was not cpu then");
    int error = engine_take_over(e, why);
    if (error) return error;
    s->facts.backend = engine_name(s->engines[0]);
    if (!strcmp(s->facts.backend, "cpu")) s->facts.precision = precision_name(NCT_PREC_F32);
    s->facts.n_threads = engine_workers(s->engines[0]);
    welcome_learn(&s->facts);
    return 0;
}

bool spine_quiet(const spine *s) {
    return !s->frames.n && !s->answers.held;
}

void spine_close(spine *s, int linger_ms) {
    turn_close(s);
    zxpub_close(s->pub, linger_ms);
    zrouter_close(s->router, linger_ms, &s->last);
    s->router = NULL;
    s->pub = NULL;
    zctx_zap_close(s->ctx);
    zctx_term(s->ctx);
    s->ctx = NULL;
    for (int i = 0; i < s->n_paths; i++) ipcpath_release(&s->paths[i]);
    s->n_paths = 0;
    sessions_reap(&s->sessions);
    if (s->answers.ss) answers_turn(&s->answers, uv_hrtime()); /* every let-go callback has run */
    for (int32_t i = 0; i < s->n_engines; i++) engine_free(s->engines[i]);
    s->n_engines = 0;
    ingest_done(&s->ingest);
    assert(ledger_check(&s->counts, s->frames.n, s->answers.held));
    answers_done(&s->answers);
    if (s->batcher) batcher_free(s->batcher);
    s->batcher = NULL;
    frames_done(&s->frames);
    streams_done(&s->streams);
    sessions_done(&s->sessions);
    models_free(s->models);
    s->models = NULL;
    arena_free(s->out);
    s->out = NULL;
    cells_done(&s->pool);
    guard_done(&s->guard);
}
