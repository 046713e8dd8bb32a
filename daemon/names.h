/* names.h: texts as keys of a map: 128 bits of SipHash under a key drawn at start, so that no peer can make two names
 * meet, or crowd a bucket. */
#ifndef NCTD_NAMES_H
#define NCTD_NAMES_H
#include <stddef.h>

typedef struct {
    const void *a, *b; /* for map_find and map_add */
} name_key;

int names_init(void); /* once, before threads; 0 or -EIO */
name_key name_hash(const void *text, size_t len);
#endif
