/* drain.c: see drain.h. Called by main's signal handlers, and after every turn while draining; stops the loop when it is
 * over. Whatever is still in flight then is said in the log by main, and lost. */
#include "drain.h"
#include <signal.h>
#include "log.h"

#define WAIT_PERCENT 60 /* of drain_ms: for clients to take their answers */
#define CUT_PERCENT  85 /* then their memory comes back within ms; the rest is for closing sockets */
#define TICK_MS      10

static uint64_t spent_percent(const drain *d, uint64_t now_ns) {
    return now_ns > d->begin_ns ? (now_ns - d->begin_ns) * 100 / d->drain_ns : 0;
}

static void over(drain *d) {
    d->state = DRAIN_OVER;
    uv_timer_stop(&d->tick);
    uv_stop(d->s->loop);
}

static void cut_holders(drain *d) {
    uint32_t n = 0;
    d->state = DRAIN_CUTTING;
    for (session *s = d->s->sessions.first; s; s = s->next) {
        if (!s->held_first || session_gone(s)) continue;
        n++;
        zrouter_cut(d->s->router, s->peer, CUT_drain);
        sessions_fail(&d->s->sessions, s);
    }
    if (n) log_warning("stopping: %u clients cut that did not take %u answers", n, d->s->answers.held);
}

/* Let go means taken by ZeroMQ's writer. Where a client's kernel is full, up to 8 KB and what is not tracked (GOAWAY) still
 * wait behind it, and the sockets' linger is short. So all of it has had room for a tick. */
static bool delivered(drain *d, uint64_t now_ns) {
    if (d->state == DRAIN_CUTTING) return true;
    if (zrouter_full(d->s->router)) d->full_ns = now_ns;
    return now_ns - d->full_ns > TICK_MS * 1000000ull;
}

static void turned(void *ctx, uint64_t now_ns) {
    drain *d = ctx;
    if (d->state == DRAIN_OVER) return;
    if (spine_quiet(d->s) && !publisher_pending(&d->s->publisher) && delivered(d, now_ns)) {
        over(d);
        return;
    }
    if (d->state == DRAIN_WAITING && spent_percent(d, now_ns) >= WAIT_PERCENT) cut_holders(d);
    if (d->state == DRAIN_CUTTING && spent_percent(d, now_ns) >= CUT_PERCENT) over(d);
}

static void on_tick(uv_timer_t *h) {
    (void)h; /* a turn follows */
}

void drain_init(drain *d, spine *s) {
    *d = (drain){.s = s};
    uv_timer_init(s->loop, &d->tick);
}

void drain_begin(drain *d, const char *why) {
    if (d->state == DRAIN_WAITING) {
        log_info("stopping now: %s", why);
        d->hurried = true;
        cut_holders(d);
        return;
    }
    if (d->state != DRAIN_OFF) return;
    d->state = DRAIN_WAITING;
    d->begin_ns = d->full_ns = uv_hrtime();
    d->drain_ns = d->s->cfg->daemon.drain_ms * 1000000ull;
    log_info("stopping: %s; in_flight=%u held=%u sessions=%u drain_ms=%u", why, d->s->frames.n, d->s->answers.held,
        d->s->sessions.n, d->s->cfg->daemon.drain_ms);
    ingest_goaway(&d->s->ingest, d->s->cfg->daemon.drain_ms);
    batcher_flush(d->s->batcher, NULL);
    d->s->turned = turned;
    d->s->turned_ctx = d;
    uv_timer_start(&d->tick, on_tick, TICK_MS, TICK_MS);
}

int drain_linger_ms(const drain *d) {
    uint64_t drain_ms = d->s->cfg->daemon.drain_ms;
    return drain_ms / 10 > 1000 ? 1000 : (int)(drain_ms / 10);
}

/* Signals are held back once the loop has ended. */
static bool signal_waits(void) {
    sigset_t set;
    return !sigpending(&set) && (sigismember(&set, SIGTERM) == 1 || sigismember(&set, SIGINT) == 1);
}

void drain_part(drain *d) {
    uint64_t until_ns = d->hurried ? 0 : d->begin_ns + d->drain_ns / 100 * WAIT_PERCENT;
    parting_end(&d->s->last, until_ns, signal_waits);
}
