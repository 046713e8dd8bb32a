/* sub_samples.h: published results as interleaved f32 on a descriptor. Internal to nct sub. */
#ifndef NCT_CLI_SUB_SAMPLES_H
#define NCT_CLI_SUB_SAMPLES_H
#include "nct.h"
#include "nct_layer.h"

typedef struct {
    int fd;
    uint32_t channels; /* of the first result; 0: none yet */
    float *block;
    size_t room;
    char topic[132];
} sub_samples;

/* 0; -EINVAL with a sentence: another stream or channel count than the first (one pipe carries one), or no samples of f32,
 * f16 or bf16; -EPIPE, -EIO, -ENOMEM. */
int sub_samples_write(sub_samples *s, const nct_answer *a, nct_why *why);
void sub_samples_done(sub_samples *s);
#endif
