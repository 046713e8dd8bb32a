/* cells.h: pooled memory for small payloads and small result rows, in classes of powers of two from 256 bytes to
 * 32 KiB; larger ones come from malloc. Freed cells are kept for the next one of their class: a daemon in steady state
 * allocates nothing. Loop thread. */
#ifndef NCTD_CELLS_H
#define NCTD_CELLS_H
#include <stddef.h>
#include <stdint.h>

#define CELLS_CLASSES 8
#define CELLS_MAX     32768u
typedef struct cells {
    struct cell *free[CELLS_CLASSES];
    size_t bytes; /* of all cells in use, in their class's size */
} cells;

void *cells_take(cells *c, size_t bytes);         /* 64-byte aligned; NULL without memory */
void cells_give(cells *c, void *p, size_t bytes); /* the size it was taken with; NULL is fine */
void cells_done(cells *c);                        /* all are back */
#endif
