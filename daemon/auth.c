/* auth.c: see auth.h. Read by main (start, --check) and by a reload's helper thread; asked by guard.c. */
#include "auth.h"
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "wire.h"

#define KEYS_MAX 65536

/* ---- reading --------------------------------------------------------------------------------------------------- */

static int read_rights(auth_key *k, const keyfile *f, const char *path, keyfile_why *why) {
    char copy[sizeof f->rights], *rest = copy, *word;
    k->send = k->subscribe = !f->has_rights;
    memcpy(copy, f->rights, sizeof copy);
    while ((word = strsep(&rest, " \t,")) != NULL) {
        if (!strcmp(word, "send"))
            k->send = true;
        else if (!strcmp(word, "subscribe"))
            k->subscribe = true;
        else if (*word)
            return keyfile_fail(
                why, -EINVAL, "%s: rights = \"%s\": the words are send and subscribe", path, f->rights);
    }
    return 0;
}

/* A pattern has the form of a topic: something, a slash, something. */
static int read_topics(auth_key *k, const keyfile *f, const char *path, keyfile_why *why) {
    char copy[sizeof f->topics], *rest = copy, *word, *at;
    if (!f->has_topics) return 0;
    at = k->topics = calloc(1, sizeof f->topics + 1);
    if (!at) return keyfile_fail(why, -ENOMEM, "no memory");
    memcpy(copy, f->topics, sizeof copy);
    while ((word = strsep(&rest, " \t,")) != NULL) {
        if (!*word) continue;
        const char *slash = strchr(word, '/');
        if (!slash || slash == word || !slash[1] || strchr(slash + 1, '/'))
            return keyfile_fail(
                why, -EINVAL, "%s: topics: \"%s\" is not MODEL/STREAM (with * and ?, as default/*)", path, word);
        at = stpcpy(at, word) + 1;
    }
    return 0;
}

static int add(auth *a, const char *path, keyfile_why *why) {
    keyfile f;
    int error = keyfile_read(&f, path, false, why);
    if (error) return error;
    if (f.secret_key[0]) {
        explicit_bzero(&f, sizeof f);
        return keyfile_fail(why, -EINVAL,
            "%s: holds a client's secret key, which is the client's alone: put its .key file there", path);
    }
    if (a->n == KEYS_MAX) return keyfile_fail(why, -EINVAL, "more than %d keys", KEYS_MAX);
    auth_key *grown = realloc(a->keys, ((size_t)a->n + 1) * sizeof *grown);
    if (!grown) return keyfile_fail(why, -ENOMEM, "no memory");
    a->keys = grown;
    auth_key *k = &grown[a->n++];
    *k = (auth_key){.topics = NULL};
    memcpy(k->key, f.public_key, sizeof k->key);
    memcpy(k->name, f.name, sizeof k->name);
    if (!k->name[0]) {
        const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
        snprintf(k->name, sizeof k->name, "%.*s", (int)strcspn(base, "."), base);
    }
    error = read_rights(k, &f, path, why);
    return error ? error : read_topics(k, &f, path, why);
}

static int is_key(const struct dirent *entry) {
    size_t n = strlen(entry->d_name);
    return entry->d_name[0] != '.' && n > 4 && !strcmp(entry->d_name + n - 4, ".key");
}

static int read_folder(auth *a, const char *path, keyfile_why *why) {
    char name[4400];
    struct dirent **found;
    int error = 0, n = scandir(path, &found, is_key, alphasort);
    if (n < 0) return keyfile_fail(why, -errno, "auth.client_keys = %s: cannot be read: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s/%s", path, found[i]->d_name);
        if (!error) error = add(a, name, why);
        free(found[i]);
    }
    free(found);
    return error;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const auth_key *)a)->key, ((const auth_key *)b)->key);
}

static int check_list(auth *a, const char *path, keyfile_why *why) {
    if (!a->n)
        return keyfile_fail(why, -EINVAL,
            "auth.client_keys = %s: no .key file in it, so nobody could connect; `nct keygen NAME` makes a client's "
            "keys: put "
            "its NAME.key there",
            path);
    qsort(a->keys, (size_t)a->n, sizeof *a->keys, by_key);
    for (int i = 1; i < a->n; i++)
        if (!strcmp(a->keys[i - 1].key, a->keys[i].key))
            return keyfile_fail(why, -EINVAL, "auth.client_keys = %s: the key %s is there twice, as %s and %s", path,
                a->keys[i].key, a->keys[i - 1].name, a->keys[i].name);
    if (auth_find(a, a->server.public_key))
        return keyfile_fail(
            why, -EINVAL, "auth.client_keys = %s: the daemon's own key is among them; a client has its own", path);
    return 0;
}

static int read_list(auth *a, const char *path, keyfile_why *why) {
    struct stat st;
    if (stat(path, &st)) return keyfile_fail(why, -errno, "auth.client_keys = %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode) && st.st_mode & 002)
        return keyfile_fail(why, -EPERM,
            "auth.client_keys = %s: mode %04o lets everybody admit themselves: chmod o-w it", path,
            (unsigned)st.st_mode & 07777);
    return S_ISDIR(st.st_mode) ? read_folder(a, path, why) : add(a, path, why);
}

int auth_load(auth **ret, const char *secret_path, const char *clients_path, keyfile_why *why) {
    auth *a = calloc(1, sizeof *a);
    if (!a) return keyfile_fail(why, -ENOMEM, "no memory");
    int error = keyfile_read(&a->server, secret_path, true, why);
    if (!error) error = read_list(a, clients_path, why);
    if (!error) error = check_list(a, clients_path, why);
    if (error)
        auth_free(a);
    else
        *ret = a;
    return error;
}

void auth_free(auth *a) {
    if (!a) return;
    for (int i = 0; i < a->n; i++) free(a->keys[i].topics);
    free(a->keys);
    explicit_bzero(&a->server, sizeof a->server);
    free(a);
}

/* ---- asking ---------------------------------------------------------------------------------------------------- */

const auth_key *auth_find(const auth *a, const char *key) {
    auth_key wanted;
    snprintf(wanted.key, sizeof wanted.key, "%s", key);
    return a->n ? bsearch(&wanted, a->keys, (size_t)a->n, sizeof *a->keys, by_key) : NULL;
}

static bool all_of(const char *pattern) {
    return !strcmp(pattern, "*/*");
}

/* Some pattern matches `name`, which is "model/stream", or "model/" when `whole_model`. */
static bool matches(const auth_key *k, const char *name, bool whole_model) {
    char model[2 * WIRE_TOPIC_MAX + 8];
    if (!k->topics) return true;
    for (const char *p = k->topics; *p; p += strlen(p) + 1) {
        if (all_of(p)) return true;
        if (!whole_model && *name && !fnmatch(p, name, FNM_PATHNAME)) return true;
        /* All streams of a model: the pattern's second half must be a lone star. */
        size_t half = strcspn(p, "/");
        if (!whole_model || strcmp(p + half, "/*") != 0 || half + 2 > sizeof model) continue;
        snprintf(model, sizeof model, "%.*s/", (int)half, p);
        if (!fnmatch(model, name, FNM_PATHNAME)) return true;
    }
    return false;
}

bool auth_may_send(const auth_key *k, const char *topic) {
    char name[WIRE_TOPIC_MAX + 1];
    size_t n = strlen(topic);
    if (!k->send || !n || n > WIRE_TOPIC_MAX) return false;
    snprintf(name, sizeof name, "%.*s", (int)n - 1, topic);
    return matches(k, name, false);
}

bool auth_may_subscribe(const auth_key *k, const void *prefix, size_t len) {
    char name[WIRE_TOPIC_MAX + 1];
    if (!k->subscribe) return false;
    if (!k->topics) return true;
    if (len > WIRE_TOPIC_MAX || memchr(prefix, 0, len)) return false;
    snprintf(name, sizeof name, "%.*s", (int)len, (const char *)prefix);
    char *slash = strchr(name, '/');
    bool model = slash && !slash[1], whole = slash && slash[1] && strchr(slash + 1, '/') == name + len - 1;
    if (model) return matches(k, name, true);
    if (!whole) return matches(k, "", false);
    name[len - 1] = 0;
    return matches(k, name, false);
}

static bool topics_same(const char *a, const char *b) {
    if (!a || !b) return a == b;
    for (; *a || *b; a += strlen(a) + 1, b += strlen(b) + 1)
        if (strcmp(a, b) != 0) return false;
    return true;
}

bool auth_key_same(const auth_key *a, const auth_key *b) {
    if (!a || !b) return a == b;
    return a->send == b->send && a->subscribe == b->subscribe && topics_same(a->topics, b->topics);
}

bool auth_same(const auth *a, const auth *b) {
    if (!a || !b) return a == b;
    if (a->n != b->n || strcmp(a->server.secret_key, b->server.secret_key) != 0) return false;
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->keys[i].key, b->keys[i].key) != 0 || strcmp(a->keys[i].name, b->keys[i].name) != 0 ||
            !auth_key_same(&a->keys[i], &b->keys[i]))
            return false;
    return true;
}
