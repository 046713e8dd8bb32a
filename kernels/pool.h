/* pool.h: a few worker threads that run one function at a time on all of them, with a barrier at its end.
 *
 * What nctd, nct and the benches hand to nct_phase(). The caller of pool_run() is worker 0; the others wait on a
 * condition variable when idle (OpenMP was tried: one 10 us region every 5 ms costs 98 % of a core). Between the
 * phases of one job workers spin for at most 20 us, then sleep. */
#ifndef NCT_POOL_H
#define NCT_POOL_H
#include <stdint.h>
typedef struct pool pool;
typedef void (*pool_fn)(void *ctx, int32_t worker, int32_t n_workers);

/* How many workers suit this process: CPUs of sched_getaffinity, capped by the cgroup's CPU limit (cpu.max), >= 1. */
int32_t pool_default_workers(void);
/* Start n_workers - 1 threads (all signals blocked in them). n_workers in 1..256. 0, -EINVAL, -ENOMEM, -EAGAIN. */
int pool_new(pool **ret, int32_t n_workers);
int32_t pool_workers(const pool *p);
/* fn(ctx, worker, n_workers) once on every worker; returns when all returned. One caller at a time; any thread. */
void pool_run(pool *p, pool_fn fn, void *ctx);
void pool_free(pool *p); /* joins the threads; NULL is fine */
#endif
