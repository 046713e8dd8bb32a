/* choose.h: what computes: the GPUs that work here, or the CPU. Before anything is opened; main alone calls it. */
#ifndef NCTD_CHOOSE_H
#define NCTD_CHOOSE_H
#include "config.h"
#include "nct_layer.h"

#define GPUS_MAX 16

typedef struct {
    bool cuda;         /* one engine per GPU; else engine.instances CPU engines */
    int32_t n_devices; /* GPUs, ordinals 0 .. n-1 */
    int32_t precision; /* nct_precision */
} chosen;

/* Looks for GPUs as engine.engine says (`cpu` never touches the driver), says loudly what `auto` took, and checks the
 * keys that depend on it. -ENODEV, -EINVAL with a sentence. Must run before there are threads: it forks. */
int choose(chosen *ret, const config *c, nct_why *why);
const char *precision_name(int32_t precision); /* "tf32" */
#endif
