/* notify.c: datagrams to the service manager. Owns one socket and the manager's address; main calls it on the
 * loop thread. Does not decide what is told: main and reload do. */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "notify.h"

static struct {
    int fd;
    struct sockaddr_un to;
    socklen_t to_bytes;
    uint64_t watchdog_ms;
} manager = {.fd = -1};

static void read_watchdog(void) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (usec && (!pid || strtol(pid, NULL, 10) == (long)getpid()))
        manager.watchdog_ms = strtoull(usec, NULL, 10) / 2000;
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

bool notify_init(void) {
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path ? strlen(path) : 0;
    read_watchdog();
    if (len < 2 || len >= sizeof manager.to.sun_path || (*path != '/' && *path != '@')) return false;
    manager.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (manager.fd < 0) return false;
    setsockopt(manager.fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_usec = NOTIFY_WAIT_MS * 1000},
        sizeof(struct timeval));
    manager.to = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(manager.to.sun_path, path, len);
    if (*path == '@') manager.to.sun_path[0] = 0; /* abstract name */
    manager.to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    unsetenv("NOTIFY_SOCKET");
    return true;
}

static int send_text(int flags, const char *format, va_list args) {
    char text[2048];
    if (manager.fd < 0) return 0;
    int n = vsnprintf(text, sizeof text, format, args);
    if (n < 0 || (size_t)n >= sizeof text) return -EMSGSIZE;
    ssize_t sent =
        sendto(manager.fd, text, (size_t)n, MSG_NOSIGNAL | flags, (struct sockaddr *)&manager.to, manager.to_bytes);
    return sent < 0 ? -errno : 0;
}

int notify_send(const char *format, ...) {
    va_list args;
    va_start(args, format);
    int error = send_text(0, format, args);
    va_end(args);
    return error;
}

int notify_hint(const char *format, ...) {
    va_list args;
    va_start(args, format);
    int error = send_text(MSG_DONTWAIT, format, args);
    va_end(args);
    return error;
}

int notify_reloading(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return notify_send("RELOADING=1\nMONOTONIC_USEC=%llu\nSTATUS=Reloading\n",
        (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000);
}

uint64_t notify_watchdog_ms(void) {
    return manager.watchdog_ms;
}

void notify_done(void) {
    if (manager.fd >= 0) close(manager.fd);
    manager.fd = -1;
}
