/* sub.c: `nct sub`, what a daemon publishes: a line a result, JSON, or the samples. */
#include "cli.h"
#include "keys.h"
#include "nct.h"
#include "nct_layer.h"
#include "sub_samples.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const cli_option options_sub[] = {{"connect", 'c', "ENDPOINT", CLI_PUBLISH, "The daemon's publish endpoint."},
    CLI_OPTION_KEYS, {"count", 'k', "N", "no end", "Stop after N results."},
    {"timeout", 0, "S", "no end", "Stop when nothing came for S seconds."}, CLI_OPTION_JSON,
    {"raw", 0, NULL, NULL, "Write the samples to stdout: f32, interleaved, little-endian; notes go to stderr."}, {0}};

typedef struct {
    const char *endpoint;
    const char *topics[64];
    int n_topics, json, raw;
    uint64_t count;
    double timeout_s;
} sub_options;

static int read_options(sub_options *o, int argc, char **argv) {
    const char *value;
    int row, bad = 0;
    cli_args a;
    *o = (sub_options){.endpoint = CLI_PUBLISH, .count = UINT64_MAX};
    cli_args_init(&a, options_sub, argc, argv);
    while (!bad && (row = cli_next(&a, &value)) != CLI_END) {
        if (row == CLI_WRONG) return CLI_USAGE;
        if (row == CLI_OPERAND && o->n_topics == 64) return cli_usage("more than 64 topics");
        if (row == CLI_OPERAND)
            o->topics[o->n_topics++] = value;
        else if (row == cli_row(options_sub, "connect"))
            o->endpoint = value;
        else if (row == cli_row(options_sub, "count"))
            bad = cli_u64("--count", value, 1, UINT64_MAX - 1, &o->count);
        else if (row == cli_row(options_sub, "timeout"))
            bad = cli_double("--timeout", value, 0.001, 86400, &o->timeout_s);
        else if (row == cli_row(options_sub, "json"))
            o->json = 1;
        else
            o->raw = 1;
    }
    if (bad) return CLI_USAGE;
    if (o->json && o->raw) return cli_usage("--json and --raw exclude each other");
    if (o->raw && isatty(STDOUT_FILENO))
        return cli_usage("samples are binary and stdout is a terminal; name a file or a pipe");
    return CLI_OK;
}

static double age_ms(const nct_answer *a) {
    return a->t_answer_ns && a->t_capture_ns ? (double)(a->t_answer_ns - a->t_capture_ns) / 1e6 : 0;
}

static const char *dtype_name(uint8_t dtype) {
    static const char *const names[] = {"none", "f32", "f16", "bf16", "i16", "i32", "f64"};
    return dtype < sizeof names / sizeof *names ? names[dtype] : "?";
}

static void show_json(const nct_answer *a) {
    printf("{\"model\":\"%s\",\"stream\":\"%s\",\"seq\":%llu,\"missed\":%llu,\"epoch\":%u,\"generation\":%u,"
           "\"channels\":%u,"
           "\"steps\":%u,\"dtype\":\"%s\",\"pos\":%llu,\"flags\":%u,\"queue_us\":%u,\"compute_us\":%u,\"t_capture_"
           "ns\":%lld,"
           "\"t_answer_ns\":%lld}\n",
        a->model, a->stream, (unsigned long long)a->seq, (unsigned long long)a->missed, a->epoch, a->generation,
        a->channels, a->steps, dtype_name(a->dtype), (unsigned long long)a->pos, a->flags, a->queue_us, a->compute_us,
        (long long)a->t_capture_ns, (long long)a->t_answer_ns);
}

static void show_line(const nct_answer *a) {
    if (a->missed)
        printf("%s/%s: %llu results are missing here\n", a->model, a->stream, (unsigned long long)a->missed);
    printf("%s/%s seq %llu: (%u, %u) %s, queue %u us, compute %u us", a->model, a->stream, (unsigned long long)a->seq,
        a->channels, a->steps, dtype_name(a->dtype), a->queue_us, a->compute_us);
    if (age_ms(a) != 0) printf(", %.3f ms after capture", age_ms(a));
    putchar('\n');
}

static int show(const sub_options *o, sub_samples *to, const nct_answer *a) {
    nct_why why;
    if (!o->raw) {
        if (o->json)
            show_json(a);
        else
            show_line(a);
        if (!fflush(stdout)) return CLI_OK;
        cli_say("writing to stdout failed: %s", strerror(errno));
        return CLI_FAILED;
    }
    if (a->missed)
        cli_say("%s/%s: %llu results are missing before seq %llu", a->model, a->stream, (unsigned long long)a->missed,
            (unsigned long long)a->seq);
    int r = sub_samples_write(to, a, &why);
    if (r == -EPIPE) return CLI_OK - 1; /* the reader has had enough: an end like any other */
    if (r) cli_say("%s", why.text);
    return r ? CLI_FAILED : CLI_OK;
}

/* ZeroMQ tells a subscriber neither that nobody publishes nor that no topic fits. */
static void say_nothing_came(const sub_options *o) {
    cli_say(
        "no result within %g s from %s; is nctd running, is its publish.endpoint this one (--connect ENDPOINT), and "
        "does a frame's model/stream fit the topic?",
        o->timeout_s, cli_quote(o->endpoint));
}

static int follow(const sub_options *o, nct_sub *s) {
    sub_samples to = {.fd = STDOUT_FILENO};
    int code = CLI_OK, timeout_ms = o->timeout_s > 0 ? (int)(o->timeout_s * 1000) : -1;
    uint64_t n = 0;
    while (n < o->count && !cli_stopped && !code) {
        nct_answer a;
        int r = nct_sub_recv(s, timeout_ms, &a);
        if (r == -EINTR) continue;
        if (r == -ETIMEDOUT) {
            if (!n) say_nothing_came(o);
            break;
        }
        if (r) cli_say("%s", nct_sub_reason(s));
        if (r == -EPROTO) continue;
        if (r) return cli_exit_of(r);
        code = show(o, &to, &a);
        nct_release(&a);
        n++;
    }
    sub_samples_done(&to);
    return code < 0 ? CLI_OK : code;
}

/* "model/stream/", as it stands on the wire, means "model/stream". Writes into argv. */
static void trim(char *topic) {
    char *slash = strchr(topic, '/'), *last = strrchr(topic, '/');
    if (slash != last && !last[1]) *last = 0;
}

int cmd_sub(int argc, char **argv) {
    sub_options o;
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-' && !strstr(argv[i], "://")) trim(argv[i]);
    nct_sub *s;
    nct_options keys;
    int code = read_options(&o, argc, argv);
    nct_options_init(&keys);
    if (!code) code = keys_apply(&keys);
    if (code) return code;
    int r = nct_sub_open(&s, o.endpoint, o.n_topics ? o.topics[0] : "", &keys);
    if (r)
        return cli_usage(
            "'%s' of '%s': %s", cli_quote(o.n_topics ? o.topics[0] : ""), cli_quote(o.endpoint), nct_strerror(r));
    for (int i = 1; i < o.n_topics && !r; i++) {
        r = nct_sub_add(s, o.topics[i]);
        if (r) code = cli_usage("'%s': %s", cli_quote(o.topics[i]), nct_sub_reason(s));
    }
    cli_catch_signals();
    if (!code) code = follow(&o, s);
    nct_sub_close(s);
    return code;
}
