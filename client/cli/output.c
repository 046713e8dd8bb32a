/* output.c: encodes results and writes them. Called by run's files; the target's name and fate are target.c's. */
#include "output.h"
#include "cli.h"
#include "npy.h"
#include "output_wav.h"
#include "target.h"
#include <errno.h>
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_SAMPLES = 1 << 16 };

struct output {
    output_spec s;
    target to;
    SNDFILE *file; /* NULL: .npy, raw, or a live WAV */
    output_counts counts;
    void *block; /* BLOCK_SAMPLES of 8 bytes */
};

/* ---- kinds ------------------------------------------------------------------------------------------------- */
static const struct {
    const char *extensions;
    int major; /* libsndfile's; 0: ours */
} kinds[] = {[OUTPUT_WAV] = {"wav", SF_FORMAT_WAV},
    [OUTPUT_FLAC] = {"flac", SF_FORMAT_FLAC},
    [OUTPUT_AIFF] = {"aiff aif", SF_FORMAT_AIFF},
    [OUTPUT_CAF] = {"caf", SF_FORMAT_CAF},
    [OUTPUT_W64] = {"w64", SF_FORMAT_W64},
    [OUTPUT_AU] = {"au", SF_FORMAT_AU},
    [OUTPUT_NPY] = {"npy", 0},
    [OUTPUT_RAW] = {"raw pcm", 0}};

output_kind output_kind_named(const char *word) {
    size_t len = strlen(word);
    for (size_t k = 1; k < sizeof kinds / sizeof *kinds; k++)
        for (const char *p = kinds[k].extensions; *p;) {
            size_t l = strcspn(p, " ");
            if (l == len && !strncasecmp(p, word, len)) return (output_kind)k;
            p += l + (p[l] == ' ');
        }
    return OUTPUT_NONE;
}

output_kind output_kind_of(const char *path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    return dot ? output_kind_named(dot + 1) : OUTPUT_NONE;
}

static output_encoding encoding_of(const output_spec *s) {
    if (s->encoding != ENCODE_DEFAULT) return s->encoding;
    return s->kind == OUTPUT_FLAC ? ENCODE_I24 : ENCODE_F32;
}

static int64_t sample_bytes(output_encoding e) {
    static const int64_t bytes[] = {4, 8, 2, 3, 4};
    return bytes[e];
}

static int sound_format(const output_spec *s) {
    static const int minors[] = {
        SF_FORMAT_FLOAT, SF_FORMAT_DOUBLE, SF_FORMAT_PCM_16, SF_FORMAT_PCM_24, SF_FORMAT_PCM_32};
    int major = kinds[s->kind].major;
    int64_t whole = s->steps * s->channels * sample_bytes(encoding_of(s)) + 4096;
    if (s->kind == OUTPUT_WAV && (s->steps < 0 || whole > (int64_t)UINT32_MAX)) major = SF_FORMAT_RF64;
    return major | minors[encoding_of(s)];
}

int output_check(const output_spec *s, nct_why *why) {
    if (s->kind == OUTPUT_NPY && s->encoding != ENCODE_DEFAULT && s->encoding != ENCODE_F32)
        return cli_why(why, -EINVAL, ".npy results are float32");
    if (s->kind == OUTPUT_NPY && s->steps < 0)
        return cli_why(
            why, -EINVAL, "a .npy file begins with its length, which an endless input does not have; write .wav");
    if (s->kind == OUTPUT_RAW && s->encoding == ENCODE_I24)
        return cli_why(why, -EINVAL, "headerless results are f32, f64, i16 or i32, not i24");
    if (s->live && s->kind != OUTPUT_RAW && s->kind != OUTPUT_WAV)
        return cli_why(why, -EINVAL, "results go to a pipe as they are made in wav or raw only");
    if (!kinds[s->kind].major) return 0;
    if (s->kind == OUTPUT_FLAC && s->channels > 8)
        return cli_why(
            why, -EINVAL, "FLAC holds at most 8 channels, the result has %d; write .wav, .caf or .npy", s->channels);
    SF_INFO si = {.channels = s->channels, .samplerate = s->rate, .format = sound_format(s)};
    if (sf_format_check(&si)) return 0;
    if (s->channels > 1024)
        return cli_why(why, -EINVAL, "sound files hold at most 1024 channels, the result has %d; write .npy or .raw",
            s->channels);
    return cli_why(why, -EINVAL, "%s cannot hold %d channels at %d Hz in this encoding; write .wav or .npy",
        kinds[s->kind].extensions, s->channels, s->rate);
}

/* ---- opening ----------------------------------------------------------------------------------------------- */
static int open_sound(output *o, nct_why *why) {
    SF_INFO si = {.channels = o->s.channels, .samplerate = o->s.rate, .format = sound_format(&o->s)};
    o->file = sf_open_fd(o->to.fd, SFM_WRITE, &si, SF_FALSE);
    if (!o->file) return cli_why(why, -EIO, "cannot be written: %s", sf_strerror(NULL));
    /* The PEAK chunk carries the time of day: without it equal results are equal files. */
    sf_command(o->file, SFC_SET_ADD_PEAK_CHUNK, NULL, SF_FALSE);
    if (o->s.kind == OUTPUT_WAV && o->s.steps < 0) sf_command(o->file, SFC_RF64_AUTO_DOWNGRADE, NULL, SF_TRUE);
    return 0;
}

static int open_ours(output *o, nct_why *why) {
    unsigned char header[NPY_HEADER_BYTES];
    size_t len = 0;
    if (o->s.kind == OUTPUT_NPY) {
        npy_header(header, o->s.channels, o->s.steps);
        len = NPY_HEADER_BYTES;
    } else if (o->s.kind == OUTPUT_WAV) {
        len = output_wav_stream(header, o->s.channels, o->s.rate, (int)sample_bytes(encoding_of(&o->s)) * 8,
            encoding_of(&o->s) <= ENCODE_F64);
    }
    int r = cli_write_all(o->to.fd, header, len);
    return r ? cli_why(why, r, "cannot be written: %s", strerror(-r)) : 0;
}

int output_open(output **ret, const output_spec *s, nct_why *why) {
    int r = output_check(s, why);
    if (r) return r;
    output *o = calloc(1, sizeof *o);
    if (!o) return cli_why(why, -ENOMEM, "no memory");
    o->s = *s;
    o->to.fd = o->to.stream = -1;
    o->block = malloc(BLOCK_SAMPLES * 8);
    r = o->block ? target_open(&o->to, s->path, s->live, why) : cli_why(why, -ENOMEM, "no memory");
    if (!r) r = kinds[s->kind].major && !(s->live && s->kind == OUTPUT_WAV) ? open_sound(o, why) : open_ours(o, why);
    if (r) {
        output_abort(o);
        return r;
    }
    *ret = o;
    return 0;
}

/* ---- writing ----------------------------------------------------------------------------------------------- */
/* To an integer of `bits` bits in the top of 32, to nearest even. Counts what did not fit. */
static int32_t saturate(float v, int bits, output_counts *counts) {
    if (!isfinite(v)) {
        counts->not_finite++;
        if (isnan(v)) return 0;
    }
    double scale = (double)(1ll << (bits - 1)), x = nearbyint((double)v * scale);
    if (x > scale - 1 || x < -scale) {
        if (isfinite(v)) counts->clipped++;
        x = x > 0 ? scale - 1 : -scale;
    }
    return (int32_t)((int64_t)x * (1ll << (32 - bits)));
}

/* (channels, n) -> `m` interleaved steps from `first` on, encoded in the block. libsndfile takes 32-bit integers and
 * keeps their top bits, so that no scale of its own enters. */
static void encode(output *o, const unsigned char *payload, int64_t n, int64_t first, int64_t m) {
    static const int bits[] = {0, 0, 16, 24, 32};
    output_encoding e = encoding_of(&o->s);
    int c_n = o->s.channels;
    for (int c = 0; c < c_n; c++) {
        const unsigned char *p = payload + ((int64_t)c * n + first) * 4;
        for (int64_t i = 0; i < m; i++) {
            float v;
            memcpy(&v, p + i * 4, 4);
            int64_t at = i * c_n + c;
            if (bits[e]) {
                ((int32_t *)o->block)[at] = saturate(v, bits[e], &o->counts);
                continue;
            }
            o->counts.not_finite += !isfinite(v);
            if (e == ENCODE_F64)
                ((double *)o->block)[at] = v;
            else
                ((float *)o->block)[at] = v;
        }
    }
}

/* Headerless: the machine is little-endian, as all that this library is built for; only i16 and i24 are shorter than
 * their 32-bit form. */
static int put_raw(output *o, int64_t samples) {
    output_encoding e = encoding_of(&o->s);
    int64_t size = sample_bytes(e);
    unsigned char *to = o->block;
    if (e == ENCODE_I16 || e == ENCODE_I24)
        for (int64_t i = 0; i < samples; i++) {
            uint32_t v = ((uint32_t *)o->block)[i] >> (32 - 8 * size);
            for (int64_t b = 0; b < size; b++) to[i * size + b] = (unsigned char)(v >> (8 * b));
        }
    return cli_write_all(o->to.fd, o->block, (size_t)(samples * size));
}

static int put_block(output *o, int64_t steps, nct_why *why) {
    if (!o->file) {
        int r = put_raw(o, steps * o->s.channels);
        return r ? cli_why(why, r, "writing failed: %s", r == -EPIPE ? "the reader went away" : strerror(-r)) : 0;
    }
    sf_count_t n = 0;
    output_encoding e = encoding_of(&o->s);
    errno = 0;
    if (e == ENCODE_F32)
        n = sf_writef_float(o->file, o->block, steps);
    else if (e == ENCODE_F64)
        n = sf_writef_double(o->file, o->block, steps);
    else
        n = sf_writef_int(o->file, o->block, steps);
    if (n == steps) return 0;
    return cli_why(why, errno ? -errno : -EIO, "writing failed after %lld steps: %s", (long long)o->counts.steps + n,
        errno ? strerror(errno) : sf_strerror(o->file));
}

int output_write(output *o, const void *payload, int64_t pos, int64_t n, nct_why *why) {
    int64_t per = BLOCK_SAMPLES / o->s.channels;
    if (o->s.kind == OUTPUT_NPY) {
        int r = npy_write(o->to.fd, o->s.channels, o->s.steps, pos, n, payload);
        if (r) return cli_why(why, r, "writing failed: %s", strerror(-r));
        for (int64_t i = 0; i < n * o->s.channels; i++) {
            float v;
            memcpy(&v, (const char *)payload + i * 4, 4);
            o->counts.not_finite += !isfinite(v);
        }
        o->counts.steps += n;
        return 0;
    }
    if (per < 1) return cli_why(why, -EINVAL, "%d channels are too many", o->s.channels);
    for (int64_t first = 0; first < n; first += per) {
        int64_t m = n - first < per ? n - first : per;
        encode(o, payload, n, first, m);
        int r = put_block(o, m, why);
        if (r) return r;
        o->counts.steps += m;
    }
    return 0;
}

/* ---- the end ----------------------------------------------------------------------------------------------- */
static int close_sound(output *o, nct_why *why) {
    if (!o->file) return 0;
    sf_write_sync(o->file);
    int bad = sf_error(o->file);
    errno = 0;
    int closed = sf_close(o->file);
    o->file = NULL;
    if (!bad && !closed) return 0;
    return cli_why(
        why, -EIO, "completing the header failed: %s", errno ? strerror(errno) : sf_error_number(bad ? bad : closed));
}

int output_finish(output *o, output_counts *ret, nct_why *why) {
    int r = close_sound(o, why);
    struct stat st;
    if (!r && o->s.steps >= 0 && o->counts.steps != o->s.steps)
        r = cli_why(why, -EIO, "%lld of %lld steps were written", (long long)o->counts.steps, (long long)o->s.steps);
    if (!r && !fstat(o->to.fd, &st)) o->counts.bytes = st.st_size;
    if (!r) r = target_finish(&o->to, why);
    if (!r) *ret = o->counts;
    output_abort(o);
    return r;
}

void output_abort(output *o) {
    if (!o) return;
    if (o->file) sf_close(o->file);
    target_abort(&o->to);
    free(o->block);
    free(o);
}

output_counts output_counted(const output *o) {
    return o->counts;
}
