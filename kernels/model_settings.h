/* model_settings.h: the layer's parameters by name: one table makes the parser of settings and metadata, the JSON, the
 * metadata of written files and the options of `nct model new`.
 *
 * Values are text as Python's str() writes them: "1", "(1,)", "same", "True", "1e-05". No threads; any thread. */
#ifndef NCT_MODEL_SETTINGS_H
#define NCT_MODEL_SETTINGS_H
#include <stdbool.h>
#include "model.h"

/* XX(name, option of `nct model new`, kind, value when not said ("" = none), what it is). These are in metadata and JSON.
 * `bias` off is the default layer's; in a file the tensors decide. */
#define MODEL_PARAM_MAP(XX)                                                                                          \
    XX(in_channels, "in-channels", COUNT, "", "Channels of a frame.")                                                \
    XX(out_channels, "out-channels", COUNT, "", "Channels of a result.")                                             \
    XX(kernel_size, "kernel-size", COUNT, "", "Taps K of the convolution.")                                          \
    XX(stride, "stride", COUNT, "1", "Steps from one output to the next.")                                           \
    XX(padding, "padding", PADDING, "0", "Steps added on either side, or same or valid.")                            \
    XX(dilation, "dilation", COUNT, "1", "Steps from one tap to the next.")                                          \
    XX(groups, "groups", COUNT, "1", "Groups of the convolution.")                                                   \
    XX(bias, "bias", BOOL, "False", "The convolution adds a bias.")                                                  \
    XX(padding_mode, "padding-mode", PAD_MODE, "zeros", "zeros, reflect, replicate or circular.")                    \
    XX(num_groups, "num-groups", COUNT, "", "Groups of the norm.")                                                   \
    XX(eps, "eps", REAL, "1e-05", "Added to the variance inside the root.")                                          \
    XX(affine, "no-affine", BOOL, "True", "The norm has no weight and bias per channel.")                            \
    XX(activation, "activation", ACTIVATION, "none", "none, relu, gelu, gelu_tanh, silu, mish or elu.")              \
    XX(sample_rate, "sample-rate", RATE, "", "Of the sequences it was trained on; others are refused.")
/* These choose tensors of a file and are said by the one who loads it. */
#define MODEL_KEY_MAP(XX)                                                                                            \
    XX(conv, "", KEY, "", "Key of the convolution's tensors, without \".weight\".")                                  \
    XX(norm, "", KEY, "", "Key of the norm's tensors, without \".weight\".")                                         \
    XX(prefix, "", KEY, "", "Only tensors under this key are looked at.")
#define MODEL_SETTING_MAP(XX) MODEL_PARAM_MAP(XX) MODEL_KEY_MAP(XX)

enum {
#define XX(name, option, kind, fallback, help) SET_##name,
    MODEL_SETTING_MAP(XX)
#undef XX
        MODEL_SETTINGS,
    MODEL_PARAMS = SET_conv /* the first rows are the layer's parameters */
};

typedef enum {
    KIND_COUNT,
    KIND_PADDING,
    KIND_BOOL,
    KIND_PAD_MODE,
    KIND_REAL,
    KIND_ACTIVATION,
    KIND_RATE,
    KIND_KEY
} setting_kind;

typedef struct {
    const char *name;
    setting_kind kind;
    const char *fallback, *help;
} model_setting_row;
extern const model_setting_row model_setting_rows[MODEL_SETTINGS];

#define MODEL_VALUE_MAX 256
typedef struct {
    char text[MODEL_SETTINGS][MODEL_VALUE_MAX]; /* canonical: "3", "same", "True", "1e-05"; "" = not said */
    bool from_file[MODEL_SETTINGS];
} model_settings;

/* Row of a name, or -1. */
int model_setting_find(const char *name);
/* The known name that is nearest to a mistyped one; never NULL. */
const char *model_setting_nearest(const char *name);
/* Takes one value; `from_file`: of the file's metadata, else of a setting. -EINVAL: not a value of that kind, or different
 * from what was said before. `path` (may be NULL) stands in the message. */
int model_settings_put(model_settings *s, int row, const char *value, bool from_file, const char *path, nct_why *why);
/* All of a caller's settings; an unknown key is -EINVAL with the nearest known one. */
int model_settings_take(model_settings *s, const model_setting *given, int32_t n, const char *path, nct_why *why);

const char *model_settings_text(const model_settings *s, int row); /* what was said, else the fallback (maybe "") */
int32_t model_settings_count(const model_settings *s, int row);    /* COUNT and PADDING rows; 0 for same and valid */
double model_settings_real(const model_settings *s, int row);      /* 0 when not said and without fallback */
bool model_settings_true(const model_settings *s, int row);
int32_t model_settings_choice(const model_settings *s, int row); /* nct_pad_mode, nct_act */

/* The layer's rows as text, from a model. */
void model_settings_of(model_settings *s, const model *m);
#endif
