/* run_source.h: the steps of an input as pieces of the padded axis (pieces.h). Internal to nct run. */
#ifndef NCT_CLI_RUN_SOURCE_H
#define NCT_CLI_RUN_SOURCE_H
#include "audio.h"
#include "pieces.h"

typedef struct {
    audio *a; /* borrowed */
    int channels;
    float *buffer; /* interleaved steps [lo, hi) of the input */
    int64_t lo, hi, room;
    int64_t keep;                  /* steps before the newest that stay, for the right padding of an endless input */
    int64_t end;                   /* -1: the end was not seen yet */
    float *wrap_left, *wrap_right; /* circular: the last pad_left and first pad_right steps, interleaved */
} source;

/* For input `a` (borrowed). 0, -ENOMEM, or reading's error (circular padding reads both ends now). */
int source_init(source *s, audio *a, const pieces *g, nct_why *why);
void source_done(source *s); /* a zeroed one is fine */
/* Have the source steps [lo, hi) in the buffer, fewer only at the input's end (then s->end is set). 0 or an error. */
int source_want(source *s, int64_t lo, int64_t hi, nct_why *why);
/* (channels, n_in) row-major f32 of the piece into out; what it needs is in the buffer (source_want(pieces_range)). */
void source_gather(const source *s, const pieces *g, const piece *p, float *out);
/* The same for source steps [lo, hi), nothing around them. */
void source_plain(const source *s, int64_t lo, int64_t hi, float *out);
#endif
