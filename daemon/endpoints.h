/* endpoints.h: the lists of endpoints in the configuration, and what would be refused at their bind, said before it. Any
 * thread. 0, or a negative errno with a sentence that names the key and the endpoint. */
#ifndef NCTD_ENDPOINTS_H
#define NCTD_ENDPOINTS_H
#include "config.h"
#include "zsock.h"

/* Each of a blank-separated list; stops at the first error. -EINVAL: an empty list. key: "ingest.endpoint". */
int endpoints_each(
    const char *key, const char *list, int (*fn)(void *ctx, const char *endpoint, zwhy *why), void *ctx, zwhy *why);
/* Syntax, and the rule that nothing beyond this host is bound without keys, unless ingest.insecure = yes. */
int endpoints_check(const config *c, zwhy *why);
/* For --check: also that an ipc path's folder is there or can be made (its last part alone), and that a tcp address is
 * one of this host's. Binds nothing that a running daemon could miss. */
int endpoints_try(const config *c, zwhy *why);
#endif
