/* arena.h: the out arena: pages of 32 KiB where results live until ZeroMQ let go of them. One mmap, made and
 * touched at start, (CUDA) registered; outlives every context. Allocation on the loop thread; arena_let_go on
 * any thread is done through publisher's let-go list, never here. */
#ifndef NCTD_ARENA_H
#define NCTD_ARENA_H
#include <stddef.h>
#include <stdint.h>
#define ARENA_PAGE 32768u
typedef struct arena arena;
int arena_new(arena **ret, size_t bytes); /* rounded down to whole pages; -ENOMEM, -EINVAL under one page */
void arena_free(arena *a);                /* all pages must be back */
void *arena_base(const arena *a);
size_t arena_bytes(const arena *a);
/* A run of n pages in one piece; its first page, or -ENOSPC. */
int64_t arena_take(arena *a, uint32_t n_pages);
void arena_give(arena *a, uint32_t first, uint32_t n_pages);
uint32_t arena_pages_free(const arena *a);
#endif
