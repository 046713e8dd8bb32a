/* weights_memory.h: memory for weights, on the host: large blocks that live long and are replaced by others of their size. From
 * 1 MiB up they are pages of the system's own, which go back with the block: glibc before 2.38 does not use an aligned
 * block again for a request of its size (its bug 14581), and 40 reloads of a model of 14 MiB took 1 GiB. They ask for
 * huge pages, whole ones: weights are read from end to end for every tile, and a page of 4 KiB each 64 lines costs a
 * third of the time in a virtual machine. 256-byte aligned. Inside kernels/ alone; any thread. */
#ifndef NCT_WEIGHTS_MEMORY_H
#define NCT_WEIGHTS_MEMORY_H
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MEMORY_ALIGN ((size_t)256)
#define MEMORY_HUGE  ((size_t)2 << 20)
#ifdef __SANITIZE_ADDRESS__
    #define MEMORY_PAGES SIZE_MAX /* malloc's, that is watched */
#else
    #define MEMORY_PAGES ((size_t)1 << 20)
#endif

/* `bytes`, a multiple of MEMORY_HUGE, of pages at such a multiple. NULL without memory. */
static inline void *memory_map(size_t bytes) {
    size_t room = bytes + MEMORY_HUGE; /* some of it in front or behind goes back */
    if (room < bytes) return NULL;
    char *map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return NULL;
    size_t before = (MEMORY_HUGE - (uintptr_t)map % MEMORY_HUGE) % MEMORY_HUGE;
    if (before) munmap(map, before);
    munmap(map + before + bytes, MEMORY_HUGE - before);
    madvise(map + before, bytes, MADV_HUGEPAGE); /* refused: small pages do */
    return map + before;
}

/* NULL without memory. */
static inline void *memory_new(size_t bytes) {
    size_t whole = (bytes + 2 * MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN; /* its size stands in front */
    if (whole < bytes) return NULL;
    int pages = whole >= MEMORY_PAGES;
    if (pages) whole = (whole + MEMORY_HUGE - 1) / MEMORY_HUGE * MEMORY_HUGE;
    size_t *at = pages && whole ? memory_map(whole) : aligned_alloc(MEMORY_ALIGN, whole);
    if (!at) return NULL;
    *at = whole;
    return (char *)at + MEMORY_ALIGN;
}

/* What memory_new gave; NULL is fine. */
static inline void memory_free(const void *p) {
    if (!p) return;
    size_t *at = (size_t *)(void *)((char *)(size_t)p - MEMORY_ALIGN);
    if (*at < MEMORY_PAGES)
        free(at);
    else
        munmap(at, *at);
}
#endif
