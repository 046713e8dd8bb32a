/* models.c: see models.h. Owns served names and generations. model_set_load runs on the helper thread and touches only
 * what it makes; everything else is called by main, ingest and the frame table on the loop thread. */
#include "models.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct models {
    served **all; /* [n_all], the n served ones first */
    int32_t n, n_all;
};

/* ---- generations ----------------------------------------------------------------------------------------------- */

nct_layer *generation_layer(const generation *g, int32_t device) {
    for (int32_t i = 0; i < g->n_devices; i++)
        if (g->devices[i] == device) return g->layers[i];
    return NULL;
}

const nct_params *generation_params(const generation *g) {
    return &g->m->params;
}

const void *generation_model(const generation *g) {
    return g->of;
}

generation *generation_ref(generation *g) {
    g->refs++;
    return g;
}

static bool lost[MODELS_DEVICES_MAX]; /* by CUDA ordinal */

void models_lose_device(int32_t device) {
    if (device >= 0 && device < MODELS_DEVICES_MAX) lost[device] = true;
}

void generation_unref(generation *g) {
    if (!g || --g->refs) return;
    for (int32_t i = 0; i < g->n_devices; i++)
        if (g->devices[i] < 0 || !lost[g->devices[i]]) nct_layer_free(g->layers[i]);
    model_free(g->m);
    free(g);
}

/* ---- loading, on the helper thread ----------------------------------------------------------------------------- */

static int pack(generation *g, const models_target *to, nct_why *why) {
    for (int32_t i = 0; i < to->n_devices; i++) {
        bool cpu = to->devices[i] < 0;
        nct_where at = {.device = to->devices[i],
            .precision = cpu ? NCT_PREC_F32 : to->precision,
            .force = cpu ? to->force : NULL};
        int error = nct_layer_new(&g->layers[i], &g->m->params, &g->m->weights, &at, NULL, why);
        if (error) return error;
        g->devices[i] = to->devices[i];
        g->n_devices = i + 1;
        if (to->check[i]) error = to->check[i](g->layers[i], g->m, to->devices[i], why);
        if (error) return error;
    }
    return 0;
}

void models_target_cpu(models_target *t) {
    for (int32_t i = 0; i < t->n_devices; i++)
        if (t->devices[i] < 0) return;
    t->check[t->n_devices] = model_check_cpu;
    t->devices[t->n_devices++] = -1;
}

/* Would g be made again, bit for bit, and for these devices? */
static bool same(const generation *g, const config_model *c, const model *m, const models_target *to) {
    if (g->publish != c->publish || strcmp(g->m->digest, m->digest)) return false;
    for (int32_t i = 0; i < to->n_devices; i++)
        if (!generation_layer(g, to->devices[i])) return false;
    return true;
}

/* *ret NULL: the generation that is served stays. */
static int load_one(generation **ret, const config_model *c, const models_target *to, nct_why *why) {
    const served *of = to->now ? models_find((models *)(uintptr_t)to->now, c->name) : NULL;
    generation *g = calloc(1, sizeof *g);
    if (!g) return -ENOMEM;
    g->refs = 1;
    g->publish = c->publish;
    int error = c->file ? model_load(&g->m, c->file, c->settings, c->n_settings, why)
                        : model_fresh(&g->m, c->settings, c->n_settings, c->seed, why);
    bool stays = !error && of && same(of->current, c, g->m, to);
    if (!error && !stays) error = pack(g, to, why);
    if (error || stays) {
        generation_unref(g);
        g = NULL;
    }
    if (!error) *ret = g;
    return error;
}

static int add(model_set *s, const config_model *c, const models_target *to, nct_why *why) {
    nct_why inner = {""};
    int error = c->mode == MODE_STREAM ? -ENOTSUP : load_one(&s->made[s->n], c, to, &inner);
    if (c->mode == MODE_STREAM)
        snprintf(inner.text, sizeof inner.text, "mode = stream is not there yet; use mode = frame");
    if (error) {
        const char *text = inner.text[0] ? inner.text : strerror(-error);
        if (why) snprintf(why->text, sizeof why->text, "%.150s: model %s: %.280s", c->origin, c->name, text);
        return error;
    }
    snprintf(s->names[s->n], sizeof s->names[0], "%s", c->name);
    if (s->made[s->n] && to->now && models_find((models *)(uintptr_t)to->now, c->name))
        s->n_changed++;
    else if (s->made[s->n])
        s->n_added++;
    s->n++;
    return 0;
}

/* What a configuration without any [model] serves. */
static const model_setting default_settings[] = {
    {"in_channels", "128"}, {"out_channels", "256"}, {"kernel_size", "3"}, {"padding", "1"}, {"num_groups", "32"}};
static const config_model default_model = {.name = (char *)"default",
    .mode = MODE_FRAME,
    .publish = true,
    .settings = (model_setting *)default_settings,
    .n_settings = sizeof default_settings / sizeof *default_settings,
    .origin = "built in"};

int model_set_load(model_set **ret, const config *cfg, const models_target *to, nct_why *why) {
    const config_model *from = cfg->n_models ? cfg->models : &default_model;
    int32_t n = cfg->n_models ? cfg->n_models : 1;
    int error = -ENOMEM;
    model_set *s = calloc(1, sizeof *s);
    if (!s) return -ENOMEM;
    s->made = calloc((size_t)n, sizeof *s->made);
    s->names = calloc((size_t)n, sizeof *s->names);
    if (!s->made || !s->names) goto fail;
    for (int32_t i = 0; i < n; i++) {
        error = add(s, &from[i], to, why);
        if (error) goto fail;
    }
    s->n_removed = (to->now ? to->now->n : 0) - (s->n - s->n_added);
    *ret = s;
    return 0;
fail:
    model_set_free(s);
    return error;
}

void model_set_free(model_set *s) {
    if (!s) return;
    for (int32_t i = 0; s->made && i < s->n; i++) generation_unref(s->made[i]);
    for (int32_t i = 0; i < s->n_left; i++) generation_unref(s->left[i]);
    free(s->left);
    free(s->made);
    free(s->names);
    free(s);
}

/* ---- serving --------------------------------------------------------------------------------------------------- */

int models_new(models **ret) {
    models *m = calloc(1, sizeof *m);
    if (!m) return -ENOMEM;
    *ret = m;
    return 0;
}

void models_free(models *m) {
    if (!m) return;
    for (int32_t i = 0; i < m->n_all; i++) {
        assert(!m->all[i]->in_flight);
        generation_unref(m->all[i]->current);
        free(m->all[i]);
    }
    free(m->all);
    free(m);
}

static served *find(const models *m, const char *name, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(m->all[i]->name, name)) return m->all[i];
    return NULL;
}

served *models_find(models *m, const char *name) {
    return find(m, name, m->n);
}
served *models_at(models *m, int32_t i) {
    return i < m->n ? m->all[i] : NULL;
}
int32_t models_count(const models *m) {
    return m->n;
}

/* The names in the set's order, each there or made. NULL without memory. */
static served **names_of(const models *m, const model_set *s) {
    served **all = calloc((size_t)(m->n_all + s->n), sizeof *all);
    for (int32_t i = 0; all && i < s->n; i++) {
        all[i] = find(m, s->names[i], m->n_all);
        if (!all[i] && (all[i] = calloc(1, sizeof **all)) != NULL)
            memcpy(all[i]->name, s->names[i], sizeof all[i]->name);
        if (all[i]) continue;
        while (i-- > 0)
            if (!find(m, s->names[i], m->n_all)) free(all[i]);
        free(all);
        return NULL;
    }
    return all;
}

static bool among(served *const *all, int32_t n, const served *of) {
    for (int32_t i = 0; i < n; i++)
        if (all[i] == of) return true;
    return false;
}

static void replace(served *of, generation *g, model_set *s) {
    if (of->current) s->left[s->n_left++] = of->current;
    of->current = g;
    if (!g) return;
    g->of = of;
    g->number = ++of->generations;
}

int models_adopt(models *m, model_set *s) {
    generation **left = calloc((size_t)m->n + 1, sizeof(generation *));
    served **all = left ? names_of(m, s) : NULL;
    if (!all) {
        free(left);
        return -ENOMEM;
    }
    s->left = left;
    int32_t n_all = s->n;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->made[i]) replace(all[i], generation_ref(s->made[i]), s);
    }
    for (int32_t i = 0; i < m->n_all; i++) {
        served *of = m->all[i];
        if (among(all, s->n, of)) continue;
        replace(of, NULL, s);
        all[n_all++] = of;
    }
    free(m->all);
    m->all = all;
    m->n_all = n_all;
    m->n = s->n;
    return 0;
}

static json_t *describe(const served *of) {
    char *text = model_json(of->current->m);
    json_t *o = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    if (!o) return NULL;
    json_object_set_new(o, "name", json_string(of->name));
    json_object_set_new(o, "mode", json_string("frame"));
    json_object_set_new(o, "generation", json_integer(of->current->number));
    json_object_set_new(o, "publish", json_boolean(of->current->publish));
    json_object_set_new(o, "ledger", counts_json(&of->counts, of->in_flight));
    return o;
}

json_t *models_describe(const models *m) {
    json_t *all = json_array();
    for (int32_t i = 0; all && i < m->n; i++) json_array_append_new(all, describe(m->all[i]));
    return all;
}
