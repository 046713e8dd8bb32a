/* config_value.c: text -> the value of one option, within its bounds; and the nearest known word for what is
 * unknown. Called by config.c; no state. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "config_value.h"

int config_ini_fail(ini_why *why, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return -EINVAL;
}

/* ---- values
 * ------------------------------------------------------------------------------------------------------- */
int config_read_number(const char *value, bool bytes, uint64_t *ret) {
    char *end;
    if (*value < '0' || *value > '9') return -EINVAL;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (errno) return -EINVAL;
    int shift = 0;
    if (bytes && *end) shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) end++;
    if (*end || (shift && n > (UINT64_MAX >> shift))) return -EINVAL;
    *ret = (uint64_t)n << shift;
    return 0;
}

int config_choice_number(const char *choices, const char *value) {
    size_t len = strlen(value);
    for (int i = 0;; i++) {
        size_t n = strcspn(choices, "|");
        if (n == len && !memcmp(choices, value, n)) return i;
        if (!choices[n]) return -EINVAL;
        choices += n + 1;
    }
}

int config_read_bool(const char *value) {
    static const char *const words[] = {"no", "yes", "false", "true", "0", "1"};
    for (int i = 0; i < 6; i++)
        if (!strcmp(value, words[i])) return i & 1;
    return -EINVAL;
}

static int set_number(config *c, const option *o, const char *value, ini_why *why) {
    uint64_t n;
    bool bytes = o->type == OPTION_BYTES;
    if (config_read_number(value, bytes, &n) || n < o->min || n > o->max)
        return config_ini_fail(why, "%s.%s = %s: expected a whole number of %s from %llu to %llu%s", o->section,
            o->key, value, o->unit, (unsigned long long)o->min, (unsigned long long)o->max,
            bytes ? " (K, M and G are understood)" : "");
    char *at = (char *)c + o->offset;
    if (bytes)
        *(uint64_t *)at = n;
    else
        *(uint32_t *)at = (uint32_t)n;
    return 0;
}

static int set_text(config *c, const option *o, const char *value, ini_why *why) {
    size_t len = strlen(value);
    if (len < o->min || len > o->max)
        return config_ini_fail(why, "%s.%s: %zu octets; expected %llu to %llu", o->section, o->key, len,
            (unsigned long long)o->min, (unsigned long long)o->max);
    char *copy = strdup(value), **at = (char **)((char *)c + o->offset);
    if (!copy) return config_ini_fail(why, "no memory");
    free(*at);
    *at = copy;
    return 0;
}

int config_set_option(config *c, const option *o, const char *value, ini_why *why) {
    int n;
    switch (o->type) {
    case OPTION_U32:
    case OPTION_BYTES: return set_number(c, o, value, why);
    case OPTION_BOOL:
        if ((n = config_read_bool(value)) < 0)
            return config_ini_fail(why, "%s.%s = %s: expected yes or no", o->section, o->key, value);
        *(bool *)((char *)c + o->offset) = n;
        return 0;
    case OPTION_STR: return set_text(c, o, value, why);
    case OPTION_ENUM:
        if ((n = config_choice_number(o->choices, value)) < 0)
            return config_ini_fail(why, "%s.%s = %s: expected one of %s", o->section, o->key, value, o->choices);
        *(int *)((char *)c + o->offset) = n;
        return 0;
    }
    return -EINVAL;
}

/* ---- the nearest known word
 * --------------------------------------------------------------------------------------- */
static size_t distance(const char *a, const char *b) { /* Levenshtein, words of up to 63 */
    size_t row[64], n = strlen(b);
    if (n > 63 || strlen(a) > 63) return 99;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static void nearer(const char *word, const char *known, const char **best, size_t *best_distance) {
    size_t d = distance(word, known);
    if (d < *best_distance) {
        *best = known;
        *best_distance = d;
    }
}

int config_unknown_section(const char *name, ini_why *why) {
    const char *best = "model NAME";
    size_t d = distance(name, "model");
    for (int i = 0; i < config_options_count; i++) nearer(name, config_options[i].section, &best, &d);
    return config_ini_fail(why, "unknown section [%s]; nearest: [%s]", name, best);
}

int config_unknown_key(const char *section, const char *key, ini_why *why) {
    const char *best = NULL, *elsewhere = NULL;
    size_t d = 99;
    for (int i = 0; i < config_options_count; i++) {
        const option *o = &config_options[i];
        if (!strcmp(o->section, section))
            nearer(key, o->key, &best, &d);
        else if (!strcmp(o->key, key))
            elsewhere = o->section;
    }
    if (elsewhere) return config_ini_fail(why, "unknown key %s in [%s]; it stands in [%s]", key, section, elsewhere);
    if (best) return config_ini_fail(why, "unknown key %s in [%s]; nearest: %s", key, section, best);
    if (!strncmp(section, "model", 5))
        return config_ini_fail(why, "models are named in the configuration file, each in a section [model NAME]");
    return config_unknown_section(section, why);
}

int config_unknown_model_key(const char *key, ini_why *why) {
    const char *best = NULL, *name;
    size_t d = 99;
    for (int i = 0; i < config_model_keys_count; i++) nearer(key, config_model_keys[i].key, &best, &d);
    for (int i = 0; (name = model_setting_name(i)); i++) nearer(key, name, &best, &d);
    return config_ini_fail(why, "unknown key %s in a [model] section; nearest: %s", key, best);
}
