/* target.c: files that appear under their name only when whole. Called by output.c and plot.c; knows no format. */
#include "target.h"
#include "audio_spool.h"
#include "cli.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(nct_why *why, const char *what, int error) {
    snprintf(why->text, sizeof why->text, "%s: %s", what, strerror(error));
    return -error;
}

static mode_t default_mode(void) {
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

/* A name beside the final one; "%d" tries make it new. */
static char *beside(const char *path, int attempt) {
    char *copy = strdup(path), *name = NULL;
    if (!copy) return NULL;
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    /* A base name may be up to 255 bytes already; its first 200 are enough to be recognised. */
    if (asprintf(&name, "%s/.%.200s.nct-%d-%d", dirname(copy), base, (int)getpid(), attempt) < 0) name = NULL;
    free(copy);
    return name;
}

static int open_file(target *t, nct_why *why) {
    char *copy = strdup(t->path);
    if (!copy) return refuse(why, "no memory", ENOMEM);
    t->fd = open(dirname(copy), O_TMPFILE | O_RDWR | O_CLOEXEC, default_mode());
    free(copy);
    if (t->fd >= 0) return 0;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)
        return refuse(why, "cannot be written", errno);
    for (int i = 0; i < 100 && t->fd < 0; i++) {
        t->temporary = beside(t->path, i);
        if (!t->temporary) return refuse(why, "no memory", ENOMEM);
        t->fd = open(t->temporary, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, default_mode());
        if (t->fd >= 0) return 0;
        int error = errno;
        free(t->temporary);
        t->temporary = NULL;
        if (error != EEXIST) return refuse(why, "cannot be written", error);
    }
    return refuse(why, "no temporary name is free beside it", EEXIST);
}

int target_is_stream(const char *path) {
    struct stat st;
    return !strcmp(path, "-") || (!stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode));
}

char *target_real(const char *path) {
    char *at = strdup(path);
    for (int i = 0; at && i < 40; i++) {
        char to[PATH_MAX], *next = NULL;
        ssize_t n = readlink(at, to, sizeof to - 1);
        if (n < 0) return at;
        to[n] = 0;
        const char *slash = strrchr(at, '/');
        if (to[0] == '/' || !slash)
            next = strdup(to);
        else if (asprintf(&next, "%.*s/%s", (int)(slash - at), at, to) < 0)
            next = NULL;
        free(at);
        at = next;
    }
    free(at);
    return NULL;
}

int target_open(target *t, const char *path, int live, nct_why *why) {
    struct stat st;
    *t = (target){.fd = -1, .stream = -1};
    int is_stdout = !strcmp(path, "-"), there = !is_stdout && !stat(path, &st);
    if (there && S_ISDIR(st.st_mode)) return refuse(why, "is a folder; -O takes folders", EISDIR);
    if (target_is_stream(path)) {
        t->stream = is_stdout ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3) : open(path, O_WRONLY | O_CLOEXEC);
        if (t->stream < 0) return refuse(why, "cannot be written", errno);
        if (isatty(t->stream)) {
            target_abort(t);
            return refuse(why, "is a terminal, and the result is binary; name a file or a pipe", ENOTTY);
        }
        t->fd = live ? fcntl(t->stream, F_DUPFD_CLOEXEC, 3) : audio_spool_file(why);
        if (t->fd >= 0) return 0;
        int error = errno;
        target_abort(t);
        return -error;
    }
    t->path = target_real(path);
    if (!t->path) return refuse(why, "cannot be followed", ELOOP);
    int r = open_file(t, why);
    if (r) target_abort(t);
    return r;
}

static int deliver(target *t, nct_why *why) {
    char block[65536];
    for (int64_t at = 0;;) {
        ssize_t n = pread(t->fd, block, sizeof block, at);
        if (n < 0) return refuse(why, "reading the finished result back failed", errno);
        if (n == 0) return 0;
        int r = cli_write_all(t->stream, block, (size_t)n);
        if (r) return refuse(why, r == -EPIPE ? "the reader of the result went away" : "writing failed", -r);
        at += n;
    }
}

/* A file without a name gets a temporary one first: link() cannot replace, rename() can. */
static int name_it(target *t, nct_why *why) {
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", t->fd);
    for (int i = 0; i < 100 && !t->temporary; i++) {
        t->temporary = beside(t->path, i);
        if (!t->temporary) return refuse(why, "no memory", ENOMEM);
        if (!linkat(AT_FDCWD, self, AT_FDCWD, t->temporary, AT_SYMLINK_FOLLOW)) break;
        int error = errno;
        free(t->temporary);
        t->temporary = NULL;
        if (error != EEXIST) return refuse(why, "cannot be written", error);
    }
    if (!t->temporary) return refuse(why, "no temporary name is free beside it", EEXIST);
    if (rename(t->temporary, t->path)) return refuse(why, "cannot be renamed into place", errno);
    free(t->temporary);
    t->temporary = NULL;
    return 0;
}

int target_finish(target *t, nct_why *why) {
    struct stat a, b;
    int r;
    if (t->path)
        r = name_it(t, why);
    else if (!fstat(t->fd, &a) && !fstat(t->stream, &b) && a.st_ino == b.st_ino && a.st_dev == b.st_dev)
        r = 0;
    else
        r = deliver(t, why);
    target_abort(t);
    return r;
}

void target_abort(target *t) {
    if (t->temporary) unlink(t->temporary);
    if (t->fd >= 0) close(t->fd);
    if (t->stream >= 0) close(t->stream);
    free(t->temporary);
    free(t->path);
    *t = (target){.fd = -1, .stream = -1};
}
