/* keyfile.c: see keyfile.h. A file is read whole, at most 16 KiB of it, and never waited for: a FIFO is refused. */
#include "keyfile.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX 16384

typedef struct {
    keyfile *k;
    const char *path;
    keyfile_why *why;
    char section[16];
    int line;
} reading;

int keyfile_fail(keyfile_why *why, int error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (why) vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return error;
}

bool key_ok(const char *text) {
    static const char z85[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    return strlen(text) == KEY_TEXT && strspn(text, z85) == KEY_TEXT;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* The text between quotes, or up to a blank; what stands behind it may only be a comment. */
static int take_value(reading *r, const char *at, const char **ret, size_t *ret_len) {
    char quote = *at == '"' || *at == '\'' ? *at++ : 0;
    size_t len = 0;
    while (at[len] && (quote ? at[len] != quote : at[len] != ' ' && at[len] != '\t')) len++;
    const char *rest = at + len;
    if (quote && *rest++ != quote)
        return keyfile_fail(r->why, -EINVAL, "%s:%d: the quote is not closed", r->path, r->line);
    rest += strspn(rest, " \t");
    if (*rest && *rest != '#')
        return keyfile_fail(r->why, -EINVAL, "%s:%d: text behind the value; quote it: \"...\"", r->path, r->line);
    *ret = at;
    *ret_len = len;
    return 0;
}

static int put(reading *r, const char *key, const char *value, size_t len, char *to, size_t size) {
    if (len >= size)
        return keyfile_fail(
            r->why, -EINVAL, "%s:%d: %s has %zu characters, at most %zu", r->path, r->line, key, len, size - 1);
    memcpy(to, value, len);
    to[len] = 0;
    return 0;
}

static int put_key(reading *r, const char *name, const char *value, size_t len, char to[KEY_TEXT + 1]) {
    char text[KEY_TEXT + 1] = "";
    if (len == KEY_TEXT) memcpy(text, value, len);
    if (!key_ok(text))
        return keyfile_fail(r->why, -EINVAL, "%s:%d: %s is not a key of 40 Z85 characters", r->path, r->line, name);
    memcpy(to, text, sizeof text);
    return 0;
}

static int entry(reading *r, const char *key, const char *value, size_t len) {
    keyfile *k = r->k;
    if (!strcmp(r->section, "curve") && !strcmp(key, "public-key")) return put_key(r, key, value, len, k->public_key);
    if (!strcmp(r->section, "curve") && !strcmp(key, "secret-key")) return put_key(r, key, value, len, k->secret_key);
    if (strcmp(r->section, "metadata") != 0) return 0; /* others' own */
    if (!strcmp(key, "name")) return put(r, key, value, len, k->name, sizeof k->name);
    if (!strcmp(key, "rights")) {
        k->has_rights = true;
        return put(r, key, value, len, k->rights, sizeof k->rights);
    }
    if (!strcmp(key, "topics")) {
        k->has_topics = true;
        return put(r, key, value, len, k->topics, sizeof k->topics);
    }
    return 0;
}

static int read_line(reading *r, char *line) {
    char key[32];
    const char *value = "";
    size_t len = 0, indent = strspn(line, " \t"), n;
    char *at = line + indent;
    if (!*at || *at == '#') return 0;
    n = strcspn(at, " \t=");
    if (n >= sizeof key) return 0; /* a longer word than any that is read here */
    snprintf(key, sizeof key, "%.*s", (int)n, at);
    const char *rest = at + n + strspn(at + n, " \t");
    if (*rest != '=') {
        if (!indent) snprintf(r->section, sizeof r->section, "%.15s", key);
        return 0;
    }
    rest++;
    int error = take_value(r, rest + strspn(rest, " \t"), &value, &len);
    return error ? error : entry(r, key, value, len);
}

static int parse(keyfile *k, const char *path, char *text, keyfile_why *why) {
    reading r = {.k = k, .path = path, .why = why};
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        r.line++;
        line[strcspn(line, "\r")] = 0;
        int error = read_line(&r, line);
        if (error) return error;
    }
    return 0;
}

static int open_checked(const char *path, mode_t *ret_mode, keyfile_why *why) {
    struct stat st = {.st_mode = 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = 0;
    if (fd < 0) {
        error = -errno;
        return keyfile_fail(why, error, "%s: cannot be opened: %s%s", path, strerror(errno),
            error == -ENOENT ? "; `nct keygen` makes keys" : "");
    }
    if (fstat(fd, &st))
        error = keyfile_fail(why, -errno, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        error = keyfile_fail(why, -EINVAL, "%s: not a regular file", path);
    else if (st.st_mode & 002)
        error = keyfile_fail(why, -EPERM, "%s: mode %04o lets everybody change it: chmod o-w %s", path,
            (unsigned)st.st_mode & 07777, path);
    *ret_mode = st.st_mode & 07777;
    if (!error) return fd;
    close(fd);
    return error;
}

static int check(const keyfile *k, const char *path, bool secret, mode_t mode, keyfile_why *why) {
    if (!k->public_key[0])
        return keyfile_fail(why, -EINVAL, "%s: there is no public-key in a section \"curve\": not a key file", path);
    if (secret && !k->secret_key[0])
        return keyfile_fail(why, -EINVAL,
            "%s: there is no secret-key in it; this is the public half: name the .key_secret file", path);
    if (secret && mode & 077)
        return keyfile_fail(
            why, -EPERM, "%s: mode %04o lets others read a secret key: chmod 600 %s", path, (unsigned)mode, path);
    return 0;
}

int keyfile_read(keyfile *ret, const char *path, bool secret, keyfile_why *why) {
    char text[FILE_MAX + 1];
    keyfile k = {.name = ""};
    size_t n = 0;
    ssize_t got;
    mode_t mode = 0;
    int fd = open_checked(path, &mode, why);
    if (fd < 0) return fd;
    while (n < sizeof text && (got = read(fd, text + n, sizeof text - n)) != 0) {
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) break;
        n += (size_t)got;
    }
    close(fd);
    if (got < 0) return keyfile_fail(why, -EIO, "%s: cannot be read: %s", path, strerror(errno));
    if (n == sizeof text || memchr(text, 0, n)) return keyfile_fail(why, -EINVAL, "%s: this is no key file", path);
    text[n] = 0;
    int error = parse(&k, path, text, why);
    explicit_bzero(text, sizeof text);
    if (!error) error = check(&k, path, secret, mode, why);
    if (!error) *ret = k;
    explicit_bzero(&k, sizeof k);
    return error;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static int print(FILE *f, const keyfile *k, bool secret) {
    fprintf(f, "# CURVE %s key%s of nctd, made by nct keygen. %s\n", secret ? "secret and public" : "public",
        secret ? "s" : "",
        secret ? "Whoever reads this file is its owner to everybody: keep it at mode 0600."
               : "It may be given to anybody.");
    fputs("metadata\n", f);
    if (k->name[0]) fprintf(f, "    name = \"%s\"\n", k->name);
    if (k->has_rights) fprintf(f, "    rights = \"%s\"\n", k->rights);
    if (k->has_topics) fprintf(f, "    topics = \"%s\"\n", k->topics);
    fprintf(f, "curve\n    public-key = \"%s\"\n", k->public_key);
    if (secret) fprintf(f, "    secret-key = \"%s\"\n", k->secret_key);
    return fflush(f) || ferror(f) ? -EIO : 0;
}

int keyfile_write(const keyfile *k, const char *path, bool secret, keyfile_why *why) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, secret ? 0600 : 0644), error = 0;
    if (fd < 0 && errno == EEXIST)
        return keyfile_fail(
            why, -EEXIST, "%s is there already, and keys are never written over: choose another name", path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        error = keyfile_fail(why, -errno, "%s: cannot be written: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return error;
    }
    error = print(f, k, secret);
    if (fclose(f) && !error) error = -errno;
    if (!error) return 0;
    unlink(path);
    return keyfile_fail(why, error, "%s: cannot be written: %s", path, strerror(-error));
}
