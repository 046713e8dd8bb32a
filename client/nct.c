/* nct.c: opening and closing a session's handle, its getters, its fd, and the library's words.
 *
 * On the caller's thread. The work of a session is core.c's. */
#include "core.h"
#include "error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void nct_options_init(nct_options *ret) {
    *ret = (nct_options){.timeout_ms = 5000, .ping_ms = 2000, .linger_ms = 1000, .on_cut = NCT_RESEND};
}

static int range(char why[256], const char *name, int value, int least, int most) {
    if (value >= least && value <= most) return 0;
    snprintf(why, 256, "%s is %d, it must be %d..%d", name, value, least, most);
    return -EINVAL;
}

static int options_check(const nct_options *o, char why[256]) {
    int error = range(why, "timeout_ms", o->timeout_ms, 1, 86400000);
    if (!error) error = range(why, "ping_ms", o->ping_ms, 10, 3600000);
    if (!error) error = range(why, "linger_ms", o->linger_ms, 0, 60000);
    if (!error) error = range(why, "nonblock", o->nonblock, 0, 1);
    if (!error) error = range(why, "on_cut", o->on_cut, NCT_RESEND, NCT_DROP);
    if (!error) error = range(why, "max_in_flight", o->max_in_flight, 0, CORE_IN_FLIGHT_MAX);
    if (error || !o->name) return error;
    size_t len = 0;
    while (o->name[len] >= 0x20 && o->name[len] <= 0x7e && o->name[len] != '"' && o->name[len] != '\\') len++;
    if (!o->name[len] && len <= WIRE_NAME_MAX) return 0;
    snprintf(why, 256, "name must be up to %d printable ASCII characters without \" and \\", WIRE_NAME_MAX);
    return -EINVAL;
}

static int endpoint_check(const char *endpoint, char why[256]) {
    if (endpoint && strlen(endpoint) < sizeof((nct *)0)->endpoint &&
        (!strncmp(endpoint, "tcp://", 6) || !strncmp(endpoint, "ipc://", 6)))
        return 0;
    snprintf(why, 256, "endpoint \"%.100s\" is not tcp://HOST:PORT or ipc://PATH of less than 256 characters",
        endpoint ? endpoint : "");
    return -EINVAL;
}

static int handle_new(nct **ret, const char *endpoint, const nct_options *o, char why[256]) {
    const char *keys[3] = {o->server_key, o->public_key, o->secret_key};
    nct *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(why, 256, "no memory for a handle");
        return -ENOMEM;
    }
    c->pid = getpid();
    c->o = *o;
    c->next_id = c->window = 1;
    c->max_frame_bytes = UINT64_MAX;
    c->ready_end = &c->ready;
    snprintf(c->endpoint, sizeof c->endpoint, "%s", endpoint);
    snprintf(c->name, sizeof c->name, "%s", o->name ? o->name : "");
    c->o.name = c->o.server_key = c->o.public_key = c->o.secret_key = NULL; /* borrowed in nct_open() only */
    int error = zlink_new(&c->link, ZLINK_DEALER, endpoint, keys);
    if (!error) error = zlink_renew(c->link);
    if (error) {
        snprintf(why, 256, "cannot connect to %.150s: %s%s", endpoint, nct_strerror(error),
            error == -EINVAL && keys[0] ? " (endpoint, or CURVE keys: three of 40 characters, the last two a pair)"
                                        : "");
        zlink_free(c->link, 0);
        free(c);
        return error;
    }
    *ret = c;
    return 0;
}

static int wait_welcome(nct *c) {
    int64_t deadline_ns = core_deadline(c->o.timeout_ms);
    while (c->phase != CORE_LIVE) {
        int error = core_turn(c);
        if (error) return error;
        if (c->phase == CORE_LIVE) break;
        if (c->refusal) {
            if (zlink_ask(c->link).refused == c->refusal) zlink_refusal(c->link, c->reason, sizeof c->reason);
            return c->refusal;
        }
        error = core_wait(c, deadline_ns);
        char denied[200];
        if (error == -ETIMEDOUT && core_path_denied(c->endpoint, denied, sizeof denied))
            return core_reason(c, error, "%s", denied);
        if (error == -ETIMEDOUT)
            return core_reason(c, error,
                zlink_ask(c->link).connected ? "connected to %s, but no WELCOME within %d ms"
                                             : "no daemon answered at %s within %d ms",
                c->endpoint, c->o.timeout_ms);
        if (error) return error;
    }
    return 0;
}

int nct_open_why(nct **ret, const char *endpoint, const nct_options *options, char ret_reason[256]) {
    char why[256] = "";
    nct_options o;
    nct_options_init(&o);
    if (options) o = *options;
    nct *c = NULL;
    int error = options_check(&o, why);
    if (!error) error = endpoint_check(endpoint, why);
    if (!error) error = handle_new(&c, endpoint, &o, why);
    if (!error && (error = wait_welcome(c))) {
        memcpy(why, c->reason, sizeof why);
        c->o.linger_ms = 0;
        nct_close(c);
    }
    if (error && ret_reason) memcpy(ret_reason, why, sizeof why);
    if (!error) *ret = c;
    return error;
}

int nct_open(nct **ret, const char *endpoint, const nct_options *options) {
    return nct_open_why(ret, endpoint, options, NULL);
}

void nct_close(nct *c) {
    if (!c) return;
    while (c->n_flight) core_remove(c, c->flight[c->n_flight - 1]);
    for (held *h; (h = core_take(c, 0));) nct_release(&h->answer);
    while (c->streams) core_stream_remove(c, c->streams);
    core_welcome_done(c);
    wake_free(c->wake);
    if (core_owned(c))
        zlink_abandon(c->link);
    else
        zlink_free(c->link, c->o.linger_ms);
    free(c);
}

const char *nct_welcome(const nct *c, size_t *ret_bytes) {
    if (ret_bytes) *ret_bytes = c->welcome_bytes;
    return c->welcome;
}

uint64_t nct_session(const nct *c) {
    return c->session;
}
uint32_t nct_window(const nct *c) {
    return c->window;
}
uint32_t nct_in_flight(const nct *c) {
    return c->n_flight;
}
uint32_t nct_ready(const nct *c) {
    return c->n_ready;
}
uint64_t nct_reconnects(const nct *c) {
    return c->reconnects;
}
const char *nct_reason(const nct *c) {
    return c->reason;
}

int nct_fd(nct *c) {
    int error = core_owned(c);
    if (error) return error;
    if (!c->wake) {
        int fds[2];
        if ((error = wake_new(&c->wake))) return core_reason(c, error, "no file descriptor for nct_fd()");
        zlink_fds(c->link, fds);
        wake_watch(c->wake, fds);
    }
    core_sync(c);
    return wake_fd(c->wake);
}

const char *nct_strerror(int error) {
    switch (error) {
    case -ETIMEDOUT: return "no answer in time";
    case -EINTR: return "interrupted by a signal";
    case -EMFILE: return "too many open files";
    case -ENOMEM: return "out of memory";
    default: return error_text(error);
    }
}

const char *nct_errname(int error) {
    switch (error) {
    case -ETIMEDOUT: return "ETIMEDOUT";
    case -EINTR: return "EINTR";
    case -EMFILE: return "EMFILE";
    case -ENOMEM: return "ENOMEM";
    default: return error_name(error);
    }
}

const char *nct_version(void) {
    return NCT_VERSION;
}
