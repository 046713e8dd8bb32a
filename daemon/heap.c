/* heap.c: a pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986). Called by the batcher on the loop
 * thread, for the oldest stream of a queue and for the next ttl. Owns nothing. */
#include "heap.h"

/* Both are roots; the larger becomes the first child of the smaller. */
static heap_node *meld(heap_node *a, heap_node *b) {
    if (!a) return b;
    if (!b) return a;
    if (b->key < a->key) {
        heap_node *t = a;
        a = b;
        b = t;
    }
    b->prev = a;
    b->next = a->child;
    if (a->child) a->child->prev = b;
    a->child = b;
    return a;
}

/* Two passes over a list of siblings: pairs from the left, then all together from the right. No recursion: a
 * list may hold every item. */
static heap_node *meld_siblings(heap_node *first) {
    heap_node *pairs = NULL, *root = NULL;
    while (first) {
        heap_node *a = first, *b = a->next;
        first = b ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b) b->next = b->prev = NULL;
        heap_node *pair = meld(a, b);
        pair->next = pairs;
        pairs = pair;
    }
    while (pairs) {
        heap_node *pair = pairs;
        pairs = pair->next;
        pair->next = NULL;
        root = meld(root, pair);
    }
    return root;
}

void heap_push(heap *h, heap_node *n, uint64_t key) {
    *n = (heap_node){.key = key};
    h->top = meld(h->top, n);
}

void heap_remove(heap *h, heap_node *n) {
    heap_node *below = meld_siblings(n->child);
    if (n == h->top) {
        h->top = below;
    } else {
        if (n->prev->child == n)
            n->prev->child = n->next;
        else
            n->prev->next = n->next;
        if (n->next) n->next->prev = n->prev;
        h->top = meld(h->top, below);
    }
    *n = (heap_node){0};
}
