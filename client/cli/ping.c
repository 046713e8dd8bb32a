/* ping.c: `nct ping`, the time from PING to PONG: the daemon's loop answers it in the turn that reads it. */
#include "cli.h"
#include "hist.h"
#include "keys.h"
#include "nct.h"
#include "served.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

const cli_option options_ping[] = {CLI_OPTION_CONNECT(CLI_INGEST), CLI_OPTION_KEYS,
    {"count", 'k', "N", "4", "How many."}, {"interval", 'i', "S", "0.2 s", "Pause between two."},
    {"timeout", 0, "S", "2 s", "Longest wait for one."}, CLI_OPTION_JSON, {0}};

typedef struct {
    const char *endpoint;
    uint64_t count;
    double interval_s, timeout_s;
    int json;
} ping_options;

static int read_options(ping_options *o, int argc, char **argv) {
    const char *value;
    int row, bad = 0;
    cli_args a;
    *o = (ping_options){.endpoint = CLI_INGEST, .count = 4, .interval_s = 0.2, .timeout_s = 2};
    cli_args_init(&a, options_ping, argc, argv);
    while (!bad && (row = cli_next(&a, &value)) != CLI_END) {
        if (row == CLI_WRONG) return CLI_USAGE;
        if (row == CLI_OPERAND) return cli_usage("ping takes no operand, '%s' is one", cli_quote(value));
        if (row == cli_row(options_ping, "connect"))
            o->endpoint = value;
        else if (row == cli_row(options_ping, "count"))
            bad = cli_u64("--count", value, 1, 1000000000, &o->count);
        else if (row == cli_row(options_ping, "interval"))
            bad = cli_double("--interval", value, 0, 3600, &o->interval_s);
        else if (row == cli_row(options_ping, "timeout"))
            bad = cli_double("--timeout", value, 0.01, 3600, &o->timeout_s);
        else
            o->json = 1;
    }
    return bad ? CLI_USAGE : CLI_OK;
}

static void report(const ping_options *o, const hist *h, uint64_t sent) {
    double least = (double)h->least / 1e6, most = (double)h->most / 1e6, mean = hist_mean(h) / 1e6;
    if (o->json)
        printf(
            "{\"sent\":%llu,\"answered\":%llu,\"least_ms\":%.6f,\"mean_ms\":%.6f,\"p50_ms\":%.6f,\"most_ms\":%.6f}\n",
            (unsigned long long)sent, (unsigned long long)h->n, least, mean, (double)hist_quantile(h, 0.5) / 1e6,
            most);
    else
        printf("%llu sent, %llu answered; least %.3f ms, mean %.3f ms, most %.3f ms\n", (unsigned long long)sent,
            (unsigned long long)h->n, least, mean, most);
}

int cmd_ping(int argc, char **argv) {
    ping_options o;
    char reason[256];
    nct_options n;
    nct *c;
    int code = read_options(&o, argc, argv);
    nct_options_init(&n);
    if (!code) code = keys_apply(&n);
    if (!code && served_absent(o.endpoint)) code = CLI_NO_DAEMON;
    if (code) return code;
    hist *h = calloc(1, sizeof *h);
    n.timeout_ms = (int)(o.timeout_s * 1000);
    int r = h ? nct_open_why(&c, o.endpoint, &n, reason) : -ENOMEM;
    if (r) {
        served_unreached(o.endpoint, r, h ? reason : "no memory");
        free(h);
        return r == -EINVAL ? CLI_USAGE : cli_exit_of(r);
    }
    cli_catch_signals();
    uint64_t sent = 0;
    while (sent < o.count && !cli_stopped) {
        int64_t ns = 0;
        r = nct_ping(c, (int)(o.timeout_s * 1000), &ns);
        sent++;
        if (!r) hist_add(h, (uint64_t)ns);
        if (!o.json && !r)
            printf("%llu: %.3f ms\n", (unsigned long long)sent, (double)ns / 1e6);
        else if (!o.json)
            printf("%llu: %s\n", (unsigned long long)sent, nct_strerror(r));
        fflush(stdout);
        time_t s = (time_t)o.interval_s;
        if (sent < o.count) nanosleep(&(struct timespec){s, (long)((o.interval_s - (double)s) * 1e9)}, NULL);
    }
    report(&o, h, sent);
    code = h->n ? CLI_OK : CLI_NO_DAEMON;
    nct_close(c);
    free(h);
    return code;
}
