/* spine.h: all stages of one daemon, in one place, and the loop that turns them.
 *
 * A turn (flow.md 3): what ZeroMQ let go of and who came or went; then read; then expire, fill and launch; then publish;
 * then one ZMQ_EVENTS per socket. It runs after every wake-up of the loop, and again at once (an idle handle) while a
 * socket has more to say or an engine more to do. Loop thread. */
#ifndef NCTD_SPINE_H
#define NCTD_SPINE_H
#include <uv.h>
#include "answer.h"
#include "arena.h"
#include "batcher.h"
#include "choose.h"
#include "config.h"
#include "engine.h"
#include "frames.h"
#include "guard.h"
#include "ingest.h"
#include "ipcpath.h"
#include "meters.h"
#include "models.h"
#include "publisher.h"
#include "session.h"
#include "stream.h"
#include "welcome.h"
#include "zsock.h"

#define SPINE_ENGINES_MAX   64
#define SPINE_ENDPOINTS_MAX 8

typedef struct {
    uv_poll_t polls[5]; /* ROUTER and its monitor, XPUB and its monitor, questions about keys */
    int n_polls;
    bool others_woke;   /* a monitor or the XPUB has something to say */
    uv_poll_t deadline; /* the timerfd */
    int deadline_fd;
    uint64_t armed_ns; /* UINT64_MAX: not armed */
    uv_check_t after_poll;
    uv_idle_t busy;
    uv_timer_t housekeeping;
    uint64_t period_ms;
    bool opened;
} spine_handles;

typedef struct spine {
    const config *cfg;
    uv_loop_t *loop;
    cells pool;
    ledger counts;
    guard guard; /* its list is the caller's to fill before spine_open */
    meters meters;
    zctx *ctx;
    zrouter *router;
    zxpub *pub; /* NULL: no PUB */
    sessions sessions;
    streams streams;
    frames frames;
    answers answers;
    publisher publisher;
    arena *out;
    batcher *batcher;
    chosen chosen; /* the caller's to fill before spine_open and spine_target */
    void (*engine_failed)(void *ctx, engine *e, const char *why); /* the caller's: engine_setup.failed */
    void *engine_failed_ctx;
    engine *engines[SPINE_ENGINES_MAX];
    int32_t n_engines;
    models *models;
    welcome facts;
    ingest ingest;
    ipcpath paths[2 * SPINE_ENDPOINTS_MAX];
    int n_paths;
    char bound[256];   /* the first ingest endpoint, as bound */
    uv_async_t let_go; /* until ZeroMQ ended */
    parting last;      /* what spine_close leaves to be ended */
    spine_handles h;
    uint64_t n_turns;
    void (*turned)(void *ctx, uint64_t now_ns); /* after each turn: the drain looks here. May be NULL */
    void *turned_ctx;
} spine;

/* Everything of the configuration: sockets bound, engines open, handles started; no model yet. *s is zero before. 0, or
 * a negative errno with a sentence and everything undone. Either way the spine's memory outlives the loop: handles
 * that are not closed yet are the caller's to close with the loop (uv_walk). */
int spine_open(spine *s, uv_loop_t *loop, const config *cfg, nct_why *why);
/* Where models are to be loaded for: the devices of the engines, and the CPU where it takes over. */
void spine_target(const spine *s, models_target *ret);
/* The models are loaded: workspaces are reserved, and they are served; at a reload (next not NULL) the keys of `next`
 * hold, too, and *keys (taken, then NULL) is the allow-list; keys NULL: it stays. Queues of generations that were replaced are due, streams that cannot go on are closed with a reason. Or the
 * reason why not, and nothing changed. now is s->cfg. */
int spine_swap(spine *s, config *now, config *next, model_set *set, auth **keys, nct_why *why);
/* The CPU takes a failed engine's place, WELCOME says so; or the reason why not. Only from engine_failed. */
int spine_take_over(spine *s, engine *e, nct_why *why);
/* Nothing of a client's is with us any more: no frame, no held answer. */
bool spine_quiet(const spine *s);
/* Sockets close (their linger bounded), ZeroMQ ends, then everything else. Nothing may be in flight in an engine. */
void spine_close(spine *s, int linger_ms);

int turn_open(spine *s, nct_why *why); /* the handles; spine_open calls it */
/* Turns no more: the polls end before their sockets do. The handles close when the loop runs next. */
void turn_close(spine *s);
#endif
