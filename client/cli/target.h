/* target.h: where an output goes: a file that appears when whole, or a stream. Used by output.c and plot.c. */
#ifndef NCT_CLI_TARGET_H
#define NCT_CLI_TARGET_H
#include <stdint.h>
#include "nct_layer.h"

typedef struct {
    int fd;          /* written to; seekable unless `live` */
    int stream;      /* stdout, pipe or device: its descriptor; -1: a file */
    char *path;      /* file: the final name, symbolic links resolved */
    char *temporary; /* file: name so far; NULL: none (O_TMPFILE) */
} target;

int target_is_stream(const char *path); /* "-", or something there that is neither a file nor a folder */
/* The name behind symbolic links, whether a file is there or not: what is written replaces that one, not the link. malloc'ed;
 * NULL: links in a circle, or no memory. */
char *target_real(const char *path);
/* path "-": stdout. live: a stream gets the bytes at once instead of when whole. 0 or -errno with a sentence. */
int target_open(target *t, const char *path, int live, nct_why *why);
int target_finish(target *t, nct_why *why); /* 0 or -errno; nothing of a failed file stays */
void target_abort(target *t);
#endif
