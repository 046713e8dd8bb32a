/* json_in.h: JSON that a peer sent: an object of at most 64 KiB, each name once. */
#ifndef NCTD_JSON_IN_H
#define NCTD_JSON_IN_H
#include <jansson.h>
#include <stddef.h>

/* Empty bytes read as {}. 0 and *ret (json_decref it); -EMSGSIZE or -EINVAL with a sentence that names `what`. */
int json_in(json_t **ret, const void *bytes, size_t len, const char *what, char *why, size_t why_size);
#endif
