/* http_host.c: see http_host.h. Called by http.c. */
#include "http_host.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

static int fail(nct_why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(nct_why *why, int error, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(why->text, sizeof why->text, format, ap);
    va_end(ap);
    return error;
}

static bool loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
    return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
}

static void bound_text(int fd, char ret[80]) {
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof a;
    char host[INET6_ADDRSTRLEN] = "", port[8] = "";
    if (!getsockname(fd, (struct sockaddr *)&a, &len))
        getnameinfo(
            (struct sockaddr *)&a, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(ret, 80, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* Splits "ADDRESS:PORT" in place; brackets around an IPv6 address are taken off. */
static int split(char *endpoint, char **ret_host, char **ret_port) {
    char *colon = strrchr(endpoint, ':'), *host = endpoint;
    if (!colon || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1)) return -EINVAL;
    *colon = 0;
    if (*host == '[') {
        char *end = strchr(host, ']');
        if (!end || end[1]) return -EINVAL;
        *end = 0;
        host++;
    } else if (strchr(host, ':'))
        return -EINVAL;
    if (!*host) return -EINVAL;
    *ret_host = host;
    *ret_port = colon + 1;
    return 0;
}

static int open_on(const struct addrinfo *a) {
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 128)) return fd;
    int error = -errno;
    close(fd);
    return error;
}

/* The addresses of an endpoint (freeaddrinfo), the first one within reach of this host alone unless `insecure`. */
static int find(const char *endpoint, bool insecure, struct addrinfo **ret, nct_why *why) {
    char text[256], *host, *port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    snprintf(text, sizeof text, "%s", endpoint);
    if (split(text, &host, &port))
        return fail(
            why, -EINVAL, "http.endpoint = %.100s: not ADDRESS:PORT, as 127.0.0.1:7772 or [::1]:7772", endpoint);
    int code = getaddrinfo(host, port, &hints, &found);
    if (code) return fail(why, -EINVAL, "http.endpoint = %.100s: %s", endpoint, gai_strerror(code));
    if (insecure || loopback(found->ai_addr)) {
        *ret = found;
        return 0;
    }
    freeaddrinfo(found);
    return fail(why, -EACCES,
        "http.endpoint = %.100s is reachable from other hosts, and everybody there could read it: use 127.0.0.1, or "
        "say http.insecure = yes",
        endpoint);
}

int http_endpoint_check(const char *endpoint, bool insecure, nct_why *why) {
    struct addrinfo *found = NULL;
    int error = find(endpoint, insecure, &found, why);
    if (!error) freeaddrinfo(found);
    return error;
}

int http_listen(const char *endpoint, bool insecure, char ret_bound[80], nct_why *why) {
    struct addrinfo *found = NULL;
    int error = find(endpoint, insecure, &found, why);
    if (!found) return error;
    int fd = open_on(found);
    freeaddrinfo(found);
    if (fd == -EADDRINUSE)
        return fail(why, fd,
            "http.endpoint = %.100s is in use, by another nctd perhaps: choose another port, or http.enabled = no",
            endpoint);
    if (fd < 0) return fail(why, fd, "http.endpoint = %.100s: %s", endpoint, strerror(-fd));
    bound_text(fd, ret_bound);
    return fd;
}

/* A host name's length: without the port and a dot at the end. */
static size_t name_length(const char *host) {
    size_t n = *host == '[' ? strcspn(host, "]") : strcspn(host, ":");
    if (*host == '[' && host[n] == ']') n++;
    const char *rest = host + n;
    if (*rest && (*rest != ':' || strspn(rest + 1, "0123456789") != strlen(rest + 1))) return 0;
    if (n && host[n - 1] == '.') n--;
    return n;
}

bool http_host_known(const char *host, const char *bound, const char *hosts) {
    static const char *const always[] = {"localhost", "127.0.0.1", "[::1]"};
    size_t n = name_length(host);
    if (!n) return false;
    for (int i = 0; i < 3; i++)
        if (strlen(always[i]) == n && !strncasecmp(always[i], host, n)) return true;
    if (name_length(bound) == n && !strncasecmp(bound, host, n)) return true;
    for (const char *at = hosts; *at;) {
        size_t len = strcspn(at, " \t");
        if (len == n && !strncasecmp(at, host, n)) return true;
        at += len;
        at += strspn(at, " \t");
    }
    return false;
}
