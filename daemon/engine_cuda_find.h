/* engine_cuda_find.h: which GPUs can compute here. Only in builds with CUDA. */
#ifndef NCTD_ENGINE_CUDA_FIND_H
#define NCTD_ENGINE_CUDA_FIND_H
#include "choose.h"

typedef struct {
    int32_t n;
    struct {
        char name[64];
        int32_t cc; /* 90 */
        uint64_t bytes;
    } at[GPUS_MAX];
} gpu_list;

/* Asks the driver in a child process, so that one that hangs, aborts or was not ready when first asked leaves no trace in
 * this one; then runs one kernel of ours on each device. Tries again for wait_ms while the answer may still change.
 * -ENODEV with the reason and what to do; -ETIMEDOUT the driver does not answer. Single-threaded process. */
int gpus_find(gpu_list *ret, uint32_t wait_ms, nct_why *why);
#endif
