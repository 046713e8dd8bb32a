/* bench_mix.c: `nct bench`'s sizes, its objective and its random numbers. Called by bench.c for options, by the load's threads
 * for each frame. Knows no daemon. */
#include "bench.h"
#include "cli.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers: splitmix64 (Steele, Lea, Flood 2014) --------------------------------------------------- */
double bench_uniform(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* ---- sizes -------------------------------------------------------------------------------------------------- */
static int take_size(bench_options *o, const char *what, const char *word) {
    uint64_t steps;
    if (o->n_sizes == BENCH_SIZES_MAX)
        return cli_usage("%s: more than %d frame lengths", what, BENCH_SIZES_MAX), -EINVAL;
    if (cli_u64(what, word, 1, INT32_MAX, &steps)) return -EINVAL;
    o->sizes[o->n_sizes++] = (bench_size){(uint32_t)steps, 1};
    return 0;
}

int bench_take_steps(bench_options *o, const char *text) {
    char copy[512], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", text);
    o->n_sizes = o->mixed = 0;
    while ((word = strsep(&rest, ",")))
        if (take_size(o, "--steps", word)) return -EINVAL;
    return 0;
}

int bench_take_mix(bench_options *o, const char *text) {
    char copy[512], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", text);
    o->n_sizes = 0;
    o->mixed = 1;
    while ((word = strsep(&rest, ","))) {
        char *colon = strchr(word, ':');
        if (!colon) {
            cli_say(
                "--mix is '%s'; '%s' must be STEPS:WEIGHT, as in 480:90,48000:10", cli_quote(text), cli_quote(word));
            return -EINVAL;
        }
        *colon = 0;
        if (take_size(o, "STEPS of --mix", word) ||
            cli_double("WEIGHT of --mix", colon + 1, 1e-9, 1e9, &o->sizes[o->n_sizes - 1].weight))
            return -EINVAL;
    }
    return 0;
}

uint32_t bench_steps(const bench_options *o, uint64_t number) {
    if (!o->mixed) return o->sizes[number % (uint64_t)o->n_sizes].steps;
    uint64_t state = o->seed ^ number * 0xd1342543de82ef95u;
    double sum = 0, at;
    for (int i = 0; i < o->n_sizes; i++) sum += o->sizes[i].weight;
    at = bench_uniform(&state) * sum;
    for (int i = 0; i < o->n_sizes - 1; i++) {
        at -= o->sizes[i].weight;
        if (at < 0) return o->sizes[i].steps;
    }
    return o->sizes[o->n_sizes - 1].steps;
}

/* ---- the objective ------------------------------------------------------------------------------------------ */
/* "p99", "p99.9" (also "p999"), "max". */
static int quantile(const char *name, double *ret) {
    char *end = NULL;
    if (!strcmp(name, "max")) return *ret = 1, 0;
    if (!strcmp(name, "p999")) return *ret = 0.999, 0;
    if (*name != 'p' || strlen(name) >= sizeof((bench_slo *)0)->name) return -EINVAL;
    double percent = strtod(name + 1, &end);
    if (end == name + 1 || *end || !(percent > 0 && percent < 100)) return -EINVAL;
    return *ret = percent / 100, 0;
}

int bench_take_slo(bench_options *o, const char *text) {
    char copy[256], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", text);
    o->n_slos = 0;
    while ((word = strsep(&rest, ","))) {
        char *equals = strchr(word, '=');
        double seconds = 0, q = 0;
        uint64_t steps = 0;
        if (equals) *equals = 0;
        if (!equals || quantile(word, &q)) {
            cli_say("--slo is '%s'; it must be QUANTILE=TIME, as in p99=10ms or p50=2ms,p99.9=20ms,max=100ms",
                cli_quote(text));
            return -EINVAL;
        }
        if (cli_span("TIME of --slo", equals + 1, &seconds, &steps)) return -EINVAL;
        if (steps)
            return cli_usage("TIME of --slo is '%s'; it needs a unit, as in 10ms", cli_quote(equals + 1)), -EINVAL;
        if (o->n_slos == BENCH_SLOS_MAX) return cli_usage("--slo: more than %d limits", BENCH_SLOS_MAX), -EINVAL;
        bench_slo *s = &o->slos[o->n_slos++];
        *s = (bench_slo){.q = q, .limit_ns = (uint64_t)(seconds * 1e9 + 0.5)};
        snprintf(s->name, sizeof s->name, "%s", word);
    }
    return 0;
}

const bench_slo *bench_missed(const bench *b) {
    for (int i = 0; i < b->o.n_slos; i++) {
        const bench_slo *s = &b->o.slos[i];
        const hist *answers = &b->sum.latency, *heard = &b->sum.heard_after;
        if (!answers->n || hist_quantile(answers, s->q) > s->limit_ns) return s;
        if (b->o.subscribe && (!heard->n || hist_quantile(heard, s->q) > s->limit_ns)) return s;
    }
    return NULL;
}
