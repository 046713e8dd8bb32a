/* map.h: a hash of pairs of addresses, chained through links inside its items. It never fails: without memory to grow
 * its chains get longer. One thread at a time. */
#ifndef NCTD_MAP_H
#define NCTD_MAP_H
#include <stddef.h>

typedef struct map_link {
    struct map_link *next;
    const void *a, *b;
} map_link;
typedef struct {
    map_link **buckets;
    size_t n_buckets, n; /* a power of two */
} map;

int map_init(map *m, size_t n_buckets); /* a power of two; 0 or -ENOMEM */
void map_done(map *m);                  /* the items are the caller's */
map_link *map_find(const map *m, const void *a, const void *b);
void map_add(map *m, map_link *l, const void *a, const void *b); /* the pair is not there yet */
void map_remove(map *m, map_link *l);
#endif
