/* private.h: a daemon of nct's own, for one `nct run`. It ends with nct, however nct ends: it sees EOF on its end of a
 * socketpair. Single-threaded. */
#ifndef NCT_CLI_PRIVATE_H
#define NCT_CLI_PRIVATE_H
#include <stdint.h>
#include <sys/types.h>
#include "nct_layer.h"

typedef struct {
    const char *model_file;    /* absolute or relative; borrowed */
    const char *const *params; /* "key=value" */
    int n_params;
    const char *engine;       /* "auto", "cpu", "cuda" */
    const char *precision;    /* "f32", "tf32", "bf16" */
    uint32_t threads;         /* 0: all */
    uint64_t max_frame_bytes; /* of an input and of a result */
    uint32_t window;          /* frames in flight */
} private_wish;

typedef struct {
    pid_t pid;
    int fd; /* our end; closing it ends the daemon */
    char folder[64], conf[96], socket[96];
    char endpoint[128];
} private_daemon;

/* Start `nctd` (beside nct's own binary, else from PATH) and wait until it is ready. 0, or a negative errno with a sentence:
 * -ENOENT no nctd, -EINVAL the daemon's own error (a model or a parameter), -ECHILD it ended without a word, -EINTR. */
int private_start(private_daemon *d, const private_wish *wish, nct_why *why);
int private_alive(const private_daemon *d); /* whether the process still runs */
/* It is gone, or its connection is: says how it ended ("... with code 3 before it was ready"), after waiting a moment for that.
 * The code is left to private_stop(). -ECHILD. */
int private_ended(const private_daemon *d, const char *when, nct_why *why);
/* End it and remove its folder. A zeroed one is fine. */
void private_stop(private_daemon *d);
#endif
