/* fuzz_safetensors.c: any octets are a model file or a sentence. What loads is finite, describes itself and reads back:
 * the container rules, the choice of tensors, metadata as settings, the conversion to f32. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model_own.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
    if (!holds) abort();
}

static void json_reads(char *text) {
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    require(j != NULL);
    json_decref(j);
    free(text);
}

static void all_finite(const nct_tensor *t, size_t count) {
    for (size_t i = 0; t->data && i < count; i++) require(isfinite(((const float *)t->data)[i]));
}

static void load(const safetensors *s, const model_setting *settings, int32_t n_settings) {
    model *m = NULL;
    nct_why why = {{0}};
    if (model_from_tensors(&m, s, settings, n_settings, "fuzz", &why)) {
        require(why.text[0] && memchr(why.text, 0, sizeof why.text) && !m);
        return;
    }
    const nct_params *p = &m->params;
    size_t co = (size_t)p->out_channels;
    require(p->in_channels % p->groups == 0 && p->out_channels % p->num_groups == 0 && p->kernel_size > 0);
    all_finite(&m->weights.weight, co * (size_t)(p->in_channels / p->groups) * (size_t)p->kernel_size);
    all_finite(&m->weights.bias, co);
    all_finite(&m->weights.gamma, co);
    all_finite(&m->weights.beta, co);
    require(strlen(m->digest) == 64);
    json_reads(model_json(m));
    model_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const model_setting one[] = {{"num_groups", "1"}}, plain[] = {{"num_groups", "1"}, {"affine", "no"}};
    safetensors *s = NULL;
    nct_why why = {{0}};
    unsigned char *copy = malloc(size ? size : 1);
    require(copy != NULL);
    if (size) memcpy(copy, data, size);
    if (safetensors_parse(&s, copy, size, "fuzz", &why)) {
        require(why.text[0] && !s);
        return 0;
    }
    json_reads(model_tensors_json(s));
    load(s, NULL, 0);
    load(s, one, 1);
    load(s, plain, 2);
    safetensors_free(s);
    return 0;
}
