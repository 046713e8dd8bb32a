/* model_show.c: models and model files as JSON text for people and programs, and the digest.
 *
 * Called by nctd (WELCOME, /api/status), `nct model show` and model.c; any thread. */
#include "model.h"
#include "model_keys.h"
#include "model_own.h"
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PAIRS 1000 /* listed; a checkpoint of many equal layers has n * n */

/* ---- a model --------------------------------------------------------------------------------------------------------- */

/* One parameter as a JSON value: numbers as they were said ("1e-05", not 1.0000000000000001e-05). */
static void put_value(FILE *f, const model_settings *s, int row) {
    const char *v = model_settings_text(s, row);
    switch (model_setting_rows[row].kind) {
    case KIND_BOOL: fputs(model_settings_true(s, row) ? "true" : "false", f); break;
    case KIND_PADDING: fprintf(f, strspn(v, "0123456789") == strlen(v) ? "%s" : "\"%s\"", v); break;
    case KIND_COUNT:
    case KIND_REAL:
    case KIND_RATE: fputs(*v ? v : "null", f); break;
    default: fprintf(f, "\"%s\"", v);
    }
}

/* ', "name": "value"' with the value escaped. */
static bool put_string(FILE *f, const char *name, const char *value) {
    json_t *j = json_string(value);
    char *text = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;
    if (text) fprintf(f, ", \"%s\": %s", name, text);
    free(text);
    json_decref(j);
    return text != NULL;
}

char *model_json(const model *m) {
    char *text = NULL;
    size_t len;
    model_settings *s = calloc(1, sizeof *s);
    FILE *f = s ? open_memstream(&text, &len) : NULL;
    bool ok = f != NULL;
    if (ok) {
        model_settings_of(s, m);
        for (int row = 0; row < MODEL_PARAMS; row++) {
            fprintf(f, "%s\"%s\": ", row ? ", " : "{", model_setting_rows[row].name);
            put_value(f, s, row);
        }
        ok = put_string(f, "digest", m->digest) && put_string(f, "conv", m->conv_key) &&
             put_string(f, "norm", m->norm_key);
        fputc('}', f);
        ok = fclose(f) == 0 && ok;
    }
    free(s);
    if (ok) return text;
    free(text);
    return NULL;
}

/* ---- the digest -------------------------------------------------------------------------------------------------------- */

static void digest_tensor(crypto_hash_sha256_state *h, const nct_tensor *t, size_t count) {
    uint64_t n = t->data ? count : 0;
    crypto_hash_sha256_update(h, (const unsigned char *)&n, sizeof n);
    if (t->data) crypto_hash_sha256_update(h, t->data, count * sizeof(float));
}

/* "name=value\n" of every parameter, then each tensor as u64 count and f32 values, all little-endian. */
int model_digest(model *m, nct_why *why) {
    const nct_params *p = &m->params;
    unsigned char out[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state h;
    size_t co = (size_t)p->out_channels;
    model_settings *s = calloc(1, sizeof *s);
    if (!s) return file_why(why, -ENOMEM, NULL, "no memory");
    model_settings_of(s, m);
    crypto_hash_sha256_init(&h);
    for (int row = 0; row < MODEL_PARAMS; row++) {
        char line[MODEL_VALUE_MAX + 32];
        int n = snprintf(line, sizeof line, "%s=%s\n", model_setting_rows[row].name, s->text[row]);
        crypto_hash_sha256_update(&h, (const unsigned char *)line, (size_t)n);
    }
    free(s);
    digest_tensor(&h, &m->weights.weight, co * (size_t)(p->in_channels / p->groups) * (size_t)p->kernel_size);
    digest_tensor(&h, &m->weights.bias, co);
    digest_tensor(&h, &m->weights.gamma, co);
    digest_tensor(&h, &m->weights.beta, co);
    crypto_hash_sha256_final(&h, out);
    sodium_bin2hex(m->digest, sizeof m->digest, out, sizeof out);
    return 0;
}

/* ---- a file ------------------------------------------------------------------------------------------------------------ */

typedef struct {
    const safetensors *s;
    json_t *pairs;
} pair_list;

static bool add_pair(void *ctx, const st_tensor *conv, const st_tensor *norm) {
    pair_list *l = ctx;
    char ck[MODEL_KEY_MAX], nk[MODEL_KEY_MAX];
    if (!keys_key(ck, conv) || !keys_key(nk, norm)) return true; /* too long to be named in a setting */
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:b}", "conv", ck, "norm", nk, "in_channels_per_group",
        (json_int_t)conv->shape[1], "out_channels", (json_int_t)conv->shape[0], "kernel_size",
        (json_int_t)conv->shape[2], "bias", keys_beside(l->s, conv, ".bias") != NULL);
    return json_array_append_new(l->pairs, o) == 0 && json_array_size(l->pairs) < MAX_PAIRS;
}

static json_t *pairs_of(const safetensors *s) {
    pair_list l = {s, json_array()};
    if (l.pairs) keys_pairs(s, add_pair, &l);
    return l.pairs;
}

static json_t *tensors_of(const safetensors *s) {
    json_t *all = json_array();
    for (size_t i = 0; all && i < s->n_tensors; i++) {
        const st_tensor *t = &s->tensors[i];
        json_t *shape = json_array();
        for (int32_t d = 0; d < t->rank && d < ST_SHOWN_RANK; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_array_append_new(all, json_pack("{s:s, s:s, s:o}", "name", t->name, "dtype", t->dtype, "shape", shape));
    }
    return all;
}

static json_t *metadata_of(const safetensors *s) {
    json_t *all = json_object();
    for (size_t i = 0; all && i < s->n_parts; i++) {
        const json_t *m = safetensors_metadata(s, i);
        if (m) json_object_update_missing(all, (json_t *)(uintptr_t)m);
    }
    return all;
}

static char *dump(json_t *j) {
    char *text = j ? json_dumps(j, 0) : NULL;
    json_decref(j);
    return text;
}

char *model_tensors_json(const safetensors *s) {
    return dump(
        json_pack("{s:o, s:o, s:o}", "tensors", tensors_of(s), "metadata", metadata_of(s), "pairs", pairs_of(s)));
}

static int file_json(char **ret, const char *path, bool all, nct_why *why) {
    safetensors *s;
    int r = safetensors_open(&s, path, why);
    if (r) return r;
    char *text = all ? model_tensors_json(s) : dump(pairs_of(s));
    safetensors_free(s);
    if (!text) return file_why(why, -ENOMEM, path, "no memory");
    *ret = text;
    return 0;
}

int model_pairs_json(char **ret, const char *path, nct_why *why) {
    return file_json(ret, path, false, why);
}

int model_file_json(char **ret, const char *path, nct_why *why) {
    return file_json(ret, path, true, why);
}
