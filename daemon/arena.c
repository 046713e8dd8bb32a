/* arena.c: first-fit runs of 32 KiB pages in a bitmap of what is free. Owns one mmap, touched when made, so
 * that the first results do not pay for it (300 MiB of first touch: 0.9 s). Called by the engine (take) and
 * the publisher (give) on the loop thread; knows nothing of what stands in the pages. A search costs
 * O(words): 64 words for the default 128 MiB, and it starts at the lowest word that may have a free page. */
#include "arena.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

struct arena {
    char *base;
    size_t bytes;
    uint32_t n_pages, n_free, n_words;
    uint32_t low;    /* no free page in a word below this one */
    uint64_t *words; /* bit set: the page is free; bits past n_pages are never set */
};

/* Set (or clear) n bits from `first` on. Each must be the other way round before: a page given twice is our
 * mistake. */
static void mark(arena *a, uint32_t first, uint32_t n, int set) {
    while (n > 0) {
        uint32_t bit = first % 64, len = 64 - bit < n ? 64 - bit : n;
        uint64_t mask = (len == 64 ? ~0ull : (1ull << len) - 1) << bit;
        uint64_t *w = &a->words[first / 64];
        assert((*w & mask) == (set ? 0 : mask));
        *w = set ? *w | mask : *w & ~mask;
        first += len;
        n -= len;
    }
}

int arena_new(arena **ret, size_t bytes) {
    size_t n_pages = bytes / ARENA_PAGE;
    int error = -ENOMEM;
    if (n_pages == 0 || n_pages > INT32_MAX) return -EINVAL;
    arena *a = calloc(1, sizeof *a);
    if (!a) return -ENOMEM;
    a->n_pages = a->n_free = (uint32_t)n_pages;
    a->n_words = (a->n_pages + 63) / 64;
    a->bytes = n_pages * ARENA_PAGE;
    a->words = calloc(a->n_words, sizeof *a->words);
    if (!a->words) goto fail_words;
    a->base = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a->base == MAP_FAILED) {
        error = -errno;
        goto fail_map;
    }
    madvise(a->base, a->bytes, MADV_HUGEPAGE); /* before the first touch: channels lie pages apart */
    for (size_t at = 0; at < a->bytes; at += ARENA_PAGE / 8) a->base[at] = 0;
    mark(a, 0, a->n_pages, 1);
    *ret = a;
    return 0;
fail_map:
    free(a->words);
fail_words:
    free(a);
    return error;
}

void arena_free(arena *a) {
    if (!a) return;
    assert(a->n_free == a->n_pages);
    munmap(a->base, a->bytes);
    free(a->words);
    free(a);
}

void *arena_base(const arena *a) {
    return a->base;
}
size_t arena_bytes(const arena *a) {
    return a->bytes;
}
uint32_t arena_pages_free(const arena *a) {
    return a->n_free;
}

/* The first page at or after `from` that is free (want = 1) or taken (want = 0); n_pages when there is none.
 */
static uint32_t next_page(const arena *a, uint32_t from, int want) {
    uint32_t w = from / 64;
    if (from >= a->n_pages) return a->n_pages;
    uint64_t bits = (want ? a->words[w] : ~a->words[w]) & (~0ull << (from % 64));
    while (!bits) {
        if (++w == a->n_words) return a->n_pages;
        bits = want ? a->words[w] : ~a->words[w];
    }
    uint32_t page = w * 64 + (uint32_t)__builtin_ctzll(bits);
    return page < a->n_pages ? page : a->n_pages;
}

int64_t arena_take(arena *a, uint32_t n_pages) {
    assert(n_pages > 0);
    if (n_pages > a->n_free) return -ENOSPC;
    uint32_t first = next_page(a, a->low * 64, 1);
    a->low = first / 64;
    while (first < a->n_pages) {
        uint32_t end = next_page(a, first, 0);
        if (end - first >= n_pages) {
            mark(a, first, n_pages, 0);
            a->n_free -= n_pages;
            return first;
        }
        first = next_page(a, end, 1);
    }
    return -ENOSPC;
}

void arena_give(arena *a, uint32_t first, uint32_t n_pages) {
    assert((uint64_t)first + n_pages <= a->n_pages);
    mark(a, first, n_pages, 1);
    a->n_free += n_pages;
    if (first / 64 < a->low) a->low = first / 64;
}
