/* pieces.c: the arithmetic of cutting a sequence (pieces.h). Called by run_pieces.c and by tests. */
#include "pieces.h"
#include "cli.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Most outputs of a piece whose input and result stay within `bytes`; 0: not even one. */
static int64_t outs_within(const pieces *g, const nct_params *p, uint64_t bytes) {
    int64_t stats = (int64_t)p->num_groups * 24;
    int64_t in_steps = ((int64_t)bytes - stats) / (4 * (int64_t)p->in_channels);
    int64_t out_steps = (int64_t)bytes / (4 * (int64_t)p->out_channels);
    if (in_steps < g->span) return 0;
    return least((in_steps - g->span) / g->stride + 1, out_steps);
}

static int choose_outs(pieces *g, const nct_params *p, const pieces_limits *l, nct_why *why) {
    int64_t max = outs_within(g, p, l->max_frame_bytes);
    if (max < 1)
        return cli_why(why, -EMSGSIZE,
            "one output step needs %lld input steps of %d channels (%lld bytes) and %d output channels; a frame "
            "holds %llu bytes",
            (long long)g->span, p->in_channels, (long long)g->span * p->in_channels * 4, p->out_channels,
            (unsigned long long)l->max_frame_bytes);
    if (l->force_steps > 0) {
        g->outs = most(1, l->force_steps / g->stride);
        if (g->outs > max)
            return cli_why(why, -EMSGSIZE,
                "a piece of %lld steps does not fit a frame of %llu bytes; at most %lld do",
                (long long)l->force_steps, (unsigned long long)l->max_frame_bytes, (long long)max * g->stride);
        return 0;
    }
    int64_t aim = outs_within(g, p, l->aim_bytes), cheap = 4 * g->span / g->stride + 1;
    g->outs = most(1, least(max, most(aim, cheap)));
    return 0;
}

int pieces_end(pieces *g, const nct_params *p, int64_t t_in, nct_why *why) {
    int64_t t_out = 0;
    assert(g->outs > 0); /* by pieces_plan */
    int r = nct_out_steps(p, t_in, (int32_t)g->pad_left, (int32_t)g->pad_right, &t_out, why);
    if (r) return r;
    g->t_in = t_in;
    g->t_out = t_out;
    g->n = (t_out + g->outs - 1) / g->outs;
    return 0;
}

int pieces_plan(pieces *ret, const nct_params *p, int64_t t_in, const pieces_limits *l, nct_why *why) {
    pieces g = {.t_in = -1,
        .t_out = -1,
        .n = -1,
        .stride = p->stride,
        .span = (int64_t)(p->kernel_size - 1) * p->dilation + 1,
        .pad_left = p->pad_left,
        .pad_right = p->pad_right,
        .mode = p->padding_mode};
    if (t_in < 0 && g.mode == NCT_CIRCULAR && (g.pad_left || g.pad_right))
        return cli_why(why, -EINVAL,
            "circular padding of %lld and %lld steps needs the end of the input before its start",
            (long long)g.pad_left, (long long)g.pad_right);
    int r = choose_outs(&g, p, l, why);
    if (!r && t_in >= 0) r = pieces_end(&g, p, t_in, why);
    if (!r) *ret = g;
    return r;
}

int pieces_whole_fits(const nct_params *p, int64_t t_in, int64_t t_out, uint64_t max_frame_bytes) {
    return t_in <= INT32_MAX && t_out <= INT32_MAX &&
           (uint64_t)t_in <= max_frame_bytes / 4 / (uint64_t)p->in_channels &&
           (uint64_t)t_out <= max_frame_bytes / 4 / (uint64_t)p->out_channels;
}

void pieces_at(const pieces *g, int64_t k, piece *ret) {
    ret->out0 = k * g->outs;
    ret->n_out = g->t_out < 0 ? g->outs : least(g->outs, g->t_out - ret->out0);
    ret->in0 = ret->out0 * g->stride;
    ret->n_in = (ret->n_out - 1) * g->stride + g->span;
}

int64_t pieces_source(const pieces *g, int64_t v) {
    int64_t s = v - g->pad_left;
    if (s >= 0 && (g->t_in < 0 || s < g->t_in)) return s;
    switch (g->mode) {
    case NCT_REFLECT: return s < 0 ? -s : 2 * (g->t_in - 1) - s;
    case NCT_REPLICATE: return s < 0 ? 0 : g->t_in - 1;
    case NCT_CIRCULAR: return s < 0 ? s + g->t_in : s - g->t_in;
    default: return -1;
    }
}

void pieces_range(const pieces *g, const piece *p, int64_t *ret_lo, int64_t *ret_hi) {
    int64_t lo = p->in0 - g->pad_left, hi = lo + p->n_in;
    int64_t from = most(lo, 0), to = hi;
    if (lo < 0 && g->mode == NCT_REFLECT) to = most(to, 1 - lo);
    if (lo < 0 && g->mode == NCT_REPLICATE) to = most(to, 1);
    if (g->t_in >= 0) {
        if (hi > g->t_in && g->mode == NCT_REFLECT) from = least(from, 2 * (g->t_in - 1) - (hi - 1));
        if (hi > g->t_in && g->mode == NCT_REPLICATE) from = least(from, g->t_in - 1);
        to = least(to, g->t_in);
        from = least(from, g->t_in);
    }
    *ret_lo = most(from, 0);
    *ret_hi = most(to, *ret_lo);
}

void pieces_merge(double *total, const double *part, uint32_t n_groups) {
    for (uint32_t g = 0; g < n_groups; g++) {
        double *a = total + 3 * g;
        const double *b = part + 3 * g;
        if (b[0] == 0) continue;
        double n = a[0] + b[0], d = b[1] - a[1];
        if (a[0] == 0) d = 0, a[1] = b[1];
        a[2] += b[2] + d * d * (a[0] * b[0] / n);
        a[1] += d * (b[0] / n);
        a[0] = n;
    }
}
