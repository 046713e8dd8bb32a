/* parting.h: the last of a connection, when ZeroMQ has written everything and ended.
 *
 * Were it closed while its peer has something unread, that could be lost, though it was delivered: over tcp, a peer that still
 * sends is answered with a reset, at which its kernel discards its input; on both, libzmq takes the hang-up for the end of a
 * connection whose input it had stopped (its program is slow), and does not read the rest. So each is told that nothing more
 * comes (SHUT_WR), and what it sends is taken and dropped until it closes, too. */
#ifndef NCTD_PARTING_H
#define NCTD_PARTING_H
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    struct pollfd *fds;
    int n, room;
} parting; /* zero is empty */

/* Takes fd, a connected socket. 0, or -ENOMEM and it is closed. */
int parting_add(parting *p, int fd);
/* Blocks until every peer has closed, `until_ns` (CLOCK_MONOTONIC) has come or hurried() says true (asked every 20 ms); then
 * the rest is closed, and *p is empty again. */
void parting_end(parting *p, uint64_t until_ns, bool (*hurried)(void));
#endif
