/* bench_run.c: one run of `nct bench` at one level. Called by bench.c and, for each level tried, by bench_knee.c. Connections
 * are new for each run, so that nothing of the run before is left in one. */
#include "bench.h"
#include "cli.h"
#include "keys.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static json_t *ledger_now(const bench *b) {
    nct *c;
    served s;
    if (served_connect(&c, &s, b->o.endpoint, b->o.timeout_s, 0)) return NULL;
    json_t *ledger = json_incref(json_object_get(s.json, "ledger"));
    served_done(&s);
    nct_close(c);
    return ledger;
}

static void take_ledger(bench *b, json_t **to) {
    json_decref(*to);
    *to = ledger_now(b);
}

static int open_clients(bench *b) {
    nct_options o;
    char reason[256];
    nct_options_init(&o);
    o.nonblock = 1;
    o.name = "nct bench";
    o.timeout_ms = (int)(b->o.timeout_s * 1000);
    if (keys_apply(&o)) return CLI_USAGE;
    for (uint64_t i = 0; i < b->level.clients; i++) {
        b->clients[i].waiting = malloc(b->o.pending * sizeof(bench_due));
        int r = b->clients[i].waiting ? nct_open_why(&b->clients[i].c, b->o.endpoint, &o, reason) : -ENOMEM;
        if (!r && nct_fd(b->clients[i].c) < 0) {
            r = -EMFILE;
            snprintf(reason, sizeof reason, "%s", nct_reason(b->clients[i].c));
        }
        if (!r) continue;
        cli_say("client %llu of %llu: %s", (unsigned long long)i + 1, (unsigned long long)b->level.clients,
            r == -ENOMEM ? "no memory" : reason);
        return cli_exit_of(r);
    }
    return CLI_OK;
}

static void close_clients(bench *b) {
    for (uint64_t i = 0; i < b->level.clients; i++) {
        nct_close(b->clients[i].c);
        free(b->clients[i].waiting);
        b->clients[i] = (bench_client){0};
    }
    nct_sub_close(b->sub);
    b->sub = NULL;
}

static int open_subscriber(bench *b) {
    char topic[72];
    nct_options o;
    nct_options_init(&o);
    if (!b->o.subscribe) return CLI_OK;
    if (keys_apply(&o)) return CLI_USAGE;
    snprintf(topic, sizeof topic, "%s/", b->model->name);
    int r = nct_sub_open(&b->sub, b->o.subscribe, topic, &o);
    return r ? cli_usage("--subscribe '%s': %s", cli_quote(b->o.subscribe), nct_strerror(r)) : CLI_OK;
}

static void begin(bench *b) {
    struct timespec now;
    uint64_t ahead_ns = b->sub ? 300000000 : 10000000; /* a subscription takes its time to arrive */
    b->sum = (bench_sum){0};
    b->n_workers = b->o.threads < b->level.clients ? b->o.threads : b->level.clients;
    atomic_store(&b->stop, 0);
    atomic_store(&b->finished, 0);
    atomic_store(&b->heard, 0);
    clock_gettime(CLOCK_REALTIME, &now);
    b->began_ns = bench_now_ns();
    b->unix_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - (int64_t)b->began_ns;
    b->began_ns += ahead_ns;
    b->warm_from_ns = b->began_ns + (uint64_t)(b->o.warmup_s * 1e9);
}

static void add(bench_sum *to, const bench_sum *s) {
    to->due += s->due;
    to->sent += s->sent;
    to->ok += s->ok;
    to->refused += s->refused;
    to->expired += s->expired;
    to->failed += s->failed;
    to->dropped += s->dropped;
    to->unanswered += s->unanswered;
    to->hopeless |= s->hopeless;
    if (s->last_ns > to->last_ns) to->last_ns = s->last_ns;
    hist_merge(&to->latency, &s->latency);
    hist_merge(&to->service, &s->service);
    hist_merge(&to->lag, &s->lag);
    hist_merge(&to->waited, &s->waited);
    if (*s->refusal) memcpy(to->refusal, s->refusal, sizeof to->refusal);
}

/* The published results of what was answered may still be on their way. */
static void await_subscriber(bench *b) {
    uint64_t heard = 0, changed_ns = bench_now_ns();
    while (!cli_stopped && !b->sum.hopeless && heard < b->sum.ok && bench_now_ns() - changed_ns < 500000000) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        if (atomic_load(&b->heard) != heard) changed_ns = bench_now_ns();
        heard = atomic_load(&b->heard);
    }
}

static int load(bench *b) {
    pthread_t threads[BENCH_THREADS_MAX], listener;
    uint64_t started = 0;
    begin(b);
    int listens = b->sub && !pthread_create(&listener, NULL, bench_listen, b);
    for (; started < b->n_workers; started++) {
        bench_worker *w = calloc(1, sizeof *w);
        if (!w) break;
        *w = (bench_worker){.b = b, .at = started};
        b->workers[started] = w;
        if (!pthread_create(&threads[started], NULL, bench_load, w)) continue;
        free(w);
        break;
    }
    int whole = started == b->n_workers && listens == (b->sub != NULL);
    if (!whole) atomic_store(&b->stop, 1);
    for (uint64_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        add(&b->sum, &b->workers[i]->sum);
        free(b->workers[i]);
    }
    if (listens) await_subscriber(b);
    atomic_store(&b->finished, 1);
    if (listens) pthread_join(listener, NULL);
    if (!whole) cli_say("no thread for %llu connections", (unsigned long long)b->level.clients);
    return whole ? CLI_OK : CLI_FAILED;
}

int bench_run(bench *b) {
    free(b->seqs);
    b->seqs = calloc(b->level.streams, sizeof *b->seqs);
    if (!b->seqs) return CLI_FAILED;
    take_ledger(b, &b->ledger_before);
    int code = open_subscriber(b);
    if (!code) code = open_clients(b);
    if (!code) code = load(b);
    for (uint64_t i = 0; i < b->level.clients; i++)
        if (b->clients[i].c) b->sum.reconnects += nct_reconnects(b->clients[i].c);
    if (!code) take_ledger(b, &b->ledger_after); /* before the end of the sessions makes orphans of what is in work */
    close_clients(b);
    return code;
}

uint64_t bench_unheard(const bench *b) {
    const bench_sum *s = &b->sum;
    return b->o.subscribe && s->latency.n > s->heard_after.n ? s->latency.n - s->heard_after.n : 0;
}

uint64_t bench_lost(const bench *b) {
    const bench_sum *s = &b->sum;
    return s->refused + s->expired + s->failed + s->dropped + s->unanswered + bench_unheard(b);
}

int bench_lagged(const bench *b) {
    uint64_t lag = hist_quantile(&b->sum.lag, 0.99), all = hist_quantile(&b->sum.latency, 0.99);
    return b->sum.latency.n && (double)lag > b->o.lag_ms * 1e6 && lag > all / 10;
}
