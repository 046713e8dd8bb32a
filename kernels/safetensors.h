/* safetensors.h: reads a safetensors file, or the parts that a shard index names, into memory and checks all of it.
 *
 * Format: u64 little-endian length of a JSON header, the header, then the tensors back to back. Source:
 * https://huggingface.co/docs/safetensors (format); the rules are the reference reader's, which alone takes a key twice
 * and a file without tensors:
 *   - the header is at most 100,000,000 bytes, lies inside the file, is UTF-8 and begins with "{" (a leading blank or a
 *     byte order mark is refused), may end in blanks, holds no NUL and no key twice;
 *   - __metadata__, if there, is null or an object of strings;
 *   - every tensor has a known dtype, a shape of whole numbers >= 0 and data_offsets whose size is the shape's;
 *   - the tensors fill the data without holes, overlaps or left-over bytes. Data may stand at any alignment.
 * A file is read whole, never mapped: one that shrinks while it is read is an error, not a SIGBUS. Nothing larger than
 * the file is allocated before its sizes agree.
 *
 * Private to model files. No logging, no threads; an object may be read by many threads. */
#ifndef NCT_SAFETENSORS_H
#define NCT_SAFETENSORS_H
#include <jansson.h>
#include <stdbool.h>
#include "nct_layer.h"

#define ST_MAX_HEADER 100000000u
#define ST_MAX_FILE   ((size_t)4 << 30) /* all parts together: one layer is far smaller */
#define ST_SHOWN_RANK 8

typedef struct {
    const char *name;             /* borrowed from the header */
    const char *dtype;            /* "F32", static */
    int32_t load;                 /* NCT_F64, NCT_F32, NCT_F16, NCT_BF16; 0: a dtype that no layer uses */
    int32_t rank;                 /* 0: a scalar */
    int64_t shape[ST_SHOWN_RANK]; /* the first sides; a tensor of more is never a layer's */
    int64_t count;                /* product of all sides */
    const unsigned char *data;    /* bytes, any alignment */
    size_t bytes;
} st_tensor;

typedef struct {
    unsigned char *bytes; /* the file */
    size_t len;
    json_t *header;
} st_part;

typedef struct {
    st_tensor *tensors; /* by name, in strcmp order */
    size_t n_tensors;
    st_part *parts;
    size_t n_parts;
} safetensors;

/* Opens a .safetensors file, or the index (a name that ends in .json) of a sharded one: then every part it names is
 * read and must hold what the index says. An entry that leaves the index's folder is refused.
 * 0; -ENOENT, -EACCES, -EIO; -EINVAL (with what was found and expected); -ENOMEM. */
int safetensors_open(safetensors **ret, const char *path, nct_why *why);
/* The same for bytes in memory (malloc'ed; taken, also on failure); `path` stands in messages only. */
int safetensors_parse(safetensors **ret, unsigned char *bytes, size_t len, const char *path, nct_why *why);
void safetensors_free(safetensors *s); /* NULL is fine */

const st_tensor *safetensors_find(const safetensors *s, const char *name); /* NULL: not there */
/* __metadata__ of one part: an object of strings, or NULL. Borrowed. */
const json_t *safetensors_metadata(const safetensors *s, size_t part);

/* dst[0..t->count) = the values as f32, to nearest even. Only for t->load != 0. */
void st_to_f32(const st_tensor *t, float *dst);

/* ---- one part, for safetensors_open ---- */
int st_add_part(safetensors *s, unsigned char *bytes, size_t len, const char *path, nct_why *why); /* takes bytes */
void st_sort(safetensors *s);
/* What a file that is no safetensors looks like ("a Git LFS pointer: ..."), or NULL. */
const char *st_looks_like(const unsigned char *bytes, size_t len);

/* ---- sentences ---- */
typedef struct {
    char text[112];
} st_text;
/* A name from a file made fit for a line of text: control characters become '?', the middle of a long one "...". */
const char *st_printable(st_text *buf, const char *name);
const char *st_shape(st_text *buf, const st_tensor *t); /* "[4, 2, 3]" */
/* *why = "PATH: sentence" (path NULL: the sentence alone); returns error. why may be NULL. */
int file_why(nct_why *why, int error, const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A list of names in a sentence that has room for some of them only. */
typedef struct {
    char text[300];
    size_t len, left_out;
} st_list;
void st_list_add(st_list *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *st_list_end(st_list *l); /* adds "and N more"; "nothing" when empty */
#endif
