/* model_save.c: a layer as a safetensors file that torch and this project read.
 *
 * Called by `nct model new` and tests; any thread. The file appears under its name only when it is whole and on disk. */
#include "model.h"
#include "model_settings.h"
#include "safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *name;
    const nct_tensor *tensor;
    int32_t rank;
    json_int_t shape[3];
} saved;

static size_t saved_bytes(const saved *t) {
    size_t n = sizeof(float);
    for (int32_t i = 0; i < t->rank; i++) n *= (size_t)t->shape[i];
    return n;
}

/* The tensors that are there, in the order of their data. */
static int list_tensors(const model *m, saved out[4]) {
    const nct_params *p = &m->params;
    const saved all[4] = {
        {"conv.weight", &m->weights.weight, 3, {p->out_channels, p->in_channels / p->groups, p->kernel_size}},
        {"conv.bias", &m->weights.bias, 1, {p->out_channels}},
        {"norm.weight", &m->weights.gamma, 1, {p->out_channels}},
        {"norm.bias", &m->weights.beta, 1, {p->out_channels}},
    };
    int n = 0;
    for (int i = 0; i < 4; i++) {
        if (all[i].tensor->data) out[n++] = all[i];
    }
    return n;
}

static json_t *metadata_json(const model *m) {
    json_t *meta = json_pack("{s:s}", "format", "pt");
    model_settings *s = calloc(1, sizeof *s);
    if (s && meta) {
        model_settings_of(s, m);
        for (int row = 0; row < MODEL_PARAMS; row++) {
            if (*s->text[row]) json_object_set_new(meta, model_setting_rows[row].name, json_string(s->text[row]));
        }
    }
    if (!s) json_decref(meta), meta = NULL;
    free(s);
    return meta;
}

/* The header's text; blanks behind it (safetensors allows them) let the data begin at a multiple of 8. */
static char *header_text(const model *m, const saved *t, int n, size_t *ret_len) {
    json_t *h = json_pack("{s:o}", "__metadata__", metadata_json(m));
    json_int_t at = 0;
    for (int i = 0; h && i < n; i++) {
        json_int_t end = at + (json_int_t)saved_bytes(&t[i]);
        json_t *shape = json_array();
        for (int32_t d = 0; d < t[i].rank; d++) json_array_append_new(shape, json_integer(t[i].shape[d]));
        json_object_set_new(
            h, t[i].name, json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets", at, end));
        at = end;
    }
    char *text = h ? json_dumps(h, JSON_COMPACT) : NULL;
    json_decref(h);
    size_t len = text ? strlen(text) : 0, padded = (len + 7) / 8 * 8;
    char *grown = text ? realloc(text, padded) : NULL;
    if (!grown) {
        free(text);
        return NULL;
    }
    memset(grown + len, ' ', padded - len);
    *ret_len = padded;
    return grown;
}

static int write_all(int fd, const void *bytes, size_t len) {
    const char *p = bytes;
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -EIO;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

static int write_file(int fd, const model *m) {
    saved t[4];
    size_t len;
    int n = list_tensors(m, t), r;
    char *header = header_text(m, t, n, &len);
    if (!header) return -ENOMEM;
    uint64_t len64 = len;
    r = write_all(fd, &len64, sizeof len64);
    if (!r) r = write_all(fd, header, len);
    for (int i = 0; !r && i < n; i++) r = write_all(fd, t[i].tensor->data, saved_bytes(&t[i]));
    free(header);
    if (!r && fsync(fd)) r = -errno;
    return r;
}

/* The rename itself must reach the disk too; some file systems cannot sync a folder, which loses nothing. */
static void sync_folder(const char *path) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)!fsync(fd);
    close(fd);
}

static int failed(int error, const char *path, const char *what, nct_why *why) {
    errno = -error;
    return file_why(why, error, path, "%s: %m", what);
}

int model_save(const model *m, const char *path, nct_why *why) {
    char temporary[PATH_MAX];
    int n = snprintf(temporary, sizeof temporary, "%s.%08x.part", path, randombytes_random()), r;
    if (n < 0 || (size_t)n >= sizeof temporary) return file_why(why, -ENAMETOOLONG, path, "the name is too long");
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return failed(-errno, path, "cannot be made", why);
    r = write_file(fd, m);
    if (close(fd) && !r) r = -errno;
    if (r) {
        unlink(temporary);
        return failed(r, path, "cannot be written", why);
    }
    if (rename(temporary, path)) {
        r = -errno;
        unlink(temporary);
        return failed(r, path, "cannot be named so", why);
    }
    sync_folder(path);
    return 0;
}
