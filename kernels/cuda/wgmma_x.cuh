/* wgmma_x.cuh: x for the wgmma kernels: rows of f32 (tf32 layers) or bf16 elements in shared memory, steps consecutive.
 *
 * Where x already has that type, rows come in whole 16-byte units that touch the frame, two or three chunks in flight:
 * one slot by a bulk copy a channel, several by cp.async; what the units bring from outside the frame is overwritten.
 * Anything else comes through registers. The reader rounds (tf32) or pairs channels (bf16) as it loads its fragments.
 * Ladder, default batch, fused, tf32 / bf16, H200: 16-byte loads through the registers of 96 threads 89 / 89 us (75 of
 * them waiting for x); a bulk copy a row, then words made in place by three warps 69 / 55 (50 instructions a unit at one
 * warp's pace); the reader rounds, 45 / 40; leaves four rows at a time, bias and coefficients fetched at once 37 / 31.
 * Lost: cp.async for one slot too, 40 / 35. */
#ifndef NCT_CUDA_WGMMA_X_CUH
#define NCT_CUDA_WGMMA_X_CUH
#include "mma_stage.cuh"
#include "wgmma.cuh"

template <int PREC> struct x_type {
    static constexpr int SIZE = 4, CHANNELS = 32, UNIT = 4; /* bytes; channels of a chunk; elements of 16 bytes */
};
template <> struct x_type<NCT_PREC_BF16> { static constexpr int SIZE = 2, CHANNELS = 64, UNIT = 8; };
template <int PREC> __device__ __forceinline__ void x_put(uint8_t *xs, int32_t element, float v) {
    if constexpr (PREC == NCT_PREC_BF16)
        ((__nv_bfloat16 *)xs)[element] = __float2bfloat16_rn(v);
    else
        ((float *)xs)[element] = v;
}

/* Rows need not lie alike beside 16-byte boundaries: row r keeps the distance that its own address has. It repeats
 * every 8 rows (4 for f32), so a lane's fragment rows have one or two. */
template <int PREC> __device__ __forceinline__ int32_t row_shift(const mma_slots &s, int32_t r) {
    return (int32_t)(((uint32_t)s.shift + (uint32_t)r * (uint32_t)s.only.x_pitch) & (x_type<PREC>::UNIT - 1));
}
struct row_units {
    const char *from; /* the 16-byte boundary before position 0 */
    int32_t first, last;
};
/* The last unit may reach beyond the end of x: then it is left out, and its elements come one by one. */
template <int PREC>
__device__ __forceinline__ row_units units_of(
    const cuda_job &j, const mma_slots &s, int32_t slot, int32_t channel0, int32_t r) {
    using T = x_type<PREC>;
    const slot_frame &f = s.only;
    const char *x = (const char *)j.x, *end = x + j.x_count * T::SIZE;
    int32_t shift = row_shift<PREC>(s, r);
    row_units u = {x + (f.at + slot * j.x_step + (channel0 + r) * f.x_pitch - shift) * T::SIZE,
        (f.lo + shift) / T::UNIT, (f.hi + shift + T::UNIT - 1) / T::UNIT};
    if (u.from + u.last * 16 > end) u.last--;
    return u;
}

/* Issue the copies of one chunk: one slot by bulk copies (every thread arrives once at `b`), several by cp.async. */
template <int PREC, int THREADS>
__device__ __forceinline__ void bulk_issue(const cuda_job &j, const mma_shape &sh, const mma_slots &s,
    int32_t channel0, uint8_t *xs, uint64_t *b, int32_t tid) {
    using T = x_type<PREC>;
    const slot_frame &f = s.only;
    const int32_t rows = f.lo < f.hi ? min(T::CHANNELS, s.last_channel - channel0) : 0;
    if (sh.slots > 1) { /* bulk copies of 64 bytes were tried: 80 us on diffpolicy */
        const int32_t slots = min(sh.slots, j.n_frames - s.n0), each = sh.slot_words / T::UNIT;
        for (int32_t i = tid; i < rows * slots * each; i += THREADS) {
            int32_t rest = __umulhi(i, sh.unit_magic), k = i - rest * each, r = rest / slots, slot = rest - r * slots;
            row_units u = units_of<PREC>(j, s, slot, channel0, r);
            if (k >= u.first && k < u.last)
                copy_async16(shared_address(xs + (r * sh.pitch + slot * sh.slot_words) * T::SIZE + k * 16),
                    u.from + k * 16, 16);
        }
        return;
    }
    uint32_t bytes = 0;
    for (int32_t r = tid; r < rows; r += THREADS) {
        row_units u = units_of<PREC>(j, s, 0, channel0, r);
        bytes += max(0, u.last - u.first) * 16;
    }
    barrier_expect(b, bytes);
    for (int32_t r = tid; r < rows; r += THREADS) {
        row_units u = units_of<PREC>(j, s, 0, channel0, r);
        if (u.last > u.first)
            bulk_copy(xs + r * sh.pitch * T::SIZE + u.first * 16, u.from + u.first * 16, (u.last - u.first) * 16, b);
    }
}

/* Overwrite what lies outside the frame, once the copies of the chunk are there. */
template <int PREC, int THREADS>
__device__ __forceinline__ void bulk_edges(
    const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t channel0, uint8_t *xs, int32_t tid) {
    using T = x_type<PREC>;
    const slot_frame &f = s.only;
    const int32_t rows = max(0, min(T::CHANNELS, s.last_channel - channel0)),
                  slots = min(sh.slots, j.n_frames - s.n0);
    const int32_t outside = f.lo + sh.window - f.hi;
    for (int32_t i = tid; i < rows * slots * outside; i += THREADS) {
        int32_t at = i / outside, k = i - at * outside, r = at / slots, slot = at - r * slots;
        int32_t p = k < f.lo ? k : f.hi + k - f.lo;
        float v = j.g.pad_mode == NCT_ZEROS ? 0.0f : slot_value(j, s, f, channel0 + r, p);
        x_put<PREC>(xs, r * sh.pitch + slot * sh.slot_words + row_shift<PREC>(s, r) + p, v);
    }
    for (int32_t i = tid; i < (T::CHANNELS - rows) * sh.pitch; i += THREADS) x_put<PREC>(xs, rows * sh.pitch + i, 0);
    /* The last unit of x that would have reached beyond its end: it belongs to one of the last rows of all. */
    if (f.lo >= f.hi || channel0 + rows < j.g.ci) return;
    for (int32_t r = max(0, rows - T::UNIT); r < rows; r++)
        for (int32_t slot = 0; slot < slots; slot++) {
            int32_t shift = row_shift<PREC>(s, r), whole = (f.hi + shift + T::UNIT - 1) / T::UNIT;
            if (units_of<PREC>(j, s, slot, channel0, r).last == whole) continue;
            slot_frame own = f;
            own.at += slot * j.x_step;
            for (int32_t p = max(f.lo, (whole - 1) * T::UNIT - shift) + tid; p < f.hi; p += THREADS)
                x_put<PREC>(
                    xs, r * sh.pitch + slot * sh.slot_words + shift + p, slot_value(j, s, own, channel0 + r, p));
        }
}

/* Any dtype, layout and padding mode: a warp takes pieces of 32 positions of a (channel, slot), eight in flight. */
template <int PREC, int THREADS>
__device__ __forceinline__ void stage_elements(
    const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t channel0, uint8_t *xs, int32_t tid) {
    using T = x_type<PREC>;
    constexpr int BATCH = 8;
    const int32_t lane = tid & 31, pieces = (sh.window + 31) / 32;
    const int32_t slots = min(sh.slots, j.n_frames - s.n0), per_row = pieces * slots;
    for (int32_t at0 = (tid >> 5) * BATCH; at0 < T::CHANNELS * per_row; at0 += THREADS / 32 * BATCH) {
        uint32_t v[BATCH];
        int32_t r = at0 / per_row, slot = (at0 - r * per_row) / pieces, piece = at0 - r * per_row - slot * pieces;
        const int32_t r0 = r, slot0 = slot, piece0 = piece;
        auto next = [&] {
            if (++piece < pieces) return;
            piece = 0;
            if (++slot < slots) return;
            slot = 0;
            r++;
        };
#pragma unroll
        for (int u = 0; u < BATCH; u++, next()) {
            slot_frame f = slot_of(j, sh, s, slot);
            int32_t p = piece * 32 + lane, c = channel0 + r;
            v[u] = 0;
            if (c >= s.last_channel || p < f.lo || p >= f.hi) continue;
            int64_t from = f.at + c * f.x_pitch + p;
            v[u] = j.x_dtype == NCT_F32 ? __ldg((const uint32_t *)j.x + from)
                                        : __ldg((const unsigned short *)j.x + from);
        }
        r = r0, slot = slot0, piece = piece0;
#pragma unroll
        for (int u = 0; u < BATCH; u++, next()) {
            slot_frame f = slot_of(j, sh, s, slot);
            int32_t p = piece * 32 + lane, c = channel0 + r;
            if (r >= T::CHANNELS || p >= sh.window || f.n < 0) continue;
            float value = c < s.last_channel && p >= f.lo && p < f.hi
                              ? (j.x_dtype == NCT_F32 ? __uint_as_float(v[u]) : half_value(v[u], j.x_dtype))
                              : slot_value(j, s, f, c, p);
            x_put<PREC>(xs, r * sh.pitch + slot * sh.slot_words + p, value);
        }
    }
}

/* ---- fragments ---- */

/* To tf32, nearest, ties away: the tensor cores leave the low 13 bits unread. Inf and NaN stay. */
__device__ __forceinline__ uint32_t tf32_word(float v) {
    uint32_t bits = __float_as_uint(v);
    return fabsf(v) < INFINITY ? bits + 0x1000u : bits;
}
/* Words of a group of 8: a[0], a[1]: word q at two steps; a[2], a[3]: word q + 4. b0, b1: the lane's element offsets, its
 * row and that row's shift included; odd: from there to the same step of the next channel (bf16). */
template <int PREC>
__device__ __forceinline__ void load_fragment(
    uint32_t (&a)[4], const uint8_t *x, int32_t b0, int32_t b1, int32_t pitch, int32_t odd) {
    if constexpr (PREC == NCT_PREC_BF16) {
        const unsigned short *e = (const unsigned short *)x, *o = e + odd;
        auto pair = [&](int32_t at) { return __byte_perm(e[at], o[at], 0x5410); };
        a[0] = pair(b0);
        a[1] = pair(b1);
        a[2] = pair(b0 + 8 * pitch);
        a[3] = pair(b1 + 8 * pitch);
    } else {
        (void)odd;
        const float *e = (const float *)x;
        a[0] = tf32_word(e[b0]);
        a[1] = tf32_word(e[b1]);
        a[2] = tf32_word(e[b0 + 4 * pitch]);
        a[3] = tf32_word(e[b1 + 4 * pitch]);
    }
}
#endif
