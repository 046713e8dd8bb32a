/* model_settings.h: the layer's parameters by name: one table makes the parser of settings and metadata, the JSON, the
 * metadata of written files and the options of `nct model new`.
 *
 * Values are text as Python's str() writes them: "1", "(1,)", "same", "True", "1e-05". No threads; any thread. */
#ifndef NCT_MODEL_SETTINGS_H
#define NCT_MODEL_SETTINGS_H
#include <stdbool.h>
#include "model.h"

/* XX(name, kind, value when not said ("" = none), what it is). Up to sample_rate: in metadata and JSON. `bias` off is the
 * default layer's; in a file the tensors decide. */
#define MODEL_SETTING_MAP(XX)                                                                                        \
    XX(in_channels, COUNT, "", "channels of a frame")                                                                \
    XX(out_channels, COUNT, "", "channels of a result")                                                              \
    XX(kernel_size, COUNT, "", "taps K of the convolution")                                                          \
    XX(stride, COUNT, "1", "steps from one output to the next")                                                      \
    XX(padding, PADDING, "0", "zeros on either side, or same | valid")                                               \
    XX(dilation, COUNT, "1", "steps from one tap to the next")                                                       \
    XX(groups, COUNT, "1", "groups of the convolution")                                                              \
    XX(bias, BOOL, "False", "the convolution adds a bias")                                                           \
    XX(padding_mode, PAD_MODE, "zeros", "zeros | reflect | replicate | circular")                                    \
    XX(num_groups, COUNT, "", "groups of the norm")                                                                  \
    XX(eps, REAL, "1e-05", "added to the variance inside the root")                                                  \
    XX(affine, BOOL, "True", "the norm has a weight and a bias per channel")                                         \
    XX(activation, ACTIVATION, "none", "none | relu | gelu | gelu_tanh | silu | mish | elu")                         \
    XX(sample_rate, RATE, "", "Hz of the sequences it was trained on")                                               \
    XX(conv, KEY, "", "key of the convolution's tensors, without \".weight\"")                                       \
    XX(norm, KEY, "", "key of the norm's tensors, without \".weight\"")                                              \
    XX(prefix, KEY, "", "only tensors under this key are looked at")

enum {
#define XX(name, kind, fallback, help) SET_##name,
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
