/* model_files.h: safetensors files made by hand for the tests of reader and model: right, wrong, and by other tools' names.
 * Independent of the writer under test. Included by one test program each. */
#ifndef TEST_MODEL_FILES_H
#define TEST_MODEL_FILES_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    FILE *json, *data;
    char *json_text, *data_bytes;
    size_t json_len, data_len, at;
} file_maker;

static inline void file_begin(file_maker *f, const char *metadata) {
    memset(f, 0, sizeof *f);
    f->json = open_memstream(&f->json_text, &f->json_len);
    f->data = open_memstream(&f->data_bytes, &f->data_len);
    fprintf(f->json, "{\"__metadata__\":%s", metadata ? metadata : "{\"format\":\"pt\"}");
}

/* Bytes as they stand, with the header's claims made by the caller. */
static inline void file_raw(
    file_maker *f, const char *name, const char *dtype, const char *shape, const void *bytes, size_t len) {
    fprintf(f->json, ",\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", name, dtype, shape, f->at,
        f->at + len);
    fwrite(bytes, 1, len, f->data);
    f->at += len;
}

/* f32 values first, first + step, ... */
static inline void file_f32(
    file_maker *f, const char *name, const char *shape, size_t count, float first, float step) {
    float *v = malloc((count + 1) * sizeof *v);
    for (size_t i = 0; i < count; i++) v[i] = first + step * (float)i;
    file_raw(f, name, "F32", shape, v, count * sizeof *v);
    free(v);
}

/* The whole file, malloc'ed. */
static inline unsigned char *file_end(file_maker *f, size_t *ret_len) {
    fputc('}', f->json);
    fclose(f->json);
    fclose(f->data);
    uint64_t n = f->json_len;
    unsigned char *b = malloc(8 + f->json_len + f->data_len);
    memcpy(b, &n, 8);
    memcpy(b + 8, f->json_text, f->json_len);
    memcpy(b + 8 + f->json_len, f->data_bytes, f->data_len);
    *ret_len = 8 + f->json_len + f->data_len;
    free(f->json_text);
    free(f->data_bytes);
    return b;
}

/* A header text and `data_len` zero bytes of data. */
static inline unsigned char *file_of_header(const char *header, size_t data_len, size_t *ret_len) {
    uint64_t n = strlen(header);
    unsigned char *b = calloc(1, 8 + n + data_len);
    memcpy(b, &n, 8);
    memcpy(b + 8, header, n);
    *ret_len = 8 + n + data_len;
    return b;
}

static inline void put_file(const char *path, const void *bytes, size_t len) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, len, f) != len || fclose(f)) abort();
}

static inline unsigned char *get_file(const char *path, size_t *ret_len) {
    FILE *f = fopen(path, "rb");
    if (!f) abort();
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    unsigned char *b = malloc(n + 1);
    if (fread(b, 1, n, f) != n) abort();
    fclose(f);
    *ret_len = n;
    return b;
}

/* Writes what the maker holds. */
static inline void file_end_at(file_maker *f, const char *path) {
    size_t len;
    unsigned char *b = file_end(f, &len);
    put_file(path, b, len);
    free(b);
}
#endif
