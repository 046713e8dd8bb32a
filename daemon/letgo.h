/* letgo.h: the list of what ZeroMQ let go of. Its free callback runs on any thread: it pushes one node here, wakes the
 * loop, and touches nothing else (flow.md 18). The loop takes the whole list at the beginning of a turn. */
#ifndef NCTD_LETGO_H
#define NCTD_LETGO_H
#include <stdatomic.h>

typedef struct letgo_node {
    struct letgo_node *next;
    struct letgo *list; /* set before the node is handed over */
} letgo_node;
typedef struct letgo {
    _Atomic(letgo_node *) head;
    void (*wake)(void *ctx); /* uv_async_send; any thread */
    void *ctx;
} letgo;

void letgo_push(letgo_node *n);   /* any thread; the node is the loop's afterwards */
letgo_node *letgo_take(letgo *l); /* loop thread: all of them, oldest first, NULL when none */
#endif
