/* private.h: the other end of `nctd --private FD`: nct's socket pair. READY or the error goes out as one line of JSON;
 * its end of file, on any death of nct, ends the daemon. Main thread. */
#ifndef NCTD_PRIVATE_H
#define NCTD_PRIVATE_H
#include <uv.h>
#include "config.h"

typedef struct {
    int fd; /* -1: not private */
    uv_poll_t poll;
    void (*ended)(void *ctx);
    void *ctx;
} private_end;

/* Only an ipc endpoint, and no PUB. 0 or -EINVAL with a sentence. */
int private_check(const config *c, int fd, config_why *why);
void private_ready(const private_end *p, const char *endpoint);
void private_error(const private_end *p, const char *sentence);
int private_watch(private_end *p, uv_loop_t *loop);
/* nct may have died before it could: the folder it made for us goes, if nothing else is in it. */
void private_clean(const char *conf, const char *endpoint);
#endif
