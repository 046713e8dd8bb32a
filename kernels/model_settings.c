/* model_settings.c: values of the settings table: parsing to one canonical text, merging, reading back.
 *
 * Called by model*.c and by `nct model new`; any thread. Numbers are read and written in the C locale whatever the
 * program's is. */
#include "model_settings.h"
#include "safetensors.h"
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const model_setting_row model_setting_rows[MODEL_SETTINGS] = {
#define XX(name, option, kind, fallback, help) {#name, KIND_##kind, fallback, help},
    MODEL_SETTING_MAP(XX)
#undef XX
};

static const char *const pad_modes[] = {[NCT_ZEROS] = "zeros",
    [NCT_REFLECT] = "reflect",
    [NCT_REPLICATE] = "replicate",
    [NCT_CIRCULAR] = "circular",
    NULL};
static const char *const activations[] = {[NCT_NONE] = "none",
    [NCT_RELU] = "relu",
    [NCT_GELU] = "gelu",
    [NCT_GELU_TANH] = "gelu_tanh",
    [NCT_SILU] = "silu",
    [NCT_MISH] = "mish",
    [NCT_ELU] = "elu",
    NULL};

static const char *const kind_wants[] = {
    [KIND_COUNT] = "a whole number from 1 to 2147483647",
    [KIND_PADDING] = "a whole number from 0 to 2147483647, same or valid",
    [KIND_BOOL] = "True or False",
    [KIND_PAD_MODE] = "zeros, reflect, replicate or circular",
    [KIND_REAL] = "a finite number of at least 0",
    [KIND_ACTIVATION] = "none, relu, gelu, gelu_tanh, silu, mish or elu",
    [KIND_RATE] = "a finite number of Hz above 0",
    [KIND_KEY] = "a tensor key of at most 255 bytes",
};

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static bool parse_int(const char *text, long long min, long long *ret) {
    char *end;
    if (!isdigit((unsigned char)text[0]) && text[0] != '+') return false;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || *end || v < min || v > INT32_MAX) return false;
    *ret = v;
    return true;
}

/* strtod and printf follow the thread's locale ("0,5" in German): both run in "C" here. */
static bool parse_real(const char *text, double *ret) {
    char *end;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), old = c ? uselocale(c) : (locale_t)0;
    double v = strtod(text, &end);
    if (c) {
        uselocale(old);
        freelocale(c);
    }
    if (isspace((unsigned char)*text) || end == text || *end || !isfinite(v) || v < 0) return false;
    *ret = v;
    return true;
}

/* The fewest digits that read back as the same double; the text is a JSON number too. */
static void write_real(double v, char *buf, size_t size) {
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), old = c ? uselocale(c) : (locale_t)0;
    bool whole = v == floor(v) && v < 1e15; /* 16000, where %g says 1.6e+04 */
    if (whole) snprintf(buf, size, "%.0f", v);
    for (int digits = 1; !whole && digits <= 17; digits++) {
        snprintf(buf, size, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) break;
    }
    if (c) {
        uselocale(old);
        freelocale(c);
    }
}

static int32_t choice_of(const char *const *names, const char *text) {
    for (int32_t i = 0; names[i]; i++) {
        if (!strcmp(names[i], text)) return i;
    }
    return -1;
}

/* ---- one value to canonical text --------------------------------------------------------------------------------- */

/* "(1,)" and "[1]" of PyTorch's one-element tuples -> "1"; false when there is more than one element. */
static bool unwrap(const char *in, char *out) {
    size_t len = strlen(in);
    while (len && isspace((unsigned char)*in)) in++, len--;
    while (len && isspace((unsigned char)in[len - 1])) len--;
    if (len >= 2 && ((in[0] == '(' && in[len - 1] == ')') || (in[0] == '[' && in[len - 1] == ']'))) {
        in++, len -= 2;
        if (len && in[len - 1] == ',') len--;
        if (memchr(in, ',', len)) return false;
    }
    if (len == 0 || len >= MODEL_VALUE_MAX) return false;
    memcpy(out, in, len);
    out[len] = 0;
    return true;
}

static bool canon_bool(char *v) {
    static const char *const yes[] = {"True", "true", "yes", "on", "1", NULL};
    static const char *const no[] = {"False", "false", "no", "off", "0", NULL};
    bool is = choice_of(yes, v) >= 0;
    if (!is && choice_of(no, v) < 0) return false;
    strcpy(v, is ? "True" : "False");
    return true;
}

/* v is made canonical in place. */
static bool canon(setting_kind kind, char *v) {
    long long i;
    double d;
    switch (kind) {
    case KIND_COUNT:
        if (!parse_int(v, 1, &i)) return false;
        snprintf(v, MODEL_VALUE_MAX, "%lld", i);
        return true;
    case KIND_PADDING:
        if (!strcmp(v, "same") || !strcmp(v, "valid")) return true;
        if (!parse_int(v, 0, &i)) return false;
        snprintf(v, MODEL_VALUE_MAX, "%lld", i);
        return true;
    case KIND_BOOL: return canon_bool(v);
    case KIND_PAD_MODE: return choice_of(pad_modes, v) >= 0;
    case KIND_ACTIVATION:
        if (!strcmp(v, "None")) strcpy(v, "none");
        return choice_of(activations, v) >= 0;
    case KIND_REAL:
    case KIND_RATE:
        if (!parse_real(v, &d) || (kind == KIND_RATE && !(d > 0))) return false;
        write_real(d, v, MODEL_VALUE_MAX);
        return true;
    case KIND_KEY: return true;
    }
    return false;
}

/* "valid" is PyTorch's other word for a padding of 0. */
static bool same_value(int row, const char *a, const char *b) {
    if (row == SET_padding && !strcmp(a, "valid")) a = "0";
    if (row == SET_padding && !strcmp(b, "valid")) b = "0";
    return !strcmp(a, b);
}

/* ---- the table's users ------------------------------------------------------------------------------------------- */

int model_setting_find(const char *name) {
    for (int i = 0; i < MODEL_SETTINGS; i++) {
        if (!strcmp(model_setting_rows[i].name, name)) return i;
    }
    return -1;
}

/* Edit distance of the first 31 bytes: enough to guess what was meant. */
static int distance(const char *a, const char *b) {
    int row[32], n = (int)strnlen(b, 31), m = (int)strnlen(a, 31);
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; i <= m; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

const char *model_setting_nearest(const char *name) {
    int best = 0, best_distance = 1000;
    for (int i = 0; i < MODEL_SETTINGS; i++) {
        int d = distance(name, model_setting_rows[i].name);
        if (d < best_distance) best = i, best_distance = d;
    }
    return model_setting_rows[best].name;
}

int model_settings_put(
    model_settings *s, int row, const char *value, bool from_file, const char *path, nct_why *why) {
    const model_setting_row *r = &model_setting_rows[row];
    const char *where = from_file ? "the file's metadata says" : "the setting says";
    char v[MODEL_VALUE_MAX], *old = s->text[row];
    st_text t, u;
    if (from_file && r->kind == KIND_RATE && !strcmp(value, "None")) return 0;
    if (!unwrap(value, v) || !canon(r->kind, v))
        return file_why(why, -EINVAL, path, "%s: %s \"%s\", expected %s", r->name, where, st_printable(&t, value),
            kind_wants[r->kind]);
    if (*old && !same_value(row, old, v))
        return file_why(why, -EINVAL, path, "%s: %s %s, but %s %s before: say it once, or the same", r->name, where,
            st_printable(&t, v), s->from_file[row] ? "the file's metadata said" : "a setting said",
            st_printable(&u, old));
    strcpy(old, v);
    s->from_file[row] = from_file;
    return 0;
}

int model_settings_take(model_settings *s, const model_setting *given, int32_t n, const char *path, nct_why *why) {
    st_text t;
    for (int32_t i = 0; i < n; i++) {
        int row = model_setting_find(given[i].key), r;
        if (row < 0)
            return file_why(why, -EINVAL, path, "unknown setting \"%s\": nearest is \"%s\"",
                st_printable(&t, given[i].key), model_setting_nearest(given[i].key));
        if ((r = model_settings_put(s, row, given[i].value, false, path, why))) return r;
    }
    return 0;
}

const char *model_settings_text(const model_settings *s, int row) {
    return *s->text[row] ? s->text[row] : model_setting_rows[row].fallback;
}

int32_t model_settings_count(const model_settings *s, int row) {
    return (int32_t)strtol(model_settings_text(s, row), NULL, 10);
}

double model_settings_real(const model_settings *s, int row) {
    double v = 0;
    parse_real(model_settings_text(s, row), &v);
    return v;
}

bool model_settings_true(const model_settings *s, int row) {
    return !strcmp(model_settings_text(s, row), "True");
}

int32_t model_settings_choice(const model_settings *s, int row) {
    return choice_of(row == SET_padding_mode ? pad_modes : activations, model_settings_text(s, row));
}

void model_settings_of(model_settings *s, const model *m) {
    const nct_params *p = &m->params;
    const struct {
        int row;
        int32_t value;
    } counts[] = {{SET_in_channels, p->in_channels}, {SET_out_channels, p->out_channels},
        {SET_kernel_size, p->kernel_size}, {SET_stride, p->stride}, {SET_dilation, p->dilation},
        {SET_groups, p->groups}, {SET_num_groups, p->num_groups}};
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        snprintf(s->text[counts[i].row], MODEL_VALUE_MAX, "%d", counts[i].value);
    snprintf(s->text[SET_padding], MODEL_VALUE_MAX, "%s", m->padding);
    strcpy(s->text[SET_bias], m->weights.bias.data ? "True" : "False");
    strcpy(s->text[SET_affine], m->weights.gamma.data ? "True" : "False");
    strcpy(s->text[SET_padding_mode], pad_modes[p->padding_mode]);
    strcpy(s->text[SET_activation], activations[p->activation]);
    write_real(p->eps, s->text[SET_eps], MODEL_VALUE_MAX);
    if (m->sample_rate > 0) write_real(m->sample_rate, s->text[SET_sample_rate], MODEL_VALUE_MAX);
}

const char *model_setting_name(int i) {
    return i >= 0 && i < MODEL_SETTINGS ? model_setting_rows[i].name : NULL;
}
