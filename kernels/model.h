/* model.h: a model file (safetensors) -> parameters and weights of one layer; and back.
 *
 * The file is read whole, never mapped, and every part of it is checked against every other before a byte is used.
 * Layer parameters that no tensor shows come from the file's __metadata__ under PyTorch's names, or from `settings`
 * (a conf section, --param); given in both and different is an error. No sockets, logging or threads; any thread.
 *
 * Setting names (values as text, as Python's str() writes them: "1", "(1,)", "same", "True", "1e-05"; PyTorch's defaults
 * where a layer may leave them out; the table is MODEL_SETTING_MAP in model_settings.h):
 *   stride 1 | padding 0 (int, 'same', 'valid') | dilation 1 | groups 1 | padding_mode zeros | num_groups (needed) |
 *   eps 1e-5 | activation none | sample_rate (Hz, optional) | conv, norm (tensor keys without ".weight") | prefix
 * in_channels, out_channels, kernel_size, bias, affine may be given too; they must then agree with the tensors.
 *
 * Which tensors are the layer:
 *   - `prefix` narrows the file to the tensors under that key; `conv` and `norm` (full keys) choose by hand;
 *   - else conv.weight and norm.weight (under the prefix) by name;
 *   - else the one pair of a 3-D *.weight and a 1-D *.weight (with its *.bias, and no running_mean: that is a BatchNorm)
 *     of as many values as the first has output channels. More than one pair is an error that lists them.
 *   - A norm without weight and bias: affine = False, or a file that holds nothing but the convolution. A file named
 *     ...-00001-of-00002.safetensors is a part of something larger, there affine = False must be said.
 * Values that are not finite are refused: one NaN in the norm makes every result NaN. */
#ifndef NCT_MODEL_H
#define NCT_MODEL_H
#include "nct_layer.h"

typedef struct {
    const char *key, *value;
} model_setting;

typedef struct {
    nct_params params;
    nct_weights
        weights;        /* host tensors, f32, 64-byte aligned, owned by the model; bias/gamma/beta NULL when absent */
    double sample_rate; /* 0: not said */
    char padding[16];   /* as given: "1", "same", "valid" */
    char digest[65];    /* SHA-256 in hex over params, sample rate and f32 weights: two models with one digest give
                             equal bits */
    char conv_key[256], norm_key[256]; /* what was loaded: "conv", "feature_extractor.conv_layers.0.conv", ...;
                             norm_key "" when the norm is not affine */
} model;

/* Reads a .safetensors file or a shard index (*.json). path NULL: model_fresh with seed 0.
 * 0; -ENOENT, -EACCES, -EIO (file); -EINVAL (anything wrong inside, with tensor, found and expected); -ENOTSUP (a
 * dtype that is not read); -ENOMEM. *why names the file, its text is one line whatever the file's names hold. */
int model_load(model **ret, const char *path, const model_setting *settings, int32_t n_settings, nct_why *why);
/* PyTorch's freshly initialised layer from the settings, where in_channels, out_channels, kernel_size and num_groups
 * must be. Convolution: uniform in [-b, b), b = 1/sqrt(in_channels/groups * kernel_size), weight and bias (`bias` False
 * unless said): what kaiming_uniform_(a=sqrt(5)) comes to (torch.nn.modules.conv._ConvNd.reset_parameters). Norm: ones,
 * zeros. The values are SplitMix64's for `seed`: the same on every machine, not PyTorch's own numbers. */
int model_fresh(model **ret, const model_setting *settings, int32_t n_settings, uint64_t seed, nct_why *why);
void model_free(model *m); /* NULL is fine */
/* Writes a safetensors file (conv.weight, conv.bias, norm.weight, norm.bias, metadata), to a temporary name beside it,
 * renamed when whole and on disk. Loading it gives the same digest. 0, -ENOMEM, or the system's error. */
int model_save(const model *m, const char *path, nct_why *why);
/* {"in_channels": .., "out_channels": .., ... every layer parameter by PyTorch's name, "sample_rate" (null: not said),
 * "digest", "conv", "norm"}: malloc'ed, the caller frees; NULL without memory. */
char *model_json(const model *m);
/* Every (3-D weight, 1-D norm) pair in the file that would load by shape, as JSON text (malloc'ed): for `nct model show`.
 * [{"conv": KEY, "norm": KEY, "in_channels_per_group": .., "out_channels": .., "kernel_size": .., "bias": true}, ...] */
int model_pairs_json(char **ret, const char *path, nct_why *why);
/* All that the file shows: {"tensors": [{"name", "dtype", "shape"}], "metadata": {..}, "pairs": [..]}. */
int model_file_json(char **ret, const char *path, nct_why *why);
/* The i-th setting name of the table above, NULL past the last: what a conf section and `nct model new` accept. */
const char *model_setting_name(int i);
#endif
