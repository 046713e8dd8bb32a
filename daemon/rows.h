/* rows.h: one frame's row in a slot: how much room it takes, where its channels stand, and its way in from the wire.
 *
 *     x: (C_in, T_in) of x_dtype; channels at a pitch of 16 bytes (compact below 128 bytes a channel, where padding
 *        would cost more than it brings: slots stay within 9/8 of the payload), frames at 256 bytes
 *     y: (C_out, T_out) of y_dtype, compact; from 32 KiB up on its own pages, else at 256 bytes
 *     stats: n_groups x nct_stat, of a batch's frames side by side (GIVEN: in; OBSERVE: out)
 *
 * Pure; any thread. Message memory has any alignment, so it is read by memcpy alone. */
#ifndef NCTD_ROWS_H
#define NCTD_ROWS_H
#include "frame.h"

#define ROWS_ALIGN 256u
#define ROWS_PAGE  32768u /* arena.h: ARENA_PAGE */
static inline size_t rows_round(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

/* Bytes of an nct_dtype; inline, because every size below asks for it several times a frame. */
static inline size_t rows_dtype_bytes(int32_t dtype) {
    return dtype == NCT_F64 ? 8 : dtype == NCT_F32 || dtype == NCT_I32 ? 4 : 2;
}
int32_t rows_x_dtype(int32_t wire_dtype); /* the layer's input dtype: i32 and f64 become f32 */
int64_t rows_x_pitch(const frame *f);     /* elements of x_dtype from a channel to the next */
size_t rows_x_bytes(const frame *f);      /* all channels, a multiple of 256 */
size_t rows_stats_bytes(const frame *f);  /* n_groups * 24 */
size_t rows_y_bytes(const frame *f);      /* of the result: compact samples, or with OBSERVE the stats */
bool rows_y_pages(const frame *f);        /* the result stands on pages of its own */
/* What a frame counts against engine.slot_bytes, in and out. */
size_t rows_in_room(const frame *f);
size_t rows_out_room(const frame *f);
/* The slot_bytes that hold any one frame of max_frame_bytes, in and out. */
size_t rows_slot_bytes_min(size_t max_frame_bytes);

/* Copies samples [from, from + n) of the payload, counted in its own order, into the row at x: dtype and layout
 * converted, pitch as rows_x_pitch(); padding is not written. n is cut to what is left. Returns the next `from`,
 * c_in * t_in when the row is whole. Integers: i32 reads as v / 2^31; f64 rounds to nearest even. */
int64_t rows_copy_in(const frame *f, void *x, int64_t from, int64_t n);
/* GIVEN: the G x 24 bytes behind the samples, to stats (8-byte aligned). */
void rows_copy_stats(const frame *f, nct_stat *stats);
#endif
