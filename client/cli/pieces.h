/* pieces.h: how a long sequence is cut into frames whose results, put end to end, are those of the whole. Pure
 * arithmetic: no I/O, no state, any thread.
 *
 * The padded axis. The layer's padding is laid around the sequence by the client, whatever its mode, and every piece
 * is sent with INNER_LEFT and INNER_RIGHT, so that the daemon adds none of its own. That makes one rule of four padding
 * modes, and leaves no special case for a piece that is shorter than the pad. Step v of the padded axis is
 *
 *     source step s = v - pad_left                      if 0 <= s < t_in
 *     zeros 0 | reflect -s, 2*(t_in-1)-s | replicate 0, t_in-1 | circular s mod t_in        elsewhere
 *
 * Output t reads padded steps [t*stride, t*stride + span), span = (kernel_size-1)*dilation + 1, so a piece of outputs
 * [out0, out0+n_out) reads [out0*stride, (out0+n_out-1)*stride + span): neighbours overlap by span - stride steps. */
#ifndef NCT_CLI_PIECES_H
#define NCT_CLI_PIECES_H
#include <stddef.h>
#include <stdint.h>
#include "nct_layer.h"

typedef struct {
    int64_t t_in, t_out; /* of the whole; -1: not known yet (an endless pipe) */
    int64_t stride, span, pad_left, pad_right;
    int32_t mode; /* nct_pad_mode */
    int64_t outs; /* output steps of a piece (the last one may have fewer) */
    int64_t n;    /* pieces; -1: not known yet */
} pieces;

typedef struct {
    int64_t out0, n_out; /* on the output axis */
    int64_t in0, n_in;   /* on the padded axis */
} piece;

typedef struct {
    uint64_t max_frame_bytes; /* of an input with its statistics, and of a result */
    uint64_t aim_bytes;       /* size a piece should have; grown to where overlaps cost less than a quarter */
    int64_t force_steps;      /* > 0: new input steps of a piece, whatever that costs; 0: choose */
} pieces_limits;

/* Cut t_in steps (-1: unknown) for the layer p. 0, -ERANGE (t_in too short, names T and K), -EMSGSIZE (one output step
 * needs more than a frame may hold, or a forced piece does), -EINVAL (padding against t_in as in PyTorch; circular
 * without a known length). */
int pieces_plan(pieces *ret, const nct_params *p, int64_t t_in, const pieces_limits *l, nct_why *why);
/* The length became known: fills t_in, t_out, n. outs stays. Errors as pieces_plan. */
int pieces_end(pieces *g, const nct_params *p, int64_t t_in, nct_why *why);
/* Whether t_in steps go in one frame. */
int pieces_whole_fits(const nct_params *p, int64_t t_in, int64_t t_out, uint64_t max_frame_bytes);
void pieces_at(const pieces *g, int64_t k, piece *ret);
/* Source step of padded step v; -1: a zero. Needs t_in unless v lies before the source's end. */
int64_t pieces_source(const pieces *g, int64_t v);
/* Source steps [*ret_lo, *ret_hi) from which the piece is made. For circular pieces only the part that needs no
 * wrapping; the wrapped steps are the last pad_left and the first pad_right of the source. */
void pieces_range(const pieces *g, const piece *p, int64_t *ret_lo, int64_t *ret_hi);

/* total <- total merged with part, G groups of {count, mean, M2}: Chan, Golub and LeVeque (1979), in float64. Called in
 * the order of the pieces, so that the statistics have the same bits in every run. A part with count 0 changes nothing;
 * a NaN stays. */
void pieces_merge(double *total, const double *part, uint32_t n_groups);
#endif
