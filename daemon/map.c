/* map.c: see map.h. Owns the buckets alone; the batcher calls it on the loop thread. */
#include "map.h"
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

static size_t bucket(const map *m, const void *a, const void *b) {
    uint64_t h = (uint64_t)(uintptr_t)a * 0x9e3779b97f4a7c15ull + (uint64_t)(uintptr_t)b;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull; /* addresses differ in few, low bits */
    return (size_t)(h >> 32) & (m->n_buckets - 1);
}

int map_init(map *m, size_t n_buckets) {
    *m = (map){.n_buckets = n_buckets, .buckets = calloc(n_buckets, sizeof(map_link *))};
    return m->buckets ? 0 : -ENOMEM;
}

void map_done(map *m) {
    free(m->buckets);
    *m = (map){0};
}

map_link *map_find(const map *m, const void *a, const void *b) {
    map_link *l = m->buckets[bucket(m, a, b)];
    while (l && (l->a != a || l->b != b)) l = l->next;
    return l;
}

static void grow(map *m) {
    map next = {.n_buckets = m->n_buckets * 2, .n = m->n};
    next.buckets = calloc(next.n_buckets, sizeof(map_link *));
    if (!next.buckets) return;
    for (size_t i = 0; i < m->n_buckets; i++) {
        for (map_link *l = m->buckets[i], *after; l; l = after) {
            map_link **head = &next.buckets[bucket(&next, l->a, l->b)];
            after = l->next;
            l->next = *head;
            *head = l;
        }
    }
    free(m->buckets);
    *m = next;
}

void map_add(map *m, map_link *l, const void *a, const void *b) {
    if (m->n >= m->n_buckets) grow(m);
    map_link **head = &m->buckets[bucket(m, a, b)];
    *l = (map_link){.next = *head, .a = a, .b = b};
    *head = l;
    m->n++;
}

void map_remove(map *m, map_link *l) {
    map_link **at = &m->buckets[bucket(m, l->a, l->b)];
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    m->n--;
}
