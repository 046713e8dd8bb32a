/* load.h: a closed-loop client for the daemon's benches: it keeps `window` frames in flight, over a raw DEALER, and
 * counts every answer. It speaks to nctd (HELLO first) or to an echo of the same messages alike, so both are measured
 * by the same code. One thread a client; no allocation and no copy a frame on its own side. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "hist.h"

enum { LOAD_WINDOW_MAX = 64 };
typedef struct {
    void *zmq; /* context */
    char endpoint[128];
    bool nctd; /* HELLO, WELCOME; results are checked against `want_bytes` */
    char model[32], stream[32];
    uint32_t channels, steps; /* f32 */
    uint32_t spread;          /* 0: all frames alike; else T runs over steps, steps - 1, ..., steps - spread */
    int window;
    const void *payload; /* channels * steps samples, shared by all clients */
    atomic_int *phase;   /* 0 warm up, 1 measure, 2 finish: answers to what is in flight are waited for */
    /* what happened; read after the thread ended */
    uint64_t sent, answered, results, errors; /* in all */
    uint64_t measured;                        /* results in phase 1 */
    hist *latency;                            /* ns, phase 1; NULL: not kept */
    char failure[256];                        /* empty, or why the client gave up */
} load_client;

void *load_run(void *client); /* a thread's function; returns NULL */
uint64_t load_now_ns(void);
/* A child: execv with stderr to `log` (NULL: ours). Its pid, or -1. */
int load_spawn(char *const argv[], const char *log);
/* CPU time and resident memory of a process from /proc; 0 or -1. */
int load_usage(int pid, double *ret_cpu_s, uint64_t *ret_rss_bytes);
/* The JSON members every line of results begins with: `"date":..,"hardware":..,"cores":..,"command":..`, folders left
 * out of the command. Lives as long as the process; main thread only. */
const char *load_origin(int argc, char **argv);
#endif
