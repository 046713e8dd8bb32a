/* turn.c: one turn of the daemon, and the handles that bring it about. Called by libuv on the loop thread. Owns the
 * handles and the timerfd; decides nothing: order and budgets alone. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "spine.h"

#define IDLE_PERIOD_MS 1000 /* nothing connected: the sockets are still touched, or their mailboxes would grow */
#define FAST_PERIOD_MS 25   /* lower bound of it with connections */

/* ---- the timerfd: earliest batch deadline or ttl. uv_timer cannot do 500 us (flow.md E14) --------------------- */

static void arm(spine *s, uint64_t at_ns) {
    struct itimerspec t = {0};
    if (at_ns == s->h.armed_ns) return;
    s->h.armed_ns = at_ns;
    if (at_ns != UINT64_MAX) {
        t.it_value.tv_sec = (time_t)(at_ns / 1000000000u);
        t.it_value.tv_nsec = (long)(at_ns % 1000000000u);
        if (!at_ns) t.it_value.tv_nsec = 1;
    }
    timerfd_settime(s->h.deadline_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

static void on_deadline(uv_poll_t *h, int status, int events) {
    spine *s = h->data;
    uint64_t n;
    (void)status, (void)events;
    if (read(s->h.deadline_fd, &n, sizeof n) == sizeof n) s->h.armed_ns = UINT64_MAX;
}

/* ---- the turn -------------------------------------------------------------------------------------------------- */

static void expired(void *ctx, frame *f) {
    spine *s = ctx;
    char sentence[96];
    uint64_t now_ns = uv_hrtime();
    snprintf(sentence, sizeof sentence, "ttl of %u us ran out in the queue, after %llu us", f->h.ttl_us,
        (unsigned long long)((now_ns - f->t_read_ns) / 1000));
    publisher_refuse(&s->publisher, f, -ETIME, sentence, now_ns);
}

static bool compute(spine *s) {
    bool more = false;
    uint64_t now_ns = uv_hrtime();
    batcher_expire(s->batcher, now_ns, (frame_sink){expired, s});
    for (int32_t i = 0; i < s->n_engines; i++) more |= engine_turn(s->engines[i], now_ns);
    return more;
}

static void watch(spine *s) {
    const config *c = s->cfg;
    uint32_t least = c->ingest.hello_ms < c->daemon.stall_ms ? c->ingest.hello_ms : c->daemon.stall_ms;
    uint64_t ms = least / 4 < FAST_PERIOD_MS ? FAST_PERIOD_MS : least / 4;
    if (s->answers.watches) ms = FAST_PERIOD_MS;
    if (ms > IDLE_PERIOD_MS || !zrouter_connections(s->router)) ms = IDLE_PERIOD_MS;
    if (ms == s->h.period_ms) return;
    s->h.period_ms = ms;
    uv_timer_set_repeat(&s->h.housekeeping, ms);
    uv_timer_again(&s->h.housekeeping);
}

static void on_idle(uv_idle_t *h) {
    (void)h; /* keeps the poll from waiting; the check handle turns */
}

static void turn(spine *s) {
    uint64_t now_ns = uv_hrtime();
    s->n_turns++;
    answers_turn(&s->answers, now_ns);
    bool more = zctx_zap_turn(s->ctx);
    if (s->h.others_woke) zrouter_monitor(s->router, now_ns);
    sessions_reap(&s->sessions);
    ingest_turn(&s->ingest, now_ns);
    if (s->pub && s->h.others_woke) zxpub_turn(s->pub, now_ns);
    s->h.others_woke = false;
    sessions_reap(&s->sessions);
    more |= compute(s);
    publisher_turn(&s->publisher, uv_hrtime());
    sessions_reap(&s->sessions);
    more |= zrouter_pending(s->router);
    if (s->pub && zxpub_pending(s->pub)) more = s->h.others_woke = true;
    arm(s, batcher_next_ns(s->batcher));
    watch(s);
    assert(ledger_check(&s->counts, s->frames.n, s->answers.held));
    if (s->turned) s->turned(s->turned_ctx, now_ns);
    if (more)
        uv_idle_start(&s->h.busy, on_idle);
    else
        uv_idle_stop(&s->h.busy);
}

static void on_poll(uv_poll_t *h, int status, int events) {
    spine *s = h->data;
    (void)status, (void)events;
    if (h != &s->h.polls[0]) s->h.others_woke = true; /* the ROUTER is read in every turn */
}
static void on_check(uv_check_t *h) {
    turn(h->data);
}

static void on_housekeeping(uv_timer_t *h) {
    spine *s = h->data;
    uint64_t now_ns = uv_hrtime();
    s->h.others_woke = true; /* every socket is touched: a mailbox that nobody reads would grow */
    guard_log(&s->guard, now_ns);
    zrouter_expire(s->router, now_ns, s->cfg->ingest.hello_ms);
    answers_expire(&s->answers, now_ns, s->cfg->daemon.stall_ms);
    streams_expire(&s->streams, &s->sessions, now_ns, s->cfg->limits.stream_idle_s);
}

/* ---- handles --------------------------------------------------------------------------------------------------- */

static int poll_fds(spine *s, const int *fds, int n) {
    for (int i = 0; i < n; i++) {
        uv_poll_t *p = &s->h.polls[s->h.n_polls];
        int error = uv_poll_init(s->loop, p, fds[i]);
        if (error) return error;
        s->h.n_polls++;
        p->data = s;
        error = uv_poll_start(p, UV_READABLE, on_poll);
        if (error) return error;
    }
    return 0;
}

static int open_deadline(spine *s) {
    s->h.armed_ns = UINT64_MAX;
    s->h.deadline_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (s->h.deadline_fd < 0) return -errno;
    int error = uv_poll_init(s->loop, &s->h.deadline, s->h.deadline_fd);
    if (error) {
        close(s->h.deadline_fd);
        s->h.deadline_fd = -1;
        return error;
    }
    s->h.deadline.data = s;
    return uv_poll_start(&s->h.deadline, UV_READABLE, on_deadline);
}

int turn_open(spine *s, nct_why *why) {
    int fds[2];
    s->h.after_poll.data = s->h.housekeeping.data = s;
    uv_check_init(s->loop, &s->h.after_poll);
    uv_idle_init(s->loop, &s->h.busy);
    uv_timer_init(s->loop, &s->h.housekeeping);
    s->h.deadline_fd = -1;
    s->h.opened = true;
    zrouter_fds(s->router, fds);
    int error = poll_fds(s, fds, 2);
    if (s->pub) zxpub_fds(s->pub, fds);
    if (!error && s->pub) error = poll_fds(s, fds, 2);
    fds[0] = zctx_zap_fd(s->ctx);
    if (!error && fds[0] >= 0) error = poll_fds(s, fds, 1);
    if (!error) error = open_deadline(s);
    if (error) {
        snprintf(why->text, sizeof why->text, "the loop takes no more handles: %s", uv_strerror(error));
        return error;
    }
    uv_check_start(&s->h.after_poll, on_check);
    s->h.period_ms = IDLE_PERIOD_MS;
    uv_timer_start(&s->h.housekeeping, on_housekeeping, IDLE_PERIOD_MS, IDLE_PERIOD_MS);
    uv_idle_start(&s->h.busy, on_idle); /* a bind and the first events clear edges: turn once at once */
    return 0;
}

void turn_close(spine *s) {
    if (!s->h.opened) return;
    uv_check_stop(&s->h.after_poll);
    uv_idle_stop(&s->h.busy);
    uv_timer_stop(&s->h.housekeeping);
    for (int i = 0; i < s->h.n_polls; i++) uv_close((uv_handle_t *)&s->h.polls[i], NULL);
    if (s->h.deadline_fd >= 0) {
        uv_close((uv_handle_t *)&s->h.deadline, NULL);
        close(s->h.deadline_fd);
    }
    s->h.opened = false;
}
