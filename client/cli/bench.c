/* bench.c: `nct bench`, open-loop load. Frames are due by a schedule that does not look at the answers; latency counts from the
 * scheduled time, so that a daemon (or this program) that falls behind cannot hide it. One thread, one handle a client. */
#include "bench.h"
#include "cli.h"
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const cli_option options_bench[] = {CLI_OPTION_CONNECT(CLI_INGEST),
    {"name", 'n', "MODEL", "its only one", "The daemon's model."},
    {"rate", 'R', "N", "100 frames/s", "Frames due a second, all streams together."},
    {"poisson", 0, NULL, NULL, "Exponential gaps with that mean, instead of equal ones."},
    {"streams", 's', "N", "1", "Streams; a frame goes to the next one."},
    {"clients", 'j', "N", "1", "Connections; a stream belongs to one of them."},
    {"steps", 't', "N[,N...]", "480 steps", "Frame lengths, taken in turn."},
    {"seconds", 'd', "S", "10 s", "Length of the schedule."},
    {"warmup", 0, "S", "1 s", "Start of the schedule that is sent but not counted in the latencies."},
    {"drain", 0, "S", "5 s", "Longest wait for answers after the last frame was due."},
    {"ttl", 0, "MS", "none", "The daemon drops a frame that waited longer."},
    {"no-reply", 0, NULL, NULL, "Answers come as headers, without samples."},
    {"pending", 0, "N", "65536", "Frames that may wait for a client's window; those beyond are dropped and counted."},
    {"seed", 0, "N", "1", "Of the gaps and the samples."},
    {"timeout", 0, "S", "5 s", "Longest wait for the daemon at the start."}, CLI_OPTION_JSON, {0}};

static int take_sizes(bench_options *o, const char *v) {
    char copy[256], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", v);
    o->n_steps = 0;
    while ((word = strsep(&rest, ","))) {
        if (o->n_steps == BENCH_SIZES_MAX) return cli_usage("more than %d frame lengths", BENCH_SIZES_MAX), -EINVAL;
        if (cli_u64("--steps", word, 1, INT32_MAX, &o->steps[o->n_steps++])) return -EINVAL;
    }
    return 0;
}

static int take_option(bench_options *o, int row, const char *v) {
    const char *name = options_bench[row].name;
    if (!strcmp(name, "connect"))
        o->endpoint = v;
    else if (!strcmp(name, "name"))
        o->name = v;
    else if (!strcmp(name, "rate"))
        return cli_double("--rate", v, 0.001, 1e7, &o->rate);
    else if (!strcmp(name, "poisson"))
        o->poisson = 1;
    else if (!strcmp(name, "streams"))
        return cli_u64("--streams", v, 1, 1000000, &o->streams);
    else if (!strcmp(name, "clients"))
        return cli_u64("--clients", v, 1, BENCH_CLIENTS_MAX, &o->clients);
    else if (!strcmp(name, "steps"))
        return take_sizes(o, v);
    else if (!strcmp(name, "seconds"))
        return cli_double("--seconds", v, 0.01, 1e6, &o->seconds);
    else if (!strcmp(name, "warmup"))
        return cli_double("--warmup", v, 0, 1e6, &o->warmup_s);
    else if (!strcmp(name, "drain"))
        return cli_double("--drain", v, 0, 1e6, &o->drain_s);
    else if (!strcmp(name, "ttl"))
        return cli_double("--ttl", v, 0.001, 4e6, &o->ttl_ms);
    else if (!strcmp(name, "no-reply"))
        o->no_reply = 1;
    else if (!strcmp(name, "pending"))
        return cli_u64("--pending", v, 1, 1 << 24, &o->pending);
    else if (!strcmp(name, "seed"))
        return cli_u64("--seed", v, 0, UINT64_MAX, &o->seed);
    else if (!strcmp(name, "timeout"))
        return cli_double("--timeout", v, 0.1, 3600, &o->timeout_s);
    else
        o->json = 1;
    return 0;
}

static int read_options(bench_options *o, int argc, char **argv) {
    const char *value;
    int row, bad = 0;
    cli_args a;
    *o = (bench_options){.endpoint = CLI_INGEST,
        .rate = 100,
        .seconds = 10,
        .warmup_s = 1,
        .drain_s = 5,
        .timeout_s = 5,
        .streams = 1,
        .clients = 1,
        .steps = {480},
        .n_steps = 1,
        .pending = 65536,
        .seed = 1};
    cli_args_init(&a, options_bench, argc, argv);
    while (!bad && (row = cli_next(&a, &value)) != CLI_END) {
        if (row == CLI_WRONG) return CLI_USAGE;
        if (row == CLI_OPERAND) return cli_usage("bench takes no operand, '%s' is one", cli_quote(value));
        bad = take_option(o, row, value);
    }
    if (!bad && o->warmup_s >= o->seconds)
        return cli_usage("--warmup (%g s) must be shorter than --seconds (%g s)", o->warmup_s, o->seconds);
    if (!bad && o->clients > o->streams)
        return cli_usage("%llu clients need as many streams; there are %llu", (unsigned long long)o->clients,
            (unsigned long long)o->streams);
    return bad ? CLI_USAGE : CLI_OK;
}

/* ---- random numbers: splitmix64 (Steele, Lea, Flood 2014) --------------------------------------------------- */
static double uniform(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- frames ------------------------------------------------------------------------------------------------ */
static void got(bench *b, nct_answer *a) {
    /* tag: 40 bits of the due time in 1 us from the start, 24 bits of the wait until it was sent, in 1 us. */
    uint64_t now = now_ns(), due = b->began_ns + (a->tag >> 24) * 1000, sent = due + (a->tag & 0xffffff) * 1000;
    if (a->kind == NCT_RESULT && !a->status)
        b->ok++;
    else if (a->status == -ETIME)
        b->expired++;
    else if (a->status == -EIO)
        b->failed++;
    else
        b->refused++;
    if (a->status)
        snprintf(b->refusal, sizeof b->refusal, "%s", *a->text ? a->text : nct_strerror(a->status));
    else if (due >= b->warm_from_ns) {
        hist_add(&b->latency, now > due ? now - due : 0);
        hist_add(&b->service, now > sent ? now - sent : 0);
    }
    b->ended_ns = now;
    nct_release(a);
}

static void collect(bench *b, bench_client *k) {
    nct_answer a;
    while (!nct_recv(k->c, 0, &a)) got(b, &a);
}

/* 0, -EAGAIN (no place), or an error. */
static int post(bench *b, bench_client *k, const bench_due *d) {
    char stream[32];
    uint64_t now = now_ns(), wait_us = (now - d->due_ns) / 1000;
    snprintf(stream, sizeof stream, "bench-%llu", (unsigned long long)(d->number % b->o.streams));
    nct_request q = {.model = b->model->name,
        .stream = stream,
        .dtype = NCT_DTYPE_F32,
        .flags = b->o.no_reply ? NCT_FLAG_NO_REPLY : 0,
        .channels = (uint32_t)b->model->params.in_channels,
        .steps = (uint32_t)b->o.steps[d->number % (uint64_t)b->o.n_steps],
        .ttl_us = (uint32_t)(b->o.ttl_ms * 1000),
        .seq = d->number + 1,
        .tag = (d->due_ns - b->began_ns) / 1000 << 24 | (wait_us < 0xffffff ? wait_us : 0xffffff)};
    int r = nct_send(k->c, &q, b->payload, NULL);
    if (r) return r;
    b->sent++;
    return 0;
}

static bench_client *client_of(bench *b, uint64_t number) {
    return &b->clients[number % b->o.streams % b->o.clients];
}

static void flush_waiting(bench *b, bench_client *k) {
    while (k->n_waiting) {
        const bench_due *d = &k->waiting[k->head % b->o.pending];
        if (post(b, k, d)) return;
        if (d->due_ns >= b->warm_from_ns) hist_add(&b->waited, now_ns() - d->due_ns);
        k->head++;
        k->n_waiting--;
    }
}

static void due(bench *b, uint64_t due_ns) {
    bench_due d = {due_ns, b->due++};
    bench_client *k = client_of(b, d.number);
    uint64_t now = now_ns();
    if (due_ns >= b->warm_from_ns) hist_add(&b->lag, now > due_ns ? now - due_ns : 0);
    if (!k->n_waiting && !post(b, k, &d)) return;
    if (k->n_waiting == b->o.pending) {
        b->dropped++;
        return;
    }
    k->waiting[(k->head + k->n_waiting++) % b->o.pending] = d;
}

static uint64_t waiting(const bench *b) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < b->o.clients; i++) n += b->clients[i].n_waiting;
    return n;
}

static uint64_t in_flight(const bench *b) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < b->o.clients; i++) n += nct_in_flight(b->clients[i].c);
    return n;
}

/* Answers and waiting frames until `until_ns`. The last 50 us are spun: timers are later than that. */
static void serve_until(bench *b, uint64_t until_ns) {
    struct pollfd fds[BENCH_CLIENTS_MAX];
    for (;;) {
        for (uint64_t i = 0; i < b->o.clients; i++) {
            collect(b, &b->clients[i]);
            flush_waiting(b, &b->clients[i]);
            fds[i] = (struct pollfd){.fd = nct_fd(b->clients[i].c), .events = POLLIN};
        }
        uint64_t now = now_ns();
        if (now >= until_ns || cli_stopped) return;
        uint64_t left = until_ns - now;
        if (left < 50000) continue;
        struct timespec t = {.tv_sec = 0, .tv_nsec = (long)(left - 50000 < 100000000 ? left - 50000 : 100000000)};
        ppoll(fds, b->o.clients, &t, NULL);
    }
}

static void load(bench *b) {
    uint64_t rng = b->o.seed;
    double at_s = 0;
    b->began_ns = now_ns() + 10000000;
    b->warm_from_ns = b->began_ns + (uint64_t)(b->o.warmup_s * 1e9);
    while (at_s < b->o.seconds && !cli_stopped) {
        uint64_t due_ns = b->began_ns + (uint64_t)(at_s * 1e9);
        serve_until(b, due_ns);
        if (cli_stopped) break;
        due(b, due_ns);
        at_s += b->o.poisson ? -log1p(-uniform(&rng)) / b->o.rate : 1 / b->o.rate;
        if (!b->o.poisson) at_s = (double)b->due / b->o.rate;
    }
    uint64_t give_up = now_ns() + (uint64_t)(b->o.drain_s * 1e9);
    while ((waiting(b) || in_flight(b)) && now_ns() < give_up && !cli_stopped) serve_until(b, now_ns() + 1000000);
    b->unanswered = in_flight(b);
    b->dropped += waiting(b);
}

/* ---- the run ----------------------------------------------------------------------------------------------- */
static int open_clients(bench *b) {
    nct_options o;
    char reason[256];
    nct_options_init(&o);
    o.nonblock = 1;
    o.name = "nct bench";
    o.timeout_ms = (int)(b->o.timeout_s * 1000);
    for (uint64_t i = 0; i < b->o.clients; i++) {
        b->clients[i].waiting = calloc(b->o.pending, sizeof(bench_due));
        int r = b->clients[i].waiting ? nct_open_why(&b->clients[i].c, b->o.endpoint, &o, reason) : -ENOMEM;
        if (!r) continue;
        cli_say("client %llu: %s", (unsigned long long)i, r == -ENOMEM ? "no memory" : reason);
        return cli_exit_of(r);
    }
    return CLI_OK;
}

static int make_payload(bench *b) {
    uint64_t rng = ~b->o.seed, most = 0;
    uint64_t channels = (uint64_t)b->model->params.in_channels;
    for (int i = 0; i < b->o.n_steps; i++)
        if (b->o.steps[i] > most) most = b->o.steps[i];
    if (most * channels * 4 > b->daemon.max_frame_bytes)
        return cli_usage("a frame of %llu steps of %llu channels is %llu bytes; the daemon takes %llu",
            (unsigned long long)most, (unsigned long long)channels, (unsigned long long)most * channels * 4,
            (unsigned long long)b->daemon.max_frame_bytes);
    b->payload = malloc(most * channels * sizeof *b->payload);
    for (uint64_t i = 0; b->payload && i < most * channels; i++) b->payload[i] = (float)(uniform(&rng) * 2 - 1);
    return b->payload ? CLI_OK : CLI_FAILED;
}

static json_t *ledger_now(const bench *b) {
    nct *c;
    served s;
    if (served_connect(&c, &s, b->o.endpoint, b->o.timeout_s, 0)) return NULL;
    json_t *ledger = json_incref(json_object_get(s.json, "ledger"));
    served_done(&s);
    nct_close(c);
    return ledger;
}

static int work(bench *b) {
    nct *c;
    nct_why why;
    int code = served_connect(&c, &b->daemon, b->o.endpoint, b->o.timeout_s, 0);
    if (code) return code;
    b->ledger_before = json_incref(json_object_get(b->daemon.json, "ledger"));
    nct_close(c);
    b->model = served_find(&b->daemon, b->o.name, &why);
    if (!b->model) return cli_usage("%s", why.text);
    code = make_payload(b);
    if (!code) code = open_clients(b);
    if (code) return code;
    cli_catch_signals();
    load(b);
    b->ledger_after = ledger_now(b);
    bench_report(b);
    return b->ok && !b->failed && !b->unanswered ? CLI_OK : CLI_FAILED;
}

int cmd_bench(int argc, char **argv) {
    bench *b = calloc(1, sizeof *b);
    if (!b) return CLI_FAILED;
    int code = read_options(&b->o, argc, argv);
    if (!code) code = work(b);
    for (int i = 0; i < BENCH_CLIENTS_MAX; i++) {
        nct_close(b->clients[i].c);
        free(b->clients[i].waiting);
    }
    json_decref(b->ledger_before);
    json_decref(b->ledger_after);
    served_done(&b->daemon);
    free(b->payload);
    free(b);
    return code;
}
