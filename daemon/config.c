/* config.c: reads configuration text into a struct config: values, bounds, models, and what goes together.
 * Called by main (start, reload) on any thread; owns nothing global, logs nothing. The grammar is ini.c's,
 * the keys are config.def's, the layer parameters of a [model] are kernels/model's. */
#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include "config_value.h"
#include "wire.h"

#define FILE_BYTES_MAX (1u << 20)

typedef struct {
    config *c;
    const char *file;
    int file_number;
    config_model *model; /* the [model NAME] we are in */
    char section[32];
    int *seen; /* per option: line in this file, 0 not yet */
} reading;

static int fail(config_why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(config_why *why, int error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (why) vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return error;
}

/* ---- sections and entries
 * ----------------------------------------------------------------------------------------- */
static config_model *model_get(config *c, const char *name) {
    for (int32_t i = 0; i < c->n_models; i++)
        if (!strcmp(c->models[i].name, name)) return &c->models[i];
    config_model *grown = realloc(c->models, ((size_t)c->n_models + 1) * sizeof *grown);
    if (!grown) return NULL;
    c->models = grown;
    config_model *m = &grown[c->n_models];
    *m = (config_model){.name = strdup(name), .publish = true};
    if (!m->name) return NULL;
    c->n_models++;
    return m;
}

static int on_section(void *ctx, const char *name, const char *word, int line, ini_why *why) {
    reading *r = ctx;
    r->model = NULL;
    r->section[0] = 0;
    if (!strcmp(name, "model")) {
        if (!wire_name_ok(word, strlen(word)))
            return config_ini_fail(
                why, "[model %s]: a name is 1 to 64 of A-Z a-z 0-9 . _ - and begins with a letter or digit", word);
        if (!(r->model = model_get(r->c, word))) return config_ini_fail(why, "no memory");
        if (r->model->line && r->model->file_number == r->file_number)
            return config_ini_fail(
                why, "[model %s] is there twice in this file; first in line %d", word, r->model->line);
        r->model->file_number = r->file_number;
        r->model->line = line;
        if (!r->model->origin[0]) snprintf(r->model->origin, sizeof r->model->origin, "%s:%d", r->file, line);
        return 0;
    }
    for (int i = 0; i < config_options_count; i++)
        if (!strcmp(config_options[i].section, name)) {
            if (*word) return config_ini_fail(why, "[%s %s]: only [model NAME] takes a second word", name, word);
            snprintf(r->section, sizeof r->section, "%s", name);
            return 0;
        }
    return config_unknown_section(name, why);
}

static int model_setting_put(config_model *m, const char *key, const char *value, ini_why *why) {
    model_setting *s = NULL;
    for (int32_t i = 0; i < m->n_settings; i++)
        if (!strcmp(m->settings[i].key, key)) s = &m->settings[i];
    if (!s) {
        model_setting *grown = realloc(m->settings, ((size_t)m->n_settings + 1) * sizeof *grown);
        if (!grown) return config_ini_fail(why, "no memory");
        m->settings = grown;
        s = &grown[m->n_settings];
        *s = (model_setting){strdup(key), NULL};
        if (!s->key) return config_ini_fail(why, "no memory");
        m->n_settings++;
    }
    free((char *)s->value);
    s->value = strdup(value);
    return s->value ? 0 : config_ini_fail(why, "no memory");
}

static int model_entry(config_model *m, const char *key, const char *value, ini_why *why) {
    int n;
    if (!strcmp(key, "file")) {
        char *copy = *value ? strdup(value) : NULL;
        if (*value && !copy) return config_ini_fail(why, "no memory");
        free(m->file);
        m->file = copy;
        return 0;
    }
    if (!strcmp(key, "mode")) {
        if ((n = config_choice_number("frame|stream", value)) < 0)
            return config_ini_fail(why, "mode = %s: expected frame or stream", value);
        if (n == MODE_STREAM)
            return config_ini_fail(why,
                "mode = stream is not there yet; use mode = frame (long recordings: `nct run` cuts and "
                "merges them exactly)");
        m->mode = n;
        return 0;
    }
    if (!strcmp(key, "publish")) {
        if ((n = config_read_bool(value)) < 0) return config_ini_fail(why, "publish = %s: expected yes or no", value);
        m->publish = n;
        return 0;
    }
    if (!strcmp(key, "seed"))
        return config_read_number(value, false, &m->seed)
                   ? config_ini_fail(why, "seed = %s: expected a whole number", value)
                   : 0;
    for (int i = 0; model_setting_name(i); i++)
        if (!strcmp(model_setting_name(i), key)) return model_setting_put(m, key, value, why);
    return config_unknown_model_key(key, why);
}

static int on_entry(void *ctx, const char *key, const char *value, int line, ini_why *why) {
    reading *r = ctx;
    if (r->model) return model_entry(r->model, key, value, why);
    if (!r->section[0]) return config_ini_fail(why, "%s stands before the first [section]", key);
    const option *o = config_option(r->section, key);
    if (!o) return config_unknown_key(r->section, key, why);
    long i = o - config_options;
    if (r->seen[i])
        return config_ini_fail(why, "%s.%s is given twice; first in line %d", o->section, key, r->seen[i]);
    r->seen[i] = line;
    int e = config_set_option(r->c, o, value, why);
    if (!e) snprintf(r->c->origins[i], sizeof r->c->origins[i], "%s:%d", r->file, line);
    return e;
}

/* ---- what goes together
 * ------------------------------------------------------------------------------------------- */
/* Keys without effect while another one says so; `reason` is that other one. */
static const struct {
    const char *section, *key, *reason;
} inert_rows[] = {
    {"publish", "endpoint", "publish.enabled = no"},
    {"publish", "publish_bytes", "publish.enabled = no"},
    {"engine", "on_gpu_error", "engine.engine = cpu"},
    {"engine", "instances", "engine.engine = cuda"},
    {"engine", "cpu_variant", "engine.engine = cuda"},
};

const char *config_inert(const config *c, const option *o) {
    char value[512], said[600];
    for (size_t i = 0; i < sizeof inert_rows / sizeof inert_rows[0]; i++) {
        const char *reason = inert_rows[i].reason, *dot = strchr(reason, '.'), *blank = strchr(reason, ' ');
        if (strcmp(inert_rows[i].section, o->section) || strcmp(inert_rows[i].key, o->key)) continue;
        snprintf(value, sizeof value, "%.*s", (int)(dot - reason), reason);
        snprintf(said, sizeof said, "%.*s", (int)(blank - dot - 1), dot + 1);
        const option *other = config_option(value, said);
        config_value_text(c, other, value, sizeof value);
        snprintf(said, sizeof said, "%s.%s = %.500s", other->section, other->key, value);
        if (!strcmp(said, reason)) return reason;
    }
    return NULL;
}

static int check_inert(const config *c, config_why *why) {
    for (int i = 0; i < config_options_count; i++) {
        const option *o = &config_options[i];
        const char *reason = *c->origins[i] ? config_inert(c, o) : NULL;
        if (reason)
            return fail(why, -EINVAL, "%s: %s.%s has no effect with %s; remove one of the two", c->origins[i],
                o->section, o->key, reason);
    }
    return 0;
}

static bool is_set(const char *text) {
    return text && *text;
}

static int check_together(const config *c, config_why *why) {
    int e = check_inert(c, why);
    if (!e && c->engine.engine == ENGINE_CPU && c->engine.precision > PRECISION_F32)
        e = fail(why, -EINVAL, "engine.precision: the CPU computes f32; say f32 or auto, or engine = cuda");
    if (!e && is_set(c->auth.secret_key_file) != is_set(c->auth.client_keys))
        e = fail(why, -EINVAL,
            "%s is set and %s is not: keys need the daemon's own pair and a list of who may connect",
            is_set(c->auth.client_keys) ? "auth.client_keys" : "auth.secret_key_file",
            is_set(c->auth.client_keys) ? "auth.secret_key_file" : "auth.client_keys");
    if (!e && c->auth.ipc_keyless && !is_set(c->auth.secret_key_file))
        e = fail(why, -EINVAL, "auth.ipc_keyless = yes has no effect without auth.secret_key_file: remove it");
    if (!e && c->engine.engine == ENGINE_CUDA && c->engine.slots < 2)
        e = fail(why, -EINVAL, "engine.slots = 1: CUDA needs at least 2 to overlap copies");
    if (!e && c->publish.enabled && c->publish.publish_bytes < 4 * c->limits.max_frame_bytes)
        e = fail(why, -EINVAL, "publish.publish_bytes = %llu is under 4 x limits.max_frame_bytes = %llu",
            (unsigned long long)c->publish.publish_bytes, 4ull * c->limits.max_frame_bytes);
    if (!e && (uint32_t)c->n_models > c->limits.max_models)
        e = fail(why, -EINVAL, "%d [model] sections; limits.max_models = %u", c->n_models, c->limits.max_models);
    return e;
}

/* ---- files ----------------------------------------------------------------------------------------------------- */
static int config_default(config **ret) {
    ini_why why;
    config *c = calloc(1, sizeof *c);
    if (!c) return -ENOMEM;
    c->origins = calloc((size_t)config_options_count, sizeof *c->origins);
    for (int i = 0; c->origins && i < config_options_count; i++) {
        const option *o = &config_options[i];
        char number[32];
        snprintf(number, sizeof number, "%llu", (unsigned long long)o->number);
        if (config_set_option(c, o, o->text ? o->text : number, &why)) goto fail_memory;
    }
    if (!c->origins) goto fail_memory;
    *ret = c;
    return 0;
fail_memory:
    config_free(c);
    return -ENOMEM;
}

static int read_text(config *c, const char *name, int number, const char *text, size_t len, config_why *why) {
    int *seen = calloc((size_t)config_options_count, sizeof *seen), line = 0;
    if (!seen) return fail(why, -ENOMEM, "no memory");
    reading r = {.c = c, .file = name, .file_number = number, .seen = seen};
    ini_why text_why = {{0}};
    int e = ini_parse(text, len, &(ini_reader){on_section, on_entry, &r}, &line, &text_why);
    free(seen);
    return e ? fail(why, e, "%s:%d: %s", name, line, text_why.text) : 0;
}

/* A FIFO would be waited for without end, by a reload as well; /dev/null is an empty file to everybody. */
static int open_regular(const char *path, const char *what, FILE **ret, config_why *why) {
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode) && !(S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)))
        return fail(why, -EINVAL, "%s: not a regular file; %s", path, what);
    *ret = fopen(path, "re");
    return *ret ? 0 : fail(why, -errno, "%s: cannot be opened: %s", path, strerror(errno));
}

static int read_file(config *c, const char *path, int number, const char *what, config_why *why) {
    FILE *f = NULL;
    int opened = open_regular(path, what, &f, why);
    if (!f) return opened;
    char *text = malloc(FILE_BYTES_MAX + 1);
    size_t n = text ? fread(text, 1, FILE_BYTES_MAX + 1, f) : 0;
    int e = !text                ? fail(why, -ENOMEM, "no memory")
            : ferror(f)          ? fail(why, -EIO, "%s: cannot be read: %s", path, strerror(errno))
            : n > FILE_BYTES_MAX ? fail(why, -EINVAL, "%s: larger than 1 MiB, this is no configuration", path)
                                 : read_text(c, path, number, text, n, why);
    fclose(f);
    free(text);
    return e;
}

static int is_conf(const struct dirent *entry) {
    size_t n = strlen(entry->d_name);
    return entry->d_name[0] != '.' && n > 5 && !strcmp(entry->d_name + n - 5, ".conf");
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int read_folder(config *c, const char *path, config_why *why) {
    char copy[4096], folder[4128], name[4400];
    struct dirent **found;
    snprintf(copy, sizeof copy, "%s", path);
    snprintf(folder, sizeof folder, "%s/conf.d", dirname(copy));
    int e = 0, n = scandir(folder, &found, is_conf, by_name);
    if (n < 0 && (errno == ENOENT || errno == ENOTDIR)) return 0;
    if (n < 0) return fail(why, -errno, "%s: cannot be read: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, found[i]->d_name);
        if (!e) e = read_file(c, name, i + 2, "conf.d/*.conf are read as files: move it away", why);
        free(found[i]);
    }
    free(found);
    return e;
}

static int read_override(config *c, const char *text, config_why *why) {
    char section[64], key[64];
    ini_why value_why;
    const char *dot = strchr(text, '.'), *equals = strchr(text, '=');
    if (!dot || !equals || dot > equals || dot - text > 63 || equals - dot > 63)
        return fail(why, -EINVAL, "%s: expected section.key=value", text);
    snprintf(section, sizeof section, "%.*s", (int)(dot - text), text);
    snprintf(key, sizeof key, "%.*s", (int)(equals - dot - 1), dot + 1);
    const option *o = config_option(section, key);
    int e = o ? config_set_option(c, o, equals + 1, &value_why) : config_unknown_key(section, key, &value_why);
    if (e) return fail(why, e, "%s: %s", text, value_why.text);
    snprintf(c->origins[o - config_options], sizeof c->origins[0], "command line");
    return 0;
}

int config_load(config **ret, const char *path, const char *const *overrides, int n_overrides, config_why *why) {
    config *c = NULL;
    int e = config_default(&c);
    if (e) return fail(why, e, "no memory");
    if (path) e = read_file(c, path, 1, "a reload reads it again: name one (-c FILE)", why);
    if (!e && path) e = read_folder(c, path, why);
    for (int i = 0; i < n_overrides && !e; i++) e = read_override(c, overrides[i], why);
    if (!e) e = check_together(c, why);
    if (e)
        config_free(c);
    else
        *ret = c;
    return e;
}

int config_parse(config **ret, const char *name, const char *text, size_t len, config_why *why) {
    config *c = NULL;
    int e = config_default(&c);
    if (e) return fail(why, e, "no memory");
    e = read_text(c, name, 1, text, len, why);
    if (!e) e = check_together(c, why);
    if (e)
        config_free(c);
    else
        *ret = c;
    return e;
}

void config_free(config *c) {
    if (!c) return;
    for (int i = 0; i < config_options_count; i++)
        if (config_options[i].type == OPTION_STR) free(*(char **)((char *)c + config_options[i].offset));
    for (int32_t i = 0; i < c->n_models; i++) {
        config_model *m = &c->models[i];
        for (int32_t k = 0; k < m->n_settings; k++) {
            free((char *)m->settings[k].key);
            free((char *)m->settings[k].value);
        }
        free(m->settings);
        free(m->name);
        free(m->file);
    }
    free(c->models);
    free(c->origins);
    free(c);
}
