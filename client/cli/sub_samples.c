/* sub_samples.c: (C, T) results of any result dtype -> interleaved f32. Called by sub.c. */
#include "sub_samples.h"
#include "cli.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float half(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 0    ? ldexp(mantissa, -24)
               : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                : ldexp(1024 + mantissa, exponent - 25);
    return (float)(h >> 15 ? -v : v);
}

static float sample(const unsigned char *p, uint8_t dtype) {
    uint16_t h;
    uint32_t u;
    float v;
    if (dtype == NCT_DTYPE_F32) {
        memcpy(&v, p, 4);
        return v;
    }
    memcpy(&h, p, 2);
    if (dtype == NCT_DTYPE_F16) return half(h);
    u = (uint32_t)h << 16;
    memcpy(&v, &u, 4);
    return v;
}

static int check(sub_samples *s, const nct_answer *a, nct_why *why) {
    char topic[sizeof s->topic];
    snprintf(topic, sizeof topic, "%s/%s", a->model, a->stream);
    if (a->dtype != NCT_DTYPE_F32 && a->dtype != NCT_DTYPE_F16 && a->dtype != NCT_DTYPE_BF16) {
        snprintf(why->text, sizeof why->text, "%s: a result without samples of f32, f16 or bf16", topic);
        return -EINVAL;
    }
    if (!s->channels) {
        s->channels = a->channels;
        strcpy(s->topic, topic);
    }
    if (!strcmp(topic, s->topic) && a->channels == s->channels) return 0;
    snprintf(why->text, sizeof why->text,
        "%s with %u channels came after %s with %u: --raw writes one stream, name it", topic, a->channels, s->topic,
        s->channels);
    return -EINVAL;
}

int sub_samples_write(sub_samples *s, const nct_answer *a, nct_why *why) {
    size_t n = (size_t)a->channels * a->steps, size = a->dtype == NCT_DTYPE_F32 ? 4 : 2;
    int r = check(s, a, why);
    if (r) return r;
    if (a->payload_bytes != n * size) {
        snprintf(why->text, sizeof why->text, "a result of %zu bytes instead of %zu", a->payload_bytes, n * size);
        return -EINVAL;
    }
    if (n > s->room) {
        float *bigger = realloc(s->block, n * sizeof *bigger);
        snprintf(why->text, sizeof why->text, "no memory for %zu samples", n);
        if (!bigger) return -ENOMEM;
        s->block = bigger;
        s->room = n;
    }
    for (size_t c = 0; c < a->channels; c++)
        for (size_t t = 0; t < a->steps; t++)
            s->block[t * a->channels + c] =
                sample((const unsigned char *)a->payload + (c * a->steps + t) * size, a->dtype);
    r = cli_write_all(s->fd, s->block, n * sizeof *s->block);
    if (r) snprintf(why->text, sizeof why->text, "writing to stdout failed: %s", strerror(-r));
    return r;
}

void sub_samples_done(sub_samples *s) {
    free(s->block);
    s->block = NULL;
}
