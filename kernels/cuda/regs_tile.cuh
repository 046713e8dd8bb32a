/* regs_tile.cuh: a PLAN_WGMMA tile of 64 channels x N steps out of one warpgroup's accumulators: leaves, and y. Nothing goes
 * through shared memory. acc[4 c + 2 h + e] of lane (g, q) of warp w: channel 16 w + g + 8 h, step 8 c + 2 q + e. Every
 * function is called by all four warps of the warpgroup. */
#ifndef NCT_CUDA_REGS_TILE_CUH
#define NCT_CUDA_REGS_TILE_CUH
#include "group.cuh"
#include "leaf_quad.cuh"
#include "mma_tile.cuh"

struct regs_tile {
    int32_t n, t0, left;        /* frame, first step, steps from there to the frame's end (maybe more than N) */
    int32_t channel0, channels; /* of the layer; how many of the 64 exist */
};
/* A lane's channel of the tile. */
__device__ __forceinline__ int32_t regs_row(int h) {
    return (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x >> 2 & 7) + 8 * h;
}
/* What the lane's channels have in `of` (bias, gamma, beta); 0 beyond the last. */
__device__ __forceinline__ float2 regs_constants(const regs_tile &t, const float *of) {
    const int32_t a = regs_row(0), b = regs_row(1);
    return make_float2(
        a < t.channels ? __ldg(of + t.channel0 + a) : 0, b < t.channels ? __ldg(of + t.channel0 + b) : 0);
}
template <int V> __device__ __forceinline__ void regs_bias(float (&acc)[V], float2 bias) {
#pragma unroll
    for (int i = 0; i < V; i++) acc[i] = __fadd_rn(acc[i], i & 2 ? bias.y : bias.x);
}

/* The next 64 steps become the first; AGAIN: and these the last. Accumulators have no index at run time, and code that runs
 * once is paid for by the instruction: a loop of this and 64 steps is faster than all steps unrolled. */
template <bool AGAIN, int V> __device__ __forceinline__ void regs_next(float (&acc)[V]) {
    float first[32];
    if constexpr (V > 32) {
#pragma unroll
        for (int i = 0; i < 32; i++) first[i] = acc[i];
#pragma unroll
        for (int i = 0; i < V - 32; i++) acc[i] = acc[i + 32];
        if constexpr (AGAIN)
#pragma unroll
            for (int i = 0; i < 32; i++) acc[V - 32 + i] = first[i];
    }
}
/* The tile's leaves to memory. */
template <int N>
__device__ __forceinline__ void regs_leaves(
    const cuda_job &j, const nct_frame &f, const regs_tile &t, float (&acc)[N / 2]) {
    const int32_t q = threadIdx.x & 3, columns = leaf_columns(j, f.t_out), row = regs_row(0) + 8 * q;
    float4 *to = j.leaves + leaf_start(j, t.n) * j.g.co + (int64_t)(t.channel0 + row) * columns + t.t0 / MMA_LEAF;
#pragma unroll 1
    for (int32_t left = t.left, column = 0; column < N / 64; column++, left -= 64) {
        float4 leaf[2];
        auto value = [&](int h, int c, int e) { return acc[4 * c + 2 * h + e]; };
        if (left >= 64)
            quad_leaves<2, 8, true>(
                value, [](int) { return 64; }, leaf);
        else if (left > 0)
            quad_leaves<2, 8, false>(
                value, [&](int) { return left; }, leaf);
        if (q < 2 && row < t.channels && left > 0) to[column] = q ? leaf[1] : leaf[0];
        regs_next<true>(acc);
    }
}

/* ---- to y ---- */

__device__ __forceinline__ void store_pair(void *to, uint32_t a, uint32_t b) {
    asm volatile("st.global.cg.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_four(void *to, float a, float b, float c, float d) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ void store_word(void *to, uint32_t a) {
    asm volatile("st.global.cg.b32 [%0], %1;" ::"l"(to), "r"(a) : "memory");
}
struct regs_out {
    char *row[2];       /* the lane's step 0 of its two channels; NULL: not there */
    int32_t size, type; /* of an element */
    int32_t wide;       /* bytes that rows are aligned to: 16, 8, 4 or less */
    bool raw;           /* unnormalised f32 */
};
__device__ __forceinline__ regs_out regs_to(const cuda_job &j, const nct_frame &f, const regs_tile &t) {
    regs_out o;
    o.raw = j.what & DO_RAW;
    o.type = o.raw ? (int32_t)NCT_F32 : j.y_dtype;
    o.size = o.type == NCT_F32 ? 4 : 2;
    const bool scratch = o.raw && !j.raw_in_y;
    const int64_t pitch = scratch ? (int64_t)leaf_columns(j, f.t_out) * j.leaf_t : f.y_pitch;
    char *y = scratch ? (char *)(j.scratch + leaf_start(j, t.n) * j.leaf_t * j.g.co) : (char *)j.y + f.y_off * o.size;
    y += (t.channel0 * pitch + t.t0) * o.size;
    const uint32_t odd = (uint32_t)(uintptr_t)y | (uint32_t)pitch * o.size;
    o.wide = odd & 7 ? odd & 3 ? 2 : 4 : odd & 15 ? 8 : 16;
#pragma unroll
    for (int h = 0; h < 2; h++)
        o.row[h] = regs_row(h) < t.channels ? y + (regs_row(h) * pitch + 2 * (threadIdx.x & 3)) * o.size : NULL;
    return o;
}
/* Steps 8 k + 2 q + e of the next 64 of a channel, as z[2 k + e], to `to`; left: how many of them are there. */
__device__ __forceinline__ void regs_put(const regs_out &o, char *to, int32_t left, const float (&z)[16]) {
    const int32_t q = threadIdx.x & 3;
    if (o.type == NCT_F32) {
        if (left >= 64 && o.wide == 16) { /* lanes 0 and 2: 4 steps each of block k, lanes 1 and 3 of block k + 1 */
#pragma unroll
            for (int k = 0; k < 8; k += 2) {
                const bool second = q & 1;
                const float a = __shfl_xor_sync(~0u, second ? z[2 * k] : z[2 * k + 2], 1),
                            b = __shfl_xor_sync(~0u, second ? z[2 * k + 1] : z[2 * k + 3], 1);
                if (to)
                    store_four(to + 32 * k + (second ? 24 : 0), second ? a : z[2 * k], second ? b : z[2 * k + 1],
                        second ? z[2 * k + 2] : a, second ? z[2 * k + 3] : b);
            }
            return;
        }
        if (!to) return;
        if (left >= 64 && o.wide == 8) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                store_pair(to + 32 * k, __float_as_uint(z[2 * k]), __float_as_uint(z[2 * k + 1]));
            return;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (8 * k + 2 * q < left) store_word(to + 32 * k, __float_as_uint(z[2 * k]));
            if (8 * k + 2 * q + 1 < left) store_word(to + 32 * k + 4, __float_as_uint(z[2 * k + 1]));
        }
        return;
    }
    uint32_t w[8];
#pragma unroll
    for (int k = 0; k < 8; k++)
        w[k] = o.type == NCT_BF16 ? pack_bf16(z[2 * k], z[2 * k + 1]) : pack_f16(z[2 * k], z[2 * k + 1]);
    if (left >= 64 && o.wide >= 8) { /* likewise */
#pragma unroll
        for (int k = 0; k < 8; k += 2) {
            const uint32_t other = __shfl_xor_sync(~0u, q & 1 ? w[k] : w[k + 1], 1);
            if (to) store_pair(to + 16 * k + (q & 1 ? 12 : 0), q & 1 ? other : w[k], q & 1 ? w[k + 1] : other);
        }
        return;
    }
    if (!to) return;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const int32_t t = 8 * k + 2 * q;
        unsigned short *y = (unsigned short *)(to + 16 * k);
        if (o.wide >= 4 && t + 1 < left)
            store_word(y, w[k]);
        else {
            if (t < left) y[0] = (unsigned short)w[k];
            if (t + 1 < left) y[1] = (unsigned short)(w[k] >> 16);
        }
    }
}
/* The tile to y, normalised with the lane's two coefficients and activated; or (DO_RAW) as it is. */
template <int N>
__device__ __forceinline__ void regs_store(
    const cuda_job &j, const nct_frame &f, const regs_tile &t, float (&acc)[N / 2], const float4 (&coef)[2]) {
    regs_out o = regs_to(j, f, t);
    const int32_t q = threadIdx.x & 3;
#pragma unroll 1
    for (int32_t left = t.left, i = 0; i < N / 64 && left > 0; i++, left -= 64) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float z[16];
#pragma unroll
            for (int k = 0; k < 16; k++) z[k] = acc[4 * (k >> 1) + 2 * h + (k & 1)];
            if (!o.raw) {
                if (j.norm == NCT_NORM_GIVEN) /* what is not there raises no flag */
#pragma unroll
                    for (int k = 0; k < 16; k++)
                        if (!o.row[h] || 8 * (k >> 1) + 2 * q + (k & 1) >= left) z[k] = 0;
                row_values(j, t.n, z, coef[h]);
            }
            regs_put(o, o.row[h], left, z);
            if (o.row[h]) o.row[h] += 64 * o.size;
        }
        regs_next<false>(acc);
    }
}
#endif
