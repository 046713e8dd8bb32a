/* heap.h: a pairing heap of links inside its items: no memory of its own, push O(1), pop and remove O(log n)
 * amortised. Items with equal keys come in any order. One thread at a time. */
#ifndef NCTD_HEAP_H
#define NCTD_HEAP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct heap_node {
    struct heap_node *child, *next, *prev; /* prev: the left sibling, or the parent of a first child */
    uint64_t key;
} heap_node;
typedef struct {
    heap_node *top; /* smallest key, NULL when empty */
} heap;

void heap_push(heap *h, heap_node *n, uint64_t key); /* n must be in no heap */
void heap_remove(heap *h, heap_node *n);             /* n must be in h */

#define heap_item(node, type, member) ((type *)((char *)(node)-offsetof(type, member)))
#endif
