/* bench_sub.c: `nct bench`'s subscriber: when each result reaches whoever listens, against the same moment as the answer.
 * Called by bench_run.c, on a thread of its own. */
#include "bench.h"
#include <stdio.h>
#include <string.h>

void *bench_listen(void *ctx) {
    bench *b = ctx;
    char prefix[32];
    nct_answer a;
    int n = snprintf(prefix, sizeof prefix, "bench-%u-", b->level.number);
    while (!atomic_load(&b->finished)) {
        if (nct_sub_recv(b->sub, 20, &a)) continue;
        uint64_t now = bench_now_ns(), due = (uint64_t)(a.t_capture_ns - b->unix_ns);
        if (!strncmp(a.stream, prefix, (size_t)n)) {
            if (due >= b->warm_from_ns) hist_add(&b->sum.heard_after, now > due ? now - due : 0);
            atomic_fetch_add(&b->heard, 1);
        }
        nct_release(&a);
    }
    return NULL;
}
