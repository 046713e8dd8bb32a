/* bench.h: what the files of `nct bench` share. Internal. */
#ifndef NCT_CLI_BENCH_H
#define NCT_CLI_BENCH_H
#include "hist.h"
#include "served.h"

enum { BENCH_CLIENTS_MAX = 256, BENCH_SIZES_MAX = 16 };

typedef struct {
    const char *endpoint, *name;
    double rate, seconds, warmup_s, drain_s, ttl_ms, timeout_s;
    uint64_t streams, clients, seed, pending;
    uint64_t steps[BENCH_SIZES_MAX];
    int n_steps, poisson, no_reply, json;
} bench_options;

/* A frame that was due and waits for a place in its client's window. */
typedef struct {
    uint64_t due_ns, number;
} bench_due;

typedef struct {
    nct *c;
    bench_due *waiting; /* ring of o.pending */
    uint64_t head, n_waiting;
} bench_client;

typedef struct {
    bench_options o;
    served daemon;
    const served_model *model;
    bench_client clients[BENCH_CLIENTS_MAX];
    float *payload; /* C_in x the longest */
    uint64_t due, sent, ok, refused, expired, failed, dropped, unanswered, warm_from_ns, began_ns;
    uint64_t ended_ns;
    hist latency; /* from the scheduled send to the answer */
    hist service; /* from the real send to the answer */
    hist lag;     /* of this program: a frame was due and could have been sent, but the program was late */
    hist waited;  /* for a place in the window */
    char refusal[256];
    json_t *ledger_before, *ledger_after;
} bench;

void bench_report(const bench *b);
#endif
