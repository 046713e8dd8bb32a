/* main.c: nctd.
 *
 *     client --DEALER--> ingest -> stream -> batcher -> engine -> publisher --ROUTER--> the sender
 *                                                                       \------PUB----> every subscriber
 *
 * Reads the configuration, builds the stages (spine.c), loads the models on a helper thread while the loop already
 * turns (reload.c), says READY, and stops by draining (drain.c). Exit: 0, 1 the daemon could not run, 2 usage, 78
 * configuration. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>
#include "choose.h"
#include "drain.h"
#include "endpoints.h"
#include "http_host.h"
#include "log.h"
#include "names.h"
#include "notify.h"
#include "options.h"
#include "private.h"
#include "reload.h"
#include "site.h"
#include "sizes.h"
#include "spine.h"
#include "watchdog.h"

#define EXIT_USAGE  2
#define EXIT_CONFIG 78

typedef struct {
    options options;
    config *cfg;
    uv_loop_t loop;
    spine spine;
    drain drain;
    private_end private;
    site site;
    uv_signal_t signals[3];
    uv_timer_t wait;
    watchdog watchdog;
    reload reload;
    bool opened;
    int exit_code;
} daemon_state;

/* ---- start ----------------------------------------------------------------------------------------------------- */

static int fail(daemon_state *d, int exit_code, const char *sentence) {
    log_error("%s", sentence);
    private_error(&d->private, sentence);
    notify_send("STATUS=%s", sentence);
    d->exit_code = exit_code;
    return -1;
}

static void stop(daemon_state *d, const char *why) {
    reload_stop(&d->reload);
    drain_begin(&d->drain, why);
}

static void on_started(void *ctx, int error, const char *why) {
    daemon_state *d = ctx;
    if (error) {
        fail(d, EXIT_CONFIG, why);
        stop(d, "the models could not be loaded");
        return;
    }
    log_info("ready version=%s endpoint=%s backend=%s variant=%s engines=%d threads=%d precision=%s", NCT_VERSION,
        d->spine.bound, d->spine.facts.backend, d->spine.facts.variant, d->spine.n_engines, d->spine.facts.n_threads,
        d->spine.facts.precision);
    notify_send("READY=1\nSTATUS=serving %d models on %s", models_count(d->spine.models), d->spine.bound);
    private_ready(&d->private, d->spine.bound);
}

static int choose_engine(daemon_state *d) {
    nct_why why = {""};
    return choose(&d->spine.chosen, d->cfg, &why) ? fail(d, EXIT_CONFIG, why.text) : 0;
}

/* design.md §8, GPU faults: its frames have their errors already. */
static void on_engine_failed(void *ctx, engine *e, const char *what) {
    daemon_state *d = ctx;
    nct_why why = {""};
    log_error("gpu fault engine=%d: %s", engine_index(e), what);
    models_lose_device(engine_device(e));
    if (d->cfg->engine.on_gpu_error == GPU_ERROR_CPU) {
        notify_send("STATUS=GPU fault: %s", what);
        if (!spine_take_over(&d->spine, e, &why)) {
            log_warning("engine.on_gpu_error = cpu: engine %d goes on on the CPU, in f32", engine_index(e));
            notify_send("STATUS=serving on the CPU after a GPU fault: %s", what);
            return;
        }
        log_error("the CPU cannot take over: %s", why.text);
    }
    d->exit_code = 1;
    notify_send("STOPPING=1\nSTATUS=GPU fault: %s", what);
    stop(d, "GPU fault");
}

static void on_private_end(void *ctx) {
    daemon_state *d = ctx;
    stop(d, "the process it serves ended");
}

/* ---- signals --------------------------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *h, int number) {
    daemon_state *d = h->data;
    if (number == SIGHUP) { /* never ends the daemon */
        reload_ask(&d->reload);
        return;
    }
    notify_send("STOPPING=1\nSTATUS=stopping");
    stop(d, number == SIGTERM ? "SIGTERM" : "SIGINT");
}

static const int watched[] = {SIGTERM, SIGINT, SIGHUP};

/* SIG_BLOCK before threads are made and after the loop has ended, SIG_UNBLOCK while it turns: with no handler there
 * yet, or none any more, a SIGHUP would end the process. Threads inherit the mask and never take one. */
static void hold_signals(int how) {
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < 3; i++) sigaddset(&set, watched[i]);
    pthread_sigmask(how, &set, NULL);
}

static int watch_signals(daemon_state *d) {
    for (int i = 0; i < 3; i++) {
        int error = uv_signal_init(&d->loop, &d->signals[i]);
        d->signals[i].data = d;
        if (!error) error = uv_signal_start(&d->signals[i], on_signal, watched[i]);
        if (error) return error;
    }
    return 0;
}

/* ---- serving --------------------------------------------------------------------------------------------------- */

static const char *not_ready(void *ctx) {
    const daemon_state *d = ctx;
    for (int32_t i = 0; i < d->spine.n_engines; i++)
        if (engine_fault(d->spine.engines[i])) return engine_fault(d->spine.engines[i]);
    if (d->drain.state != DRAIN_OFF) return "stopping";
    return models_count(d->spine.models) ? NULL : "the models are being loaded";
}

static int open_all(daemon_state *d) {
    nct_why why = {""};
    d->spine.engine_failed = on_engine_failed;
    d->spine.engine_failed_ctx = d;
    if (spine_open(&d->spine, &d->loop, d->cfg, &why)) return fail(d, 1, why.text);
    d->opened = true;
    drain_init(&d->drain, &d->spine);
    if (watch_signals(d) || private_watch(&d->private, &d->loop)) return fail(d, 1, "no signal handlers");
    d->site = (site){.s = &d->spine, .not_ready = not_ready, .ctx = d};
    if (d->private.fd < 0 && site_open(&d->site, d->cfg, &d->loop, &why)) return fail(d, 1, why.text);
    watchdog_start(&d->watchdog, &d->spine);
    uv_timer_init(&d->loop, &d->wait);
    d->reload = (reload){.s = &d->spine, .cfg = d->cfg, .o = &d->options, .started = on_started, .ctx = d};
    reload_start(&d->reload);
    return 0;
}

static void close_handle(uv_handle_t *h, void *ctx) {
    (void)ctx;
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

static void log_ledger(const daemon_state *d) {
    char line[1900];
    const spine *s = &d->spine;
    log_info("ledger %s", ledger_line(&s->counts, s->frames.n, s->answers.held, line, sizeof line));
}

/* Past the deadline: engines may still compute into memory that must stay, so nothing is taken down. */
static void leave(const daemon_state *d) {
    log_warning("drain_ms is over: %u frames without an answer and %u answers not taken are lost", d->spine.frames.n,
        d->spine.answers.held);
    log_ledger(d);
    _exit(d->exit_code);
}

static void on_wait(uv_timer_t *h) {
    (void)h; /* uv_run returns */
}

/* A stop while models load: the helper thread is not interrupted, and not waited for without end. */
static bool await_loading(daemon_state *d) {
    uint64_t end_ns = uv_hrtime() + d->cfg->daemon.drain_ms * 1000000ull;
    if (!reload_running(&d->reload)) return true;
    uv_timer_start(&d->wait, on_wait, 50, 50);
    while (reload_running(&d->reload) && uv_hrtime() < end_ns) uv_run(&d->loop, UV_RUN_ONCE);
    return !reload_running(&d->reload);
}

static void close_all(daemon_state *d) {
    if (!await_loading(d) || d->spine.frames.n) leave(d);
    site_close(&d->site);
    if (d->opened) {
        spine_close(&d->spine, drain_linger_ms(&d->drain));
        log_ledger(d);
        drain_part(&d->drain);
    }
    uv_walk(&d->loop, close_handle, NULL);
    uv_run(&d->loop, UV_RUN_DEFAULT);
    uv_loop_close(&d->loop);
}

/* The keys of the configuration, if it names some: the daemon's own, and who may connect. */
static int load_keys(daemon_state *d, config_why *why) {
    keyfile_why text = {""};
    const config *c = d->cfg;
    if (!c->auth.secret_key_file[0]) return 0;
    int error = auth_load(&d->spine.guard.list, c->auth.secret_key_file, c->auth.client_keys, &text);
    if (error) snprintf(why->text, sizeof why->text, "%s", text.text);
    return error;
}

/* What is wrong with the host or the settings is said before anything is made. */
static int may_serve(daemon_state *d) {
    config_why why;
    zwhy text = {""};
    int error = d->private.fd < 0 ? 0 : private_check(d->cfg, d->private.fd, &why);
    if (!error) error = sizes_check(d->cfg, &why);
    if (!error) error = load_keys(d, &why);
    if (error) return fail(d, EXIT_CONFIG, why.text);
    if (choose_engine(d)) return -1;
    if (zsock_self_test(&text)) {
        snprintf(why.text, sizeof why.text, "cutting a client does not work here: %s", text.text);
        return fail(d, 1, why.text);
    }
    return uv_loop_init(&d->loop) ? fail(d, 1, "no event loop") : 0;
}

static int serve(daemon_state *d) {
    notify_init();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a log that reached ulimit -f loses lines, not the daemon */
    if (may_serve(d)) return d->exit_code;
    if (!open_all(d)) {
        hold_signals(SIG_UNBLOCK);
        uv_run(&d->loop, UV_RUN_DEFAULT);
        hold_signals(SIG_BLOCK);
    }
    close_all(d);
    notify_done();
    if (d->private.fd >= 0) private_clean(d->options.conf, d->cfg->ingest.endpoint);
    return d->exit_code;
}

/* ---- --check --------------------------------------------------------------------------------------------------- */

/* Sums, with what the GPUs take for these models. */
static int sizes_on_gpus(const daemon_state *d, const model_set *set) {
    const chosen *on = &d->spine.chosen;
    size_t workspace = 0, bytes;
    nct_why why = {""};
    for (int32_t i = 0; on->cuda && i < set->n; i++) {
        const generation *g = set->made[i];
        if (engine_workspace(d->cfg, generation_layer(g, 0), generation_params(g), 1, &bytes, &why)) {
            fprintf(stderr, "nctd: %s\n", why.text);
            return -EINVAL;
        }
        if (bytes > workspace) workspace = bytes;
    }
    sizes_print(d->cfg, on->cuda ? on->n_devices : 0, workspace, stdout);
    return 0;
}

/* What a start would refuse at its binds. */
static int check_doors(daemon_state *d, config_why *why) {
    zwhy text = {""};
    nct_why http_why = {""};
    const config *c = d->cfg;
    int error = load_keys(d, why);
    if (error) return error;
    error = endpoints_try(c, &text);
    if (!error && c->http.enabled) error = http_endpoint_check(c->http.endpoint, c->http.insecure, &http_why);
    snprintf(why->text, sizeof why->text, "%s%s", text.text, http_why.text);
    if (!error && d->spine.guard.list) printf("keys: %d may connect\n", d->spine.guard.list->n);
    guard_done(&d->spine.guard);
    return error;
}

static int check(daemon_state *d) {
    config_why why;
    nct_why model_why = {""};
    models_target target;
    model_set *set = NULL;
    if (sizes_check(d->cfg, &why) || check_doors(d, &why)) {
        fprintf(stderr, "nctd: %s\n", why.text);
        return EXIT_CONFIG;
    }
    d->spine.cfg = d->cfg;
    int error = choose_engine(d);
    spine_target(&d->spine, &target);
    if (!error) error = model_set_load(&set, d->cfg, &target, &model_why);
    if (error) {
        if (model_why.text[0]) fprintf(stderr, "nctd: %s\n", model_why.text);
        return EXIT_CONFIG;
    }
    for (int32_t i = 0; i < set->n; i++) {
        const nct_params *p = generation_params(set->made[i]);
        printf("model %s: %d -> %d channels, kernel_size %d, stride %d, num_groups %d, digest %.16s\n", set->names[i],
            p->in_channels, p->out_channels, p->kernel_size, p->stride, p->num_groups, set->made[i]->m->digest);
    }
    error = sizes_on_gpus(d, set);
    model_set_free(set);
    if (error) return EXIT_CONFIG;
    printf("ok\n");
    return 0;
}

static int run(daemon_state *d) {
    config_why why;
    const options *o = &d->options;
    if (o->verb == DO_HELP) return options_usage(), 0;
    if (o->verb == DO_VERSION) return printf("nctd %s\n", NCT_VERSION), 0;
    if (o->verb == DO_DEFAULTS) return config_defaults(stdout), 0;
    if (o->verb == DO_MAN) return config_man(stdout), 0;
    if (config_load(&d->cfg, o->conf, o->overrides, o->n_overrides, &why)) {
        fprintf(stderr, "nctd: %s\n", why.text);
        private_error(&d->private, why.text);
        return EXIT_CONFIG;
    }
    if (o->verb == DO_DUMP) return config_dump(d->cfg, stdout), 0;
    log_set_level((log_level)d->cfg->daemon.log_level);
    if (names_init()) return fail(d, 1, "no random numbers"), d->exit_code;
    return o->verb == DO_CHECK ? check(d) : serve(d);
}

/* Of what was asked for on the command line. */
static int written(int code) {
    if (!fflush(stdout) && !ferror(stdout)) return code;
    fprintf(stderr, "nctd: writing to stdout failed\n");
    return code ? code : 1;
}

/* One that is closed would be the next socket's, and the log would be written to a client. The wrong way round, so that
 * reading and writing fail as they would have. */
static void hold_standard_descriptors(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd) return;
}

int main(int argc, char **argv) {
    static daemon_state d; /* handles live here until the loop is closed */
    hold_standard_descriptors();
    if (options_read(&d.options, argc, argv)) return EXIT_USAGE;
    if (d.options.verb == DO_SERVE) hold_signals(SIG_BLOCK);
    d.private = (private_end){.fd = d.options.private_fd, .ended = on_private_end, .ctx = &d};
    int code = written(run(&d));
    /* The driver's exit handlers can block after a fault, and have been seen to end the process with 0 and without
     * what stdout still held. */
    if (d.spine.chosen.cuda) {
        fflush(NULL);
        _exit(code);
    }
    config_free(d.cfg);
    return code;
}
