/* bench_report.c: figures of `nct bench`, for people or as one JSON object. Called by bench.c. */
#include "bench.h"
#include "cli.h"
#include <stdio.h>
#include <stdlib.h>

static const double quantiles[] = {0.5, 0.9, 0.99, 0.999};
static const char *const quantile_names[] = {"p50_us", "p90_us", "p99_us", "p999_us"};

static json_t *hist_json(const hist *h) {
    json_t *j = json_pack(
        "{s:I,s:f,s:f}", "n", (json_int_t)h->n, "mean_us", hist_mean(h) / 1e3, "max_us", (double)h->most / 1e3);
    for (int i = 0; i < 4; i++)
        json_object_set_new(j, quantile_names[i], json_real((double)hist_quantile(h, quantiles[i]) / 1e3));
    return j;
}

static double seconds(const bench *b) {
    double s = b->ended_ns > b->began_ns ? (double)(b->ended_ns - b->began_ns) * 1e-9 : 0;
    return s > 0 ? s : 1;
}

static void report_json(const bench *b) {
    json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:f,s:b,s:I,s:I,s:f,s:f}", "bench", "nct", "model", b->model->name,
        "backend", b->daemon.backend, "variant", b->daemon.variant, "rate", b->o.rate, "poisson", b->o.poisson,
        "streams", (json_int_t)b->o.streams, "clients", (json_int_t)b->o.clients, "seconds", b->o.seconds,
        "answered_per_s", (double)b->ok / seconds(b));
    struct {
        const char *name;
        uint64_t n;
    } counts[] = {{"due", b->due}, {"sent", b->sent}, {"ok", b->ok}, {"refused", b->refused}, {"expired", b->expired},
        {"failed", b->failed}, {"not_sent", b->dropped}, {"unanswered", b->unanswered}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(j, counts[i].name, json_integer((json_int_t)counts[i].n));
    json_object_set_new(j, "latency", hist_json(&b->latency));
    json_object_set_new(j, "from_real_send", hist_json(&b->service));
    json_object_set_new(j, "own_lag", hist_json(&b->lag));
    json_object_set_new(j, "window_wait", hist_json(&b->waited));
    json_object_set(j, "ledger_before", b->ledger_before ? b->ledger_before : json_null());
    json_object_set(j, "ledger", b->ledger_after ? b->ledger_after : json_null());
    json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(j);
}

static void line(const char *name, const hist *h) {
    printf("  %-34s", name);
    for (int i = 0; i < 4; i++) printf(" %10.3f", (double)hist_quantile(h, quantiles[i]) / 1e6);
    printf(" %10.3f\n", (double)h->most / 1e6);
}

static void show_ledger(const char *name, const json_t *ledger) {
    char *text = ledger ? served_ledger_text(ledger) : NULL;
    if (text) printf("%s: %s\n", name, text);
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
    if (b->o.json) {
        report_json(b);
        return;
    }
    printf("%llu frames due in %g s (%s, %g/s), %llu streams, %llu clients, model %s on %s %s\n",
        (unsigned long long)b->due, b->o.seconds, b->o.poisson ? "Poisson" : "constant", b->o.rate,
        (unsigned long long)b->o.streams, (unsigned long long)b->o.clients, b->model->name, b->daemon.backend,
        b->daemon.variant);
    printf("sent %llu, ok %llu (%.1f/s), refused %llu, expired %llu, failed %llu, not sent %llu, unanswered %llu\n",
        (unsigned long long)b->sent, (unsigned long long)b->ok, (double)b->ok / seconds(b),
        (unsigned long long)b->refused, (unsigned long long)b->expired, (unsigned long long)b->failed,
        (unsigned long long)b->dropped, (unsigned long long)b->unanswered);
    if (*b->refusal) printf("last refusal: %s\n", b->refusal);
    printf("\n  %-34s %10s %10s %10s %10s %10s\n", "milliseconds", "p50", "p90", "p99", "p99.9", "max");
    line("scheduled send to answer", &b->latency);
    line("real send to answer", &b->service);
    line("this program's own lag", &b->lag);
    if (b->waited.n) line("wait for a place in the window", &b->waited);
    if (hist_quantile(&b->lag, 0.99) > 1000000)
        printf("  this program was late by more than 1 ms for 1 %% of the frames: part of the latency is its own\n");
    putchar('\n');
    show_batches(b);
    show_ledger("ledger before", b->ledger_before);
    show_ledger("ledger after", b->ledger_after);
}
