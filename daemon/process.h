/* process.h: what the kernel says of this process. Any thread. */
#ifndef NCTD_PROCESS_H
#define NCTD_PROCESS_H
#include <stdint.h>

typedef struct {
    uint64_t cpu_ns, rss_bytes, virtual_bytes, fds, max_fds, threads;
    double started_s; /* Unix time */
} process_facts;
/* What cannot be read is 0. Some 50 us. */
void process_read(process_facts *ret);
#endif
