/* wake.c: the pollable fd of a handle: an epoll over ZMQ_FD of socket and monitor, an eventfd and a timerfd.
 *
 * ZMQ_FD alone is a trap: it is readable only until someone looks at ZMQ_EVENTS, whether messages are left or not. So
 * each call ends with a look (which clears the edge), and what is left then is told by the eventfd. Owned by nct.c and
 * nct_sub.c, on the caller's thread. */
#include "wake.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

struct wake {
    int epoll, event, timer, fds[2];
    int pending;
    int64_t due_ns;
};

static int add(wake *w, int fd) {
    struct epoll_event e = {.events = EPOLLIN};
    return epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

int wake_new(wake **ret) {
    wake *w = malloc(sizeof *w);
    if (!w) return -ENOMEM;
    *w = (wake){.fds = {-1, -1}, .due_ns = INT64_MAX};
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (w->epoll < 0 || w->event < 0 || w->timer < 0 || add(w, w->event) || add(w, w->timer)) {
        wake_free(w);
        return -EMFILE;
    }
    *ret = w;
    return 0;
}

void wake_free(wake *w) {
    if (!w) return;
    if (w->timer >= 0) close(w->timer);
    if (w->event >= 0) close(w->event);
    if (w->epoll >= 0) close(w->epoll);
    free(w);
}

int wake_fd(const wake *w) {
    return w->epoll;
}

/* An old fd was closed by libzmq, which takes it out of the epoll, or its number was used again for a new one: removing
 * first and adding anew is right in every case. */
void wake_watch(wake *w, const int fds[2]) {
    for (int i = 0; i < 2; i++) {
        if (w->fds[i] >= 0) epoll_ctl(w->epoll, EPOLL_CTL_DEL, w->fds[i], NULL);
        w->fds[i] = -1;
    }
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0 && !add(w, fds[i])) w->fds[i] = fds[i];
}

void wake_set(wake *w, int pending, int64_t due_ns) {
    if (pending != w->pending) {
        uint64_t n = 1;
        ssize_t r = pending ? write(w->event, &n, sizeof n) : read(w->event, &n, sizeof n);
        if (r == (ssize_t)sizeof n) w->pending = pending;
    }
    if (due_ns != w->due_ns) {
        struct itimerspec at = {.it_value = {0, 0}};
        if (due_ns != INT64_MAX)
            at.it_value = (struct timespec){due_ns / 1000000000, due_ns > 0 ? due_ns % 1000000000 : 1};
        if (!timerfd_settime(w->timer, TFD_TIMER_ABSTIME, &at, NULL)) w->due_ns = due_ns;
    }
}
