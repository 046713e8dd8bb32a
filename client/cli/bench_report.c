/* bench_report.c: figures of `nct bench`, for people or as one JSON object, and what is to be said about them. Called by bench.c
 * and bench_knee.c. */
#include "bench.h"
#include "cli.h"
#include <stdio.h>
#include <stdlib.h>

static const double quantiles[] = {0.5, 0.9, 0.99, 0.999};
static const char *const quantile_names[] = {"p50_us", "p90_us", "p99_us", "p999_us"};
typedef unsigned long long ull; /* what printf takes */

static json_t *hist_json(const hist *h) {
    json_t *j = json_pack(
        "{s:I,s:f,s:f}", "n", (json_int_t)h->n, "mean_us", hist_mean(h) / 1e3, "max_us", (double)h->most / 1e3);
    for (int i = 0; i < 4; i++)
        json_object_set_new(j, quantile_names[i], json_real((double)hist_quantile(h, quantiles[i]) / 1e3));
    return j;
}

static double answered_per_s(const bench *b) {
    double s = (double)b->sum.last_ns * 1e-9;
    return s > 0 ? (double)b->sum.ok / s : 0;
}

/* ---- JSON --------------------------------------------------------------------------------------------------- */
static json_t *setup_json(const bench *b, const char *what) {
    json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:b,s:f,s:I}", "bench", what, "model", b->model->name, "backend",
        b->daemon.backend, "variant", b->daemon.variant, "poisson", b->o.poisson, "seconds", b->o.seconds, "threads",
        (json_int_t)b->o.threads);
    json_t *sizes = json_array();
    for (int i = 0; i < b->o.n_sizes; i++)
        json_array_append_new(sizes, b->o.mixed
                                         ? json_pack("[I,f]", (json_int_t)b->o.sizes[i].steps, b->o.sizes[i].weight)
                                         : json_integer((json_int_t)b->o.sizes[i].steps));
    json_object_set_new(j, b->o.mixed ? "mix" : "steps", sizes);
    if (b->o.every_s > 0) json_object_set_new(j, "every_ms", json_real(b->o.every_s * 1e3));
    if (!b->o.n_slos) return j;
    json_t *slos = json_object();
    for (int i = 0; i < b->o.n_slos; i++)
        json_object_set_new(slos, b->o.slos[i].name, json_real((double)b->o.slos[i].limit_ns / 1e6));
    json_object_set_new(j, "slo_ms", slos);
    return j;
}

static void ledgers_json(const bench *b, json_t *j) {
    json_object_set(j, "ledger_before", b->ledger_before ? b->ledger_before : json_null());
    json_object_set(j, "ledger", b->ledger_after ? b->ledger_after : json_null());
}

static void print_json(json_t *j) {
    json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(j);
}

static void report_json(const bench *b) {
    const bench_sum *s = &b->sum;
    json_t *j = setup_json(b, "nct");
    const struct {
        const char *name;
        uint64_t n;
    } counts[] = {{"streams", b->level.streams}, {"clients", b->level.clients}, {"due", s->due}, {"sent", s->sent},
        {"ok", s->ok}, {"refused", s->refused}, {"expired", s->expired}, {"failed", s->failed},
        {"not_sent", s->dropped}, {"unanswered", s->unanswered}, {"lost", bench_lost(b)}};
    json_object_set_new(j, "rate", json_real(b->level.rate));
    json_object_set_new(j, "answered_per_s", json_real(answered_per_s(b)));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(j, counts[i].name, json_integer((json_int_t)counts[i].n));
    json_object_set_new(j, "latency", hist_json(&s->latency));
    if (b->o.subscribe) {
        json_object_set_new(j, "subscriber", hist_json(&s->heard_after));
        json_object_set_new(j, "unheard", json_integer((json_int_t)bench_unheard(b)));
    }
    json_object_set_new(j, "from_real_send", hist_json(&s->service));
    json_object_set_new(j, "own_lag", hist_json(&s->lag));
    json_object_set_new(j, "window_wait", hist_json(&s->waited));
    json_object_set_new(j, "lagged", json_boolean(bench_lagged(b)));
    if (b->o.n_slos) json_object_set_new(j, "slo_kept", json_boolean(!bench_missed(b) && !bench_lost(b)));
    ledgers_json(b, j);
    print_json(j);
}

/* ---- for people --------------------------------------------------------------------------------------------- */
static void line(const char *name, const hist *h) {
    printf("  %-34s", name);
    for (int i = 0; i < 4; i++) printf(" %10.3f", (double)hist_quantile(h, quantiles[i]) / 1e6);
    printf(" %10.3f\n", (double)h->most / 1e6);
}

static void show_ledger(const char *name, const json_t *ledger) {
    char *text = ledger ? served_ledger_text(ledger) : NULL;
    if (text && *text) printf("%s: %s\n", name, text);
    free(text);
}

static double grown(const bench *b, const char *key) {
    return json_number_value(json_object_get(b->ledger_after, key)) -
           json_number_value(json_object_get(b->ledger_before, key));
}

/* Of the daemon while the bench ran, other clients' frames included. */
static void show_batches(const bench *b) {
    double batches = grown(b, "batches");
    if (!(batches > 0)) return;
    printf("%.0f batches of %.2f frames; closed because the engine was idle %.0f, full %.0f, at max_delay %.0f, "
           "flushed %.0f\n",
        batches, grown(b, "batch_frames") / batches, grown(b, "batch_idle"), grown(b, "batch_full"),
        grown(b, "batch_deadline"), grown(b, "batch_flush"));
}

void bench_report(const bench *b) {
    const bench_sum *s = &b->sum;
    if (b->o.json) {
        report_json(b);
        return;
    }
    printf("%llu frames due in %g s (%s, %g/s), %llu streams, %llu clients, model %s on %s %s\n", (ull)s->due,
        b->o.seconds, b->o.poisson ? "Poisson" : "constant", b->level.rate, (ull)b->level.streams,
        (ull)b->level.clients, b->model->name, b->daemon.backend, b->daemon.variant);
    printf("sent %llu, ok %llu (%.1f/s), refused %llu, expired %llu, failed %llu, not sent %llu, unanswered %llu\n",
        (ull)s->sent, (ull)s->ok, answered_per_s(b), (ull)s->refused, (ull)s->expired, (ull)s->failed,
        (ull)s->dropped, (ull)s->unanswered);
    if (b->o.subscribe)
        printf("measured %llu, of them the subscriber got %llu\n", (ull)s->latency.n, (ull)s->heard_after.n);
    if (*s->refusal) printf("last refusal: %s\n", s->refusal);
    printf("\n  %-34s %10s %10s %10s %10s %10s\n", "milliseconds", "p50", "p90", "p99", "p99.9", "max");
    line("scheduled send to answer", &s->latency);
    if (b->o.subscribe) line("scheduled send to subscriber", &s->heard_after);
    line("real send to answer", &s->service);
    line("this program's own lag", &s->lag);
    if (s->waited.n) line("wait for a place in the window", &s->waited);
    putchar('\n');
    show_batches(b);
    show_ledger("ledger before", b->ledger_before);
    show_ledger("ledger after", b->ledger_after);
}

/* ---- the verdict -------------------------------------------------------------------------------------------- */
static void say_unanswered(const bench *b) {
    const bench_sum *s = &b->sum;
    double working = json_number_value(json_object_get(b->ledger_after, "in_flight"));
    if (cli_stopped)
        cli_say("%llu frames were in flight when this program was stopped", (ull)s->unanswered);
    else if (!b->ledger_after)
        cli_say("%llu frames got no answer within %g s (--drain), and the daemon does not answer either",
            (ull)s->unanswered, b->o.drain_s);
    else if (s->reconnects)
        cli_say(
            "%llu frames had no answer %g s after the last one was due (--drain); the connection was lost %llu times "
            "meanwhile: the daemon was restarted, or cut this program",
            (ull)s->unanswered, b->o.drain_s, (ull)s->reconnects);
    else
        cli_say(
            "%llu frames had no answer %g s after the last one was due (--drain). The daemon has received %.0f of "
            "the "
            "%llu sent, %.0f are in work: %g frames/s are more than is served here (%.1f/s were answered). A lower "
            "--rate shows its latency, a longer --drain waits for the rest",
            (ull)s->unanswered, b->o.drain_s, grown(b, "received"), (ull)s->sent, working, b->level.rate,
            answered_per_s(b));
}

static void say_lag(const bench *b) {
    cli_say("this program was late itself: p99 of its own lag is %.3f ms, of the latency %.3f ms. The figures are "
            "not the "
            "daemon's alone: give this program CPUs of its own (taskset), more --threads, or a lower --rate",
        (double)hist_quantile(&b->sum.lag, 0.99) / 1e6, (double)hist_quantile(&b->sum.latency, 0.99) / 1e6);
}

static int say_slo(const bench *b) {
    const bench_slo *missed = bench_missed(b);
    if (!b->o.n_slos || (!missed && !bench_lost(b))) return 0;
    if (missed)
        cli_say("%s is %.3f ms, --slo asks for %g ms", missed->name,
            (double)hist_quantile(&b->sum.latency, missed->q) / 1e6, (double)missed->limit_ns / 1e6);
    if (bench_lost(b)) cli_say("%llu frames were lost; --slo asks for none", (ull)bench_lost(b));
    return 1;
}

/* Frames that the daemon has not answered, or the subscriber not got at all. */
static int say_lost(const bench *b) {
    const bench_sum *s = &b->sum;
    int deaf = b->o.subscribe && s->latency.n && !s->heard_after.n;
    if (!s->ok) cli_say("no frame got a result%s%s", *s->refusal ? ": " : "", s->refusal);
    if (s->failed) cli_say("%llu frames failed in the daemon's engine: %s", (ull)s->failed, s->refusal);
    if (s->unanswered) say_unanswered(b);
    if (s->dropped)
        cli_say(
            "%llu frames were never sent: each client lets %llu wait for a place in its window (--pending), and what "
            "still waits at the end is left out",
            (ull)s->dropped, (ull)b->o.pending);
    if (s->ok && !s->latency.n)
        cli_say("nothing was measured: no frame that was due after the warm-up (%g s) was answered", b->o.warmup_s);
    if (deaf)
        cli_say(
            "the subscriber got nothing from '%s'; is it the daemon's publish.endpoint, and does the model publish?",
            cli_quote(b->o.subscribe));
    return !s->latency.n || s->failed || s->unanswered || deaf;
}

int bench_verdict(const bench *b) {
    int lost = say_lost(b), missed = say_slo(b), lagged = bench_lagged(b);
    if (lagged) say_lag(b);
    return lost ? CLI_FAILED : lagged ? CLI_TRY_AGAIN : missed ? CLI_FAILED : CLI_OK;
}

/* ---- a search ----------------------------------------------------------------------------------------------- */
static const char *const verdicts[] = {"holds", "misses", "lags"};

static void knee_json(const bench *b, const knee *k) {
    json_t *j = setup_json(b, "nct-knee"), *steps = json_array();
    json_object_set_new(j, "searched", json_string(b->o.every_s > 0 ? "streams" : "rate"));
    json_object_set_new(j, "answer", k->holds > 0 ? json_real(k->holds) : json_null());
    json_object_set_new(j, "misses_at", k->misses > 0 ? json_real(k->misses) : json_null());
    json_object_set_new(j, "at_the_limit", json_boolean(k->at_most));
    json_object_set_new(j, "within_percent", json_real(b->o.within));
    json_object_set_new(j, "limited_by", json_string(knee_limited_by(k)));
    for (int i = 0; i < k->n; i++) {
        const knee_step *s = &k->steps[i];
        json_array_append_new(steps,
            json_pack("{s:f,s:s,s:i,s:I,s:I,s:f,s:f,s:f,s:s}", "level", s->level, "verdict", verdicts[s->verdict],
                "tries", s->tries, "sent", (json_int_t)s->sent, "lost", (json_int_t)s->lost, "p50_ms", s->p50_ms,
                "p99_ms", s->p99_ms, "lag_p99_ms", s->lag_ms, "why", s->why));
    }
    json_object_set_new(j, "tried", steps);
    ledgers_json(b, j);
    print_json(j);
}

static void knee_answer(const bench *b, const knee *k) {
    const char *unit = b->o.every_s > 0 ? "streams" : "frames/s";
    if (k->holds > 0 && b->o.every_s > 0)
        printf("\n%s%.0f streams with a frame every %g ms (%.0f frames/s) keep it; ", k->at_most ? "at least " : "",
            k->holds, b->o.every_s * 1e3, k->holds / b->o.every_s);
    else if (k->holds > 0)
        printf("\n%s%.0f frames/s keep it; ", k->at_most ? "at least " : "", k->holds);
    else
        printf("\nno level keeps it; ");
    if (k->misses > 0)
        printf("%.*f %s do not (limited by %s)\n", k->misses < 10 && b->o.every_s <= 0 ? 3 : 0, k->misses, unit,
            knee_limited_by(k));
    else
        printf("nothing above was tried\n");
}

void knee_report(const bench *b, const knee *k) {
    if (b->o.json) {
        knee_json(b, k);
        return;
    }
    printf("the highest %s of (%d, %u%s) frames that keeps", b->o.every_s > 0 ? "number of streams" : "rate",
        b->model->params.in_channels, b->o.sizes[0].steps, b->o.n_sizes > 1 ? ", ..." : "");
    for (int i = 0; i < b->o.n_slos; i++)
        printf("%s %s <= %g ms", i ? "," : "", b->o.slos[i].name, (double)b->o.slos[i].limit_ns / 1e6);
    printf(" without a loss, within %g %%; model %s on %s %s\n\n", b->o.within, b->model->name, b->daemon.backend,
        b->daemon.variant);
    printf("  %12s %6s %9s %8s %10s %10s %12s\n", b->o.every_s > 0 ? "streams" : "frames/s", "tries", "sent", "lost",
        "p50 ms", "p99 ms", "own lag p99");
    for (int i = 0; i < k->n; i++) {
        const knee_step *s = &k->steps[i];
        printf("  %12.*f %6d %9llu %8llu %10.3f %10.3f %12.3f  %s\n", s->level < 10 && b->o.every_s <= 0 ? 3 : 0,
            s->level, s->tries, (ull)s->sent, (ull)s->lost, s->p50_ms, s->p99_ms, s->lag_ms,
            s->verdict == KNEE_HOLDS ? "holds" : s->why);
    }
    knee_answer(b, k);
    show_ledger("ledger after", b->ledger_after);
}
