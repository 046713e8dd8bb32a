/* parting.c: see parting.h. Filled by the ROUTER's end (zsock_conns.c) and ended by the drain, after the loop, on its
 * thread. Knows neither sessions nor messages. */
#include "parting.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#define LOOK_MS 20

int parting_add(parting *p, int fd) {
    if (p->n == p->room) {
        int room = p->room ? 2 * p->room : 16;
        struct pollfd *grown = realloc(p->fds, (size_t)room * sizeof *grown);
        if (!grown) {
            close(fd);
            return -ENOMEM;
        }
        p->fds = grown;
        p->room = room;
    }
    p->fds[p->n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    return 0;
}

static bool closed(int fd) {
    char dropped[1 << 16];
    ssize_t n = recv(fd, dropped, sizeof dropped, MSG_DONTWAIT);
    return !n || (n < 0 && errno != EAGAIN && errno != EINTR);
}

void parting_end(parting *p, uint64_t until_ns, bool (*hurried)(void)) {
    for (int i = 0; i < p->n; i++) shutdown(p->fds[i].fd, SHUT_WR);
    while (p->n && uv_hrtime() < until_ns && !hurried()) {
        if (poll(p->fds, (nfds_t)p->n, LOOK_MS) <= 0) continue;
        for (int i = p->n - 1; i >= 0; i--) {
            if (!p->fds[i].revents || !closed(p->fds[i].fd)) continue;
            close(p->fds[i].fd);
            p->fds[i] = p->fds[--p->n];
        }
    }
    for (int i = 0; i < p->n; i++) close(p->fds[i].fd);
    free(p->fds);
    *p = (parting){0};
}
