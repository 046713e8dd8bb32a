/* audio.c: opens and reads sound. Owns the descriptor and libsndfile's handle; called by run's files and by nct send, on
 * the one thread. Resamples, mixes and picks nothing: channels and rate are reported, the caller judges. */
#include "audio.h"
#include "audio_header.h"
#include "audio_spool.h"
#include "cli.h"
#include <errno.h>
#include <fcntl.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct audio {
    int fd;
    SNDFILE *file; /* NULL: headerless */
    audio_info info;
    int live, dtype;
    int64_t at;        /* next step */
    size_t step_bytes; /* headerless */
};

/* ---- opening ----------------------------------------------------------------------------------------------- */
static void describe(audio *a, const SF_INFO *si) {
    SF_FORMAT_INFO major = {.format = si->format & SF_FORMAT_TYPEMASK};
    SF_FORMAT_INFO minor = {.format = si->format & SF_FORMAT_SUBMASK};
    sf_command(NULL, SFC_GET_FORMAT_INFO, &major, sizeof major);
    sf_command(NULL, SFC_GET_FORMAT_INFO, &minor, sizeof minor);
    snprintf(a->info.format, sizeof a->info.format, "%.32s, %.28s", major.name ? major.name : "sound",
        minor.name ? minor.name : "?");
}

/* Some formats do not say how long they are, or say it wrongly: then read once through. */
static int count_steps(audio *a, nct_why *why) {
    enum { BLOCK = 8192 };
    float *block = malloc(sizeof *block * BLOCK * (size_t)a->info.channels);
    if (!block) return cli_why(why, -ENOMEM, "no memory for %d channels", a->info.channels);
    int64_t total = 0, n;
    while ((n = audio_read(a, block, BLOCK, why)) > 0) total += n;
    free(block);
    if (n < 0) return (int)n;
    a->info.steps = total;
    return audio_seek(a, 0, why);
}

/* Why libsndfile opened nothing, and what to do where that can be said. */
static int not_sound(nct_why *why) {
    int code = sf_error(NULL);
    const char *said = sf_strerror(NULL);
    /* The second and third are for an mp3 and an Ogg with nothing in them. */
    if (code == SF_ERR_UNRECOGNISED_FORMAT || strstr(said, "does not exist") || strstr(said, "unimplemented"))
        return cli_why(why, -EINVAL,
            "cannot be read as sound: no format that is known (wav, flac, aiff, au, ogg, opus, mp3, w64, rf64, caf, "
            "...); "
            "headerless samples need --raw f32|f64|i16|i32 --rate HZ --channels N, other formats a conversion "
            "(ffmpeg -i FILE NEW.wav)");
    /* Of a sample rate of 0 it speaks as if its caller were wrong. */
    if (strstr(said, "SF_INFO")) said = "its header gives no sample rate (0 Hz) or no format";
    int len = (int)strlen(said);
    return cli_why(why, -EINVAL, "cannot be read as sound: %.*s", len && said[len - 1] == '.' ? len - 1 : len, said);
}

static int open_sound(audio *a, nct_why *why) {
    SF_INFO si = {0};
    struct stat st;
    int64_t announced = -1;
    if (!fstat(a->fd, &st) && S_ISREG(st.st_mode)) {
        if (st.st_size == 0) return cli_why(why, -EINVAL, "is empty (0 bytes), not a sound file");
        announced = audio_header_steps(a->fd);
        lseek(a->fd, 0, SEEK_SET);
    }
    a->file = sf_open_fd(a->fd, SFM_READ, &si, SF_FALSE);
    if (!a->file) return not_sound(why);
    if (si.channels < 1 || si.samplerate < 1)
        return cli_why(why, -EINVAL, "its header says %d channels at %d Hz", si.channels, si.samplerate);
    describe(a, &si);
    a->info.rate = si.samplerate;
    a->info.channels = si.channels;
    a->info.announced = announced;
    a->info.steps = a->live ? -1 : si.frames;
    if (!a->live && (si.frames < 0 || si.frames >= (sf_count_t)1 << 60 || (!si.frames && announced != 0)))
        return count_steps(a, why);
    return 0;
}

static int open_raw(audio *a, const audio_raw *raw, nct_why *why) {
    static const size_t bytes[] = {0, 4, 2, 2, 2, 4, 8};
    a->dtype = raw->dtype;
    a->step_bytes = bytes[raw->dtype] * (size_t)raw->channels;
    a->info = (audio_info){.rate = raw->rate, .channels = raw->channels, .steps = -1, .announced = -1};
    snprintf(a->info.format, sizeof a->info.format, "headerless PCM");
    struct stat st;
    if (a->live) return 0;
    if (fstat(a->fd, &st)) return cli_why(why, -errno, "%s", strerror(errno));
    a->info.steps = st.st_size / (int64_t)a->step_bytes;
    a->info.odd_bytes = st.st_size % (int64_t)a->step_bytes;
    return 0;
}

/* A descriptor that can be read from its start: the file itself, or a pipe's copy. */
static int open_fd(audio *a, const char *path, int (*progress)(void *, int64_t), void *ctx, nct_why *why) {
    int is_stdin = !strcmp(path, "-");
    a->fd = is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (a->fd < 0 || fstat(a->fd, &st)) return cli_why(why, -errno, "%s", strerror(errno));
    if (S_ISDIR(st.st_mode)) return cli_why(why, -EISDIR, "is a folder; -r takes folders");
    if (is_stdin && isatty(a->fd)) return cli_why(why, -EINVAL, "stdin is a terminal; sound is expected from a pipe");
    int regular = S_ISREG(st.st_mode) && lseek(a->fd, 0, SEEK_CUR) == 0;
    a->live = a->live && !regular;
    if (regular || a->live) return 0;
    int copy = -1, r = audio_spool(a->fd, &copy, progress, ctx, why);
    if (r) return r;
    close(a->fd);
    a->fd = copy;
    return 0;
}

int audio_open(audio **ret, const char *path, const audio_raw *raw, int live, int (*progress)(void *, int64_t),
    void *ctx, nct_why *why) {
    audio *a = calloc(1, sizeof *a);
    if (!a) return cli_why(why, -ENOMEM, "no memory");
    a->fd = -1;
    a->live = live;
    int r = open_fd(a, path, progress, ctx, why);
    if (!r) r = raw && raw->dtype ? open_raw(a, raw, why) : open_sound(a, why);
    if (r) {
        audio_close(a);
        return r;
    }
    *ret = a;
    return 0;
}

const audio_info *audio_about(const audio *a) {
    return &a->info;
}

/* ---- reading ----------------------------------------------------------------------------------------------- */
/* Bytes until `len` or the end; a live pipe may deliver one at a time. */
static int64_t read_bytes(audio *a, unsigned char *to, size_t len, nct_why *why) {
    size_t have = 0;
    while (have < len) {
        ssize_t n = read(a->fd, to + have, len - have);
        if (n < 0 && errno == EINTR && !cli_stopped) continue;
        if (n < 0) return cli_why(why, errno == EINTR ? -EINTR : -EIO, "reading failed: %s", strerror(errno));
        if (n == 0) break;
        have += (size_t)n;
    }
    return (int64_t)have;
}

static uint64_t little(const unsigned char *p, int n) {
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static float sample(const unsigned char *p, int dtype) {
    union {
        uint32_t u;
        float f;
    } w;
    union {
        uint64_t u;
        double d;
    } d;
    switch (dtype) {
    case NCT_I16: return (float)(int16_t)little(p, 2) * 0x1p-15f;
    case NCT_I32: return (float)((double)(int32_t)little(p, 4) * 0x1p-31);
    case NCT_F64: return d.u = little(p, 8), (float)d.d;
    default: return w.u = (uint32_t)little(p, 4), w.f;
    }
}

static int64_t read_raw(audio *a, float *out, int64_t steps, nct_why *why) {
    enum { BLOCK = 65536 };
    unsigned char block[BLOCK];
    size_t size = a->step_bytes / (size_t)a->info.channels;
    int64_t left = steps * a->info.channels, done = 0;
    while (left > 0) {
        size_t want = (size_t)left * size;
        if (want > BLOCK) want = BLOCK;
        int64_t got = read_bytes(a, block, want, why);
        if (got < 0) return got;
        for (int64_t i = 0; i < got / (int64_t)size; i++) out[done++] = sample(block + (size_t)i * size, a->dtype);
        left -= got / (int64_t)size;
        if (got < (int64_t)want) {
            a->info.odd_bytes += got % (int64_t)size + done % a->info.channels * (int64_t)size;
            break;
        }
    }
    return done / a->info.channels;
}

int64_t audio_read(audio *a, float *out, int64_t steps, nct_why *why) {
    int64_t n;
    if (a->info.steps >= 0 && steps > a->info.steps - a->at) steps = a->info.steps - a->at;
    if (steps <= 0) return 0;
    if (!a->file) {
        n = read_raw(a, out, steps, why);
    } else {
        n = sf_readf_float(a->file, out, steps);
        if (n < steps && sf_error(a->file))
            return cli_why(why, -EIO, "decoding failed at step %lld: %s", (long long)a->at + n, sf_strerror(a->file));
    }
    if (n > 0) a->at += n;
    if (n < steps && cli_stopped) return cli_why(why, -EINTR, "stopped");
    return n;
}

int audio_seek(audio *a, int64_t step, nct_why *why) {
    if (step == a->at) return 0;
    if (a->live) return cli_why(why, -ESPIPE, "a pipe cannot be read again");
    int64_t at = a->file ? sf_seek(a->file, step, SEEK_SET)
                         : lseek(a->fd, step * (int64_t)a->step_bytes, SEEK_SET) / (int64_t)a->step_bytes;
    if (at != step) return cli_why(why, -EIO, "cannot go to step %lld", (long long)step);
    a->at = step;
    return 0;
}

void audio_shorten(audio *a, int64_t steps) {
    if (a->info.announced < 0) a->info.announced = a->info.steps;
    a->info.steps = steps;
}

void audio_drain(audio *a) {
    char rest[65536];
    while (a->live && !cli_stopped && read(a->fd, rest, sizeof rest) > 0) {
    }
}

void audio_close(audio *a) {
    if (!a) return;
    if (a->file) sf_close(a->file);
    if (a->fd >= 0) close(a->fd);
    free(a);
}

void audio_channels_differ(const audio_info *info, int is_raw, int wanted, char ret[256]) {
    int n = snprintf(ret, 256, "file has %d channel%s, model layer wants %d; ", info->channels,
        info->channels == 1 ? "" : "s", wanted);
    if (is_raw)
        snprintf(ret + n, 256 - (size_t)n, "--channels says how the input is laid out");
    else
        snprintf(ret + n, 256 - (size_t)n,
            "convert it (ffmpeg -i FILE -ac %d NEW.wav), or take a model with in_channels %d", wanted,
            info->channels);
}
