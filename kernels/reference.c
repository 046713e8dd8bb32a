/* reference.c: nct_reference, the oracle of every test: the layer as its definition reads, in float64 plain
 * loops.
 *
 * Called by tests and by the daemon's start-up comparison, on the caller's thread. It shares the headers and
 * layer.c's checks with the backends and no arithmetic: own dtype conversions, own statistics, libm
 * activations. It is slow, and must stay simple enough to be right by reading. */
#include "layer.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

/* sign, exponent and mantissa of a 16-bit float -> its value: F16 has 5 + 10 bits, BF16 8 + 7. */
static double small_float(uint16_t bits, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    int e = bits >> mantissa_bits & top, m = bits & ((1 << mantissa_bits) - 1);
    double v = e == top ? (m ? NAN : INFINITY)
               : e      ? ldexp(m + (1 << mantissa_bits), e - bias - mantissa_bits)
                        : ldexp(m, 1 - bias - mantissa_bits);
    return bits >> 15 ? -v : v;
}

/* The other way, to nearest even; beyond the largest value it is Inf. */
static uint16_t small_float_bits(double v, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    uint16_t sign = signbit(v) ? 0x8000 : 0, inf = (uint16_t)(top << mantissa_bits);
    if (isnan(v)) return (uint16_t)(sign | inf | 1 << (mantissa_bits - 1));
    if (isinf(v)) return sign | inf;
    if (v == 0) return sign;
    int e;
    frexp(fabs(v), &e); /* |v| in [2^(e-1), 2^e) */
    int ulp = (e - 1 < 1 - bias ? 1 - bias : e - 1) - mantissa_bits;
    double m = nearbyint(ldexp(fabs(v), -ulp)); /* whole ulps; a carry to the next binade is right by itself */
    double bits = m < (1 << mantissa_bits) ? m : (ulp + mantissa_bits + bias - 1) * ldexp(1, mantissa_bits) + m;
    return sign | (bits > inf ? inf : (uint16_t)bits);
}

static double value_at(const void *data, int32_t dtype, int64_t i) {
    switch (dtype) {
    case NCT_F32: return ((const float *)data)[i];
    case NCT_F64: return ((const double *)data)[i];
    case NCT_F16: return small_float(((const uint16_t *)data)[i], 5, 10);
    case NCT_BF16: return small_float(((const uint16_t *)data)[i], 8, 7);
    case NCT_I16: return ((const int16_t *)data)[i] / 32768.0;
    case NCT_I32: return ((const int32_t *)data)[i] / 2147483648.0;
    default: return NAN;
    }
}

static void value_put(void *data, int32_t dtype, int64_t i, double v) {
    switch (dtype) {
    case NCT_F32: ((float *)data)[i] = (float)v; break;
    case NCT_F64: ((double *)data)[i] = v; break;
    case NCT_F16: ((uint16_t *)data)[i] = small_float_bits(v, 5, 10); break;
    case NCT_BF16: ((uint16_t *)data)[i] = small_float_bits(v, 8, 7); break;
    }
}

/* A weight as the layer sees it: rounded to f32. */
static double weight_at(const nct_tensor *t, int64_t i, double absent) {
    return t->data ? (float)value_at(t->data, t->dtype, i) : absent;
}

/* ---- conv ---- */

/* Where step `at` of the padded sequence lies in x[0 .. t-1]; -1: it is a zero. */
static int64_t source_step(int32_t padding_mode, int64_t at, int64_t t) {
    if (at >= 0 && at < t) return at;
    switch (padding_mode) {
    case NCT_REFLECT: return at < 0 ? -at : 2 * (t - 1) - at;
    case NCT_REPLICATE: return at < 0 ? 0 : t - 1;
    case NCT_CIRCULAR: return at < 0 ? at + t : at - t;
    default: return -1;
    }
}

/* One output of the conv: sum over the group's input channels and the taps, plus the bias. */
static double conv_at(const nct_params *p, const nct_weights *w, const nct_job *job, const nct_frame *f,
    int32_t channel, int32_t step) {
    int32_t inputs = p->in_channels / p->groups;
    int32_t first = channel / (p->out_channels / p->groups) * inputs;
    double sum = 0;
    for (int32_t c = 0; c < inputs; c++) {
        for (int32_t k = 0; k < p->kernel_size; k++) {
            int64_t at = (int64_t)step * p->stride + (int64_t)k * p->dilation - f->pad_left;
            int64_t from = source_step(p->padding_mode, at, f->t_in);
            if (from < 0) continue;
            int64_t weight = ((int64_t)channel * inputs + c) * p->kernel_size + k;
            sum += weight_at(&w->weight, weight, NAN) *
                   value_at(job->x, job->x_dtype, f->x_off + (first + c) * f->x_pitch + from);
        }
    }
    sum += weight_at(&w->bias, channel, 0);
    return fabs(sum) > FLT_MAX && isinf((float)sum) ? copysign(INFINITY, sum) : sum;
}

/* ---- statistics ---- */

/* Two passes about the first value, so that a constant group has exactly its value as mean and m2 0. */
static nct_stat stat_of(const double *v, int64_t n) {
    double shift = 0, m2 = 0;
    for (int64_t i = 0; i < n; i++) shift += v[i] - v[0];
    double mean = v[0] + shift / (double)n;
    for (int64_t i = 0; i < n; i++) m2 += (v[i] - mean) * (v[i] - mean);
    return (nct_stat){(double)n, mean, m2};
}

/* Chan, Golub, LeVeque 1979: the statistics of two sets together. */
static nct_stat stat_merge(nct_stat a, nct_stat b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    double n = a.count + b.count, delta = b.mean - a.mean;
    return (nct_stat){n, a.mean + delta * b.count / n, a.m2 + b.m2 + delta * delta * a.count * b.count / n};
}

/* ---- activation ---- */

static double activate(int32_t activation, double z) {
    if (isnan(z)) return z;
    switch (activation) {
    case NCT_RELU: return z < 0 ? 0 : z;
    case NCT_GELU: return 0.5 * z * erfc(-z * M_SQRT1_2);
    case NCT_GELU_TANH: return 0.5 * z * (1 + tanh(M_2_SQRTPI * M_SQRT1_2 * (z + 0.044715 * z * z * z)));
    case NCT_SILU: return z / (1 + exp(-z));
    case NCT_MISH: return z * tanh(log1p(exp(z)));
    case NCT_ELU: return z < 0 ? expm1(z) : z;
    default: return z;
    }
}

/* ---- one group of one frame ---- */

typedef struct {
    const nct_params *p;
    const nct_weights *w;
    const nct_job *job;
    double *conv; /* one group's conv outputs, (channels of a norm group, t_out) */
} oracle;

/* The statistics that the group is normalised with; writes stat_out. `finite`: all n conv outputs are. */
static nct_stat stat_choose(const oracle *o, const nct_frame *f, int32_t group, int64_t n, int finite) {
    const nct_job *job = o->job;
    nct_stat before = {0, 0, 0};
    if (f->stat_in >= 0) before = job->stats[(int64_t)f->stat_in * o->p->num_groups + group];
    if (job->norm == NCT_NORM_GIVEN) return before;
    nct_stat s = finite ? stat_of(o->conv, n) : (nct_stat){(double)n, NAN, NAN};
    if (job->norm == NCT_NORM_RUNNING) s = stat_merge(before, s);
    if (!isfinite(s.mean) || !isfinite(s.m2)) s.mean = s.m2 = NAN;
    if (f->stat_out >= 0) job->stats[(int64_t)f->stat_out * o->p->num_groups + group] = s;
    return s;
}

static uint32_t group_run(const oracle *o, const nct_frame *f, int32_t group) {
    const nct_params *p = o->p;
    const nct_job *job = o->job;
    int32_t channels = p->out_channels / p->num_groups, first = group * channels;
    int64_t n = (int64_t)channels * f->t_out;
    int finite = 1;
    for (int64_t i = 0; i < n; i++) {
        o->conv[i] = conv_at(p, o->w, job, f, first + (int32_t)(i / f->t_out), (int32_t)(i % f->t_out));
        if (!isfinite(o->conv[i])) finite = 0;
    }
    int conv_only = (job->flags & NCT_CONV_ONLY) != 0;
    nct_stat s = {0, 0, 0};
    if (!conv_only) s = stat_choose(o, f, group, n, finite);
    /* max() would turn a NaN variance into 0, and an infinite one would leave beta alone: both must give NaN.
     */
    double var = s.m2 / s.count;
    double rstd = isfinite(var) && isfinite(s.mean) ? 1 / sqrt((var > 0 ? var : 0) + p->eps) : NAN;
    for (int64_t i = 0; job->y && i < n; i++) {
        int32_t channel = first + (int32_t)(i / f->t_out);
        double v = o->conv[i];
        if (!conv_only) {
            v = isfinite(v) ? (v - s.mean) * rstd : NAN;
            v = activate(p->activation, v * weight_at(&o->w->gamma, channel, 1) + weight_at(&o->w->beta, channel, 0));
        }
        value_put(job->y, job->y_dtype, f->y_off + channel * f->y_pitch + i % f->t_out, v);
    }
    uint32_t saw = !finite || isnan(rstd) ? NCT_SAW_NONFINITE : 0;
    return fabs(s.mean) * rstd > NCT_OFFSET_F32 ? saw | NCT_SAW_OFFSET : saw;
}

int nct_reference(const nct_params *p, const nct_weights *w, const nct_job *job, nct_why *why) {
    int err = params_check(p, why);
    if (!err) err = weights_check(w, -1, why);
    if (!err) err = job_check(p, JOB_ORACLE, job, why);
    if (err || job->n_frames == 0) return err;
    int64_t longest = 1;
    for (int32_t n = 0; n < job->n_frames; n++)
        if (job->frames[n].t_out > longest) longest = job->frames[n].t_out;
    size_t values = (size_t)(p->out_channels / p->num_groups) * (size_t)longest;
    double *conv = calloc(values, sizeof *conv);
    if (!conv) return why_set(why, -ENOMEM, "no memory for the %zu conv outputs of one group", values);
    oracle o = {p, w, job, conv};
    for (int32_t n = 0; n < job->n_frames; n++) {
        uint32_t saw = 0;
        for (int32_t group = 0; group < p->num_groups; group++) saw |= group_run(&o, &job->frames[n], group);
        if (job->frame_flags) job->frame_flags[n] = saw;
    }
    free(conv);
    return 0;
}
