/* layer_job.c: is this job one that the layer can do? Every rule of nct_job and nct_frame, once, before a
 * backend sees it.
 *
 * Called by layer.c (nct_launch, nct_phases, nct_explain) and reference.c on the caller's thread for every
 * batch: one pass over the frames, nothing allocated. It looks at no element of x. */
#include "layer.h"
#include <errno.h>
#include <string.h>

static int dtype_check(int32_t device, const nct_job *job, nct_why *why) {
    int oracle = device == JOB_ORACLE;
    int32_t x = job->x_dtype, y = job->y_dtype;
    int x_ok = x == NCT_F32 || x == NCT_F16 || x == NCT_BF16 || x == NCT_I16;
    if (!x_ok && !(oracle && (x == NCT_F64 || x == NCT_I32)))
        return why_set(why, -EINVAL, "x has dtype %d, it must be one of F32 %d, F16 %d, BF16 %d, I16 %d", x, NCT_F32,
            NCT_F16, NCT_BF16, NCT_I16);
    if (!job->x) return why_set(why, -EINVAL, "the job has %d frames and no x (NULL)", job->n_frames);
    if ((uintptr_t)job->x % dtype_size(x))
        return why_set(why, -EINVAL, "x at %p is not aligned to its elements of %zu bytes", job->x, dtype_size(x));
    if (!job->y) return 0;
    if (y != NCT_F32 && y != NCT_F16 && y != NCT_BF16 && !(oracle && y == NCT_F64))
        return why_set(
            why, -EINVAL, "y has dtype %d, it must be one of F32 %d, F16 %d, BF16 %d", y, NCT_F32, NCT_F16, NCT_BF16);
    if ((uintptr_t)job->y % dtype_size(y))
        return why_set(why, -EINVAL, "y at %p is not aligned to its elements of %zu bytes", job->y, dtype_size(y));
    return 0;
}

static int conv_only_check(int32_t device, const nct_job *job, nct_why *why) {
    if (!job->y) return why_set(why, -EINVAL, "NCT_CONV_ONLY writes y, and y is NULL");
    if (job->y_dtype != NCT_F32 && !(device == JOB_ORACLE && job->y_dtype == NCT_F64))
        return why_set(
            why, -EINVAL, "NCT_CONV_ONLY writes y as F32 (%d), the job says dtype %d", NCT_F32, job->y_dtype);
    if (job->norm != NCT_NORM_OWN)
        return why_set(why, -EINVAL, "NCT_CONV_ONLY knows no statistics: norm is %d, it must be OWN (%d)", job->norm,
            NCT_NORM_OWN);
    if (job->frame_flags) return why_set(why, -EINVAL, "NCT_CONV_ONLY knows no statistics: frame_flags must be NULL");
    return 0;
}

static int head_check(int32_t device, const nct_job *job, nct_why *why) {
    if (!job->frames)
        return why_set(why, -EINVAL, "the job has %d frames and no rows (frames is NULL)", job->n_frames);
    int err = dtype_check(device, job, why);
    if (err) return err;
    if (job->norm < NCT_NORM_OWN || job->norm > NCT_NORM_GIVEN)
        return why_set(why, -EINVAL, "norm %d is unknown: 0 own, 1 running, 2 given", job->norm);
    if (job->flags & ~NCT_CONV_ONLY)
        return why_set(
            why, -EINVAL, "flags 0x%x of the job holds unknown bits, known are 0x%x", job->flags, NCT_CONV_ONLY);
    if (job->x_count < 0 || job->y_count < 0 || job->n_stats < 0)
        return why_set(why, -EINVAL, "x_count %lld, y_count %lld, n_stats %d: none may be negative",
            (long long)job->x_count, (long long)job->y_count, job->n_stats);
    if (job->n_stats > 0 && !job->stats)
        return why_set(why, -EINVAL, "the job has %d slots of statistics and no stats (NULL)", job->n_stats);
    if ((uintptr_t)job->stats % _Alignof(nct_stat))
        return why_set(
            why, -EINVAL, "stats at %p are not aligned to %zu bytes", (void *)job->stats, _Alignof(nct_stat));
    if ((uintptr_t)job->frame_flags % sizeof *job->frame_flags)
        return why_set(why, -EINVAL, "frame_flags at %p are not aligned to %zu bytes", (void *)job->frame_flags,
            sizeof *job->frame_flags);
    if (!job->y && job->norm == NCT_NORM_GIVEN)
        return why_set(why, -EINVAL, "norm is GIVEN and y is NULL: there is nothing to write");
    if ((uintptr_t)job->workspace % 256)
        return why_set(why, -EINVAL, "the workspace at %p is not aligned to 256 bytes", job->workspace);
    return job->flags & NCT_CONV_ONLY ? conv_only_check(device, job, why) : 0;
}

/* Do `channels` rows of `steps` at `pitch` from `off` stay inside `count` elements? `what` is "x" or "y". */
static int bounds_check(const char *what, int32_t frame, int32_t channels, int32_t steps, int64_t off, int64_t pitch,
    int64_t count, nct_why *why) {
    if (pitch < steps)
        return why_set(
            why, -EINVAL, "frame %d: %s_pitch %lld is below its %d steps", frame, what, (long long)pitch, steps);
    int64_t last, end;
    if (off < 0 || __builtin_mul_overflow(pitch, (int64_t)channels - 1, &last) ||
        __builtin_add_overflow(last, off, &last) || __builtin_add_overflow(last, steps, &end) || end > count)
        return why_set(why, -EINVAL,
            "frame %d: %d channels of %d steps at pitch %lld from %s_off %lld leave the %lld elements of %s", frame,
            channels, steps, (long long)pitch, what, (long long)off, (long long)count, what);
    return 0;
}

static int pads_check(const nct_params *p, int32_t frame, const nct_frame *f, nct_why *why) {
    if (f->pad_left != p->pad_left && f->pad_left != 0)
        return why_set(why, -EINVAL, "frame %d: pad_left is %d, it must be the layer's %d or 0", frame, f->pad_left,
            p->pad_left);
    if (f->pad_right != p->pad_right && f->pad_right != 0)
        return why_set(why, -EINVAL, "frame %d: pad_right is %d, it must be the layer's %d or 0", frame, f->pad_right,
            p->pad_right);
    if (f->t_skip || f->reserved)
        return why_set(
            why, -EINVAL, "frame %d: t_skip is %d and reserved %d, both must be 0", frame, f->t_skip, f->reserved);
    int64_t t_out;
    nct_why inner;
    int err = nct_out_steps(p, f->t_in, f->pad_left, f->pad_right, &t_out, &inner);
    if (err) return why_set(why, err, "frame %d: %.480s", frame, inner.text);
    if (f->t_out != t_out)
        return why_set(why, -EINVAL, "frame %d: t_out is %d, T = %d steps with padding %d + %d give %lld", frame,
            f->t_out, f->t_in, f->pad_left, f->pad_right, (long long)t_out);
    return 0;
}

static int slots_check(int32_t frame, const nct_frame *f, const nct_job *job, nct_why *why) {
    if (f->stat_in < -1 || f->stat_in >= job->n_stats || f->stat_out < -1 || f->stat_out >= job->n_stats)
        return why_set(why, -EINVAL,
            "frame %d: stat_in %d, stat_out %d: slots go from 0 to n_stats %d - 1, -1 is none", frame, f->stat_in,
            f->stat_out, job->n_stats);
    if ((f->stat_in >= 0) != (job->norm != NCT_NORM_OWN))
        return why_set(
            why, -EINVAL, "frame %d: stat_in is %d: norm OWN takes -1, RUNNING and GIVEN a slot", frame, f->stat_in);
    if (f->stat_out >= 0 && job->norm == NCT_NORM_GIVEN)
        return why_set(
            why, -EINVAL, "frame %d: stat_out is %d: norm GIVEN writes no statistics, -1", frame, f->stat_out);
    if (f->stat_out >= 0 && job->flags & NCT_CONV_ONLY)
        return why_set(
            why, -EINVAL, "frame %d: stat_out is %d: NCT_CONV_ONLY writes no statistics, -1", frame, f->stat_out);
    if (f->stat_out < 0 && !job->y)
        return why_set(why, -EINVAL, "frame %d: y is NULL and stat_out -1: there is nothing to write", frame);
    return 0;
}

/* A CUDA kernel without frames_dev computes row n from row 0 and the distance of rows 0 and 1. */
static int alike_check(int32_t n, const nct_job *job, nct_why *why) {
    const nct_frame *f = &job->frames[n], *first = job->frames;
    int64_t dx = first[1].x_off - first->x_off, dy = first[1].y_off - first->y_off;
    const nct_frame *before = f - 1;
    if (f->x_off - before->x_off == dx && f->y_off - before->y_off == dy && f->x_pitch == first->x_pitch &&
        f->y_pitch == first->y_pitch && f->t_in == first->t_in && f->t_out == first->t_out &&
        f->pad_left == first->pad_left && f->pad_right == first->pad_right && f->stat_in == first->stat_in &&
        f->stat_out == first->stat_out)
        return 0;
    return why_set(why, -EINVAL,
        "frame %d is not frame 0 with x_off and y_off advanced by constant steps: such a job needs "
        "frames_dev",
        n);
}

/* Two frames that touch one slot, one of them writing, would race. Bitmaps over a window of slots, one pass a
 * window: no memory, and a batch whose slots lie close together (every batch of a daemon) takes one. */
enum { WINDOW = 4096 };
typedef struct {
    uint64_t touched[WINDOW / 64], written[WINDOW / 64];
} slot_window;

static int slot_mark(slot_window *w, int64_t bit, int writes) {
    uint64_t mask = 1ull << (bit % 64);
    if (w->written[bit / 64] & mask || (writes && w->touched[bit / 64] & mask)) return -1;
    w->touched[bit / 64] |= mask;
    if (writes) w->written[bit / 64] |= mask;
    return 0;
}

static int races_check(const nct_job *job, int32_t low, int32_t high, nct_why *why) {
    for (int64_t base = low; base <= high; base += WINDOW) {
        slot_window w;
        memset(&w, 0, sizeof w);
        for (int32_t n = 0; n < job->n_frames; n++) {
            const nct_frame *f = &job->frames[n];
            int64_t in = f->stat_in - base, out = f->stat_out - base;
            int err = 0;
            if (f->stat_out >= 0 && out >= 0 && out < WINDOW) err = slot_mark(&w, out, 1);
            if (!err && f->stat_in != f->stat_out && f->stat_in >= 0 && in >= 0 && in < WINDOW)
                err = slot_mark(&w, in, 0);
            if (err)
                return why_set(why, -EINVAL,
                    "frame %d: its slot (stat_in %d, stat_out %d) is touched by another frame too, and one "
                    "of them "
                    "writes it",
                    n, f->stat_in, f->stat_out);
        }
    }
    return 0;
}

int job_check(const nct_params *p, int32_t device, const nct_job *job, nct_why *why) {
    if (!job) return why_set(why, -EINVAL, "no job was given (NULL)");
    if (job->n_frames < 0) return why_set(why, -EINVAL, "n_frames is %d, it must not be negative", job->n_frames);
    if (job->n_frames == 0) return 0;
    int err = head_check(device, job, why);
    if (err) return err;
    int32_t low = INT32_MAX, high = -1;
    for (int32_t n = 0; n < job->n_frames; n++) {
        const nct_frame *f = &job->frames[n];
        err = pads_check(p, n, f, why);
        if (!err) err = bounds_check("x", n, p->in_channels, f->t_in, f->x_off, f->x_pitch, job->x_count, why);
        if (!err && job->y)
            err = bounds_check("y", n, p->out_channels, f->t_out, f->y_off, f->y_pitch, job->y_count, why);
        if (!err) err = slots_check(n, f, job, why);
        if (!err && device >= 0 && !job->frames_dev && n > 0) err = alike_check(n, job, why);
        if (err) return err;
        for (int k = 0; k < 2; k++) {
            int32_t slot = k ? f->stat_in : f->stat_out;
            if (slot < 0) continue;
            if (slot < low) low = slot;
            if (slot > high) high = slot;
        }
    }
    return job->norm == NCT_NORM_GIVEN || high < 0 ? 0 : races_check(job, low, high, why);
}
