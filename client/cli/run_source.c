/* run_source.c: a sliding buffer over an input, and the copies of it that become payloads. Called by run_pieces.c. Reads in
 * order wherever it can: overlaps stay in the buffer, so that compressed files are not decoded twice. */
#include "run_source.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(nct_why *why, int64_t steps, int channels) {
    snprintf(why->text, sizeof why->text, "no memory for %lld steps of %d channels", (long long)steps, channels);
    return -ENOMEM;
}

static int read_apron(source *s, float **ret, int64_t from, int64_t steps, nct_why *why) {
    float *apron = malloc((size_t)(steps ? steps : 1) * (size_t)s->channels * sizeof *apron);
    if (!apron) return no_memory(why, steps, s->channels);
    *ret = apron;
    int r = audio_seek(s->a, from, why);
    if (r) return r;
    int64_t n = audio_read(s->a, apron, steps, why);
    if (n == steps) return 0;
    if (n < 0) return (int)n;
    snprintf(why->text, sizeof why->text, "its end cannot be read, and circular padding begins with it");
    return -EIO;
}

int source_init(source *s, audio *a, const pieces *g, nct_why *why) {
    *s = (source){.a = a, .channels = audio_about(a)->channels, .end = -1, .keep = g->pad_right + 1};
    if (g->mode != NCT_CIRCULAR) return audio_seek(a, 0, why);
    int r = read_apron(s, &s->wrap_left, g->t_in - g->pad_left, g->pad_left, why);
    if (!r) r = read_apron(s, &s->wrap_right, 0, g->pad_right, why);
    if (!r) r = audio_seek(a, 0, why);
    return r;
}

void source_done(source *s) {
    free(s->buffer);
    free(s->wrap_left);
    free(s->wrap_right);
    *s = (source){0};
}

/* Drop what lies before `from`, and make room up to hi. */
static int slide(source *s, int64_t from, int64_t hi, nct_why *why) {
    size_t step = (size_t)s->channels * sizeof *s->buffer;
    if (from > s->lo) {
        memmove(s->buffer, s->buffer + (from - s->lo) * s->channels, (size_t)(s->hi - from) * step);
        s->lo = from;
    }
    if (hi - s->lo <= s->room) return 0;
    int64_t room = hi - s->lo + (hi - s->lo) / 4;
    float *bigger = realloc(s->buffer, (size_t)room * step);
    if (!bigger) return no_memory(why, room, s->channels);
    s->buffer = bigger;
    s->room = room;
    return 0;
}

int source_want(source *s, int64_t lo, int64_t hi, nct_why *why) {
    /* A stride that jumps over steps reads them too: a pipe could not do otherwise, and a file seldom gains. */
    if (lo < s->lo) {
        int r = audio_seek(s->a, lo, why);
        if (r) return r;
        s->lo = s->hi = lo;
    }
    if (s->hi >= hi) return 0;
    int64_t from = s->hi - s->keep < lo ? s->hi - s->keep : lo;
    int r = slide(s, from > s->lo ? from : s->lo, hi, why);
    if (r) return r;
    int64_t n = audio_read(s->a, s->buffer + (s->hi - s->lo) * s->channels, hi - s->hi, why);
    if (n < 0) return (int)n;
    s->hi += n;
    if (s->hi < hi) s->end = s->hi;
    return 0;
}

/* Tiles of a few hundred steps: each cache line read serves all its channels before it leaves. */
static void transpose(float *out, int64_t out_pitch, const float *in, int channels, int64_t n) {
    enum { TILE = 256 };
    for (int64_t t0 = 0; t0 < n; t0 += TILE) {
        int64_t t1 = t0 + TILE < n ? t0 + TILE : n;
        for (int c = 0; c < channels; c++)
            for (int64_t t = t0; t < t1; t++) out[c * out_pitch + t] = in[t * channels + c];
    }
}

static const float *step_at(const source *s, const pieces *g, int64_t v) {
    if (g->mode == NCT_CIRCULAR && v < g->pad_left) return s->wrap_left + v * s->channels;
    if (g->mode == NCT_CIRCULAR && v - g->pad_left >= g->t_in)
        return s->wrap_right + (v - g->pad_left - g->t_in) * s->channels;
    int64_t at = pieces_source(g, v);
    return at < 0 ? NULL : s->buffer + (at - s->lo) * s->channels;
}

static void edge(const source *s, const pieces *g, const piece *p, float *out, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        const float *step = step_at(s, g, p->in0 + i);
        for (int c = 0; c < s->channels; c++) out[c * p->n_in + i] = step ? step[c] : 0;
    }
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

void source_gather(const source *s, const pieces *g, const piece *p, float *out) {
    int64_t first = p->in0 - g->pad_left; /* source step of the piece's first */
    int64_t left = clamp(-first, 0, p->n_in);
    int64_t right = g->t_in < 0 ? p->n_in : clamp(g->t_in - first, left, p->n_in);
    edge(s, g, p, out, 0, left);
    if (right > left)
        transpose(out + left, p->n_in, s->buffer + (first + left - s->lo) * s->channels, s->channels, right - left);
    edge(s, g, p, out, right, p->n_in);
}

void source_plain(const source *s, int64_t lo, int64_t hi, float *out) {
    transpose(out, hi - lo, s->buffer + (lo - s->lo) * s->channels, s->channels, hi - lo);
}
