/* audio.h: sound coming in: files of every kind libsndfile reads, headerless PCM, pipes. Single-threaded.
 *
 * What a header announces is never trusted: lengths come from the file's size or from reading. A pipe is copied to an
 * unlinked temporary file first (in $TMPDIR, else /var/tmp), unless it is opened as `live`. */
#ifndef NCT_CLI_AUDIO_H
#define NCT_CLI_AUDIO_H
#include <stdint.h>
#include "nct_layer.h"

typedef struct {
    int dtype;    /* nct_dtype of headerless samples, interleaved, little-endian; 0: a sound file with a header */
    int rate;     /* Hz, > 0 */
    int channels; /* > 0 */
} audio_raw;

typedef struct audio audio;
typedef struct {
    int rate, channels;
    int64_t steps;     /* -1: unknown (live) */
    int64_t announced; /* steps the header promises; -1: it promises nothing (streamed headers, raw) */
    int64_t odd_bytes; /* raw: bytes after the last whole step, left out */
    char format[64];   /* "WAV (Microsoft), Signed 16 bit PCM" */
} audio_info;

/* Open `path` ("-": stdin). live: read a pipe as it comes, length unknown. progress (may be NULL) hears the bytes
 * spooled so far; what it returns is a reason to stop (a negative errno) or 0.
 * 0; -ENOENT, -EACCES, -EISDIR ... (file); -EINVAL (not a sound file, or one that makes no sense); -ENOSPC (spool);
 * -ENOMEM; -EINTR. *why is a sentence without the file's name. */
int audio_open(audio **ret, const char *path, const audio_raw *raw, int live,
    int (*progress)(void *ctx, int64_t bytes), void *ctx, nct_why *why);
const audio_info *audio_about(const audio *a);
/* Up to `steps` steps, interleaved f32 (integers / 2^(bits-1)), into out. Steps read, 0 at the end, or -EIO, -EINTR. Only
 * at the end are fewer than `steps` read. */
int64_t audio_read(audio *a, float *out, int64_t steps, nct_why *why);
int audio_seek(audio *a, int64_t step, nct_why *why); /* 0, -ESPIPE (live), -EIO */
/* The end came before info.steps: the length is `steps` from now on. */
void audio_shorten(audio *a, int64_t steps);
/* Read a live pipe to its end: what follows the samples in a file (chunks, tags) is no reason for its writer to see
 * SIGPIPE. For the end of work that went well; after a failure the writer is not waited for. */
void audio_drain(audio *a);
void audio_close(audio *a); /* NULL is fine */
/* What is wrong and what to do when an input has other channels than the model. */
void audio_channels_differ(const audio_info *info, int is_raw, int wanted, char ret[256]);
#endif
