/* served.c: reads WELCOME. Called by run, send, sub, info and bench. Takes what it needs and ignores what it does not know,
 * so that a newer daemon stays readable. */
#include "served.h"
#include "cli.h"
#include "keys.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static int refuse(nct_why *why, const char *what) {
    snprintf(why->text, sizeof why->text, "the daemon's WELCOME %s", what);
    return -EPROTO;
}

static void take_text(char *out, size_t size, const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(out, size, "%s", text ? text : "");
}

static int32_t take_int(const json_t *object, const char *key, int32_t standard) {
    const json_t *v = json_object_get(object, key);
    return json_is_integer(v) ? (int32_t)json_integer_value(v) : standard;
}

static int32_t take_word(const json_t *object, const char *key, const char *words) {
    const char *text = json_string_value(json_object_get(object, key));
    size_t len = text ? strlen(text) : 0;
    int32_t n = 0;
    for (const char *p = words; text && *p; n++) {
        size_t l = strcspn(p, "|");
        if (l == len && !memcmp(p, text, len)) return n;
        p += l + (p[l] == '|');
    }
    return text ? -1 : 0;
}

/* padding is a number, its text, or 'same' or 'valid'. */
static int take_padding(nct_params *p, const json_t *layer, nct_why *why) {
    const json_t *v = json_object_get(layer, "padding");
    const char *text = json_string_value(v);
    if (text && !strcmp(text, "same")) return nct_padding(p, 1, &p->pad_left, &p->pad_right, why);
    int32_t pad = 0;
    if (json_is_integer(v))
        pad = (int32_t)json_integer_value(v);
    else if (text && strcmp(text, "valid") != 0)
        pad = (int32_t)strtol(text, NULL, 10);
    p->pad_left = take_int(layer, "pad_left", pad);
    p->pad_right = take_int(layer, "pad_right", pad);
    return 0;
}

int served_params(nct_params *ret, const json_t *layer, nct_why *why) {
    nct_params p = {.in_channels = take_int(layer, "in_channels", 0),
        .out_channels = take_int(layer, "out_channels", 0),
        .kernel_size = take_int(layer, "kernel_size", 0),
        .stride = take_int(layer, "stride", 1),
        .dilation = take_int(layer, "dilation", 1),
        .groups = take_int(layer, "groups", 1),
        .num_groups = take_int(layer, "num_groups", 0),
        .padding_mode = take_word(layer, "padding_mode", "zeros|reflect|replicate|circular"),
        .activation = take_word(layer, "activation", "none|relu|gelu|gelu_tanh|silu|mish|elu"),
        .eps = json_number_value(json_object_get(layer, "eps"))};
    if (p.in_channels < 1 || p.out_channels < 1 || p.kernel_size < 1 || p.num_groups < 1)
        return refuse(why, "does not give a model's in_channels, out_channels, kernel_size and num_groups");
    if (p.padding_mode < 0 || p.stride < 1 || p.dilation < 1)
        return refuse(why, "gives a stride, dilation or padding_mode that makes no sense");
    int r = take_padding(&p, layer, why);
    if (r) return r;
    *ret = p;
    return 0;
}

static int read_model(served *s, const char *name, const json_t *m, nct_why *why) {
    served_model *to = &s->models[s->n_models];
    if (name)
        snprintf(to->name, sizeof to->name, "%s", name);
    else
        take_text(to->name, sizeof to->name, m, "name");
    take_text(to->mode, sizeof to->mode, m, "mode");
    take_text(to->digest, sizeof to->digest, m, "digest");
    to->sample_rate = json_number_value(json_object_get(m, "sample_rate"));
    s->n_models++;
    return served_params(&to->params, m, why);
}

/* An object of models by name, or an array of models that say their names. */
static int read_models(served *s, nct_why *why) {
    json_t *list = json_object_get(s->json, "models"), *m;
    const char *name;
    size_t n = json_is_array(list) ? json_array_size(list) : json_object_size(list), i;
    int r = 0;
    if (!json_is_array(list) && !json_is_object(list)) return refuse(why, "lists no models");
    s->models = calloc(n ? n : 1, sizeof *s->models);
    if (!s->models) return refuse(why, "does not fit in memory");
    json_array_foreach(list, i, m) if (!r) r = read_model(s, NULL, m, why);
    if (json_is_object(list)) json_object_foreach(list, name, m) if (!r) r = read_model(s, name, m, why);
    return r;
}

int served_read(served *ret, const char *welcome, size_t len, nct_why *why) {
    served s = {0};
    s.json = json_loadb(welcome, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *limits = json_object_get(s.json, "limits");
    int r = json_is_object(s.json) ? 0 : refuse(why, "is not JSON");
    if (!r) r = read_models(&s, why);
    if (!r) {
        take_text(s.version, sizeof s.version, s.json, "version");
        take_text(s.backend, sizeof s.backend, s.json, "backend");
        take_text(s.variant, sizeof s.variant, s.json, "variant");
        take_text(s.precision, sizeof s.precision, s.json, "precision");
        s.max_frame_bytes = (uint64_t)json_integer_value(json_object_get(limits, "max_frame_bytes"));
        s.window = (uint32_t)take_int(limits, "window", 1);
        if (s.max_frame_bytes < 64) r = refuse(why, "does not give limits.max_frame_bytes");
    }
    if (r)
        served_done(&s);
    else
        *ret = s;
    return r;
}

void served_done(served *s) {
    json_decref(s->json);
    free(s->models);
    *s = (served){0};
}

const served_model *served_find(const served *s, const char *name, nct_why *why) {
    if (!name && s->n_models == 1) return s->models;
    char list[256] = "";
    for (int i = 0; i < s->n_models; i++) {
        if (name && !strcmp(name, s->models[i].name)) return &s->models[i];
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", s->models[i].name);
    }
    if (name)
        snprintf(why->text, sizeof why->text, "the daemon has no model '%s'; it has: %s", cli_quote(name), list);
    else
        snprintf(why->text, sizeof why->text, "the daemon has %d models, name one: %s", s->n_models, list);
    return NULL;
}

static int all_zero(const json_t *value) {
    const char *key;
    json_t *inner;
    if (!json_is_object(value)) return json_number_value(value) == 0;
    json_object_foreach((json_t *)value, key, inner) {
        if (!all_zero(inner)) return 0;
    }
    return 1;
}

/* The rows of the identity (received to in_flight) always, the others where they are not 0: what happened, not what might. */
static void add_counts(FILE *to, const json_t *object, int identity) {
    const char *key;
    json_t *value;
    int first = 1;
    json_object_foreach((json_t *)object, key, value) {
        if (!identity && all_zero(value)) continue;
        fprintf(to, "%s%s ", first ? "" : ", ", key);
        first = 0;
        if (json_is_object(value)) {
            fputc('(', to);
            add_counts(to, value, 0);
            fputc(')', to);
        } else if (json_is_integer(value)) {
            fprintf(to, "%lld", (long long)json_integer_value(value));
        } else {
            fprintf(to, "%g", json_number_value(value));
        }
        if (identity && !strcmp(key, "in_flight")) identity = 0;
    }
}

char *served_ledger_text(const json_t *ledger) {
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);
    if (!to) return NULL;
    add_counts(to, ledger, 1);
    fclose(to);
    return text;
}

void served_unreached(const char *endpoint, int error, const char *reason) {
    if (!strstr(reason, endpoint))
        cli_say("%s: %s", cli_quote(endpoint), reason);
    else if (cli_exit_of(error) == CLI_NO_DAEMON)
        cli_say("%s; is nctd running? --connect ENDPOINT names another", reason);
    else
        cli_say("%s", reason);
}

/* A daemon that was started a moment ago, on the line before, is about to make it. */
int served_absent(const char *endpoint) {
    struct stat st;
    for (int ms = 0; ms <= 2000; ms += 50) {
        if (strncmp(endpoint, "ipc:///", 7) != 0 || !stat(endpoint + 6, &st) || errno != ENOENT) return 0;
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    cli_say("%s does not exist: is nctd running? --connect ENDPOINT names another", cli_quote(endpoint + 6));
    return 1;
}

static void connect_options(nct_options *o, double timeout_s, int nonblock) {
    nct_options_init(o);
    o->timeout_ms = (int)(timeout_s * 1000);
    o->name = "nct";
    o->nonblock = nonblock;
}

static int connect_to(nct **ret, served *ret_served, const char *endpoint, const nct_options *o) {
    char reason[256];
    nct_why why;
    size_t len = 0;
    nct *c = NULL;
    int r = nct_open_why(&c, endpoint, o, reason);
    if (r) {
        served_unreached(endpoint, r, reason);
        return r == -EINVAL ? CLI_USAGE : cli_exit_of(r);
    }
    const char *welcome = nct_welcome(c, &len);
    if (!served_read(ret_served, welcome, len, &why)) {
        *ret = c;
        return CLI_OK;
    }
    cli_say("%s: %s", cli_quote(endpoint), why.text);
    nct_close(c);
    return CLI_CONFIG;
}

int served_connect(nct **ret, served *ret_served, const char *endpoint, double timeout_s, int nonblock) {
    nct_options o;
    connect_options(&o, timeout_s, nonblock);
    int code = keys_apply(&o);
    return code ? code : connect_to(ret, ret_served, endpoint, &o);
}

int served_connect_private(nct **ret, served *ret_served, const char *endpoint, double timeout_s) {
    nct_options o;
    connect_options(&o, timeout_s, 1);
    return connect_to(ret, ret_served, endpoint, &o);
}
