/* bench_load.c: a thread of `nct bench`: its share of the schedule, its frames, their answers. Called by bench_run.c, one
 * thread each; connections are never shared. The schedule does not look at the answers: a frame that finds no place in
 * the window waits in its client's ring, and its latency counts from when it was due. */
#include "bench.h"
#include "cli.h"
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define BURST   16        /* frames due at once that are sent before the answers are looked at */
#define SPIN_NS 5000      /* timers are this late even without slack */
#define NAP_NS  100000000 /* longest sleep: a signal may come before poll() begins */

uint64_t bench_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void bench_stream_name(char ret[32], const bench_level *level, uint32_t stream) {
    snprintf(ret, 32, "bench-%u-%u", level->number, stream);
}

static int over(const bench *b) {
    return cli_stopped || atomic_load_explicit(&b->stop, memory_order_relaxed);
}

/* ---- answers ------------------------------------------------------------------------------------------------ */
/* A search need not see the end of a run in which more answers than its quantile allows were late already. */
static void count_late(bench_worker *w, uint64_t took_ns) {
    const bench_options *o = &w->b->o;
    double planned = w->b->level.rate * (o->seconds - o->warmup_s);
    for (int i = 0; i < o->n_slos; i++)
        if (took_ns > o->slos[i].limit_ns && (double)++w->late[i] > (1 - o->slos[i].q) * planned + 1)
            w->sum.hopeless = 1;
    if (w->sum.hopeless) atomic_store(&w->b->stop, 1);
}

static void got(bench_worker *w, nct_answer *a) {
    bench *b = w->b;
    bench_sum *s = &w->sum;
    uint64_t now = bench_now_ns(), due = (uint64_t)(a->t_capture_ns - b->unix_ns), sent = b->began_ns + a->tag;
    if (a->kind == NCT_CLOSED) {
        nct_release(a);
        return;
    }
    if (a->kind == NCT_RESULT && !a->status)
        s->ok++;
    else if (a->status == -ETIME)
        s->expired++;
    else if (a->status == -EIO)
        s->failed++;
    else
        s->refused++;
    if (a->status) {
        snprintf(s->refusal, sizeof s->refusal, "%s", *a->text ? a->text : nct_strerror(a->status));
    } else if (due >= b->warm_from_ns) {
        hist_add(&s->latency, now > due ? now - due : 0);
        hist_add(&s->service, now > sent ? now - sent : 0);
        if (b->o.find_knee) count_late(w, now - due);
    }
    s->last_ns = now - b->began_ns;
    nct_release(a);
}

static void collect(bench_worker *w, bench_client *k) {
    nct_answer a;
    /* What nct_recv() read ahead is taken without another look at the socket; the rest makes the fd readable again. */
    do {
        if (nct_recv(k->c, 0, &a)) return;
        got(w, &a);
    } while (nct_ready(k->c));
}

/* ---- frames ------------------------------------------------------------------------------------------------- */
/* 0, -EAGAIN (no place), or an error that the frame will not survive. */
static int post(bench_worker *w, bench_client *k, const bench_due *d) {
    bench *b = w->b;
    char stream[32];
    bench_stream_name(stream, &b->level, d->stream);
    nct_request q = {.model = b->model->name,
        .stream = stream,
        .dtype = NCT_DTYPE_F32,
        .flags = b->o.no_reply ? NCT_FLAG_NO_REPLY : 0,
        .channels = (uint32_t)b->model->params.in_channels,
        .steps = d->steps,
        .ttl_us = (uint32_t)(b->o.ttl_ms * 1000),
        .seq = d->seq,
        .t_capture_ns = (int64_t)d->due_ns + b->unix_ns,
        .tag = bench_now_ns() - b->began_ns};
    int r = nct_send(k->c, &q, b->payload, NULL);
    if (!r) w->sum.sent++;
    if (r && r != -EAGAIN && r != -EINTR) {
        snprintf(w->sum.refusal, sizeof w->sum.refusal, "%s", nct_reason(k->c));
        w->sum.dropped++;
        return 0;
    }
    return r;
}

static void flush_waiting(bench_worker *w, bench_client *k) {
    while (k->n_waiting) {
        const bench_due *d = &k->waiting[k->head % w->b->o.pending];
        if (post(w, k, d)) return;
        if (d->due_ns >= w->b->warm_from_ns) hist_add(&w->sum.waited, bench_now_ns() - d->due_ns);
        k->head++;
        k->n_waiting--;
    }
}

static void due(bench_worker *w, bench_client *k, const bench_due *d) {
    uint64_t now = bench_now_ns();
    w->sum.due++;
    if (d->due_ns >= w->b->warm_from_ns) hist_add(&w->sum.lag, now > d->due_ns ? now - d->due_ns : 0);
    /* So late itself that its schedule and the time for answers are over: what is left is not sent. */
    int too_late = now > w->b->began_ns + (uint64_t)((w->b->o.seconds + w->b->o.drain_s) * 1e9);
    if (!too_late && !k->n_waiting && !post(w, k, d)) return;
    if (too_late || k->n_waiting == w->b->o.pending)
        w->sum.dropped++;
    else
        k->waiting[(k->head + k->n_waiting++) % w->b->o.pending] = *d;
}

/* ---- the loop ----------------------------------------------------------------------------------------------- */
/* Answers and waiting frames until `until_ns`. */
static void serve_until(bench_worker *w, uint64_t until_ns) {
    do {
        uint64_t now = bench_now_ns(), left = until_ns > now ? until_ns - now : 0;
        if (left > NAP_NS) left = NAP_NS;
        struct timespec t = {.tv_nsec = left > SPIN_NS ? (long)(left - SPIN_NS) : 0};
        int ready = ppoll(w->fds, w->n_own, &t, NULL);
        for (uint64_t i = 0; i < w->n_own && ready > 0; i++) {
            if (!w->fds[i].revents) continue;
            collect(w, w->own[i]);
            flush_waiting(w, w->own[i]);
        }
    } while (bench_now_ns() < until_ns && !cli_stopped);
}

/* What is still to be answered. A run that was given up does not send what waits. */
static void drain(bench_worker *w) {
    bench *b = w->b;
    uint64_t give_up = bench_now_ns() + (uint64_t)(b->o.drain_s * 1e9), waiting, in_flight;
    int hopeless = atomic_load(&b->stop);
    for (uint64_t i = 0; i < w->n_own && hopeless; i++) {
        w->sum.dropped += w->own[i]->n_waiting;
        w->own[i]->n_waiting = 0;
    }
    for (;;) {
        waiting = in_flight = 0;
        for (uint64_t i = 0; i < w->n_own; i++) {
            waiting += w->own[i]->n_waiting;
            in_flight += nct_in_flight(w->own[i]->c);
        }
        if (waiting + in_flight == 0 || bench_now_ns() >= give_up || cli_stopped) break;
        serve_until(w, bench_now_ns() + 1000000);
    }
    w->sum.unanswered = in_flight;
    w->sum.dropped += waiting;
}

static void own_clients(bench_worker *w) {
    for (uint64_t i = w->at; i < w->b->level.clients; i += w->b->n_workers) {
        w->own[w->n_own] = &w->b->clients[i];
        w->fds[w->n_own] = (struct pollfd){.fd = nct_fd(w->b->clients[i].c), .events = POLLIN};
        w->n_own++;
    }
}

void *bench_load(void *worker) {
    bench_worker *w = worker;
    bench *b = w->b;
    const bench_level *l = &b->level;
    uint64_t rng = b->o.seed;
    double at_s = 0;
    int burst = 0;
    prctl(PR_SET_TIMERSLACK, 1);
    own_clients(w);
    for (uint64_t n = 0; at_s < b->o.seconds && !over(b); n++) {
        uint64_t stream = b->o.poisson ? (uint64_t)(bench_uniform(&rng) * (double)l->streams) : n % l->streams;
        uint64_t client = stream % l->clients;
        if (client % b->n_workers == w->at) {
            bench_due d = {.due_ns = b->began_ns + (uint64_t)(at_s * 1e9),
                .seq = ++b->seqs[stream],
                .stream = (uint32_t)stream,
                .steps = bench_steps(&b->o, n)};
            /* Frames that are due already go out together: a look at the answers between any two would cost as much. */
            if (++burst > BURST || bench_now_ns() < d.due_ns) {
                serve_until(w, d.due_ns);
                burst = 0;
            }
            if (over(b)) break;
            due(w, &b->clients[client], &d);
        }
        at_s = b->o.poisson ? at_s - log1p(-bench_uniform(&rng)) / l->rate : (double)(n + 1) / l->rate;
    }
    drain(w);
    return NULL;
}
