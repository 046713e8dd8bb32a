/* sizes.h: what a configuration will take, before it takes it: for --check, and for a start that must not be killed
 * half way. Pure but for /proc and the cgroup's files. */
#ifndef NCTD_SIZES_H
#define NCTD_SIZES_H
#include <stdint.h>
#include <stdio.h>
#include "config.h"

typedef struct {
    uint64_t queue, arena, slots, publish, total; /* bytes at most; publish: for one subscriber */
    uint64_t descriptors, descriptors_wanted;     /* the least; and enough to refuse a crowd with a sentence each */
} sizes;

void sizes_of(const config *c, sizes *ret);
/* -EINVAL a limit that cannot hold one frame of max_frame_bytes; -ENOMEM the host or cgroup is too small; -EMFILE
 * RLIMIT_NOFILE is (its soft limit is raised first); with a sentence that names the number. */
int sizes_check(const config *c, config_why *why);
/* Connections beyond max_clients that the descriptors allow; after sizes_check. */
uint32_t sizes_crowd(const config *c);
/* n_gpus 0: the CPU computes. workspace: bytes of a slot's, the largest over the models. */
void sizes_print(const config *c, int32_t n_gpus, size_t workspace, FILE *to);
#endif
