/* bench.c: `nct bench`, open-loop load: its options, what goes with what, and its exit code. See bench.h for the files. */
#include "bench.h"
#include "cli.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const cli_option options_bench[] = {CLI_OPTION_CONNECT(CLI_INGEST), CLI_OPTION_KEYS,
    {"name", 'n', "MODEL", "its only one", "The daemon's model."},
    {"rate", 'R', "N", "100 frames/s", "Frames due a second, all streams together."},
    {"every", 'e', "SPAN", NULL, "Instead of --rate: each stream sends a frame every SPAN (10ms), as live ones do."},
    {"poisson", 0, NULL, NULL, "Exponential gaps with that mean and a stream by lot, instead of equal gaps in turn."},
    {"streams", 's', "N", "1", "Streams."},
    {"clients", 'j', "N", "1 for every 64 streams", "Connections; a stream belongs to one of them."},
    {"threads", 0, "N", "1", "Threads of this program that share the connections."},
    {"steps", 't', "N[,N...]", "480 steps", "Frame lengths, taken in turn."},
    {"mix", 0, "N:W[,N:W...]", NULL,
        "Instead of --steps: frame lengths drawn by lot, N steps with weight W (480:90,48000:10)."},
    {"seconds", 'd', "S", "10 s; 3 s a step of --find-knee", "Length of the schedule."},
    {"warmup", 0, "S", "1 s; 0.5 s with --find-knee",
        "Start of the schedule that is sent but not counted in the latencies."},
    {"drain", 0, "S", "5 s", "Longest wait for answers after the last frame was due."},
    {"slo", 0, "Q=TIME[,...]", NULL,
        "What the latencies must keep, from the scheduled send (p99=10ms; p50, p99.9, max too); missed: exit code "
        "1."},
    {"find-knee", 0, NULL, NULL,
        "Search the highest rate (with --every: the most streams) that keeps --slo and loses no frame."},
    {"within", 0, "PERCENT", "5 %", "How near --find-knee comes to it."},
    {"subscribe", 0, "ENDPOINT", NULL,
        "Also measure when results reach a subscriber there (the daemon's publish endpoint)."},
    {"ttl", 0, "MS", "none", "The daemon drops a frame that waited longer."},
    {"no-reply", 0, NULL, NULL, "Answers come as headers, without samples."},
    {"pending", 0, "N", "65536", "Frames that may wait for a client's window; those beyond are dropped and counted."},
    {"lag", 0, "MS", "1 ms",
        "Own lag (p99) from which the figures are called this program's and not the daemon's, if it is also a tenth "
        "of "
        "the latency: exit code 75."},
    {"seed", 0, "N", "1", "Of the gaps, the sizes and the samples."},
    {"timeout", 0, "S", "5 s", "Longest wait for the daemon at the start."}, CLI_OPTION_JSON, {0}};

static int take_every(bench_options *o, const char *v) {
    uint64_t steps = 0;
    if (cli_span("--every", v, &o->every_s, &steps)) return -1;
    return steps ? cli_usage("--every is '%s'; it needs a unit, as in 10ms", cli_quote(v)), -1 : 0;
}

static int take_number(bench_options *o, const char *name, const char *v) {
    const struct {
        const char *name;
        double min, max, *real;
        uint64_t *whole;
    } rows[] = {{"rate", 0.001, 1e7, &o->rate, NULL}, {"streams", 1, 1000000, NULL, &o->streams},
        {"clients", 1, BENCH_CLIENTS_MAX, NULL, &o->clients}, {"threads", 1, BENCH_THREADS_MAX, NULL, &o->threads},
        {"seconds", 0.01, 1e6, &o->seconds, NULL}, {"warmup", 0, 1e6, &o->warmup_s, NULL},
        {"drain", 0, 1e6, &o->drain_s, NULL}, {"within", 0.1, 100, &o->within, NULL},
        {"ttl", 0.001, 4e6, &o->ttl_ms, NULL}, {"pending", 1, 1 << 24, NULL, &o->pending},
        {"lag", 0.001, 1e6, &o->lag_ms, NULL}, {"timeout", 0.1, 3600, &o->timeout_s, NULL}};
    char what[32];
    snprintf(what, sizeof what, "--%s", name);
    if (!strcmp(name, "seed")) return cli_u64(what, v, 0, UINT64_MAX, &o->seed);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        if (rows[i].real) return cli_double(what, v, rows[i].min, rows[i].max, rows[i].real);
        return cli_u64(what, v, (uint64_t)rows[i].min, (uint64_t)rows[i].max, rows[i].whole);
    }
    return -1;
}

static int take_option(bench_options *o, const char *name, const char *v) {
    const struct {
        const char *name, **text;
        int *set;
        int (*take)(bench_options *o, const char *text);
    } rows[] = {{"connect", &o->endpoint, NULL, NULL}, {"name", &o->name, NULL, NULL},
        {"subscribe", &o->subscribe, NULL, NULL}, {"poisson", NULL, &o->poisson, NULL},
        {"no-reply", NULL, &o->no_reply, NULL}, {"find-knee", NULL, &o->find_knee, NULL},
        {"json", NULL, &o->json, NULL}, {"every", NULL, NULL, take_every}, {"steps", NULL, NULL, bench_take_steps},
        {"mix", NULL, NULL, bench_take_mix}, {"slo", NULL, NULL, bench_take_slo}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        if (rows[i].take) return rows[i].take(o, v);
        if (rows[i].text) *rows[i].text = v;
        if (rows[i].set) *rows[i].set = 1;
        return 0;
    }
    return take_number(o, name, v);
}

/* Defaults that follow from other options, and what excludes what. `given`: by row of options_bench. */
static int settle(bench_options *o, const char *given) {
    if (given[cli_row(options_bench, "rate")] && o->every_s > 0)
        return cli_usage("--rate and --every exclude each other: streams / SPAN is the rate");
    if (given[cli_row(options_bench, "steps")] && o->mixed) return cli_usage("--steps and --mix exclude each other");
    if (o->find_knee && !o->n_slos) return cli_usage("--find-knee needs --slo, as in --slo p99=10ms");
    if (given[cli_row(options_bench, "within")] && !o->find_knee) return cli_usage("--within goes with --find-knee");
    if (o->find_knee && !given[cli_row(options_bench, "seconds")]) o->seconds = 3;
    if (o->find_knee && !given[cli_row(options_bench, "warmup")]) o->warmup_s = o->seconds > 1 ? 0.5 : o->seconds / 4;
    if (o->find_knee && o->every_s > 0 && !given[cli_row(options_bench, "streams")]) o->streams = 16;
    if (o->warmup_s >= o->seconds)
        return cli_usage("--warmup (%g s) must be shorter than --seconds (%g s)", o->warmup_s, o->seconds);
    if (o->clients > o->streams && !(o->find_knee && o->every_s > 0))
        return cli_usage("%llu clients need as many streams; there are %llu", (unsigned long long)o->clients,
            (unsigned long long)o->streams);
    return CLI_OK;
}

static int read_options(bench_options *o, int argc, char **argv) {
    char given[sizeof options_bench / sizeof *options_bench] = {0};
    const char *value;
    int row;
    cli_args a;
    *o = (bench_options){.endpoint = CLI_INGEST,
        .rate = 100,
        .seconds = 10,
        .warmup_s = 1,
        .drain_s = 5,
        .timeout_s = 5,
        .lag_ms = 1,
        .within = 5,
        .streams = 1,
        .threads = 1,
        .sizes = {{480, 1}},
        .n_sizes = 1,
        .pending = 65536,
        .seed = 1};
    cli_args_init(&a, options_bench, argc, argv);
    while ((row = cli_next(&a, &value)) != CLI_END) {
        if (row == CLI_WRONG) return CLI_USAGE;
        if (row == CLI_OPERAND) return cli_usage("bench takes no operand, '%s' is one", cli_quote(value));
        given[row] = 1;
        if (take_option(o, options_bench[row].name, value)) return CLI_USAGE;
    }
    return settle(o, given);
}

static int make_payload(bench *b) {
    uint64_t rng = ~b->o.seed, most = 0;
    uint64_t channels = (uint64_t)b->model->params.in_channels;
    for (int i = 0; i < b->o.n_sizes; i++)
        if (b->o.sizes[i].steps > most) most = b->o.sizes[i].steps;
    if (most * channels * 4 > b->daemon.max_frame_bytes)
        return cli_usage("a frame of %llu steps of %llu channels is %llu bytes; the daemon takes %llu",
            (unsigned long long)most, (unsigned long long)channels, (unsigned long long)most * channels * 4,
            (unsigned long long)b->daemon.max_frame_bytes);
    size_t n = most * channels; /* > 0: both were checked */
    b->payload = n ? malloc(n * sizeof *b->payload) : NULL;
    for (size_t i = 0; b->payload && i < n; i++) b->payload[i] = (float)(bench_uniform(&rng) * 2 - 1);
    return b->payload ? CLI_OK : CLI_FAILED;
}

uint64_t bench_limit(const bench *b, const char *key, uint64_t standard) {
    const json_t *v = json_object_get(json_object_get(b->daemon.json, "limits"), key);
    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : standard;
}

int bench_set_level(bench *b, double rate, uint64_t streams) {
    bench_level *l = &b->level;
    uint64_t each = bench_limit(b, "max_streams_client", 256), all = bench_limit(b, "max_streams", 4096);
    uint64_t want = each < 64 ? each : 64;
    l->streams = streams;
    l->rate = b->o.every_s > 0 ? (double)streams / b->o.every_s : rate;
    l->clients = b->o.clients ? b->o.clients : (streams + want - 1) / want;
    if (l->clients > BENCH_CLIENTS_MAX) l->clients = BENCH_CLIENTS_MAX;
    if (l->clients > streams) l->clients = streams;
    l->number++;
    if (streams <= all && (streams + l->clients - 1) / l->clients <= each) return CLI_OK;
    return cli_usage(
        "%llu streams over %llu clients: the daemon takes %llu streams (limits.max_streams), %llu of one client "
        "(limits.max_streams_client)",
        (unsigned long long)streams, (unsigned long long)l->clients, (unsigned long long)all,
        (unsigned long long)each);
}

static int work(bench *b) {
    nct *c;
    nct_why why;
    if (served_absent(b->o.endpoint)) return CLI_NO_DAEMON;
    int code = served_connect(&c, &b->daemon, b->o.endpoint, b->o.timeout_s, 0);
    if (code) return code;
    nct_close(c);
    b->model = served_find(&b->daemon, b->o.name, &why);
    if (!b->model) return cli_usage("%s", why.text);
    code = make_payload(b);
    if (!code) code = bench_set_level(b, b->o.rate, b->o.streams);
    if (code) return code;
    cli_catch_signals();
    if (b->o.find_knee) return bench_knee(b);
    code = bench_run(b);
    if (code) return code;
    bench_report(b);
    return bench_verdict(b);
}

int cmd_bench(int argc, char **argv) {
    bench *b = calloc(1, sizeof *b);
    if (!b) return CLI_FAILED;
    int code = read_options(&b->o, argc, argv);
    if (!code) code = work(b);
    json_decref(b->ledger_before);
    json_decref(b->ledger_after);
    served_done(&b->daemon);
    free(b->payload);
    free(b->seqs);
    free(b);
    return code;
}
