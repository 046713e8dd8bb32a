/* pool.c: worker threads that run one function together, with a barrier at the end of each run.
 *
 * Owns its threads; pool_run is called by one thread at a time, which works as worker 0. A run is announced
 * by raising `epoch`, and ends when `running` is back at 0. Between the phases of a job the next run follows
 * within microseconds, so both sides look for at most SPIN_NS before they sleep on a condition variable. With
 * fewer CPUs than workers a spinner only keeps the thread it waits for from running: then nobody spins. */
#include "pool.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORKERS_MAX = 256, SPIN_NS = 20000 };

typedef struct {
    pool *p;
    int32_t index;
    pthread_t thread;
} pool_worker;

struct pool {
    int32_t n_workers;
    int spins;  /* 0 or 1 */
    pool_fn fn; /* of the run that `epoch` counts: written before epoch is raised, read after it is seen */
    void *ctx;
    atomic_uint epoch;  /* runs announced so far */
    atomic_int running; /* threads still inside the current run */
    atomic_int stop;
    pthread_mutex_t lock; /* guards the two sleeps, nothing else */
    pthread_cond_t begin, end;
    pool_worker *workers; /* [n_workers - 1], worker i + 1 */
};

/* ---- how many ---- */

static int32_t affinity_cpus(void) {
    int32_t count = 0;
    for (int max = 1024; max <= 1 << 20 && count == 0; max *= 4) { /* EINVAL: the kernel's mask is longer */
        cpu_set_t *set = CPU_ALLOC(max);
        if (!set) return 1;
        size_t size = CPU_ALLOC_SIZE(max);
        int err = sched_getaffinity(0, size, set) ? errno : 0;
        if (!err) count = CPU_COUNT_S(size, set);
        CPU_FREE(set);
        if (err && err != EINVAL) break;
    }
    return count > 0 ? count : 1;
}

/* "max 100000" or "150000 100000" (microseconds of CPU a period): whole CPUs, rounded up; 0 without a limit.
 */
static int32_t cpu_max_read(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    char line[64];
    long long quota = 0, period = 0;
    if (!fgets(line, sizeof line, file) || sscanf(line, "%lld %lld", &quota, &period) != 2) quota = 0;
    fclose(file);
    if (quota <= 0 || period <= 0) return 0;
    long long cpus = (quota + period - 1) / period;
    return cpus > WORKERS_MAX ? WORKERS_MAX : (int32_t)cpus;
}

/* The tightest cpu.max from this process's cgroup (v2: the "0::" line) up to the root; 0 without any. */
static int32_t cgroup_cpus(void) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return 0;
    char line[2048], path[2200];
    int found = 0;
    while (!found && fgets(line, sizeof line, file)) found = !strncmp(line, "0::/", 4);
    fclose(file);
    if (!found) return 0;
    char *group = line + 3;
    group[strcspn(group, "\n")] = 0;
    int32_t least = 0;
    for (;;) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        int32_t cpus = cpu_max_read(path);
        if (cpus && (!least || cpus < least)) least = cpus;
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

int32_t pool_default_workers(void) {
    int32_t cpus = affinity_cpus(), limit = cgroup_cpus();
    if (limit && limit < cpus) cpus = limit;
    return cpus > WORKERS_MAX ? WORKERS_MAX : cpus;
}

/* ---- waiting ---- */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int run_waits(pool *p, unsigned seen) {
    return atomic_load_explicit(&p->epoch, memory_order_acquire) == seen && !atomic_load(&p->stop);
}

static int end_waits(pool *p, unsigned unused) {
    (void)unused;
    return atomic_load_explicit(&p->running, memory_order_acquire) > 0;
}

/* Returns when waits(p, seen) is 0: looks for SPIN_NS, then sleeps on `cond`. */
static void pool_wait(pool *p, int (*waits)(pool *, unsigned), unsigned seen, pthread_cond_t *cond) {
    if (p->spins) {
        int64_t until = now_ns() + SPIN_NS;
        do {
            for (int i = 0; i < 16; i++) {
                if (!waits(p, seen)) return;
                cpu_relax();
            }
        } while (now_ns() < until);
    }
    pthread_mutex_lock(&p->lock);
    while (waits(p, seen)) pthread_cond_wait(cond, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* ---- the threads ---- */

static void *worker_main(void *arg) {
    pool_worker *w = arg;
    pool *p = w->p;
    for (unsigned seen = 0;; seen++) {
        pool_wait(p, run_waits, seen, &p->begin);
        if (atomic_load(&p->stop)) return NULL;
        p->fn(p->ctx, w->index, p->n_workers);
        if (atomic_fetch_sub_explicit(&p->running, 1, memory_order_acq_rel) > 1) continue;
        pthread_mutex_lock(&p->lock); /* the caller is either before its look under the lock, or asleep */
        pthread_cond_signal(&p->end);
        pthread_mutex_unlock(&p->lock);
    }
}

void pool_run(pool *p, pool_fn fn, void *ctx) {
    if (p->n_workers == 1) {
        fn(ctx, 0, 1);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    atomic_store_explicit(&p->running, p->n_workers - 1, memory_order_relaxed);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->epoch, 1, memory_order_release);
    pthread_cond_broadcast(&p->begin);
    pthread_mutex_unlock(&p->lock);
    fn(ctx, 0, p->n_workers);
    pool_wait(p, end_waits, 0, &p->end);
}

/* Ends and joins the first n threads, then frees the pool. */
static void pool_end(pool *p, int32_t n) {
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, 1);
    pthread_cond_broadcast(&p->begin);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < n; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->end);
    pthread_cond_destroy(&p->begin);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p);
}

/* Signals are for the caller's threads: a worker inherits a mask with all of them blocked. */
static int threads_start(pool *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int32_t n = 0;
    int err = 0;
    for (; n < p->n_workers - 1; n++) {
        p->workers[n] = (pool_worker){.p = p, .index = n + 1};
        err = pthread_create(&p->workers[n].thread, NULL, worker_main, &p->workers[n]);
        if (err) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err) pool_end(p, n);
    return -err;
}

int pool_new(pool **ret, int32_t n_workers) {
    if (!ret || n_workers < 1 || n_workers > WORKERS_MAX) return -EINVAL;
    pool *p = calloc(1, sizeof *p);
    if (!p) return -ENOMEM;
    p->n_workers = n_workers;
    p->spins = n_workers <= affinity_cpus();
    p->workers = calloc((size_t)n_workers, sizeof *p->workers);
    if (!p->workers) {
        free(p);
        return -ENOMEM;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->begin, NULL);
    pthread_cond_init(&p->end, NULL);
    int err = threads_start(p);
    if (err) return err;
    *ret = p;
    return 0;
}

int32_t pool_workers(const pool *p) {
    return p->n_workers;
}

void pool_free(pool *p) {
    if (p) pool_end(p, p->n_workers - 1);
}
