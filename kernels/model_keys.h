/* model_keys.h: which tensors of a file are the layer. The rules are model.h's. Private to model*.c; any thread. */
#ifndef NCT_MODEL_KEYS_H
#define NCT_MODEL_KEYS_H
#include "model_settings.h"
#include "safetensors.h"

#define MODEL_KEY_MAX 256

typedef struct {
    const st_tensor *weight, *bias, *gamma, *beta; /* borrowed; bias NULL: none; gamma and beta NULL: not affine */
} layer_tensors;

/* -EINVAL with what is there and what to say; -ENOTSUP a dtype that no layer reads. */
int keys_choose(layer_tensors *ret, const safetensors *s, const model_settings *set, const char *path, nct_why *why);

/* Calls fn for every pair that fits by shape, in the file's order, until it returns false. */
typedef bool (*pair_fn)(void *ctx, const st_tensor *conv, const st_tensor *norm);
void keys_pairs(const safetensors *s, pair_fn fn, void *ctx);

/* "a.b" + suffix -> the tensor of that name, or NULL. */
const st_tensor *keys_beside(const safetensors *s, const st_tensor *weight, const char *suffix);
/* The key of a *.weight tensor, "" for NULL. false: longer than MODEL_KEY_MAX - 1. */
bool keys_key(char ret[MODEL_KEY_MAX], const st_tensor *weight);
#endif
