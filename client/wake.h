/* wake.h: one level-triggered fd over ZeroMQ's edge-like ones, a timer and a "something waits" switch. One thread. */
#ifndef NCT_WAKE_H
#define NCT_WAKE_H
#include <stdint.h>

typedef struct wake wake;
int wake_new(wake **ret); /* 0 or -EMFILE, -ENOMEM */
void wake_free(wake *w);  /* NULL is fine */
int wake_fd(const wake *w);
/* The fds to watch from now on, -1: none. Needed after each new socket, also when the numbers are the same. */
void wake_watch(wake *w, const int fds[2]);
/* Readable now (pending) or at due_ns of CLOCK_MONOTONIC (INT64_MAX: never). */
void wake_set(wake *w, int pending, int64_t due_ns);
#endif
