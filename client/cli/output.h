/* output.h: results going out: sound files, .npy, headerless PCM; files, stdout, devices. Single-threaded.
 *
 * A file is written under no name (or a temporary one where the file system cannot do that) beside its target and gets
 * its name in output_finish(): an existing target stays byte for byte as it was until then, and after any failure.
 * What goes to stdout, a pipe or a device is written once the result is whole, unless `live`. */
#ifndef NCT_CLI_OUTPUT_H
#define NCT_CLI_OUTPUT_H
#include <stdint.h>
#include "nct_layer.h"

/* Kinds: XX(name, extensions, help) */
#define OUTPUT_KINDS(XX)                                                                                             \
    XX(WAV, "wav", "WAV; RF64 where 4 GiB do not suffice")                                                           \
    XX(FLAC, "flac", "FLAC, integers of up to 24 bits, 1 to 8 channels")                                             \
    XX(AIFF, "aiff aif", "AIFF")                                                                                     \
    XX(CAF, "caf", "CAF")                                                                                            \
    XX(W64, "w64", "Sony Wave64")                                                                                    \
    XX(AU, "au", "AU")                                                                                               \
    XX(NPY, "npy", "numpy array, float32, (channels, steps)")                                                        \
    XX(RAW, "raw pcm", "headerless samples, interleaved, little-endian")
typedef enum {
    OUTPUT_NONE,
#define XX(name, extensions, help) OUTPUT_##name,
    OUTPUT_KINDS(XX)
#undef XX
} output_kind;

#define OUTPUT_ENCODINGS "f32|f64|i16|i24|i32" /* the order of output_encoding */
typedef enum { ENCODE_F32, ENCODE_F64, ENCODE_I16, ENCODE_I24, ENCODE_I32, ENCODE_DEFAULT } output_encoding;

typedef struct {
    const char *path; /* "-": stdout. Borrowed */
    output_kind kind;
    output_encoding encoding; /* ENCODE_DEFAULT: f32; FLAC i24 */
    int channels, rate;
    int64_t steps; /* -1: unknown */
    int live;      /* stdout: write at once */
} output_spec;

typedef struct output output;
typedef struct {
    int64_t clipped;    /* samples that an integer encoding could not hold and that were saturated */
    int64_t not_finite; /* NaN and infinities; NaN is written as 0 by integer encodings */
    int64_t steps, bytes;
} output_counts;

/* By the extension of `path` (any case); OUTPUT_NONE: unknown. */
output_kind output_kind_of(const char *path);
output_kind output_kind_named(const char *word); /* by one of the extensions */
/* Whether such a file can be written at all; touches nothing. 0 or -EINVAL with a sentence that says what can. */
int output_check(const output_spec *s, nct_why *why);
/* 0; -EINVAL (output_check), -ENOENT, -EACCES, -ENOSPC ..., -ENOMEM. */
int output_open(output **ret, const output_spec *s, nct_why *why);
/* `n` steps at `pos`: (channels, n) row-major f32, any alignment. All but .npy take the steps in order. 0, -ENOSPC, -EIO... */
int output_write(output *o, const void *payload, int64_t pos, int64_t n, nct_why *why);
/* Complete the header, give the file its name (stdout: deliver). Frees `o` in any case. */
int output_finish(output *o, output_counts *ret, nct_why *why);
void output_abort(output *o); /* leave no trace; NULL is fine */
output_counts output_counted(const output *o);
#endif
