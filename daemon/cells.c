/* cells.c: free lists by size class. Called by zsock (payloads of the queue) and the publisher (rows), loop thread. */
#include "cells.h"
#include <assert.h>
#include <stdlib.h>

struct cell {
    struct cell *next;
};

/* 0 for up to 256 bytes, 1 for up to 512, ...; CELLS_CLASSES for what is not pooled. */
static int class_of(size_t bytes) {
    int k = 0;
    if (bytes > CELLS_MAX) return CELLS_CLASSES;
    while (((size_t)256 << k) < bytes) k++;
    return k;
}

static size_t room(size_t bytes) {
    int k = class_of(bytes);
    return k < CELLS_CLASSES ? (size_t)256 << k : (bytes + 63) / 64 * 64;
}

void *cells_take(cells *c, size_t bytes) {
    int k = class_of(bytes);
    struct cell *p = k < CELLS_CLASSES ? c->free[k] : NULL;
    if (p)
        c->free[k] = p->next;
    else
        p = aligned_alloc(64, room(bytes));
    if (p) c->bytes += room(bytes);
    return p;
}

void cells_give(cells *c, void *p, size_t bytes) {
    int k = class_of(bytes);
    if (!p) return;
    c->bytes -= room(bytes);
    if (k == CELLS_CLASSES) {
        free(p);
        return;
    }
    struct cell *cell = p;
    cell->next = c->free[k];
    c->free[k] = cell;
}

void cells_done(cells *c) {
    assert(c->bytes == 0);
    for (int k = 0; k < CELLS_CLASSES; k++)
        for (struct cell *p = c->free[k], *after; p; p = after) {
            after = p->next;
            free(p);
        }
}
