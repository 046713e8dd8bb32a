/* bench.h: what the files of `nct bench` share. Internal.
 *
 *     bench.c          options, one measurement or a search, exit code
 *     bench_knee.c     --find-knee: which levels are tried, and what holds
 *     bench_run.c      one run at one level: connections, threads, the ledger before and after, the sum
 *     bench_load.c     a thread's share of the schedule, its frames and its answers
 *     bench_sub.c      the subscriber's thread
 *     bench_mix.c      sizes, the objective (--slo), random numbers: what can be said without a daemon
 *     bench_report.c   figures, for people or as JSON
 *
 * The schedule is one list of frames, made from the options and the seed alone: frame n is due at a time, goes to a
 * stream and has a size whatever the answers do and however many threads send it. A stream belongs to one connection, a
 * connection to one thread. Latency counts from the time at which a frame was due, which is also its capture time on the
 * wire, so that answer and subscriber are measured against the same moment. */
#ifndef NCT_CLI_BENCH_H
#define NCT_CLI_BENCH_H
#include "hist.h"
#include "served.h"
#include <poll.h>
#include <stdatomic.h>

enum {
    BENCH_CLIENTS_MAX = 256,
    BENCH_THREADS_MAX = 32,
    BENCH_SIZES_MAX = 16,
    BENCH_SLOS_MAX = 4,
    BENCH_TRIES_MAX = 64
};

/* ---- what was asked for ------------------------------------------------------------------------------------- */
typedef struct {
    uint32_t steps;
    double weight; /* --mix: its share of the frames, of the weights' sum; --steps: unused, sizes come in turn */
} bench_size;

typedef struct {
    char name[16]; /* "p99", as it was written */
    double q;      /* 0..1; 1: the slowest frame */
    uint64_t limit_ns;
} bench_slo;

typedef struct {
    const char *endpoint, *name, *subscribe;
    double rate, every_s, seconds, warmup_s, drain_s, ttl_ms, timeout_s, lag_ms, within;
    uint64_t streams, clients, threads, seed, pending; /* clients 0: by the number of streams */
    bench_size sizes[BENCH_SIZES_MAX];
    bench_slo slos[BENCH_SLOS_MAX];
    int n_sizes, mixed, n_slos, poisson, no_reply, json, find_knee;
} bench_options;

/* ---- one run ------------------------------------------------------------------------------------------------ */
typedef struct {
    double rate; /* frames due a second, all streams together */
    uint64_t streams, clients;
    unsigned number; /* of the run: streams of different runs have different names */
} bench_level;

typedef struct {
    uint64_t due, sent, ok, refused, expired, failed, dropped, unanswered, reconnects;
    uint64_t last_ns; /* from the start of the schedule to the last answer */
    hist latency;     /* from the scheduled send to the answer */
    hist service;     /* from the real send to the answer */
    hist lag;         /* of this program: a frame was due and could have been sent, but the program was late */
    hist waited;      /* for a place in the window */
    hist heard_after; /* from the scheduled send to the subscriber */
    char refusal[256];
    int hopeless; /* a run of a search that ended early: its objective was missed already */
} bench_sum;

/* A frame that was due and waits for a place in its client's window. */
typedef struct {
    uint64_t due_ns, seq;
    uint32_t stream, steps;
} bench_due;

typedef struct {
    nct *c;
    bench_due *waiting; /* ring of o.pending */
    uint64_t head, n_waiting;
} bench_client;

typedef struct bench bench;

/* A thread: its share of the schedule. */
typedef struct {
    bench *b;
    uint64_t at, n_own; /* the connections at, at + n_workers, ... are its own */
    bench_client *own[BENCH_CLIENTS_MAX];
    struct pollfd fds[BENCH_CLIENTS_MAX];
    uint64_t late[BENCH_SLOS_MAX]; /* measured answers beyond each limit */
    bench_sum sum;
} bench_worker;

struct bench {
    bench_options o;
    bench_level level;
    served daemon;
    const served_model *model;
    bench_client clients[BENCH_CLIENTS_MAX];
    bench_worker *workers[BENCH_THREADS_MAX];
    uint64_t n_workers;
    uint64_t *seqs; /* by stream: the last one given */
    float *payload; /* C_in x the longest */
    nct_sub *sub;
    uint64_t began_ns, warm_from_ns; /* CLOCK_MONOTONIC */
    int64_t unix_ns;                 /* Unix time - CLOCK_MONOTONIC, at the start */
    atomic_int stop;                 /* a search's run is hopeless, or a worker failed */
    atomic_int finished;             /* for the subscriber */
    atomic_ullong heard;             /* results that it got, those of the warm-up too */
    bench_sum sum;                   /* of the last run */
    json_t *ledger_before, *ledger_after;
};

uint64_t bench_now_ns(void);
/* A limit of WELCOME's, or `standard` where it is not said. */
uint64_t bench_limit(const bench *b, const char *key, uint64_t standard);
/* The level of the next run; `rate` counts where --every does not. CLI_USAGE after a sentence: beyond the daemon's limits. */
int bench_set_level(bench *b, double rate, uint64_t streams);
/* Runs b->level; the figures are in b->sum. An exit code: not 0 when it could not be run. */
int bench_run(bench *b);
void *bench_load(void *worker); /* a thread's function */
void *bench_listen(void *b);    /* the same, of the subscriber */
void bench_stream_name(char ret[32], const bench_level *level, uint32_t stream);
uint64_t bench_unheard(const bench *b); /* --subscribe: measured results that the subscriber did not get */
uint64_t bench_lost(const bench *b);    /* frames without a good answer, and those */
/* The run's own lag is too large for its latencies to be the daemon's. */
int bench_lagged(const bench *b);

/* ---- sizes, objective, random numbers (bench_mix.c) ----------------------------------------------------------- */
int bench_take_steps(
    bench_options *o, const char *text);                /* "480,960": taken in turn. 0 or -EINVAL after a sentence */
int bench_take_mix(bench_options *o, const char *text); /* "480:90,48000:10": drawn by weight. The same */
int bench_take_slo(bench_options *o, const char *text); /* "p99=10ms,max=50ms". The same */
/* Steps of frame `number`. `o->seed` and the number decide, not how often it is asked. */
uint32_t bench_steps(const bench_options *o, uint64_t number);
double bench_uniform(uint64_t *state); /* [0, 1) */
/* The first limit that the run's answers, or with --subscribe its subscriber, missed; or NULL. Nothing measured misses. */
const bench_slo *bench_missed(const bench *b);

/* ---- the search (bench_knee.c) -------------------------------------------------------------------------------- */
typedef enum { KNEE_HOLDS, KNEE_MISSES, KNEE_LAGS } knee_verdict; /* LAGS: missed, and this program's lag was in it */
typedef struct {
    double level; /* streams, or frames/s */
    knee_verdict verdict;
    int tries;
    uint64_t lost, sent;
    double p50_ms, p99_ms, lag_ms; /* lag_ms: p99 */
    char why[160];
} knee_step;
typedef struct {
    knee_step steps[BENCH_TRIES_MAX];
    int n;
    double holds, misses; /* the highest that held and the lowest above it that did not; 0: none */
    int at_most;          /* the daemon's or this program's bound was reached and held */
} knee;
/* The next level to try from what was tried: `first` to begin with, doubled while it holds, halved while nothing does, then
 * between the two, until they are less than `within` apart. 0: done. Whole numbers with `whole`; `most` is never passed. */
double knee_next(const knee *k, double first, double most, double within, int whole);
void knee_add(knee *k, const knee_step *s);
const char *knee_limited_by(const knee *k); /* "the daemon", "this program" (late itself), "a limit", "nothing" */
int bench_knee(bench *b);                   /* the whole of --find-knee; an exit code */

/* ---- words (bench_report.c) ----------------------------------------------------------------------------------- */
void bench_report(const bench *b);
void knee_report(const bench *b, const knee *k);
/* What is to be said about this run on stderr, and the exit code that goes with it. */
int bench_verdict(const bench *b);
#endif
