/* config_table.c: turns config.def into the table that reading, printing and comparing share. No state. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "config_table.h"

#define ROW_U32(def, lo, hi)    .number = (uint64_t)(def), .min = (uint64_t)(lo), .max = (uint64_t)(hi)
#define ROW_BYTES(def, lo, hi)  .number = (uint64_t)(def), .min = (uint64_t)(lo), .max = (uint64_t)(hi)
#define ROW_BOOL(def, lo, hi)   .number = (uint64_t)(def), .min = (uint64_t)(lo), .max = (uint64_t)(hi)
#define ROW_STR(def, lo, hi)    .text = def, .min = (uint64_t)(lo), .max = (uint64_t)(hi)
#define ROW_ENUM(def, lo, list) .text = def, .choices = list

const option config_options[] = {
#define SECTION(name, help)
#define OPT(s, k, t, def, lo, hi, u, w, h)                                                                           \
    {.section = #s,                                                                                                  \
        .key = #k,                                                                                                   \
        .unit = u,                                                                                                   \
        .help = h,                                                                                                   \
        .type = OPTION_##t,                                                                                          \
        .when = OPTION_##w,                                                                                          \
        .offset = offsetof(config, s.k),                                                                             \
        ROW_##t(def, lo, hi)},
#define END(name)
#include "config.def"
#undef SECTION
#undef OPT
#undef END
};
const int config_options_count = sizeof config_options / sizeof config_options[0];

const model_key config_model_keys[] = {
    {"file", "", "A safetensors file; empty: a freshly initialised layer from the keys below and `seed`."},
    {"mode", "frame", "frame: every frame stands for itself; stream: frames are cuts of one endless sequence."},
    {"publish", "yes", "Results go to the publishing socket too."},
    {"seed", "0", "Of a freshly initialised layer."},
};
const int config_model_keys_count = sizeof config_model_keys / sizeof config_model_keys[0];

const option *config_option(const char *section, const char *key) {
    for (int i = 0; i < config_options_count; i++) {
        const option *o = &config_options[i];
        if (!strcmp(o->section, section) && !strcmp(o->key, key)) return o;
    }
    return NULL;
}

static void bytes_text(uint64_t n, char *out, size_t size) {
    static const char *const suffix[] = {"", "K", "M", "G"};
    int k = 0;
    while (n && k < 3 && n % 1024 == 0) {
        n /= 1024;
        k++;
    }
    snprintf(out, size, "%llu%s", (unsigned long long)n, suffix[k]);
}

void config_value_text(const config *c, const option *o, char *out, size_t size) {
    const char *at = (const char *)c + o->offset;
    switch (o->type) {
    case OPTION_U32: snprintf(out, size, "%u", *(const uint32_t *)at); break;
    case OPTION_BYTES: bytes_text(*(const uint64_t *)at, out, size); break;
    case OPTION_BOOL: snprintf(out, size, "%s", *(const bool *)at ? "yes" : "no"); break;
    case OPTION_STR: snprintf(out, size, "%s", *(char *const *)at); break;
    case OPTION_ENUM: {
        const char *s = o->choices;
        for (int i = *(const int *)at; i > 0 && s; i--) s = strchr(s, '|') ? strchr(s, '|') + 1 : NULL;
        snprintf(out, size, "%.*s", s ? (int)strcspn(s, "|") : 1, s ? s : "?");
        break;
    }
    }
}
