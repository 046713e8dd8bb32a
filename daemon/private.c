/* private.c: see private.h. Called by main; writes to the descriptor it was given, and nothing else. */
#include "private.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int private_check(const config *c, int fd, config_why *why) {
    const char *fault = NULL;
    if (fcntl(fd, F_GETFD) < 0)
        fault = "--private: the descriptor is not open";
    else if (strncmp(c->ingest.endpoint, "ipc://", 6))
        fault = "--private: ingest.endpoint must be one ipc:// path";
    else if (c->publish.enabled)
        fault = "--private: publish.enabled must be no";
    if (!fault) return 0;
    snprintf(why->text, sizeof why->text, "%s", fault);
    return -EINVAL;
}

static void say(const private_end *p, json_t *o) {
    char *text = p->fd >= 0 ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text) return;
    /* When nct is gone nobody needs to know. */
    if (dprintf(p->fd, "%s\n", text) < 0) errno = 0;
    free(text);
}

void private_ready(const private_end *p, const char *endpoint) {
    say(p, json_pack("{s:b, s:s}", "ready", 1, "endpoint", endpoint));
}

void private_error(const private_end *p, const char *sentence) {
    say(p, json_pack("{s:b, s:s}", "ready", 0, "error", sentence));
}

static void on_readable(uv_poll_t *h, int status, int events) {
    private_end *p = h->data;
    char bytes[256];
    (void)events;
    ssize_t n = status < 0 ? 0 : read(p->fd, bytes, sizeof bytes);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    uv_poll_stop(h);
    p->ended(p->ctx);
}

int private_watch(private_end *p, uv_loop_t *loop) {
    if (p->fd < 0) return 0;
    fcntl(p->fd, F_SETFD, FD_CLOEXEC);
    int error = uv_poll_init(loop, &p->poll, p->fd);
    p->poll.data = p;
    return error ? error : uv_poll_start(&p->poll, UV_READABLE | UV_DISCONNECT, on_readable);
}

void private_clean(const char *conf, const char *endpoint) {
    char folder[108], link[160];
    struct stat st;
    snprintf(folder, sizeof folder, "%s", endpoint + strlen("ipc://"));
    char *slash = strrchr(folder, '/');
    if (!slash) return;
    *slash = 0;
    size_t len = strlen(folder);
    if (!conf || strncmp(conf, folder, len) || conf[len] != '/' || strchr(conf + len + 1, '/')) return;
    unlink(conf);
    snprintf(link, sizeof link, "%s/model.safetensors", folder);
    if (!lstat(link, &st) && S_ISLNK(st.st_mode)) unlink(link);
    rmdir(folder);
}
