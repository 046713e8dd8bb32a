/* letgo.c: a Treiber stack that is only ever taken whole, so no node can come back while another thread looks at it
 * (no ABA). Pushed to by ZeroMQ's I/O threads, taken by the loop. */
#include "letgo.h"
#include <stddef.h>

void letgo_push(letgo_node *n) {
    letgo *l = n->list;
    letgo_node *head = atomic_load_explicit(&l->head, memory_order_relaxed);
    do n->next = head;
    while (!atomic_compare_exchange_weak_explicit(&l->head, &head, n, memory_order_release, memory_order_relaxed));
    /* A list that was not empty has been announced already, and the loop has yet to come. */
    if (!head) l->wake(l->ctx);
}

letgo_node *letgo_take(letgo *l) {
    letgo_node *n = atomic_exchange_explicit(&l->head, NULL, memory_order_acquire), *oldest = NULL;
    while (n) {
        letgo_node *after = n->next;
        n->next = oldest;
        oldest = n;
        n = after;
    }
    return oldest;
}
