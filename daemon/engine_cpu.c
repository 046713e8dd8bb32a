/* engine_cpu.c: the CPU backend: one dispatcher thread per engine, which is worker 0 of the engine's pool. The loop
 * queues filled slots to it; it runs each job's phases in order of launch and reports through engine_done(). Owns the
 * two threads' meeting place, the pool, and how slot memory is made; checks nothing that engine.c or the layer did. */
#include "engine_own.h"
#include "pool.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    pool *workers;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    slot *first, **end; /* launched, not begun; through slot.next_done, which is unused until then */
    bool stop;
    uint64_t turn; /* loop thread: the turn that here_ns is left of */
    int64_t here_ns;
} cpu;

/* Up to here a job is done by its launch, on the loop thread, as long as a turn's time for that lasts: two thread hops
 * cost more than the work (a frame of (2, 480) alone came back after 69 us instead of 112, at half the CPU time). And
 * below SHARE_NS one worker does it alone: waking the others, and what they spin, took 24 % of the daemon's time. */
enum { HERE_NS = 20000, HERE_TURN_NS = 300000, SHARE_NS = 50000 };

typedef struct {
    slot *s;
    int32_t phase;
    _Atomic(int) error;
} phase_run;

static void run_phase(void *ctx, int32_t worker, int32_t n_workers) {
    phase_run *r = ctx;
    int error = nct_phase(&r->s->layer, 1, &r->s->job, r->phase, worker, n_workers);
    if (error) atomic_store(&r->error, error);
}

static int run_job(cpu *c, slot *s) {
    phase_run r = {.s = s};
    for (; r.phase < s->n_phases && !r.error; r.phase++) {
        if (s->n_workers == 1)
            run_phase(&r, 0, 1);
        else
            pool_run(c->workers, run_phase, &r);
    }
    return r.error;
}

static slot *next_slot(cpu *c) {
    pthread_mutex_lock(&c->lock);
    while (!c->first && !c->stop) pthread_cond_wait(&c->more, &c->lock);
    slot *s = c->first;
    if (s) {
        c->first = s->next_done;
        if (!c->first) c->end = &c->first;
    }
    pthread_mutex_unlock(&c->lock);
    return s;
}

static void *dispatch(void *ctx) {
    cpu *c = ctx;
    for (slot *s; (s = next_slot(c));) engine_done(s, run_job(c, s));
    return NULL;
}

/* Time of the job on one worker by a rough count: 40 GFLOP/s and 8 GB/s. Above SHARE_NS by its bytes alone it is not
 * looked at closer. */
static int64_t estimate_ns(const slot *s) {
    nct_report r;
    int64_t bytes_ns = (int64_t)(s->x_bytes + s->y_bytes) / 8;
    if (bytes_ns >= SHARE_NS || nct_explain(&s->layer, 1, &s->job, 0, &r, NULL)) return SHARE_NS;
    return bytes_ns + (int64_t)(r.flop / 40);
}

static bool here(engine *e, cpu *c, int64_t ns) {
    if (e->n_turns != c->turn) {
        c->turn = e->n_turns;
        c->here_ns = HERE_TURN_NS;
    }
    if (ns > HERE_NS || ns > c->here_ns || e->in_flight > 1) return false;
    c->here_ns -= ns;
    return true;
}

static void enqueue(cpu *c, slot *s) {
    s->next_done = NULL;
    pthread_mutex_lock(&c->lock);
    *c->end = s;
    c->end = &s->next_done;
    pthread_mutex_unlock(&c->lock);
    pthread_cond_signal(&c->more);
}

/* The job is checked here, on the loop thread, so that what is wrong with it is said in its answer. */
static int cpu_launch(engine *e, slot *s, nct_why *why) {
    cpu *c = e->backend;
    int64_t ns = estimate_ns(s);
    s->n_workers = ns < SHARE_NS ? 1 : e->n_workers;
    s->n_phases = nct_phases(&s->layer, 1, &s->job, s->n_workers, why);
    if (s->n_phases < 0) return s->n_phases;
    if (here(e, c, ns)) {
        s->error = run_job(c, s);
        s->t_done_ns = uv_hrtime();
        return ENGINE_DONE_HERE;
    }
    enqueue(c, s);
    return 0;
}

static int start_thread(cpu *c) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&c->thread, NULL, dispatch, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -error;
}

static int cpu_open(engine *e, nct_why *why) {
    int32_t threads = (int32_t)e->setup.cfg->engine.threads;
    if (threads == 0) threads = pool_default_workers() / (int32_t)e->setup.cfg->engine.instances;
    e->n_workers = threads > 1 ? threads : 1;
    cpu *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(why->text, sizeof why->text, "no memory");
        return -ENOMEM;
    }
    c->end = &c->first;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->more, NULL);
    e->backend = c;
    int error = pool_new(&c->workers, e->n_workers);
    if (error) goto fail_pool;
    error = start_thread(c);
    if (error) goto fail_thread;
    return 0;
fail_thread:
    pool_free(c->workers);
fail_pool:
    free(c);
    snprintf(why->text, sizeof why->text, "engine.threads = %d workers cannot be started: %s", e->n_workers,
        strerror(-error));
    return error;
}

static void cpu_close(engine *e) {
    cpu *c = e->backend;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_mutex_unlock(&c->lock);
    pthread_cond_signal(&c->more);
    pthread_join(c->thread, NULL);
    pool_free(c->workers);
    pthread_cond_destroy(&c->more);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *cpu_alloc(engine *e, size_t bytes) {
    (void)e;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    madvise(p, bytes, MADV_HUGEPAGE); /* before the first touch */
    memset(p, 0, bytes);
    return p;
}
static void cpu_release(engine *e, void *p, size_t bytes) {
    (void)e;
    munmap(p, bytes);
}

const engine_ops engine_cpu_ops = {.name = "cpu",
    .in_place = true,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .launch = cpu_launch};
