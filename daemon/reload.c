/* reload.c: see reload.h. Called by main; owns what is loaded until it is served or dropped. The helper thread reads of
 * the loop's things only what nobody changes while it runs: the configuration and the generations that are served. */
#include "reload.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "log.h"
#include "notify.h"

#define PATIENCE_MS      500      /* between two requests to the service manager for more time, */
#define PATIENCE_ADDS_US 10000000 /* each of which is good for this long */

/* ---- the helper thread ----------------------------------------------------------------------------------------- */

static int read_keys(reload *r, config_why *why) {
    keyfile_why text = {""};
    const auth *now = r->s->guard.list;
    int error = auth_load(&r->keys, r->next->auth.secret_key_file, r->next->auth.client_keys, &text);
    if (!error && strcmp(r->keys->server.secret_key, now->server.secret_key) != 0) {
        error = -EPERM;
        snprintf(text.text, sizeof text.text, "%s holds another key than at the start: that needs a restart",
            r->next->auth.secret_key_file);
    }
    if (error) snprintf(why->text, sizeof why->text, "%s", text.text);
    return error;
}

static int read_next(reload *r) {
    config_why why = {""};
    int error = config_load(&r->next, r->o->conf, r->o->overrides, r->o->n_overrides, &why);
    if (!error) error = config_may_reload(r->cfg, r->next, &why);
    if (!error && r->cfg->auth.secret_key_file[0]) error = read_keys(r, &why);
    if (!error && r->next->engine.on_gpu_error == GPU_ERROR_CPU) models_target_cpu(&r->target);
    if (error) snprintf(r->why, sizeof r->why, "%s", why.text);
    return error;
}

static void work(uv_work_t *w) {
    reload *r = w->data;
    nct_why why = {""};
    r->error = r->first ? 0 : read_next(r);
    if (r->error) return;
    r->error = model_set_load(&r->set, r->first ? r->cfg : r->next, &r->target, &why);
    if (r->error) snprintf(r->why, sizeof r->why, "%s", why.text[0] ? why.text : strerror(-r->error));
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

static void begin(reload *r);

static void on_patience(uv_timer_t *t) {
    const reload *r = t->data;
    unsigned long long s = (uv_hrtime() - r->begin_ns) / 1000000000u;
    notify_hint(
        "EXTEND_TIMEOUT_USEC=%d\nSTATUS=%s for %llu s", PATIENCE_ADDS_US, r->first ? "loading" : "reloading", s);
}

/* One line: it stands in a datagram of lines, and in the log. */
static void one_line(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ') *text = ' ';
}

/* Those that were made; models stand in the set's order. */
static void say_models(const reload *r) {
    if (!r->cfg->n_models)
        log_info("no [model NAME] is configured: serving a freshly initialised layer as \"default\"");
    for (int32_t i = 0; i < models_count(r->s->models); i++) {
        const served *of = models_at(r->s->models, i);
        const nct_params *p = generation_params(of->current);
        if (r->set->made[i])
            log_info("model name=%s generation=%u channels=%d->%d kernel=%d stride=%d num_groups=%d digest=%.16s",
                of->name, of->current->number, p->in_channels, p->out_channels, p->kernel_size, p->stride,
                p->num_groups, of->current->m->digest);
    }
}

static void refused(reload *r, const char *why) {
    meters_reload(&r->s->meters, RELOAD_RESULT_REFUSED, why);
    log_warning("reload refused, everything stays as it is: %s", why);
}

static void say_ready(const reload *r, const char *what) {
    int error =
        notify_send("READY=1\nSTATUS=serving %d models on %s; %s", models_count(r->s->models), r->s->bound, what);
    if (error) log_warning("the service manager was not told that a reload ended: %s", strerror(-error));
}

static bool changes(const reload *r) {
    return r->set->n_changed || r->set->n_added || r->set->n_removed || config_differs(r->cfg, r->next) ||
           !auth_same(r->keys, r->s->guard.list);
}

static void apply(reload *r) {
    char text[200];
    nct_why why = {""};
    int error = spine_swap(r->s, r->cfg, r->next, r->set, &r->keys, &why);
    if (error) {
        r->error = error;
        snprintf(r->why, sizeof r->why, "%s", why.text);
        return;
    }
    snprintf(text, sizeof text, "models changed=%d added=%d removed=%d", r->set->n_changed, r->set->n_added,
        r->set->n_removed);
    meters_reload(&r->s->meters, RELOAD_RESULT_APPLIED, "");
    say_models(r);
    log_info("reload applied %s seconds=%.3f", text, (double)(uv_hrtime() - r->begin_ns) / 1e9);
    snprintf(text, sizeof text, "reload applied: %d models changed, %d added, %d removed", r->set->n_changed,
        r->set->n_added, r->set->n_removed);
    say_ready(r, text);
}

static void end_reload(reload *r) {
    if (!r->error && r->stopping) {
        r->error = -ESHUTDOWN;
        snprintf(r->why, sizeof r->why, "the daemon stops");
    }
    if (!r->error && changes(r)) {
        apply(r);
    } else if (!r->error) {
        meters_reload(&r->s->meters, RELOAD_RESULT_UNCHANGED, "");
        log_info("reload: nothing changed");
        say_ready(r, "reload: nothing changed");
    }
    if (!r->error) return;
    one_line(r->why);
    refused(r, r->why);
    char text[1100];
    snprintf(text, sizeof text, "reload refused: %s", r->why);
    if (!r->stopping) say_ready(r, text);
}

static void end_start(reload *r) {
    nct_why why = {""};
    r->first = false;
    if (r->stopping) return;
    if (!r->error && (r->error = spine_swap(r->s, r->cfg, NULL, r->set, NULL, &why)) != 0)
        snprintf(r->why, sizeof r->why, "%s", why.text);
    if (!r->error) {
        say_models(r);
        ingest_ready(&r->s->ingest);
    }
    one_line(r->why);
    r->started(r->ctx, r->error, r->why);
}

static void ended(uv_work_t *w, int status) {
    reload *r = w->data;
    r->running = false;
    r->s->meters.reload.pending = r->waiting;
    uv_timer_stop(&r->patience);
    if (status) {
        r->error = status;
        snprintf(r->why, sizeof r->why, "%s", uv_strerror(status));
    }
    if (r->first)
        end_start(r);
    else
        end_reload(r);
    model_set_free(r->set);
    config_free(r->next);
    auth_free(r->keys);
    r->keys = NULL;
    r->set = NULL;
    r->next = NULL;
    if (r->waiting && !r->stopping) begin(r);
}

static void begin(reload *r) {
    r->waiting = false;
    r->running = true;
    r->error = 0;
    r->why[0] = 0;
    r->begin_ns = uv_hrtime();
    spine_target(r->s, &r->target);
    r->target.now = r->first ? NULL : r->s->models;
    if (!r->first) {
        r->s->meters.reload.pending = true;
        log_info("reload begins");
        notify_reloading();
    }
    uv_update_time(r->s->loop); /* the start took its time */
    uv_timer_start(&r->patience, on_patience, PATIENCE_MS, PATIENCE_MS);
    uv_queue_work(r->s->loop, &r->work, work, ended);
}

void reload_start(reload *r) {
    uv_timer_init(r->s->loop, &r->patience);
    r->work.data = r->patience.data = r;
    r->first = true;
    begin(r);
}

void reload_ask(reload *r) {
    r->s->meters.reload.asked++;
    r->s->meters.reload.pending = !r->stopping;
    if (r->stopping)
        refused(r, "the daemon stops");
    else if (r->running)
        r->waiting = true;
    else
        begin(r);
}

void reload_stop(reload *r) {
    if (r->waiting && !r->stopping) refused(r, "the daemon stops");
    r->s->meters.reload.pending = false;
    r->stopping = true;
    r->waiting = false;
}
