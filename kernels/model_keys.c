/* model_keys.c: which tensors of a file are the layer.
 *
 * Called by model.c for loading and by model_show.c for the list of pairs; any thread. Looks at names, shapes and dtypes
 * only, never at values. */
#include "model_keys.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LISTED 1000 /* pairs counted for a message; a hostile file may have millions */

typedef struct {
    const safetensors *s;
    const model_settings *set;
    const char *path;
    nct_why *why;
    const st_tensor **convs, **norms; /* candidates */
    size_t n_convs, n_norms;
    bool conv_named, norm_named; /* by setting or by the standard name: the only candidate, whatever its shape */
    bool affine_said, affine;
} chooser;

/* ---- names --------------------------------------------------------------------------------------------------------- */

static bool is_weight(const st_tensor *t) {
    size_t len = strlen(t->name);
    return len > 7 && !strcmp(t->name + len - 7, ".weight");
}

bool keys_key(char ret[MODEL_KEY_MAX], const st_tensor *weight) {
    size_t len = weight ? strlen(weight->name) - 7 : 0;
    if (len >= MODEL_KEY_MAX) return false;
    if (len) memcpy(ret, weight->name, len);
    ret[len] = 0;
    return true;
}

const st_tensor *keys_beside(const safetensors *s, const st_tensor *weight, const char *suffix) {
    char name[MODEL_KEY_MAX + 32], key[MODEL_KEY_MAX];
    if (!keys_key(key, weight)) return NULL;
    snprintf(name, sizeof name, "%s%s", key, suffix);
    return safetensors_find(s, name);
}

/* "enc" holds "enc.conv.weight" and not "encoder.conv.weight"; "enc." means the same. */
static bool under_prefix(const char *prefix, const char *name) {
    size_t len = strlen(prefix);
    if (len == 0) return true;
    return strncmp(name, prefix, len) == 0 && (prefix[len - 1] == '.' || name[len] == '.');
}

static const st_tensor *find_under(const chooser *c, const char *prefix, const char *name) {
    char full[2 * MODEL_KEY_MAX];
    size_t len = strlen(prefix);
    snprintf(full, sizeof full, "%s%s%s", prefix, len && prefix[len - 1] != '.' ? "." : "", name);
    return safetensors_find(c->s, full);
}

/* model-00001-of-00002.safetensors: a part of a sharded model. */
static bool part_name(const char *path, int *ret_part, int *ret_parts) {
    const char *dash = path ? strrchr(path, '-') : NULL;
    if (!dash || dash - path < 9 || strncmp(dash - 3, "-of", 3) != 0) return false;
    const char *digits = dash - 3;
    while (digits > path && digits[-1] >= '0' && digits[-1] <= '9') digits--;
    return sscanf(digits, "%9d-of-%9d.safetensors", ret_part, ret_parts) == 2;
}

/* ---- candidates ------------------------------------------------------------------------------------------------------ */

static bool conv_shaped(const st_tensor *t) {
    return t->rank == 3 && t->count > 0 && t->shape[0] <= INT32_MAX && t->shape[1] <= INT32_MAX &&
           t->shape[2] <= INT32_MAX;
}

static bool norm_shaped(const safetensors *s, const st_tensor *t) {
    const st_tensor *b;
    return t->rank == 1 && t->count > 0 && (b = keys_beside(s, t, ".bias")) && b->rank == 1 && b->count == t->count &&
           !keys_beside(s, t, ".running_mean");
}

static bool fits(const st_tensor *conv, const st_tensor *norm) {
    return conv->shape[0] == norm->shape[0];
}

/* The candidates by shape, under the prefix. */
static void gather(chooser *c, const char *prefix) {
    for (size_t i = 0; i < c->s->n_tensors; i++) {
        const st_tensor *t = &c->s->tensors[i];
        if (!is_weight(t) || !under_prefix(prefix, t->name)) continue;
        if (!c->conv_named && conv_shaped(t)) c->convs[c->n_convs++] = t;
        if (!c->norm_named && norm_shaped(c->s, t)) c->norms[c->n_norms++] = t;
    }
}

/* What the file holds under the prefix, for a sentence. */
static const char *holds(const chooser *c, st_list *l) {
    const char *prefix = model_settings_text(c->set, SET_prefix);
    st_text n, s;
    memset(l, 0, sizeof *l);
    for (size_t i = 0; i < c->s->n_tensors; i++) {
        const st_tensor *t = &c->s->tensors[i];
        if (under_prefix(prefix, t->name)) st_list_add(l, "%s %s", st_printable(&n, t->name), st_shape(&s, t));
    }
    return st_list_end(l);
}

/* conv = KEY or norm = KEY: the tensor must be there. */
static int by_setting(const chooser *c, int row, const st_tensor **ret) {
    char name[MODEL_VALUE_MAX + 8];
    const char *key = model_settings_text(c->set, row);
    st_list l;
    st_text t;
    size_t len = strlen(key);
    bool whole = len > 7 && !strcmp(key + len - 7, ".weight");
    snprintf(name, sizeof name, "%s%s", key, whole ? "" : ".weight");
    if (!(*ret = safetensors_find(c->s, name)))
        return file_why(c->why, -EINVAL, c->path, "%s = %s: there is no tensor \"%s\"; the file holds %s",
            model_setting_rows[row].name, key, st_printable(&t, name), holds(c, &l));
    return 0;
}

static int name_candidates(chooser *c) {
    const char *prefix = model_settings_text(c->set, SET_prefix);
    const st_tensor *conv = NULL, *norm = NULL;
    int r;
    if (*c->set->text[SET_conv] && (r = by_setting(c, SET_conv, &conv))) return r;
    if (*c->set->text[SET_norm] && (r = by_setting(c, SET_norm, &norm))) return r;
    if (!conv && !norm) { /* a hand-made half says that the standard names are not what is meant */
        conv = find_under(c, prefix, "conv.weight");
        norm = find_under(c, prefix, "norm.weight");
    }
    if ((c->conv_named = conv != NULL)) c->convs[c->n_convs++] = conv;
    if ((c->norm_named = norm != NULL)) c->norms[c->n_norms++] = norm;
    gather(c, prefix);
    return 0;
}

/* ---- shapes of what was named ------------------------------------------------------------------------------------------ */

static int conv_check(const chooser *c, const st_tensor *t) {
    st_text n, s;
    if (t->rank != 3)
        return file_why(c->why, -EINVAL, c->path,
            "tensor \"%s\" has shape %s, expected 3 sides: (out_channels, in_channels/groups, kernel_size)",
            st_printable(&n, t->name), st_shape(&s, t));
    if (!conv_shaped(t))
        return file_why(c->why, -EINVAL, c->path, "tensor \"%s\" has shape %s, expected sides from 1 to 2147483647",
            st_printable(&n, t->name), st_shape(&s, t));
    return 0;
}

static int vector_check(const chooser *c, const st_tensor *t, const st_tensor *conv) {
    st_text n, s, k, w;
    if (t->rank == 1 && t->shape[0] == conv->shape[0]) return 0;
    return file_why(c->why, -EINVAL, c->path,
        "tensor \"%s\" has shape %s, expected [%lld] as \"%s\" %s has %lld output channels",
        st_printable(&n, t->name), st_shape(&s, t), (long long)conv->shape[0], st_printable(&k, conv->name),
        st_shape(&w, conv), (long long)conv->shape[0]);
}

static int dtype_check(const chooser *c, const st_tensor *t) {
    st_text n;
    if (!t || t->load) return 0;
    return file_why(c->why, -ENOTSUP, c->path, "tensor \"%s\" is %s, expected F64, F32, F16 or BF16",
        st_printable(&n, t->name), t->dtype);
}

/* ---- the choice -------------------------------------------------------------------------------------------------------- */

static int no_conv(const chooser *c) {
    int part, parts;
    st_list l;
    st_text t;
    const char *prefix = model_settings_text(c->set, SET_prefix);
    char under[160] = "";
    if (*prefix) snprintf(under, sizeof under, " under \"%s\"", st_printable(&t, prefix));
    if (part_name(c->path, &part, &parts))
        return file_why(c->why, -EINVAL, c->path,
            "conv.weight is missing: this is part %d of %d, load the *.index.json beside it; it holds %s", part,
            parts, holds(c, &l));
    return file_why(c->why, -EINVAL, c->path,
        "conv.weight is missing, and no other 3-D *.weight is there%s; the file holds %s", under, holds(c, &l));
}

/* Nothing of any size but the convolution under the prefix. */
static bool lone(const chooser *c, const st_tensor *conv) {
    const st_tensor *bias = keys_beside(c->s, conv, ".bias");
    const char *prefix = model_settings_text(c->set, SET_prefix);
    for (size_t i = 0; i < c->s->n_tensors; i++) {
        const st_tensor *t = &c->s->tensors[i];
        if (t != conv && t != bias && t->count > 0 && t->rank > 0 && under_prefix(prefix, t->name)) return false;
    }
    return true;
}

/* One convolution (or several) and no norm that fits. */
static int no_norm(const chooser *c, layer_tensors *ret) {
    const st_tensor *conv = c->convs[0];
    int part, parts;
    st_list l = {0};
    st_text n, s;
    if (c->n_convs > 1) {
        for (size_t i = 0; i < c->n_convs; i++)
            st_list_add(&l, "%s %s", st_printable(&n, c->convs[i]->name), st_shape(&s, c->convs[i]));
        return file_why(c->why, -EINVAL, c->path, "no 1-D norm weight fits any of %s: say conv = KEY and norm = KEY",
            st_list_end(&l));
    }
    if (part_name(c->path, &part, &parts))
        return file_why(c->why, -EINVAL, c->path,
            "norm.weight and norm.bias are missing: this is part %d of %d, load the *.index.json beside it (or say "
            "affine = "
            "False if the norm has none); it holds %s",
            part, parts, holds(c, &l));
    if (!c->affine_said && lone(c, conv)) {
        ret->weight = conv;
        return 0;
    }
    return file_why(c->why, -EINVAL, c->path,
        "norm.weight and norm.bias of %lld values are missing for \"%s\" %s (say norm = KEY, or affine = False if "
        "the norm has "
        "none); the file holds %s",
        (long long)conv->shape[0], st_printable(&n, conv->name), st_shape(&s, conv), holds(c, &l));
}

static int too_many(const chooser *c) {
    st_list l = {0};
    st_text a, b;
    size_t n = 0;
    for (size_t i = 0; i < c->n_convs && n < LISTED; i++) {
        for (size_t j = 0; j < c->n_norms && n < LISTED; j++) {
            if (!fits(c->convs[i], c->norms[j])) continue;
            st_list_add(&l, "%s + %s", st_printable(&a, c->convs[i]->name), st_printable(&b, c->norms[j]->name));
            n++;
        }
    }
    return file_why(c->why, -EINVAL, c->path,
        "%s%zu pairs fit by shape: %s; choose by conv = KEY and norm = KEY, or prefix = KEY",
        n == LISTED ? "at least " : "", n, st_list_end(&l));
}

/* affine = False: no norm tensors are wanted, and the standard ones must not be there. */
static int choose_plain(const chooser *c, layer_tensors *ret) {
    st_list l = {0};
    st_text n;
    if (c->norm_named)
        return file_why(c->why, -EINVAL, c->path, "affine = False, but tensor \"%s\" is there",
            st_printable(&n, c->norms[0]->name));
    for (size_t i = 0; i < c->n_convs; i++) st_list_add(&l, "%s", st_printable(&n, c->convs[i]->name));
    if (c->n_convs > 1)
        return file_why(c->why, -EINVAL, c->path, "%zu convolutions: %s; choose by conv = KEY or prefix = KEY",
            c->n_convs, st_list_end(&l));
    ret->weight = c->convs[0];
    return 0;
}

static int choose_pair(const chooser *c, layer_tensors *ret) {
    int r;
    size_t n = 0;
    if (c->conv_named && c->norm_named && (r = vector_check(c, c->norms[0], c->convs[0]))) return r;
    for (size_t i = 0; i < c->n_convs && n < 2; i++) {
        for (size_t j = 0; j < c->n_norms && n < 2; j++) {
            if (!fits(c->convs[i], c->norms[j])) continue;
            ret->weight = c->convs[i];
            ret->gamma = c->norms[j];
            n++;
        }
    }
    return n == 0 ? no_norm(c, ret) : n > 1 ? too_many(c) : 0;
}

/* The biases beside the chosen weights. */
static int complete(const chooser *c, layer_tensors *ret) {
    int r;
    st_text n;
    assert(ret->weight);
    ret->bias = keys_beside(c->s, ret->weight, ".bias");
    if (ret->bias && (r = vector_check(c, ret->bias, ret->weight))) return r;
    if (ret->gamma) {
        if (keys_beside(c->s, ret->gamma, ".running_mean"))
            return file_why(c->why, -EINVAL, c->path,
                "\"%s\" is a BatchNorm (it has a running_mean), not a GroupNorm", st_printable(&n, ret->gamma->name));
        if (!(ret->beta = keys_beside(c->s, ret->gamma, ".bias")))
            return file_why(
                c->why, -EINVAL, c->path, "the bias beside \"%s\" is missing", st_printable(&n, ret->gamma->name));
        if ((r = vector_check(c, ret->beta, ret->weight))) return r;
    }
    if ((r = dtype_check(c, ret->weight)) || (r = dtype_check(c, ret->bias)) || (r = dtype_check(c, ret->gamma)))
        return r;
    return dtype_check(c, ret->beta);
}

static int choose(chooser *c, layer_tensors *ret) {
    int r;
    if ((r = name_candidates(c))) return r;
    if (c->n_convs == 0) return no_conv(c);
    if (c->conv_named && (r = conv_check(c, c->convs[0]))) return r;
    if (c->norm_named && c->norms[0]->rank != 1) {
        st_text n, s;
        return file_why(c->why, -EINVAL, c->path, "tensor \"%s\" has shape %s, expected 1 side: (out_channels)",
            st_printable(&n, c->norms[0]->name), st_shape(&s, c->norms[0]));
    }
    r = c->affine_said && !c->affine ? choose_plain(c, ret) : choose_pair(c, ret);
    return r ? r : complete(c, ret);
}

int keys_choose(layer_tensors *ret, const safetensors *s, const model_settings *set, const char *path, nct_why *why) {
    layer_tensors got = {0};
    chooser c = {.s = s, .set = set, .path = path, .why = why};
    c.affine_said = *set->text[SET_affine] != 0;
    c.affine = model_settings_true(set, SET_affine);
    c.convs = calloc(s->n_tensors + 1, sizeof(st_tensor *));
    c.norms = calloc(s->n_tensors + 1, sizeof(st_tensor *));
    int r = c.convs && c.norms ? choose(&c, &got) : file_why(why, -ENOMEM, path, "no memory");
    free(c.convs);
    free(c.norms);
    if (!r) *ret = got;
    return r;
}

void keys_pairs(const safetensors *s, pair_fn fn, void *ctx) {
    for (size_t i = 0; i < s->n_tensors; i++) {
        const st_tensor *conv = &s->tensors[i];
        if (!is_weight(conv) || !conv_shaped(conv)) continue;
        for (size_t j = 0; j < s->n_tensors; j++) {
            const st_tensor *norm = &s->tensors[j];
            if (is_weight(norm) && norm_shaped(s, norm) && fits(conv, norm) && !fn(ctx, conv, norm)) return;
        }
    }
}
