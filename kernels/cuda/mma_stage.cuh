/* mma_stage.cuh: one chunk of x into shared memory as words, for conv_mma.cu and the Hopper kernels.
 *
 * A word row is one channel (tf32: rounded; f32: as it is) or a pair of channels (bf16); position p of slot s lies
 * at s * slot_words + p (stride 1), phase-major for other strides, and behind `shift` where x is read in units of 16
 * bytes (wide). Outside the frame: 0, or what the padding mode shows; channels beyond the conv group: 0. */
#ifndef NCT_CUDA_MMA_STAGE_CUH
#define NCT_CUDA_MMA_STAGE_CUH
#include "mma_tile.cuh"

__device__ __forceinline__ void copy_async16(uint32_t to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copy_async4(uint32_t to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;");
}
template <int LEFT> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

__device__ __forceinline__ float half_value(uint32_t bits, int32_t dtype) { /* of a 16-bit element */
    if (dtype == NCT_BF16) return __uint_as_float(bits << 16);
    if (dtype == NCT_F16) return __half2float(__ushort_as_half((unsigned short)bits));
    return __fmul_rn((float)(short)bits, 1.0f / 32768.0f);
}
template <int PREC> __device__ __forceinline__ uint32_t word_of(float v) {
    return PREC == NCT_PREC_TF32 ? round_tf32(v) : __float_as_uint(v);
}
/* Element (channel, p) of a slot, anywhere: the slow, right way. */
__device__ __forceinline__ float slot_value(
    const cuda_job &j, const mma_slots &s, const slot_frame &f, int32_t channel, int32_t p) {
    if (channel >= s.last_channel || f.n < 0) return 0;
    if (p >= f.lo && p < f.hi) return load_element(j.x, j.x_dtype, f.at + channel * f.x_pitch + p);
    if (j.g.pad_mode == NCT_ZEROS) return 0;
    nct_frame frame = frame_at(j, f.n);
    return load_step(j, frame, channel, f.at - frame.x_off + p);
}
template <int PREC>
__device__ __forceinline__ uint32_t slot_word(
    const cuda_job &j, const mma_slots &s, const slot_frame &f, int32_t channel, int32_t p) {
    float v = slot_value(j, s, f, channel, p);
    if constexpr (PREC == NCT_PREC_BF16) return pack_bf16(v, slot_value(j, s, f, channel + 1, p));
    return word_of<PREC>(v);
}

/* Units of 16 bytes: E elements of one channel, or of two. */
template <int PREC, int THREADS>
__device__ __forceinline__ void stage_wide(const cuda_job &j, const mma_shape &sh, const mma_slots &s,
    int32_t channel0, int32_t words, uint32_t *xs, int32_t tid) {
    constexpr int PAIR = PREC == NCT_PREC_BF16 ? 2 : 1;
    const slot_frame &f = s.only;
    const int32_t size = j.x_dtype == NCT_F32 ? 4 : 2, lane = 16 / size;
    const char *x = (const char *)j.x;
#pragma unroll 2
    for (int32_t i = tid; i < words * sh.units; i += THREADS) {
        int32_t r = __umulhi(i, sh.unit_magic), u = i - r * sh.units;
        int32_t c = channel0 + r * PAIR, p = u * lane - s.shift;
        uint32_t *to = xs + r * sh.pitch + u * lane;
        const char *from = x + (f.at + c * f.x_pitch + p) * size, *last = from + (PAIR - 1) * f.x_pitch * size;
        if (p >= f.lo && p + lane <= f.hi && c + PAIR <= s.last_channel) {
            uint4 a = __ldg((const uint4 *)from), b = {};
            if constexpr (PAIR == 2) b = __ldg((const uint4 *)last);
            const uint32_t va[4] = {a.x, a.y, a.z, a.w}, vb[4] = {b.x, b.y, b.z, b.w};
            if (size == 4) {
                uint32_t w[4];
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if constexpr (PAIR == 2)
                        w[e] = pack_bf16(__uint_as_float(va[e]), __uint_as_float(vb[e]));
                    else
                        w[e] = word_of<PREC>(__uint_as_float(va[e]));
                *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
            } else {
                uint32_t w[8];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (PAIR == 2 && j.x_dtype == NCT_BF16) {
                        w[2 * e] = __byte_perm(va[e], vb[e], 0x5410);
                        w[2 * e + 1] = __byte_perm(va[e], vb[e], 0x7632);
                    } else {
                        float lo = half_value(va[e] & 0xffff, j.x_dtype), hi = half_value(va[e] >> 16, j.x_dtype);
                        if constexpr (PAIR == 2) {
                            w[2 * e] = pack_bf16(lo, half_value(vb[e] & 0xffff, j.x_dtype));
                            w[2 * e + 1] = pack_bf16(hi, half_value(vb[e] >> 16, j.x_dtype));
                        } else {
                            w[2 * e] = word_of<PREC>(lo);
                            w[2 * e + 1] = word_of<PREC>(hi);
                        }
                    }
                }
                *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
                *(uint4 *)(to + 4) = make_uint4(w[4], w[5], w[6], w[7]);
            }
        } else
            for (int32_t e = 0; e < lane; e++)
                if (p + e >= 0 && p + e < sh.window) to[e] = slot_word<PREC>(j, s, f, c, p + e);
    }
}

/* Any layout: a warp takes pieces of 32 positions of a (word row, slot), eight in flight. Empty slots stay as they
 * are: their columns reach no result. */
template <int PREC, int THREADS>
__device__ __forceinline__ void stage_any(const cuda_job &j, const mma_shape &sh, const mma_slots &s,
    int32_t channel0, int32_t words, uint32_t *xs, int32_t tid) {
    constexpr int PAIR = PREC == NCT_PREC_BF16 ? 2 : 1, BATCH = 8;
    const int32_t lane = tid & 31, pieces = (sh.window + 31) / 32;
    const int32_t slots = min(sh.slots, j.n_frames - s.n0), per_row = pieces * slots;
    for (int32_t at0 = (tid >> 5) * BATCH; at0 < words * per_row; at0 += THREADS / 32 * BATCH) {
        uint32_t v[BATCH][PAIR];
        int32_t r = at0 / per_row, slot = (at0 - r * per_row) / pieces, piece = at0 - r * per_row - slot * pieces;
        int32_t r0 = r, slot0 = slot, piece0 = piece;
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
            int32_t p = piece * 32 + lane, c = channel0 + r * PAIR;
            bool in = r < words && c + PAIR <= s.last_channel && p >= f.lo && p < f.hi;
            int64_t from = f.at + c * f.x_pitch + p;
#pragma unroll
            for (int h = 0; h < PAIR; h++) {
                v[u][h] = 0;
                if (!in) continue;
                v[u][h] = j.x_dtype == NCT_F32 ? __ldg((const uint32_t *)j.x + from + h * f.x_pitch)
                                               : __ldg((const unsigned short *)j.x + from + h * f.x_pitch);
            }
        }
        r = r0, slot = slot0, piece = piece0;
#pragma unroll
        for (int u = 0; u < BATCH; u++, next()) {
            slot_frame f = slot_of(j, sh, s, slot);
            int32_t p = piece * 32 + lane, c = channel0 + r * PAIR;
            if (r >= words || p >= sh.window || f.n < 0) continue;
            uint32_t w;
            if (c + PAIR <= s.last_channel && p >= f.lo && p < f.hi) {
                auto value = [&](uint32_t bits) {
                    return j.x_dtype == NCT_F32 ? __uint_as_float(bits) : half_value(bits, j.x_dtype);
                };
                if constexpr (PAIR == 2)
                    w = pack_bf16(value(v[u][0]), value(v[u][1]));
                else
                    w = word_of<PREC>(value(v[u][0]));
            } else
                w = slot_word<PREC>(j, s, f, c, p);
            int32_t to = p;
            if (sh.stride > 1) {
                int32_t q = __umulhi(p, sh.stride_magic);
                to = (p - q * sh.stride) * sh.phase + q;
            }
            xs[r * sh.pitch + slot * sh.slot_words + to] = w;
        }
    }
}

/* f32 x and zeros beside it: cp.async, words are raw f32 (the reader rounds). One slot. */
template <int THREADS>
__device__ __forceinline__ void stage_async(const cuda_job &j, const mma_shape &sh, const mma_slots &s,
    int32_t channel0, int32_t words, uint32_t *xs, int32_t tid) {
    const slot_frame &f = s.only;
    const float *x = (const float *)j.x;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(xs);
    if (sh.wide) {
        for (int32_t i = tid; i < words * sh.units; i += THREADS) {
            int32_t r = __umulhi(i, sh.unit_magic), u = i - r * sh.units;
            int32_t c = channel0 + r, p = u * 4 - s.shift;
            uint32_t to = base + (r * sh.pitch + u * 4) * 4;
            bool channel = c < s.last_channel, all = channel && p >= f.lo && p + 4 <= f.hi;
            const float *from = x + (f.at + c * f.x_pitch + p);
            if (all || !channel || p >= f.hi || p + 4 <= f.lo)
                copy_async16(to, all ? from : x - ((uintptr_t)x & 15) / 4, all ? 16 : 0);
            else
                for (int e = 0; e < 4; e++) {
                    bool in = p + e >= f.lo && p + e < f.hi;
                    copy_async4(to + 4 * e, in ? from + e : x, in ? 4 : 0);
                }
        }
        return;
    }
    const int32_t lane = threadIdx.x & 31;
    for (int32_t r = tid >> 5; r < words; r += THREADS / 32) {
        int32_t c = channel0 + r;
        const float *from = x + (f.at + c * f.x_pitch);
        bool channel = c < s.last_channel;
#pragma unroll 4
        for (int32_t p = lane; p < sh.window; p += 32) {
            int32_t to = p;
            if (sh.stride > 1) {
                int32_t q = __umulhi(p, sh.stride_magic);
                to = (p - q * sh.stride) * sh.phase + q;
            }
            bool in = channel && p >= f.lo && p < f.hi;
            copy_async4(base + (r * sh.pitch + to) * 4, in ? from + p : x, in ? 4 : 0);
        }
    }
}

template <int PREC, int THREADS, bool ASYNC>
__device__ __forceinline__ void stage_x(const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t channel0,
    int32_t words, uint32_t *xs, int32_t tid) {
    if constexpr (ASYNC)
        stage_async<THREADS>(j, sh, s, channel0, words, xs, tid);
    else if (sh.wide)
        stage_wide<PREC, THREADS>(j, sh, s, channel0, words, xs, tid);
    else
        stage_any<PREC, THREADS>(j, sh, s, channel0, words, xs, tid);
}
#endif
