/* model.h: a model file (safetensors) -> parameters and weights of one layer; and back.
 *
 * The file is read whole, never mapped, and every part of it is checked against every other before a byte is used.
 * Layer parameters that no tensor shows come from the file's __metadata__ under PyTorch's names, or from `settings`
 * (a conf section, --param); given in both and different is an error. No sockets, logging or threads; any thread.
 *
 * Setting names (values as text, PyTorch's defaults where a layer may leave them out):
 *   stride 1 | padding 0 (int, 'same', 'valid') | dilation 1 | groups 1 | padding_mode zeros | num_groups (needed) |
 *   eps 1e-5 | activation none | sample_rate (Hz, optional) | conv, norm (tensor keys without ".weight") | prefix
 * in_channels, out_channels, kernel_size, bias, affine may be given too; they must then agree with the tensors. */
#ifndef NCT_MODEL_H
#define NCT_MODEL_H
#include "nct_layer.h"

typedef struct {
    const char *key, *value;
} model_setting;

typedef struct {
    nct_params params;
    nct_weights weights;  /* host tensors, f32, 64-byte aligned, owned by the model; bias/gamma/beta NULL when absent */
    double sample_rate;   /* 0: not said */
    char padding[16];     /* as given: "1", "same", "valid" */
    char digest[65];      /* SHA-256 in hex over params and f32 weights: two models with one digest give equal bits */
    char conv_key[256], norm_key[256]; /* what was loaded: "conv", "feature_extractor.conv_layers.0.conv", ... */
} model;

/* Reads the file, or with path NULL makes PyTorch's freshly initialised layer from the settings (then in_channels,
 * out_channels, kernel_size, num_groups must be there; `seed` picks the values).
 * 0; -ENOENT, -EACCES, -EIO (file); -EINVAL (anything wrong inside, with tensor, found and expected); -ENOTSUP (a
 * dtype or shard layout that is not read); -ENOMEM. *why names the file. */
int model_load(model **ret, const char *path, const model_setting *settings, int32_t n_settings, nct_why *why);
int model_fresh(model **ret, const model_setting *settings, int32_t n_settings, uint64_t seed, nct_why *why);
void model_free(model *m); /* NULL is fine */
/* Writes a safetensors file (conv.weight, conv.bias, norm.weight, norm.bias, metadata), to a temporary name beside it,
 * renamed when whole. */
int model_save(const model *m, const char *path, nct_why *why);
/* {"in_channels": .., "out_channels": .., ... every layer parameter by PyTorch's name, "sample_rate", "digest"}:
 * malloc'ed, the caller frees; NULL without memory. */
char *model_json(const model *m);
/* Every (3-D weight, 1-D norm) pair in the file that would load by shape, as JSON text (malloc'ed): for `nct model show`. */
int model_pairs_json(char **ret, const char *path, nct_why *why);
#endif
