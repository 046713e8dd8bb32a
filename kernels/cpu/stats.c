/* stats.c: from the leaves of a group to what it is normalised with.
 *
 * Worker threads; each group of a frame is merged by one worker. Float64 throughout; the order of the leaves is
 * ascending channel, then ascending block, whoever computed them. */
#include "schedule.h"
#include <math.h>

/* Chan, Golub, LeVeque 1979, for any number of sets at once: m = sum n_i m_i / n, M2 = sum M2_i + n_i (m_i - m)^2. */
static nct_stat leaves_merge(const cpu_leaf *leaf, int64_t n_rows, int32_t blocks, int32_t t_out) {
    double count = (double)n_rows * t_out, sum = 0, m2 = 0;
    double last = t_out - (double)(blocks - 1) * CPU_LEAF;
    for (int64_t row = 0; row < n_rows; row++)
        for (int32_t b = 0; b < blocks; b++) sum += leaf[row * blocks + b].mean * (b < blocks - 1 ? CPU_LEAF : last);
    double mean = sum / count;
    for (int64_t row = 0; row < n_rows; row++)
        for (int32_t b = 0; b < blocks; b++) {
            double d = leaf[row * blocks + b].mean - mean;
            m2 += leaf[row * blocks + b].m2 + d * d * (b < blocks - 1 ? CPU_LEAF : last);
        }
    return (nct_stat){count, mean, m2};
}

static nct_stat two_merge(nct_stat a, nct_stat b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    double n = a.count + b.count, delta = b.mean - a.mean;
    return (nct_stat){n, a.mean + delta * b.count / n, a.m2 + b.m2 + delta * delta * a.count * b.count / n};
}

static cpu_norm norm_make(const cpu_run *r, nct_stat s) {
    double var = s.m2 / s.count, rstd = NAN;
    if (isfinite(var) && isfinite(s.mean)) rstd = 1 / sqrt((var > 0 ? var : 0) + r->l->p.eps);
    cpu_norm n = {.mean_hi = (float)s.mean, .rstd = (float)rstd};
    n.mean_lo = (float)(s.mean - n.mean_hi);
    if (isnan(rstd)) n.saw |= NCT_SAW_NONFINITE;
    if (fabs(s.mean) * rstd > NCT_OFFSET_F32) n.saw |= NCT_SAW_OFFSET;
    return n;
}

static nct_stat stat_before(const cpu_run *r, const cpu_frame *f, int32_t group) {
    return r->job->stats[(int64_t)f->f->stat_in * r->l->p.num_groups + group];
}

cpu_norm cpu_norm_given(const cpu_run *r, const cpu_frame *f, int32_t group) {
    return norm_make(r, stat_before(r, f, group));
}

cpu_norm cpu_norm_merge(const cpu_run *r, const cpu_frame *f, int32_t group) {
    const nct_job *job = r->job;
    int64_t rows = r->group_co;
    nct_stat s = leaves_merge(f->leaf + group * rows * f->blocks, rows, f->blocks, f->f->t_out);
    int finite = isfinite(s.mean) && isfinite(s.m2);
    if (job->norm == NCT_NORM_GIVEN) s = stat_before(r, f, group);
    if (job->norm == NCT_NORM_RUNNING) s = two_merge(stat_before(r, f, group), s);
    if (!isfinite(s.mean) || !isfinite(s.m2)) s.mean = s.m2 = NAN;
    if (f->f->stat_out >= 0) job->stats[(int64_t)f->f->stat_out * r->l->p.num_groups + group] = s;
    cpu_norm n = norm_make(r, s);
    if (!finite) n.saw |= NCT_SAW_NONFINITE;
    return n;
}
