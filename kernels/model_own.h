/* model_own.h: what the model*.c files share among themselves and with the fuzz target; any thread. */
#ifndef NCT_MODEL_OWN_H
#define NCT_MODEL_OWN_H
#include "model.h"
#include "safetensors.h"

/* model_load from a container in memory; `path` stands in messages. */
int model_from_tensors(model **ret, const safetensors *s, const model_setting *settings, int32_t n_settings,
    const char *path, nct_why *why);
/* Sets m->digest from everything else. 0 or -ENOMEM. */
int model_digest(model *m, nct_why *why);
/* What model_file_json returns, from a container in memory; NULL without memory. */
char *model_tensors_json(const safetensors *s);
#endif
