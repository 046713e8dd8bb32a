/* ipcpath.h: the file system's side of an ipc endpoint. ZeroMQ would bind over anything, and of two daemons on one path
 * the first loses its clients without a word: so a lock stands beside the path, and nothing is deleted but a stale
 * socket of ours. The path's folder is made when only its last part is missing. At start and at the end, main thread. */
#ifndef NCTD_IPCPATH_H
#define NCTD_IPCPATH_H
#include <sys/types.h>
#include "zsock.h"

typedef struct {
    char path[108]; /* "": nothing claimed (tcp, inproc, abstract) */
    int lock_fd;
    bool claimed; /* what stands at the path is, or will be, ours */
} ipcpath;

/* Claims the path of an ipc endpoint before it is bound. 0; -EADDRINUSE another daemon has it; -EEXIST something stands
 * there that is not our stale socket; -EACCES ...; with a sentence. */
int ipcpath_claim(ipcpath *p, const char *endpoint, zwhy *why);
/* After the bind: mode (octal text) and group ("" the process's own) of the socket. */
int ipcpath_open(const ipcpath *p, const char *mode, const char *group, zwhy *why);
/* After the socket closed: takes socket and lock file away. */
void ipcpath_release(ipcpath *p);
#endif
