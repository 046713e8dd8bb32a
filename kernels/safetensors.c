/* safetensors.c: the container: header length, JSON, shapes, offsets.
 *
 * Owns the rules of safetensors.h for one part in memory. Called by safetensors_file.c and by tests; any thread. Reads
 * no file and knows nothing of layers. */
#include "safetensors.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors data is copied as it stands: little-endian");

static const struct {
    const char *name;
    int32_t bits, load;
} dtypes[] = {
    {"F64", 64, NCT_F64},
    {"F32", 32, NCT_F32},
    {"F16", 16, NCT_F16},
    {"BF16", 16, NCT_BF16},
    {"BOOL", 8, 0},
    {"U8", 8, 0},
    {"I8", 8, 0},
    {"U16", 16, 0},
    {"I16", 16, 0},
    {"U32", 32, 0},
    {"I32", 32, 0},
    {"U64", 64, 0},
    {"I64", 64, 0},
    {"C64", 64, 0},
    {"F8_E4M3", 8, 0},
    {"F8_E5M2", 8, 0},
    {"F8_E8M0", 8, 0},
    {"F6_E2M3", 6, 0},
    {"F6_E3M2", 6, 0},
    {"F4", 4, 0},
};

typedef struct {
    const char *path; /* for messages */
    const unsigned char *data;
    size_t data_len;
    nct_why *why;
} part_ctx;

/* ---- the header's bytes -------------------------------------------------------------------------------------- */

static int header_length(const unsigned char *b, size_t len, const char *path, size_t *ret, nct_why *why) {
    uint64_t n;
    if (len == 0) return file_why(why, -EINVAL, path, "the file is empty");
    if (len < sizeof n)
        return file_why(
            why, -EINVAL, path, "%zu bytes are no safetensors file: it begins with 8 bytes of header length", len);
    memcpy(&n, b, sizeof n);
    const char *guess = n > len - sizeof n || n > ST_MAX_HEADER ? st_looks_like(b, len) : NULL;
    if (guess) return file_why(why, -EINVAL, path, "no safetensors file, it looks like %s", guess);
    if (n > len - sizeof n)
        return file_why(why, -EINVAL, path,
            "the header is said to be %llu bytes long, but only %zu follow: cut short, or no safetensors file",
            (unsigned long long)n, len - sizeof n);
    if (n > ST_MAX_HEADER)
        return file_why(why, -EINVAL, path, "a header of %llu bytes is over the limit of %u", (unsigned long long)n,
            ST_MAX_HEADER);
    if (n < 2) return file_why(why, -EINVAL, path, "a header of %llu bytes is no JSON object", (unsigned long long)n);
    *ret = n;
    return 0;
}

static int header_parse(const char *text, size_t len, const char *path, json_t **ret, nct_why *why) {
    json_error_t e;
    const char *nul = memchr(text, 0, len);
    if (nul)
        return file_why(why, -EINVAL, path, "NUL byte at position %zu of the header: padding must be spaces",
            (size_t)(nul - text));
    if (!memcmp(text, "\xef\xbb", 2))
        return file_why(why, -EINVAL, path, "the header begins with a byte order mark, expected \"{\"");
    if (text[0] != '{')
        return file_why(
            why, -EINVAL, path, "the header begins with byte 0x%02x, expected \"{\"", (unsigned char)text[0]);
    /* jansson caps the depth (2048) and the range of numbers itself */
    json_t *h = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (!h) {
        if (json_error_code(&e) == json_error_out_of_memory)
            return file_why(why, -ENOMEM, path, "no memory for a header of %zu bytes", len);
        st_text t;
        return file_why(why, -EINVAL, path, "header: %s (at byte %d)", st_printable(&t, e.text), e.position);
    }
    *ret = h;
    return 0;
}

static int metadata_check(const json_t *header, const char *path, nct_why *why) {
    const char *key;
    json_t *m = json_object_get(header, "__metadata__"), *v;
    st_text t;
    if (!m || json_is_null(m)) return 0;
    if (!json_is_object(m)) return file_why(why, -EINVAL, path, "__metadata__ is no object of strings");
    json_object_foreach(m, key, v) {
        if (!json_is_string(v))
            return file_why(why, -EINVAL, path, "__metadata__: \"%s\" is no string (the format allows nothing else)",
                st_printable(&t, key));
    }
    return 0;
}

/* ---- one tensor ------------------------------------------------------------------------------------------------ */

static int dtype_read(const part_ctx *c, st_tensor *t, const json_t *v, int32_t *ret_bits) {
    st_text n, d;
    const char *name = json_string_value(json_object_get(v, "dtype"));
    if (!name) return file_why(c->why, -EINVAL, c->path, "tensor \"%s\" has no dtype", st_printable(&n, t->name));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(name, dtypes[i].name) != 0) continue;
        t->dtype = dtypes[i].name;
        t->load = dtypes[i].load;
        *ret_bits = dtypes[i].bits;
        return 0;
    }
    return file_why(c->why, -EINVAL, c->path, "tensor \"%s\": \"%s\" is no dtype of safetensors",
        st_printable(&n, t->name), st_printable(&d, name));
}

/* Sides and their product. The bits of all values are kept below 2^63, so no later product wraps. */
static int shape_read(const part_ctx *c, st_tensor *t, const json_t *v, int32_t bits) {
    st_text n;
    json_t *shape = json_object_get(v, "shape");
    int64_t count = 1, total;
    if (!json_is_array(shape) || json_array_size(shape) > INT32_MAX)
        return file_why(c->why, -EINVAL, c->path, "tensor \"%s\" has no shape", st_printable(&n, t->name));
    t->rank = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < t->rank; i++) {
        json_t *side = json_array_get(shape, (size_t)i);
        if (!json_is_integer(side))
            return file_why(c->why, -EINVAL, c->path, "tensor \"%s\": side %d of its shape is no whole number",
                st_printable(&n, t->name), i);
        int64_t s = json_integer_value(side);
        if (s < 0)
            return file_why(c->why, -EINVAL, c->path, "tensor \"%s\": side %d of its shape is %lld",
                st_printable(&n, t->name), i, (long long)s);
        if (i < ST_SHOWN_RANK) t->shape[i] = s;
        if (__builtin_mul_overflow(count, s, &count) || __builtin_mul_overflow(count, bits, &total))
            return file_why(c->why, -EINVAL, c->path,
                "tensor \"%s\": the product of its shape overflows at side %d (%lld); the data is %zu bytes",
                st_printable(&n, t->name), i, (long long)s, c->data_len);
    }
    t->count = count;
    return 0;
}

static int offsets_read(const part_ctx *c, st_tensor *t, const json_t *v, int32_t bits) {
    st_text n, s;
    json_t *o = json_object_get(v, "data_offsets"), *b = json_array_get(o, 0), *e = json_array_get(o, 1);
    if (json_array_size(o) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return file_why(c->why, -EINVAL, c->path, "tensor \"%s\": data_offsets are not two whole numbers",
            st_printable(&n, t->name));
    int64_t begin = json_integer_value(b), end = json_integer_value(e), want = t->count * bits,
            shape_bytes = want / 8 + (want % 8 != 0);
    if (begin < 0 || end < begin || (uint64_t)end > c->data_len)
        return file_why(c->why, -EINVAL, c->path,
            "tensor \"%s\": data_offsets [%lld, %lld] lie outside the %zu bytes of data", st_printable(&n, t->name),
            (long long)begin, (long long)end, c->data_len);
    if (want % 8 || end - begin != want / 8)
        return file_why(c->why, -EINVAL, c->path,
            "tensor \"%s\": shape %s of %s is %lld bytes, data_offsets [%lld, %lld] hold %lld",
            st_printable(&n, t->name), st_shape(&s, t), t->dtype, (long long)shape_bytes, (long long)begin,
            (long long)end, (long long)(end - begin));
    t->data = c->data + begin;
    t->bytes = (size_t)(end - begin);
    return 0;
}

static int tensor_read(const part_ctx *c, const char *name, const json_t *v, st_tensor *ret) {
    st_tensor t = {.name = name};
    st_text n;
    int32_t bits = 0;
    int r;
    if (!json_is_object(v))
        return file_why(c->why, -EINVAL, c->path, "tensor \"%s\" is no object with dtype, shape, data_offsets",
            st_printable(&n, name));
    if ((r = dtype_read(c, &t, v, &bits))) return r;
    if ((r = shape_read(c, &t, v, bits))) return r;
    if ((r = offsets_read(c, &t, v, bits))) return r;
    *ret = t;
    return 0;
}

/* ---- all tensors of a part ------------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b) {
    const st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

/* The tensors, sorted by offset, must follow each other from the first byte of the data to its last. */
static int layout_check(const part_ctx *c, const st_tensor *t, size_t n_tensors) {
    size_t at = 0;
    st_text n;
    for (size_t i = 0; i < n_tensors; i++) {
        size_t begin = (size_t)(t[i].data - c->data);
        if (begin != at)
            return file_why(c->why, -EINVAL, c->path,
                "tensor \"%s\" begins at byte %zu of the data, expected %zu: %s", st_printable(&n, t[i].name), begin,
                at, begin > at ? "a hole" : "it overlaps another");
        at += t[i].bytes;
    }
    if (at != c->data_len)
        return file_why(
            c->why, -EINVAL, c->path, "the tensors end at byte %zu, the data is %zu bytes long", at, c->data_len);
    return 0;
}

static int tensors_read(safetensors *s, const part_ctx *c, json_t *header) {
    const char *name;
    json_t *v;
    int r;
    size_t n = json_object_size(header) - (json_object_get(header, "__metadata__") != NULL);
    if (n == 0) return file_why(c->why, -EINVAL, c->path, "the file holds no tensor");
    st_tensor *all = realloc(s->tensors, (s->n_tensors + n) * sizeof *all), *mine;
    if (!all) return file_why(c->why, -ENOMEM, c->path, "no memory for a table of %zu tensors", n);
    s->tensors = all;
    mine = all + s->n_tensors;
    size_t i = 0;
    json_object_foreach(header, name, v) {
        if (strcmp(name, "__metadata__") == 0) continue;
        if ((r = tensor_read(c, name, v, &mine[i]))) return r;
        i++;
    }
    qsort(mine, n, sizeof *mine, by_offset);
    if ((r = layout_check(c, mine, n))) return r;
    s->n_tensors += n;
    return 0;
}

int st_add_part(safetensors *s, unsigned char *bytes, size_t len, const char *path, nct_why *why) {
    json_t *header = NULL;
    size_t header_len = 0;
    st_part *parts;
    int r;
    if ((r = header_length(bytes, len, path, &header_len, why))) goto fail_length;
    if ((r = header_parse((const char *)bytes + 8, header_len, path, &header, why))) goto fail_length;
    if ((r = metadata_check(header, path, why))) goto fail_header;
    part_ctx c = {path, bytes + 8 + header_len, len - 8 - header_len, why};
    if (!(parts = realloc(s->parts, (s->n_parts + 1) * sizeof *parts))) {
        r = file_why(why, -ENOMEM, path, "no memory");
        goto fail_header;
    }
    s->parts = parts;
    if ((r = tensors_read(s, &c, header))) goto fail_header;
    s->parts[s->n_parts++] = (st_part){bytes, len, header};
    return 0;
fail_header:
    json_decref(header);
fail_length:
    free(bytes);
    return r;
}

void st_sort(safetensors *s) {
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
}

int safetensors_parse(safetensors **ret, unsigned char *bytes, size_t len, const char *path, nct_why *why) {
    safetensors *s = calloc(1, sizeof *s);
    if (!s) {
        free(bytes);
        return file_why(why, -ENOMEM, path, "no memory");
    }
    int r = st_add_part(s, bytes, len, path, why);
    if (r) {
        safetensors_free(s);
        return r;
    }
    st_sort(s);
    *ret = s;
    return 0;
}

void safetensors_free(safetensors *s) {
    if (!s) return;
    for (size_t i = 0; i < s->n_parts; i++) {
        json_decref(s->parts[i].header);
        free(s->parts[i].bytes);
    }
    free(s->parts);
    free(s->tensors);
    free(s);
}

const st_tensor *safetensors_find(const safetensors *s, const char *name) {
    st_tensor key = {.name = name};
    return s->n_tensors ? bsearch(&key, s->tensors, s->n_tensors, sizeof key, by_name) : NULL;
}

const json_t *safetensors_metadata(const safetensors *s, size_t part) {
    json_t *m = json_object_get(s->parts[part].header, "__metadata__");
    return json_is_object(m) ? m : NULL;
}
