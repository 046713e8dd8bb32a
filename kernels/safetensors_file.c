/* safetensors_file.c: files into memory: one model file, or the parts of a shard index.
 *
 * Called by model.c; any thread. Only regular files are read, whole, up to ST_MAX_FILE; nothing is mapped. */
#include "safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *magic;
    size_t len;
    const char *what;
} guesses[] = {
    {"version https://git-lfs", 23, "a Git LFS pointer: `git lfs pull` fetches the file it stands for"},
    {"PK\3\4", 4, "a zip, perhaps a torch checkpoint: write its state_dict with safetensors.torch.save_file"},
    {"\x80\2", 2,
        "a Python pickle, perhaps an old torch checkpoint: write its state_dict with safetensors.torch.save_file"},
    {"GGUF", 4, "a GGUF file"},
    {"\x89HDF", 4, "an HDF5 file, perhaps Keras weights"},
    {"\x1f\x8b", 2, "gzip: unpack it first"},
    {"RIFF", 4, "a sound file (RIFF)"},
    {"fLaC", 4, "a sound file (FLAC)"},
    {"{", 1, "JSON: a shard index is read if its name ends in .json"},
};

const char *st_looks_like(const unsigned char *bytes, size_t len) {
    for (size_t i = 0; i < sizeof guesses / sizeof *guesses; i++) {
        if (len >= guesses[i].len && !memcmp(bytes, guesses[i].magic, guesses[i].len)) return guesses[i].what;
    }
    size_t at = len >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3) ? 3 : 0;
    while (at < len && strchr(" \t\r\n", bytes[at]) && bytes[at]) at++;
    if (at < len && bytes[at] == '<') return "HTML or XML, perhaps the error page of a failed download";
    return NULL;
}

static int open_error(int e, const char *path, nct_why *why) {
    int r = e == ENOENT || e == EACCES || e == ENOMEM ? -e : e == ENOTDIR || e == ENAMETOOLONG ? -ENOENT : -EIO;
    errno = e;
    return file_why(why, r, path, "%m");
}

/* The open file's bytes; *max_len is lowered by what was read. */
static int read_all(int fd, const char *path, size_t *max_len, unsigned char **ret, size_t *ret_len, nct_why *why) {
    struct stat st;
    size_t len = 0;
    if (fstat(fd, &st)) return open_error(errno, path, why);
    if (!S_ISREG(st.st_mode))
        return file_why(why, -EINVAL, path, S_ISDIR(st.st_mode) ? "a folder, expected a file" : "no regular file");
    if ((uint64_t)st.st_size > *max_len)
        return file_why(why, -EINVAL, path,
            "%lld bytes are over the limit of %zu for a model's files: save the layer alone", (long long)st.st_size,
            ST_MAX_FILE);
    size_t size = (size_t)st.st_size;
    unsigned char *b = malloc(size ? size : 1);
    if (!b) return file_why(why, -ENOMEM, path, "no memory for %zu bytes", size);
    while (len < size) {
        ssize_t n = read(fd, b + len, size - len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            int r = n < 0 ? open_error(errno, path, why)
                          : file_why(why, -EIO, path, "shrank while it was read: %zu of %zu bytes", len, size);
            free(b);
            return r;
        }
        len += (size_t)n;
    }
    *max_len -= len;
    *ret = b;
    *ret_len = len;
    return 0;
}

static int file_read(const char *path, size_t *max_len, unsigned char **ret, size_t *ret_len, nct_why *why) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO must not hold the caller */
    if (fd < 0) return open_error(errno, path, why);
    int r = read_all(fd, path, max_len, ret, ret_len, why);
    close(fd);
    return r;
}

/* ---- a shard index --------------------------------------------------------------------------------------------- */

/* Index -> weight_map: an object of tensor name -> file name, all files beside the index. */
static int index_parse(const unsigned char *bytes, size_t len, const char *path, json_t **ret, nct_why *why) {
    json_error_t e;
    const char *key;
    json_t *v, *root, *map;
    st_text t, f;
    int r = 0;
    if (len > ST_MAX_HEADER) return file_why(why, -EINVAL, path, "an index of %zu bytes is over the limit", len);
    if (!(root = json_loadb((const char *)bytes, len, JSON_REJECT_DUPLICATES, &e)))
        return file_why(why, -EINVAL, path, "index: %s (line %d)", st_printable(&t, e.text), e.line);
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || !json_object_size(map))
        r = file_why(why, -EINVAL, path, "index: no weight_map of tensor names to files");
    json_object_foreach(map, key, v) {
        const char *file = json_string_value(v);
        if (r) break;
        if (!file || !*file)
            r = file_why(why, -EINVAL, path, "index: the entry of \"%s\" is no file name", st_printable(&t, key));
        else if (strchr(file, '/') || !strcmp(file, "..") || !strcmp(file, "."))
            r = file_why(why, -EINVAL, path, "index: \"%s\" is said to be in \"%s\", outside the index's folder",
                st_printable(&t, key), st_printable(&f, file));
    }
    if (!r) *ret = json_incref(map);
    json_decref(root);
    return r;
}

static int part_missing(json_t *map, const char *file, const char *path, int error, nct_why *why) {
    const char *key;
    json_t *v;
    st_list l = {0};
    st_text t;
    json_object_foreach(map, key, v) {
        if (!strcmp(json_string_value(v), file)) st_list_add(&l, "%s", st_printable(&t, key));
    }
    return file_why(why, error, path, "part \"%s\" is missing; it holds %s", st_printable(&t, file), st_list_end(&l));
}

static int part_open(safetensors *s, json_t *map, const char *file, const char *path, size_t *max_len, nct_why *why) {
    char full[PATH_MAX];
    unsigned char *bytes = NULL;
    size_t len = 0;
    const char *slash = strrchr(path, '/');
    int n = snprintf(full, sizeof full, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, file);
    if (n < 0 || (size_t)n >= sizeof full) return file_why(why, -EINVAL, path, "index: a part's path is too long");
    int r = file_read(full, max_len, &bytes, &len, why);
    if (r == -ENOENT) return part_missing(map, file, path, r, why);
    return r ? r : st_add_part(s, bytes, len, full, why);
}

/* Every tensor once, and everything that the index names is there. */
static int index_check(const safetensors *s, json_t *map, const char *path, nct_why *why) {
    const char *key;
    json_t *v;
    st_list l = {0};
    st_text t;
    for (size_t i = 1; i < s->n_tensors; i++) {
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name))
            return file_why(
                why, -EINVAL, path, "index: two parts hold tensor \"%s\"", st_printable(&t, s->tensors[i].name));
    }
    json_object_foreach(map, key, v) {
        if (!safetensors_find(s, key)) st_list_add(&l, "%s", st_printable(&t, key));
    }
    if (l.len || l.left_out) return file_why(why, -EINVAL, path, "index: no part holds %s", st_list_end(&l));
    return 0;
}

static int index_open(safetensors **ret, const char *path, nct_why *why) {
    unsigned char *bytes = NULL;
    size_t len = 0, max_len = ST_MAX_FILE;
    const char *key;
    json_t *map = NULL, *v, *files = json_object();
    safetensors *s = calloc(1, sizeof *s);
    int r;
    if (!s || !files) {
        r = file_why(why, -ENOMEM, path, "no memory");
        goto fail_alloc;
    }
    if ((r = file_read(path, &max_len, &bytes, &len, why))) goto fail_alloc;
    r = index_parse(bytes, len, path, &map, why);
    free(bytes);
    if (r) goto fail_alloc;
    json_object_foreach(map, key, v) {
        const char *file = json_string_value(v);
        if (json_object_get(files, file)) continue;
        if ((r = part_open(s, map, file, path, &max_len, why))) goto fail_part;
        if (json_object_set_new(files, file, json_true())) {
            r = file_why(why, -ENOMEM, path, "no memory");
            goto fail_part;
        }
    }
    st_sort(s);
    if ((r = index_check(s, map, path, why))) goto fail_part;
    json_decref(map);
    json_decref(files);
    *ret = s;
    return 0;
fail_part:
    json_decref(map);
fail_alloc:
    json_decref(files);
    safetensors_free(s);
    return r;
}

int safetensors_open(safetensors **ret, const char *path, nct_why *why) {
    unsigned char *bytes = NULL;
    size_t len = strlen(path), max_len = ST_MAX_FILE;
    if (len > 5 && !strcmp(path + len - 5, ".json")) return index_open(ret, path, why);
    int r = file_read(path, &max_len, &bytes, &len, why);
    return r ? r : safetensors_parse(ret, bytes, len, path, why);
}
