/* model.c: `nct model new|show|check FILE`: make, look at and check model files.
 *
 * Files are read and written by kernels/model*; here stand the command line and the table that a person reads. No daemon
 * is asked, no layer is launched. */
#include "cli.h"
#include "target.h"
#include "model.h"
#include "model_settings.h"
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PARAMS_MAX 64

#define ARG_COUNT      "N"
#define ARG_PADDING    "N|same|valid"
#define ARG_BOOL       NULL
#define ARG_PAD_MODE   "MODE"
#define ARG_REAL       "X"
#define ARG_ACTIVATION "NAME"
#define ARG_RATE       "HZ"

/* The first MODEL_PARAMS rows are the layer's, in the order of the settings table. */
const cli_option options_model[] = {
#define XX(name, option, kind, fallback, help)                                                                       \
    {option, 0, ARG_##kind, sizeof fallback > 1 && KIND_##kind != KIND_BOOL ? fallback : NULL, "new: " help},
    MODEL_PARAM_MAP(XX)
#undef XX
        {"seed", 0, "N", "0", "new: Picks the values; one seed makes one file on every machine."},
    {"force", 'f', NULL, NULL, "new: Replace FILE if it is there."},
    {"param", 'p', "KEY=VALUE", NULL,
        "show, check: What the file does not hold (num_groups=2, conv=KEY, ...); can be repeated."},
    CLI_OPTION_JSON, {0}};

typedef struct {
    const char *verb, *file;
    model_setting settings[PARAMS_MAX]; /* of --in-channels ... or of --param */
    int32_t n_settings;
    const char *inert; /* an option that the other verb has */
    uint64_t seed;
    bool force, json, is_new;
} model_args;

/* ---- the command line ---------------------------------------------------------------------------------------------- */

static int take_setting(model_args *o, const char *key, const char *value) {
    if (o->n_settings == PARAMS_MAX) return cli_usage("more than %d parameters", PARAMS_MAX);
    o->settings[o->n_settings++] = (model_setting){key, value};
    return 0;
}

/* KEY=VALUE, cut in the argument itself. */
static int take_param(model_args *o, const char *value) {
    char *equals = strchr(value, '=');
    if (!equals || equals == value)
        return cli_usage("--param is '%s'; it must be KEY=VALUE, as in num_groups=2", cli_quote(value));
    *equals = 0;
    return take_setting(o, value, equals + 1);
}

static int take_option(model_args *o, int row, const char *value) {
    if (row == cli_row(options_model, "json")) {
        o->json = true;
        return 0;
    }
    if ((row != cli_row(options_model, "param")) != o->is_new) {
        o->inert = options_model[row].name;
        return 0;
    }
    if (row < MODEL_PARAMS) {
        const model_setting_row *r = &model_setting_rows[row];
        if (r->kind == KIND_BOOL) value = strcmp(r->fallback, "True") ? "True" : "False"; /* a switch turns it over */
        return take_setting(o, r->name, value);
    }
    if (row == cli_row(options_model, "seed")) return cli_u64("--seed", value, 0, UINT64_MAX, &o->seed);
    if (row == cli_row(options_model, "force")) {
        o->force = true;
        return 0;
    }
    return take_param(o, value);
}

/* All that a new layer cannot do without, in one sentence. */
static int missing_options(const model_args *o) {
    static const int needed[] = {SET_in_channels, SET_out_channels, SET_kernel_size, SET_num_groups};
    char list[128] = "";
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        bool said = false;
        for (int32_t k = 0; k < o->n_settings; k++)
            said |= !strcmp(o->settings[k].key, model_setting_rows[needed[i]].name);
        size_t len = strlen(list);
        if (!said) snprintf(list + len, sizeof list - len, " --%s", options_model[needed[i]].name);
    }
    return *list ? cli_usage("nct model new needs%s", list) : 0;
}

static int take_operand(model_args *o, const char *value) {
    static const char *const verbs[] = {"new", "show", "check"};
    if (o->file) return cli_usage("one file at a time; '%s' is a second one", cli_quote(value));
    if (o->verb) {
        o->file = value;
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        if (!strcmp(value, verbs[i])) o->verb = verbs[i];
    }
    if (!o->verb) return cli_usage("nct model has no '%s'; it has new, show and check", cli_quote(value));
    o->is_new = !strcmp(o->verb, "new");
    return 0;
}

/* The verb says what an option means, so it is looked for first. */
static int read_args(model_args *o, int argc, char **argv) {
    const char *value;
    int row, bad = 0;
    memset(o, 0, sizeof *o);
    for (int pass = 0; pass < 2; pass++) {
        cli_args a;
        cli_args_init(&a, options_model, argc, argv);
        while (!bad && (row = cli_next(&a, &value)) != CLI_END) {
            if (row == CLI_WRONG) return CLI_USAGE;
            if (pass == 0 && row == CLI_OPERAND) bad = take_operand(o, value);
            if (pass == 1 && row != CLI_OPERAND) bad = take_option(o, row, value);
        }
        if (bad) return CLI_USAGE;
        if (!o->verb)
            bad = cli_usage("nct model needs one of new, show and check");
        else if (!o->file)
            bad = cli_usage("nct model %s needs a file", o->verb);
        if (!o->verb || !o->file) return CLI_USAGE;
    }
    if (o->inert) return cli_usage("nct model %s has no --%s; `nct help model` says whose it is", o->verb, o->inert);
    return o->is_new ? missing_options(o) : CLI_OK;
}

/* ---- what is said -------------------------------------------------------------------------------------------------- */

static int refused(int error, const nct_why *why) {
    cli_say("%s", *why->text ? why->text : strerror(-error));
    return error == -EIO || error == -ENOMEM ? CLI_FAILED : CLI_CONFIG;
}

static int put_json(const model *m) {
    char *text = model_json(m);
    if (!text) {
        cli_say("no memory");
        return CLI_FAILED;
    }
    puts(text);
    free(text);
    return CLI_OK;
}

/* One line: the layer in a glance. */
static void put_line(const char *file, const model *m) {
    const nct_params *p = &m->params;
    printf("%s: %d -> %d channels, kernel %d, stride %d, padding %s, dilation %d, groups %d, %d norm groups%s%s, "
           "sha256 %.12s\n",
        cli_quote(file), p->in_channels, p->out_channels, p->kernel_size, p->stride, m->padding, p->dilation,
        p->groups, p->num_groups, m->weights.bias.data ? ", bias" : "", m->weights.gamma.data ? "" : ", not affine",
        m->digest);
}

static void put_parameters(const model *m) {
    char *text = model_json(m);
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    const char *key;
    json_t *v;
    puts("parameters");
    json_object_foreach(j, key, v) {
        if (json_is_string(v)) {
            printf("  %-13s %s\n", key, *json_string_value(v) ? cli_quote(json_string_value(v)) : "-");
        } else {
            char *value = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
            printf("  %-13s %s\n", key, value ? value : "?");
            free(value);
        }
    }
    json_decref(j);
    free(text);
}

static void put_tensors(const json_t *file) {
    size_t i;
    json_t *t;
    puts("tensors");
    json_array_foreach(json_object_get(file, "tensors"), i, t) {
        char *shape = json_dumps(json_object_get(t, "shape"), 0);
        printf("  %-40s %-5s %s\n", cli_quote(json_string_value(json_object_get(t, "name"))),
            json_string_value(json_object_get(t, "dtype")), shape ? shape : "?");
        free(shape);
    }
}

static void put_pairs(const json_t *file) {
    size_t i;
    json_t *p, *pairs = json_object_get(file, "pairs");
    puts(json_array_size(pairs) ? "pairs that fit by shape" : "no pair fits by shape");
    json_array_foreach(pairs, i, p) {
        printf("  conv=%s norm=%s  %lld channels a group -> %lld, kernel %lld%s\n",
            cli_quote(json_string_value(json_object_get(p, "conv"))),
            cli_quote(json_string_value(json_object_get(p, "norm"))),
            (long long)json_integer_value(json_object_get(p, "in_channels_per_group")),
            (long long)json_integer_value(json_object_get(p, "out_channels")),
            (long long)json_integer_value(json_object_get(p, "kernel_size")),
            json_is_true(json_object_get(p, "bias")) ? ", bias" : "");
    }
}

static void put_metadata(const json_t *file) {
    const char *key;
    json_t *v, *m = json_object_get(file, "metadata");
    if (json_object_size(m)) puts("metadata");
    json_object_foreach(m, key, v) printf("  %s = %s\n", cli_quote(key), cli_quote(json_string_value(v)));
}

/* ---- the verbs ------------------------------------------------------------------------------------------------------- */

static int verb_new(const model_args *o) {
    model *m;
    nct_why why = {""};
    struct stat st;
    if (!o->force && !lstat(o->file, &st)) {
        cli_say("%s is there already; --force replaces it", cli_quote(o->file));
        return CLI_FAILED;
    }
    int r = model_fresh(&m, o->settings, o->n_settings, o->seed, &why);
    if (r) return refused(r, &why);
    char *real = target_real(o->file); /* --force replaces what a link names */
    r = model_save(m, real ? real : o->file, &why);
    free(real);
    int code = CLI_OK;
    if (r) {
        cli_say("%s", why.text);
        code = CLI_FAILED;
    } else if (o->json) {
        code = put_json(m);
    } else {
        put_line(o->file, m);
    }
    model_free(m);
    return code;
}

static int verb_check(const model_args *o) {
    model *m;
    nct_why why = {""};
    int r = model_load(&m, o->file, o->settings, o->n_settings, &why);
    if (r) return refused(r, &why);
    int code = CLI_OK;
    if (o->json)
        code = put_json(m);
    else
        put_line(o->file, m);
    model_free(m);
    return code;
}

/* {"file", "model" or null, "why" it does not load, "tensors", "metadata", "pairs"} */
static int show_json(const model_args *o, json_t *file, const model *m, const nct_why *why) {
    char *layer = m ? model_json(m) : NULL;
    json_object_set_new(file, "model", layer ? json_loads(layer, 0, NULL) : json_null());
    json_object_set_new(file, "why", m ? json_null() : json_string(why->text));
    json_object_set_new(file, "file", json_string(o->file)); /* left out when the name is no UTF-8 */
    char *text = json_dumps(file, JSON_REAL_PRECISION(15));
    if (text) puts(text);
    free(layer);
    free(text);
    return text ? CLI_OK : CLI_FAILED;
}

static int verb_show(const model_args *o) {
    char *text = NULL;
    nct_why why = {""};
    model *m = NULL;
    int r = model_file_json(&text, o->file, &why), code = CLI_OK;
    if (r) return refused(r, &why);
    json_t *file = json_loads(text, 0, NULL);
    r = model_load(&m, o->file, o->settings, o->n_settings, &why);
    if (o->json) {
        code = show_json(o, file, m, &why);
    } else {
        if (r) printf("does not load as it stands: %s\n", why.text);
        if (m) put_parameters(m);
        put_tensors(file);
        put_pairs(file);
        put_metadata(file);
    }
    model_free(m);
    json_decref(file);
    free(text);
    return code;
}

int cmd_model(int argc, char **argv) {
    model_args o;
    int code = read_args(&o, argc, argv);
    if (code) return code;
    return o.is_new ? verb_new(&o) : !strcmp(o.verb, "show") ? verb_show(&o) : verb_check(&o);
}
