/* run_daemon.c: what computes: a daemon that was named, or a private one made to the measure of the work. Called by run.c and
 * run_file.c. The model file is read here for its parameters alone; the weights that count are the daemon's. */
#include "run.h"
#include "cli.h"
#include "model.h"
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A private daemon's pools follow from the largest frame and the window, and nct + nctd are to stay under 500 MB. */
enum { FRAME_MIN = 1 << 20, FRAME_MAX = 16 << 20, POOL_BYTES = 32 << 20 };
#define CPU_FLOPS 1e10 /* per CPU and second, cautious: what decides whether a GPU is worth its start */

static void name_stream(run *r) {
    uint64_t v = 0;
    if (getrandom(&v, sizeof v, 0) != (ssize_t)sizeof v) v = (uint64_t)(cli_now_s() * 1e9);
    snprintf(r->stream, sizeof r->stream, "run-%016llx", (unsigned long long)v);
}

static int connect_named(run *r) {
    nct_why why;
    int code = served_connect(&r->client, &r->daemon, r->o.connect, r->o.timeout_s, 1);
    if (code) return code;
    const served_model *m = served_find(&r->daemon, r->o.name, &why);
    if (!m) {
        cli_say("%s", why.text);
        return CLI_USAGE;
    }
    if (!strcmp(m->mode, "stream")) {
        cli_say(
            "the model '%s' is in stream mode, its state is that of one endless input; nct run needs mode = frame",
            m->name);
        return CLI_CONFIG;
    }
    if (r->o.precision && strcmp(r->o.precision, r->daemon.precision) != 0) {
        cli_say("--precision is %s, but the daemon computes in %s; its engine.precision decides", r->o.precision,
            r->daemon.precision);
        return CLI_CONFIG;
    }
    r->model = *m;
    return CLI_OK;
}

static int read_model(run *r) {
    model_setting settings[RUN_PARAMS_MAX];
    char *copies[RUN_PARAMS_MAX];
    nct_why why = {""};
    model *m = NULL;
    for (int i = 0; i < r->o.n_params; i++) {
        copies[i] = strdup(r->o.params[i]);
        char *equals = copies[i] ? strchr(copies[i], '=') : NULL;
        if (equals) *equals = 0;
        settings[i] = (model_setting){copies[i], equals ? equals + 1 : ""};
    }
    int e = model_load(&m, r->o.model, settings, r->o.n_params, &why);
    for (int i = 0; i < r->o.n_params; i++) free(copies[i]);
    if (e) {
        cli_say("%s", *why.text ? why.text : strerror(-e));
        return CLI_CONFIG;
    }
    r->model = (served_model){.params = m->params, .sample_rate = m->sample_rate};
    strcpy(r->model.name, "main");
    memcpy(r->model.digest, m->digest, sizeof r->model.digest);
    model_free(m);
    return CLI_OK;
}

int run_model(run *r) {
    name_stream(r);
    return r->o.connect ? connect_named(r) : read_model(r);
}

/* ---- a private daemon -------------------------------------------------------------------------------------- */
static uint64_t between(uint64_t v, uint64_t lo, uint64_t hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

static uint64_t frame_bytes(const run *r, int64_t t_in, int64_t t_out) {
    const nct_params *p = &r->model.params;
    uint64_t span = (uint64_t)(p->kernel_size - 1) * (uint64_t)p->dilation + 1;
    uint64_t one = 8 * span * 4 * (uint64_t)p->in_channels + 24 * (uint64_t)p->num_groups, need = 0;
    if (t_in >= 0) {
        uint64_t in = (uint64_t)t_in * 4 * (uint64_t)p->in_channels,
                 out = (uint64_t)t_out * 4 * (uint64_t)p->out_channels;
        need = in > out ? in : out;
        if (need > FRAME_MAX || r->o.piece_steps) need = 2 * FRAME_MIN;
    } else {
        /* Several inputs: the largest file decides, taken as 16-bit samples that were halved by compression. */
        for (int i = 0; i < r->in.n; i++)
            if (r->in.v[i].bytes > need) need = r->in.v[i].bytes;
        need = need * 4 * (uint64_t)(p->out_channels > p->in_channels ? p->out_channels : p->in_channels) /
               (uint64_t)p->in_channels;
    }
    if (r->o.piece_steps) one += (r->o.piece_steps + span) * 4 * (uint64_t)(p->in_channels + p->out_channels);
    if (r->o.windowed) one += (r->o.window_steps + span) * 4 * (uint64_t)(p->in_channels + p->out_channels);
    if (one > need) need = one;
    return (between(need, FRAME_MIN, FRAME_MAX) + 65535) / 65536 * 65536;
}

/* "cpu" when the CPU needs less than a second for the work, or when it is not known; a GPU's start takes about that. */
static const char *choose_engine(const run *r, int64_t t_out) {
    const nct_params *p = &r->model.params;
    cpu_set_t set;
    int cpus = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    double steps = (double)t_out;
    if (t_out < 0) {
        steps = 0;
        for (int i = 0; i < r->in.n; i++) steps += (double)r->in.v[i].bytes / 2 / p->in_channels / p->stride;
    }
    double flop = 2.0 * p->out_channels * p->in_channels / p->groups * p->kernel_size * steps;
    if (r->o.engine) return r->o.engine;
    return flop / (CPU_FLOPS * cpus) < 1 ? "cpu" : "auto";
}

int run_daemon(run *r, run_result *f, int64_t t_in, int64_t t_out) {
    if (r->client) return 0;
    private_wish w = {.model_file = r->o.model,
        .params = r->o.params,
        .n_params = r->o.n_params,
        .precision = r->o.precision ? r->o.precision : "f32",
        .threads = r->o.threads,
        .engine = choose_engine(r, t_out),
        .max_frame_bytes = frame_bytes(r, t_in, t_out)};
    w.window = (uint32_t)between(POOL_BYTES / w.max_frame_bytes, 2, RUN_DEPTH_MAX);
    double began = cli_now_s();
    int e = private_start(&r->own, &w, &f->why);
    if (e) {
        f->fatal = e == -EINVAL ? CLI_CONFIG : e == -EINTR ? CLI_FAILED : CLI_NO_DAEMON;
        return e;
    }
    int code = served_connect_private(&r->client, &r->daemon, r->own.endpoint, r->o.timeout_s);
    f->start_s = cli_now_s() - began;
    const served_model *m = code ? NULL : served_find(&r->daemon, "main", &f->why);
    if (m && !strcmp(m->digest, r->model.digest)) return 0;
    if (!code && m) snprintf(f->why.text, sizeof f->why.text, "the model file changed while it was being read");
    if (code) snprintf(f->why.text, sizeof f->why.text, "the private daemon does not answer");
    f->fatal = code ? code : CLI_CONFIG;
    return -EPROTO;
}

void run_daemon_end(run *r) {
    nct_close(r->client);
    r->client = NULL;
    served_done(&r->daemon);
    private_stop(&r->own);
}
