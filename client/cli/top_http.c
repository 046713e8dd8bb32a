/* top_http.c: one GET over TCP, as much of HTTP as the daemon's own server needs. Called by top.c. A new connection each time:
 * once a second that costs nothing, and a daemon that was restarted is met again by itself. */
#include "top.h"
#include "cli.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_MAX = 64 << 20 };

typedef struct {
    const char *host_port;
    double until_s;
    nct_why *why;
    char *bytes;
    size_t n, room;
} fetch;

static int refuse(const fetch *f, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int refuse(const fetch *f, int error, const char *format, ...) {
    va_list args;
    int n = snprintf(f->why->text, sizeof f->why->text, "http://%s: ", cli_quote(f->host_port));
    va_start(args, format);
    if (n > 0 && (size_t)n < sizeof f->why->text)
        vsnprintf(f->why->text + n, sizeof f->why->text - (size_t)n, format, args);
    va_end(args);
    return error;
}

static int await(const fetch *f, int fd, short events) {
    for (;;) {
        double left = f->until_s - cli_now_s();
        if (left <= 0) return refuse(f, -ETIMEDOUT, "no answer in time");
        int r = poll(&(struct pollfd){.fd = fd, .events = events}, 1, (int)(left * 1000) + 1);
        if (r > 0) return 0;
        if (r < 0 && (errno != EINTR || cli_stopped)) return refuse(f, -errno, "%s", strerror(errno));
    }
}

/* "127.0.0.1:7772", "[::1]:7772", "host:7772" -> both parts. */
static int split(const char *host_port, char host[256], char port[16]) {
    const char *colon = strrchr(host_port, ':');
    size_t n = colon ? (size_t)(colon - host_port) : 0;
    if (n && host_port[0] == '[' && host_port[n - 1] == ']') host_port++, n -= 2;
    if (!n || n > 255 || strlen(colon + 1) < 1 || strlen(colon + 1) > 15) return -EINVAL;
    memcpy(host, host_port, n);
    host[n] = 0;
    strcpy(port, colon + 1);
    return 0;
}

static int connect_to(fetch *f, const struct addrinfo *a) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol), error = 0;
    socklen_t len = sizeof error;
    if (fd < 0) return refuse(f, -errno, "%s", strerror(errno));
    if (connect(fd, a->ai_addr, a->ai_addrlen)) error = errno;
    if (error == EINPROGRESS) {
        int r = await(f, fd, POLLOUT);
        if (r) {
            close(fd);
            return r;
        }
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    }
    if (!error) return fd;
    close(fd);
    return refuse(f, -error, "%s; is nctd running, and is its http.endpoint this one? --http HOST:PORT names another",
        strerror(error));
}

static int dial(fetch *f) {
    char host[256], port[16];
    struct addrinfo *list, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    if (split(f->host_port, host, port)) return refuse(f, -EINVAL, "must be HOST:PORT, as in 127.0.0.1:7772");
    int r = getaddrinfo(host, port, &hints, &list);
    if (r) return refuse(f, -EINVAL, "%s", gai_strerror(r));
    int fd = -1;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) fd = connect_to(f, a);
    freeaddrinfo(list);
    return fd;
}

static int ask(fetch *f, int fd, const char *path) {
    char request[1024];
    int n = snprintf(
        request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, f->host_port);
    if (n < 0 || (size_t)n >= sizeof request) return refuse(f, -EINVAL, "the path is too long");
    for (int at = 0; at < n;) {
        ssize_t sent = send(fd, request + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (sent > 0)
            at += (int)sent;
        else if (errno == EAGAIN || errno == EINTR) {
            int r = await(f, fd, POLLOUT);
            if (r) return r;
        } else
            return refuse(f, -errno, "%s", strerror(errno));
    }
    return 0;
}

/* Everything until the server closes. */
static int take(fetch *f, int fd) {
    for (;;) {
        if (f->room - f->n < 65536) {
            size_t room = 2 * f->room + 131072;
            char *more = room <= ANSWER_MAX ? realloc(f->bytes, room) : NULL;
            if (!more) return refuse(f, -ENOMEM, "the answer is longer than %zu bytes", f->room);
            f->bytes = more;
            f->room = room;
        }
        ssize_t n = recv(fd, f->bytes + f->n, f->room - f->n - 1, 0);
        if (n > 0)
            f->n += (size_t)n;
        else if (n == 0)
            break;
        else if (errno == EAGAIN || errno == EINTR) {
            int r = await(f, fd, POLLIN);
            if (r) return r;
        } else
            return refuse(f, -errno, "%s", strerror(errno));
    }
    f->bytes[f->n] = 0;
    return 0;
}

static int read_answer(fetch *f, json_t **ret) {
    json_error_t e;
    int status = 0;
    char *body = f->bytes ? strstr(f->bytes, "\r\n\r\n") : NULL;
    if (!f->bytes || sscanf(f->bytes, "HTTP/1.%*d %d", &status) != 1 || !body)
        return refuse(f, -EPROTO, "what answers is no HTTP server");
    body += 4;
    if (status != 200) return refuse(f, -EPROTO, "answers %d: %.100s", status, cli_quote(body));
    json_t *j = json_loadb(body, f->n - (size_t)(body - f->bytes), 0, &e);
    if (json_is_object(j) && json_is_object(json_object_get(j, "ledger"))) {
        *ret = j;
        return 0;
    }
    json_decref(j);
    return refuse(f, -EPROTO, "what answers is not nctd's status");
}

int top_fetch(json_t **ret, const char *host_port, const char *path, double timeout_s, nct_why *why) {
    fetch f = {.host_port = host_port, .until_s = cli_now_s() + timeout_s, .why = why};
    int fd = dial(&f);
    if (fd < 0) return fd;
    int r = ask(&f, fd, path);
    if (!r) r = take(&f, fd);
    close(fd);
    if (!r) r = read_answer(&f, ret);
    free(f.bytes);
    return r;
}
