/* bench_knee.c: `nct bench --find-knee`: the highest rate, or the most streams, at which the objective still holds. Called by
 * bench.c. A level that misses is tried once more before it counts: on a machine that does other things too, one bad moment
 * is not a limit. */
#include "bench.h"
#include "cli.h"
#include <math.h>
#include <stdio.h>

void knee_add(knee *k, const knee_step *s) {
    if (k->n < BENCH_TRIES_MAX) k->steps[k->n++] = *s;
    if (s->verdict == KNEE_HOLDS && s->level > k->holds) k->holds = s->level;
    if (s->verdict != KNEE_HOLDS && (k->misses == 0 || s->level < k->misses)) k->misses = s->level;
}

double knee_next(const knee *k, double first, double most, double within, int whole) {
    double next, least = whole ? 1 : first / 1024;
    if (k->n == BENCH_TRIES_MAX) return 0;
    if (k->n == 0)
        next = first;
    else if (k->misses == 0)
        next = k->holds >= most ? 0 : 2 * k->holds;
    else if (k->holds == 0)
        next = k->misses / 2 < least ? 0 : k->misses / 2;
    else if (k->misses <= k->holds * (1 + within))
        next = 0;
    else
        next = sqrt(k->holds * k->misses);
    if (next > most) next = most;
    if (whole) next = floor(next);
    if (whole && next > 0 && k->misses > 0 && next <= k->holds) next = k->misses - k->holds >= 2 ? k->holds + 1 : 0;
    return next;
}

const char *knee_limited_by(const knee *k) {
    for (int i = 0; i < k->n; i++)
        if (k->steps[i].level == k->misses && k->misses > 0)
            return k->steps[i].verdict == KNEE_LAGS ? "this program" : "the daemon";
    return k->at_most ? "a limit" : "nothing";
}

/* A level that misses while this program is late by half of what was missed says little about the daemon. */
static knee_verdict judge(const bench *b, knee_step *s) {
    const bench_slo *missed = bench_missed(b);
    const hist *h = &b->sum.latency;
    if (missed && b->sum.hopeless)
        snprintf(s->why, sizeof s->why, "too many beyond %g ms for %s", (double)missed->limit_ns / 1e6, missed->name);
    else if (missed)
        snprintf(s->why, sizeof s->why, "%s is %.3f ms", missed->name, (double)hist_quantile(h, missed->q) / 1e6);
    else if (s->lost)
        snprintf(s->why, sizeof s->why, "%llu lost%s%.100s", (unsigned long long)s->lost, *b->sum.refusal ? ": " : "",
            b->sum.refusal);
    if (!missed && !s->lost) return KNEE_HOLDS;
    return missed && s->lag_ms * 1e6 > (double)missed->limit_ns / 2 ? KNEE_LAGS : KNEE_MISSES;
}

static void measured(const bench *b, knee_step *s) {
    const hist *h = &b->sum.latency;
    s->lost = b->sum.hopeless ? b->sum.refused + b->sum.expired + b->sum.failed : bench_lost(b);
    s->sent = b->sum.sent;
    s->p50_ms = (double)hist_quantile(h, 0.5) / 1e6;
    s->p99_ms = (double)hist_quantile(h, 0.99) / 1e6;
    s->lag_ms = (double)hist_quantile(&b->sum.lag, 0.99) / 1e6;
}

static int try_level(bench *b, knee_step *s) {
    const char *unit = b->o.every_s > 0 ? "streams" : "frames/s";
    for (s->tries = 1;; s->tries++) {
        int code =
            b->o.every_s > 0 ? bench_set_level(b, 0, (uint64_t)s->level) : bench_set_level(b, s->level, b->o.streams);
        if (!code) code = bench_run(b);
        if (code) return code;
        if (cli_stopped) return CLI_FAILED;
        measured(b, s);
        s->why[0] = 0;
        s->verdict = judge(b, s);
        if (s->verdict == KNEE_HOLDS || s->tries == 2) break;
        cli_say("%.6g %s: %s; once more", s->level, unit, s->why);
    }
    cli_say("%.6g %s: %s%s (p50 %.3f ms, p99 %.3f ms, own lag %.3f ms)", s->level, unit,
        s->verdict == KNEE_HOLDS ? "holds" : s->why, s->verdict == KNEE_LAGS ? ", and this program was late" : "",
        s->p50_ms, s->p99_ms, s->lag_ms);
    return CLI_OK;
}

/* The daemon's bounds on streams end a search over streams. */
static double most_of(const bench *b) {
    if (b->o.every_s <= 0) return 1e7;
    double all = (double)bench_limit(b, "max_streams", 4096),
           each = (double)bench_limit(b, "max_streams_client", 256);
    double clients = b->o.clients ? (double)b->o.clients : BENCH_CLIENTS_MAX;
    return all < each * clients ? all : each * clients;
}

int bench_knee(bench *b) {
    knee k = {0};
    int whole = b->o.every_s > 0, code = CLI_OK;
    double most = most_of(b), first = whole ? (double)b->o.streams : b->o.rate;
    for (double level; !code && (level = knee_next(&k, first, most, b->o.within / 100, whole)) > 0;) {
        knee_step s = {.level = level};
        code = try_level(b, &s);
        if (!code) knee_add(&k, &s);
    }
    k.at_most = k.holds >= most;
    if (k.n) knee_report(b, &k);
    if (code || !k.holds) return code ? code : CLI_FAILED;
    for (int i = 0; i < k.n; i++)
        if (k.steps[i].level == k.misses && k.steps[i].verdict == KNEE_LAGS) {
            cli_say(
                "this program was late where the objective was missed: the daemon may keep it further up. Give this "
                "program CPUs of its own (taskset) or more --threads");
            return CLI_TRY_AGAIN;
        }
    return CLI_OK;
}
