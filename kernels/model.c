/* model.c: model files into layers, and PyTorch's fresh layer.
 *
 * Owns the model object. Called by nctd's helper thread, nct and tests; any thread. Which tensors: model_keys.c; values
 * of settings: model_settings.c; writing and JSON: model_save.c, model_show.c. */
#include "model.h"
#include "layer.h"
#include "weights_memory.h"
#include "model_keys.h"
#include "model_own.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VALUES ((size_t)1 << 30) /* of a fresh layer: 4 GiB, what a file may hold */

/* ---- the object ---------------------------------------------------------------------------------------------------- */

void model_free(model *m) {
    if (!m) return;
    memory_free(m->weights.weight.data);
    memory_free(m->weights.bias.data);
    memory_free(m->weights.gamma.data);
    memory_free(m->weights.beta.data);
    free(m);
}

static float *tensor_new(nct_tensor *t, size_t count) {
    void *p = memory_new(count * sizeof(float));
    if (!p) return NULL;
    *t = (nct_tensor){.data = p, .dtype = NCT_F32};
    return p;
}

/* Everything but the sizes, which tensors or settings say. */
static int params_fill(model *m, const model_settings *s, const char *path, nct_why *why) {
    nct_params *p = &m->params;
    p->stride = model_settings_count(s, SET_stride);
    p->dilation = model_settings_count(s, SET_dilation);
    p->groups = model_settings_count(s, SET_groups);
    p->num_groups = model_settings_count(s, SET_num_groups);
    p->padding_mode = model_settings_choice(s, SET_padding_mode);
    p->activation = model_settings_choice(s, SET_activation);
    p->eps = model_settings_real(s, SET_eps);
    m->sample_rate = model_settings_real(s, SET_sample_rate);
    snprintf(m->padding, sizeof m->padding, "%s", model_settings_text(s, SET_padding));
    if (!p->num_groups)
        return file_why(why, -EINVAL, path,
            "num_groups is not said%s: the norm needs it, for example num_groups = 32",
            path ? ", neither in the file's metadata nor as a setting" : "");
    return 0;
}

/* The pads, which need the kernel's size, then the layer's own rules. */
static int params_finish(model *m, const char *path, nct_why *why) {
    nct_params *p = &m->params;
    nct_why inner;
    int r = 0;
    if (!strcmp(m->padding, "same"))
        r = nct_padding(p, 1, &p->pad_left, &p->pad_right, &inner);
    else
        p->pad_left = p->pad_right = (int32_t)strtol(m->padding, NULL, 10); /* "valid" reads as 0 */
    if (!r) r = params_check(p, &inner);
    return r ? file_why(why, r, path, "%s", inner.text) : 0;
}

/* ---- from a file --------------------------------------------------------------------------------------------------- */

static int metadata_take(model_settings *set, const safetensors *s, const char *path, nct_why *why) {
    for (size_t i = 0; i < s->n_parts; i++) {
        const json_t *meta = safetensors_metadata(s, i);
        for (int row = 0; row < MODEL_PARAMS; row++) {
            const char *v = json_string_value(json_object_get(meta, model_setting_rows[row].name));
            int r = v ? model_settings_put(set, row, v, true, path, why) : 0;
            if (r) return r;
        }
    }
    return 0;
}

/* A parameter that the tensors show: if it was said too, it must be the same. */
static int shown(
    const model_settings *set, int row, int64_t found, const st_tensor *by, const char *path, nct_why *why) {
    st_text n, s;
    if (!*set->text[row] || model_settings_count(set, row) == found) return 0;
    return file_why(why, -EINVAL, path, "%s: %s says %s, but tensor \"%s\" of shape %s has %lld",
        model_setting_rows[row].name, set->from_file[row] ? "the file's metadata" : "the setting", set->text[row],
        st_printable(&n, by->name), st_shape(&s, by), (long long)found);
}

static int shown_bool(
    const model_settings *set, int row, bool found, const st_tensor *weight, const char *path, nct_why *why) {
    st_text n;
    if (!*set->text[row] || model_settings_true(set, row) == found) return 0;
    return file_why(why, -EINVAL, path, "%s: %s says %s, but \"%s\" has %s beside it", model_setting_rows[row].name,
        set->from_file[row] ? "the file's metadata" : "the setting", set->text[row], st_printable(&n, weight->name),
        found ? "a bias" : "no bias");
}

/* Sizes from the tensors, checked against what was said and against each other. */
static int sizes_fill(model *m, const model_settings *set, const layer_tensors *t, const char *path, nct_why *why) {
    nct_params *p = &m->params;
    const st_tensor *w = t->weight;
    int64_t in = w->shape[1] * p->groups;
    st_text n, s;
    int r;
    if (in > INT32_MAX)
        return file_why(why, -EINVAL, path, "groups = %d times %lld channels of \"%s\" is more than 2147483647",
            p->groups, (long long)w->shape[1], st_printable(&n, w->name));
    if (w->shape[0] % p->groups)
        return file_why(why, -EINVAL, path, "groups = %d does not divide the %lld output channels of \"%s\" %s",
            p->groups, (long long)w->shape[0], st_printable(&n, w->name), st_shape(&s, w));
    if (w->shape[0] % p->num_groups)
        return file_why(why, -EINVAL, path, "num_groups = %d does not divide the %lld output channels of \"%s\" %s",
            p->num_groups, (long long)w->shape[0], st_printable(&n, w->name), st_shape(&s, w));
    if ((r = shown(set, SET_in_channels, in, w, path, why)) ||
        (r = shown(set, SET_out_channels, w->shape[0], w, path, why)) ||
        (r = shown(set, SET_kernel_size, w->shape[2], w, path, why)) ||
        (r = shown_bool(set, SET_bias, t->bias != NULL, w, path, why)))
        return r;
    p->in_channels = (int32_t)in;
    p->out_channels = (int32_t)w->shape[0];
    p->kernel_size = (int32_t)w->shape[2];
    return 0;
}

static int finite_check(const st_tensor *t, const float *v, const char *path, nct_why *why) {
    int64_t bad = 0, first = 0;
    st_text n;
    for (int64_t i = 0; i < t->count; i++) {
        if (!isfinite(v[i]) && bad++ == 0) first = i;
    }
    if (!bad) return 0;
    return file_why(why, -EINVAL, path,
        "tensor \"%s\": %lld of its %lld values are not finite%s, the first at index %lld (%g)",
        st_printable(&n, t->name), (long long)bad, (long long)t->count, t->load == NCT_F64 ? " as f32" : "",
        (long long)first, (double)v[first]);
}

static int tensor_load(nct_tensor *ret, const st_tensor *t, const char *path, nct_why *why) {
    if (!t) return 0;
    float *v = tensor_new(ret, (size_t)t->count);
    if (!v) return file_why(why, -ENOMEM, path, "no memory for %lld values", (long long)t->count);
    st_to_f32(t, v);
    return finite_check(t, v, path, why);
}

static int key_check(char ret[MODEL_KEY_MAX], const st_tensor *t, const char *path, nct_why *why) {
    st_text n;
    if (keys_key(ret, t)) return 0;
    return file_why(why, -EINVAL, path, "the name of tensor \"%s\" is longer than %d bytes",
        st_printable(&n, t->name), MODEL_KEY_MAX + 6);
}

static int fill(
    model *m, const safetensors *s, const model_setting *settings, int32_t n, const char *path, nct_why *why) {
    layer_tensors t;
    model_settings *set = calloc(1, sizeof *set);
    int r;
    if (!set) return file_why(why, -ENOMEM, path, "no memory");
    if ((r = metadata_take(set, s, path, why)) || (r = model_settings_take(set, settings, n, path, why))) goto done;
    if ((r = keys_choose(&t, s, set, path, why)) || (r = params_fill(m, set, path, why))) goto done;
    if ((r = sizes_fill(m, set, &t, path, why)) || (r = params_finish(m, path, why))) goto done;
    if ((r = key_check(m->conv_key, t.weight, path, why)) || (r = key_check(m->norm_key, t.gamma, path, why)))
        goto done;
    if ((r = tensor_load(&m->weights.weight, t.weight, path, why)) ||
        (r = tensor_load(&m->weights.bias, t.bias, path, why)))
        goto done;
    if (!(r = tensor_load(&m->weights.gamma, t.gamma, path, why)))
        r = tensor_load(&m->weights.beta, t.beta, path, why);
done:
    free(set);
    return r;
}

int model_from_tensors(model **ret, const safetensors *s, const model_setting *settings, int32_t n_settings,
    const char *path, nct_why *why) {
    model *m = calloc(1, sizeof *m);
    if (!m) return file_why(why, -ENOMEM, path, "no memory");
    int r = fill(m, s, settings, n_settings, path, why);
    if (!r) r = model_digest(m, why);
    if (r) {
        model_free(m);
        return r;
    }
    *ret = m;
    return 0;
}

int model_load(model **ret, const char *path, const model_setting *settings, int32_t n_settings, nct_why *why) {
    safetensors *s;
    if (!path) return model_fresh(ret, settings, n_settings, 0, why);
    int r = safetensors_open(&s, path, why);
    if (r) return r;
    r = model_from_tensors(ret, s, settings, n_settings, path, why);
    safetensors_free(s);
    return r;
}

/* ---- a fresh layer ------------------------------------------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"): 24 bits of it in [-b, b). */
static float next_uniform(uint64_t *state, float b) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return ((float)(z >> 40) * 0x1p-23f - 1.0f) * b;
}

static int values_fresh(model *m, bool bias, bool affine, uint64_t seed, nct_why *why) {
    const nct_params *p = &m->params;
    size_t out = (size_t)p->out_channels, fan_in = (size_t)(p->in_channels / p->groups) * (size_t)p->kernel_size,
           count;
    float *w, *v = NULL, *gamma = NULL, *beta = NULL;
    if (__builtin_mul_overflow(fan_in, out, &count) || count > MAX_VALUES)
        return file_why(why, -EINVAL, NULL, "a weight of (%d, %d, %d) is over the limit of %zu values",
            p->out_channels, p->in_channels / p->groups, p->kernel_size, MAX_VALUES);
    w = tensor_new(&m->weights.weight, count);
    if (bias) v = tensor_new(&m->weights.bias, out);
    if (affine) gamma = tensor_new(&m->weights.gamma, out), beta = tensor_new(&m->weights.beta, out);
    if (!w || (bias && !v) || (affine && (!gamma || !beta)))
        return file_why(why, -ENOMEM, NULL, "no memory for a weight of %zu values", count);
    float bound = (float)(1.0 / sqrt((double)fan_in));
    for (size_t i = 0; i < count; i++) w[i] = next_uniform(&seed, bound);
    for (size_t i = 0; v && i < out; i++) v[i] = next_uniform(&seed, bound);
    for (size_t i = 0; gamma && beta && i < out; i++) gamma[i] = 1, beta[i] = 0;
    return 0;
}

static int fresh_fill(model *m, const model_settings *s, uint64_t seed, nct_why *why) {
    static const int needed[] = {SET_in_channels, SET_out_channels, SET_kernel_size};
    static const int inert[] = {SET_conv, SET_norm, SET_prefix};
    bool affine = model_settings_true(s, SET_affine);
    int r;
    for (size_t i = 0; i < 3; i++) {
        if (!*s->text[needed[i]])
            return file_why(
                why, -EINVAL, NULL, "%s is not said: a new layer needs it", model_setting_rows[needed[i]].name);
        if (*s->text[inert[i]])
            return file_why(why, -EINVAL, NULL, "%s = %s chooses tensors of a file, but no file is named",
                model_setting_rows[inert[i]].name, s->text[inert[i]]);
    }
    m->params.in_channels = model_settings_count(s, SET_in_channels);
    m->params.out_channels = model_settings_count(s, SET_out_channels);
    m->params.kernel_size = model_settings_count(s, SET_kernel_size);
    if ((r = params_fill(m, s, NULL, why)) || (r = params_finish(m, NULL, why))) return r;
    strcpy(m->conv_key, "conv");
    strcpy(m->norm_key, affine ? "norm" : "");
    if ((r = values_fresh(m, model_settings_true(s, SET_bias), affine, seed, why))) return r;
    return model_digest(m, why);
}

int model_fresh(model **ret, const model_setting *settings, int32_t n_settings, uint64_t seed, nct_why *why) {
    model_settings *s = calloc(1, sizeof *s);
    model *m = calloc(1, sizeof *m);
    int r = -ENOMEM;
    if (!s || !m)
        file_why(why, r, NULL, "no memory");
    else if (!(r = model_settings_take(s, settings, n_settings, NULL, why)))
        r = fresh_fill(m, s, seed, why);
    free(s);
    if (r) {
        model_free(m);
        return r;
    }
    *ret = m;
    return 0;
}
