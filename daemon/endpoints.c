/* endpoints.c: see endpoints.h. Called by main (--check, start) and by spine.c, which binds what was found in order. */
#include "endpoints.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int endpoints_each(
    const char *key, const char *list, int (*fn)(void *ctx, const char *endpoint, zwhy *why), void *ctx, zwhy *why) {
    char text[256], *rest = text, *one;
    int error = 0, n = 0;
    snprintf(text, sizeof text, "%s", list);
    while (!error && (one = strsep(&rest, " \t")) != NULL) {
        if (!*one) continue;
        n++;
        error = fn(ctx, one, why);
    }
    if (!n) snprintf(why->text, sizeof why->text, "%s is empty", key);
    return n ? error : -EINVAL;
}

typedef struct {
    const char *key;
    bool guarded; /* by keys, or by an operator who said insecure */
    bool try;
} rule;

/* The folder, or the one that it would be made in, is there. */
static int folder_there(const char *key, const char *path, zwhy *why) {
    char folder[256];
    struct stat st;
    snprintf(folder, sizeof folder, "%s", path);
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(folder, '/');
        if (!slash || slash == folder) return 0;
        *slash = 0;
        if (!stat(folder, &st)) {
            if (S_ISDIR(st.st_mode)) return 0;
            errno = ENOTDIR;
            break;
        }
    }
    int error = -errno;
    snprintf(
        why->text, sizeof why->text, "%s = ipc://%.107s: the folder %.80s: %s", key, path, folder, strerror(-error));
    return error;
}

static int check_one(void *ctx, const char *endpoint, zwhy *why) {
    const rule *r = ctx;
    bool loopback;
    int error = zsock_endpoint(endpoint, &loopback, why);
    if (!error && !loopback && !r->guarded) {
        snprintf(why->text, sizeof why->text,
            "%s = %.80s is reachable from other hosts, and there are no keys: set auth.secret_key_file and "
            "auth.client_keys, use ipc or 127.0.0.1, or say ingest.insecure = yes",
            r->key, endpoint);
        error = -EACCES;
    }
    if (error || !r->try) return error;
    if (!strncmp(endpoint, "ipc://", 6)) return endpoint[6] == '@' ? 0 : folder_there(r->key, endpoint + 6, why);
    return strncmp(endpoint, "tcp://", 6) ? 0 : zsock_try_address(r->key, endpoint, why);
}

static int all(const config *c, bool try, zwhy *why) {
    bool guarded = c->auth.secret_key_file[0] || c->ingest.insecure;
    rule ingest = {"ingest.endpoint", guarded, try}, publish = {"publish.endpoint", guarded, try};
    int error = endpoints_each(ingest.key, c->ingest.endpoint, check_one, &ingest, why);
    if (!error && c->publish.enabled)
        error = endpoints_each(publish.key, c->publish.endpoint, check_one, &publish, why);
    return error;
}

int endpoints_check(const config *c, zwhy *why) {
    return all(c, false, why);
}

int endpoints_try(const config *c, zwhy *why) {
    return all(c, true, why);
}
