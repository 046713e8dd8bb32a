/* config_print.c: config.def as people read it: --dump-config, the shipped nctd.conf, --help, the man page's
 * table. Called by main; everything it prints comes from the table, so none of it can drift. */
#include <string.h>
#include "config_table.h"

static const struct {
    const char *name, *help;
} sections[] = {
#define SECTION(name, help) {#name, help},
#define OPT(s, k, t, def, lo, hi, u, w, h)
#define END(name)
#include "config.def"
#undef SECTION
#undef OPT
#undef END
};
enum { SECTIONS = sizeof sections / sizeof sections[0] };

static const config *defaults(void) {
    static config *c; /* never freed: the process prints and ends */
    config_why why;
    if (!c && config_load(&c, NULL, NULL, 0, &why)) return NULL;
    return c;
}

static void bounds_text(const option *o, char *out, size_t size) {
    if (o->type == OPTION_ENUM)
        snprintf(out, size, "%s", o->choices);
    else if (o->type == OPTION_BOOL)
        snprintf(out, size, "yes|no");
    else if (o->type == OPTION_STR)
        snprintf(out, size, "text%s%s", *o->unit ? ", " : "", o->unit);
    else
        snprintf(out, size, "%llu..%llu %s", (unsigned long long)o->min, (unsigned long long)o->max, o->unit);
}

void config_dump(const config *c, FILE *to) {
    char value[512];
    for (int s = 0; s < SECTIONS; s++) {
        fprintf(to, "[%s]\n", sections[s].name);
        for (int i = 0; i < config_options_count; i++) {
            const option *o = &config_options[i];
            if (strcmp(o->section, sections[s].name)) continue;
            config_value_text(c, o, value, sizeof value);
            const char *reason = config_inert(c, o);
            if (reason)
                fprintf(to, "# %s = %s has no effect with %s\n", o->key, value, reason);
            else
                fprintf(to, "%s = %s # %s\n", o->key, value, *c->origins[i] ? c->origins[i] : "default");
        }
    }
    for (int32_t m = 0; m < c->n_models; m++) {
        const config_model *at = &c->models[m];
        fprintf(to, "[model %s] # %s\n", at->name, at->origin);
        if (at->file) fprintf(to, "file = %s\n", at->file);
        fprintf(
            to, "mode = %s\npublish = %s\n", at->mode == MODE_FRAME ? "frame" : "stream", at->publish ? "yes" : "no");
        if (!at->file) fprintf(to, "seed = %llu\n", (unsigned long long)at->seed);
        for (int32_t k = 0; k < at->n_settings; k++)
            fprintf(to, "%s = %s\n", at->settings[k].key, at->settings[k].value);
    }
}

static void write_option(FILE *to, const option *o) {
    char value[512], bounds[512];
    config_value_text(defaults(), o, value, sizeof value);
    bounds_text(o, bounds, sizeof bounds);
    fprintf(to, "\n# %s\n# %s%s\n#%s = %s\n", o->help, bounds,
        o->when == OPTION_RELOAD ? "; applied by a reload" : "", o->key, value);
}

void config_defaults(FILE *to) {
    fputs("# nctd.conf: every key with its default. Generated from daemon/config.def; `nctd --dump-config` "
          "shows what\n"
          "# is in force. Sizes take K, M, G. Files in conf.d/*.conf beside this one are read after it, by "
          "name.\n",
        to);
    for (int s = 0; s < SECTIONS; s++) {
        fprintf(to, "\n[%s]\n# %s\n", sections[s].name, sections[s].help);
        for (int i = 0; i < config_options_count; i++)
            if (!strcmp(config_options[i].section, sections[s].name)) write_option(to, &config_options[i]);
    }
    fputs("\n# One section a model; without any, the default layer (128 -> 256 channels, kernel 3, padding "
          "1, 32 groups)\n"
          "# is made and served as `default`. Besides the keys below a section takes the layer's parameters "
          "by PyTorch's\n"
          "# names (stride, padding, num_groups, ...), which must agree with what the file says.\n#[model "
          "NAME]\n",
        to);
    for (int i = 0; i < config_model_keys_count; i++)
        fprintf(to, "\n# %s\n#%s = %s\n", config_model_keys[i].help, config_model_keys[i].key,
            config_model_keys[i].value);
}

void config_help(FILE *to) {
    char value[512], bounds[512];
    for (int i = 0; i < config_options_count; i++) {
        const option *o = &config_options[i];
        char name[64];
        config_value_text(defaults(), o, value, sizeof value);
        bounds_text(o, bounds, sizeof bounds);
        snprintf(name, sizeof name, "%s.%s", o->section, o->key);
        fprintf(to, "  %-28s %s\n  %-28s default %s; %s\n", name, o->help, "", *value ? value : "empty", bounds);
    }
}

/* roff: a backslash and a leading dot or quote would be read as requests. */
static void roff_text(FILE *to, const char *s) {
    if (*s == '.' || *s == '\'') fputs("\\&", to);
    for (; *s; s++) fputs(*s == '\\' ? "\\e" : *s == '-' ? "\\-" : (char[2]){*s, 0}, to);
}

static void man_entry(FILE *to, const char *key, const char *value, const char *tail, const char *help) {
    fputs(".TP\n.B ", to);
    roff_text(to, key);
    fputs("\n", to);
    roff_text(to, help);
    fprintf(to, "\nDefault: ");
    roff_text(to, *value ? value : "empty");
    fputs("; ", to);
    roff_text(to, tail);
    fputs(".\n", to);
}

void config_man(FILE *to) {
    char value[512], bounds[512], tail[600];
    for (int s = 0; s < SECTIONS; s++) {
        fprintf(to, ".SS [%s]\n", sections[s].name);
        roff_text(to, sections[s].help);
        fputs("\n", to);
        for (int i = 0; i < config_options_count; i++) {
            const option *o = &config_options[i];
            if (strcmp(o->section, sections[s].name)) continue;
            config_value_text(defaults(), o, value, sizeof value);
            bounds_text(o, bounds, sizeof bounds);
            snprintf(tail, sizeof tail, "%s; %s", bounds,
                o->when == OPTION_RELOAD ? "a reload applies it" : "needs a restart");
            man_entry(to, o->key, value, tail, o->help);
        }
    }
    fputs(".SS [model NAME]\nBesides these keys, the layer's parameters by PyTorch's names.\n", to);
    for (int i = 0; i < config_model_keys_count; i++)
        man_entry(to, config_model_keys[i].key, config_model_keys[i].value, "per model", config_model_keys[i].help);
}

const char *config_choice(const char *section_key, int value) {
    static _Thread_local char text[32];
    for (int i = 0; i < config_options_count; i++) {
        const option *o = &config_options[i];
        size_t n = strlen(o->section);
        if (o->type != OPTION_ENUM || strncmp(section_key, o->section, n) || section_key[n] != '.' ||
            strcmp(section_key + n + 1, o->key))
            continue;
        const char *s = o->choices;
        for (; value > 0 && s; value--) s = strchr(s, '|') ? strchr(s, '|') + 1 : NULL;
        if (!s) return NULL;
        snprintf(text, sizeof text, "%.*s", (int)strcspn(s, "|"), s);
        return text;
    }
    return NULL;
}
