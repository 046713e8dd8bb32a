/* mma_turned_tile.cuh: a tile of conv_mma_turned.cuh after its products, out of the accumulators: leaves, the meeting of
 * all CTAs, coefficients, and y by rows of 64 steps through a warp's own shared memory. Called by all warps.
 *
 * acc[i][n][e] of a lane (g, q): channel 16 (wm MT + i) + g + 8 (e / 2), step 64 wn + 8 n + 2 q + e mod 2 of the tile. */
#ifndef NCT_CUDA_MMA_TURNED_TILE_CUH
#define NCT_CUDA_MMA_TURNED_TILE_CUH
#include "group.cuh"
#include "mma_turned.cuh"
#include <cooperative_groups.h>

/* Of R rows of a warp's 64 valid steps quad_leaf's values, bit for bit; row r is channel 16 (r / 2) + g + 8 (r mod 2). */
template <int MT> __device__ __forceinline__ void whole_leaves(const float (&acc)[MT][8][4], float4 (&leaf)[2 * MT]) {
    constexpr int R = 2 * MT;
    float p[R], sum[R], sd[R], sq[R];
    auto value = [&](int r, int n) { return acc[r >> 1][n >> 1][2 * (r & 1) + (n & 1)]; };
#pragma unroll
    for (int r = 0; r < R; r++) {
        p[r] = __shfl_sync(~0u, value(r, 0), threadIdx.x & 28);
        sum[r] = sd[r] = sq[r] = 0;
    }
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int r = 0; r < R; r++) sum[r] = __fadd_rn(sum[r], __fadd_rn(value(r, n), -p[r]));
#pragma unroll
    for (int r = 0; r < R; r++) p[r] = leaf_mean(p[r], quad_sum(sum[r]), 64);
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float d = __fadd_rn(value(r, n), -p[r]);
            sd[r] = __fadd_rn(sd[r], d);
            sq[r] = __fmaf_rn(d, d, sq[r]);
        }
#pragma unroll
    for (int r = 0; r < R; r++) leaf[r] = leaf_make(p[r], quad_sum(sd[r]), quad_sum(sq[r]), 64);
}

/* Registers are addressed by constants alone, and code that runs once is read from memory as it runs: so loops over a warp's
 * m16 tiles work on the first and turn them round. */
template <int MT> __device__ __forceinline__ void turned_round(float (&acc)[MT][8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float first = acc[0][n][e];
#pragma unroll
            for (int i = 0; i + 1 < MT; i++) acc[i][n][e] = acc[i + 1][n][e];
            acc[MT - 1][n][e] = first;
        }
}

template <int WM, int MT>
__device__ __forceinline__ void turned_leaves(const cuda_job &j, const turned_shape &sh, const mma_slots &s,
    int32_t group, int32_t channel0, float (&acc)[MT][8][4]) {
    const int32_t warp = threadIdx.x >> 5, wm = warp % WM, wn = warp / WM, g = (threadIdx.x & 31) >> 2;
    const int32_t t = s.t0 + 64 * wn, t_out = frame_at(j, s.n0).t_out, row0 = channel0 + 16 * wm * MT + g;
    if (sh.m.slots == 1 && t + 64 <= t_out) {
        const int64_t columns = leaf_columns(j, t_out);
        float4 *to = j.leaves + leaf_start(j, s.n0) * j.g.co + (group * j.g.cog + row0) * columns + t / MMA_LEAF;
        float4 leaf[2 * MT];
        whole_leaves<MT>(acc, leaf);
#pragma unroll
        for (int r = 0; r < 2 * MT; r++)
            if (row0 + 8 * r < j.g.cog && (threadIdx.x & 3) == 0) to[8 * r * columns] = leaf[r];
        return;
    }
#pragma unroll 1
    for (int i = 0; i < MT; i++, turned_round(acc))
#pragma unroll 1
        for (int h = 0; h < 2; h++) {
            float v[16];
#pragma unroll
            for (int n = 0; n < 16; n++) v[n] = h ? acc[0][n >> 1][2 + (n & 1)] : acc[0][n >> 1][n & 1];
            const int32_t c = row0 + 16 * i + 8 * h;
            row_leaves(j, sh.m, s, 64 * wn, group * j.g.cog + c, c < j.g.cog, v);
        }
}

/* moments_merge by any number of threads; the sums in the first warp. */
template <int THREADS>
__device__ __forceinline__ moments turned_merge(const float4 *leaves, int64_t count, double shift, moments *room) {
    for (int32_t v = threadIdx.x; v < MERGE_THREADS; v += THREADS) {
        moments lane[4] = {};
        for (int64_t base = 0; base < count; base += MERGE_LANES)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int64_t at = base + v + i * MERGE_THREADS;
                if (at < count) moments_add(lane[i], __ldcg(leaves + at), shift);
            }
        room[v] = moments_sum(moments_sum(lane[0], lane[2]), moments_sum(lane[1], lane[3]));
    }
    __syncthreads();
    moments w[8] = {};
    if (threadIdx.x >= 32) return w[0];
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = room[i * 32 + threadIdx.x];
#pragma unroll
    for (int half = 4; half; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++) w[i] = moments_sum(w[i], w[i + half]);
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) w[0] = moments_shuffle(w[0], mask);
    return w[0];
}

/* Own statistics from the leaves' sums; `report`: write stat_out and flags. */
__device__ __forceinline__ norm_value turned_value(
    const cuda_job &j, const nct_frame &f, int32_t n, int32_t group, bool report, moments m, double shift) {
    nct_stat s = stat_of(m, shift, (double)j.g.cg * f.t_out);
    if (!stat_finite(s)) s.mean = s.m2 = NAN;
    const norm_value v = norm_of(s, j.g.eps);
    if (report) {
        const uint32_t saw = norm_flags(j, s, v);
        if (saw && j.flags) atomicOr(&j.flags[n], saw);
        if (f.stat_out >= 0) j.stats[(int64_t)f.stat_out * j.g.norm_groups + group] = s;
    }
    return v;
}

/* Coefficients of the tile's channels, a slot after the other, from the leaves in memory: at most FEW a group by a warp,
 * where groups are many and leaves at most FEW / 2 by half of one; the same tree. */
template <int THREADS, int BM>
__device__ __forceinline__ void turned_coefs(const cuda_job &j, const turned_shape &sh, const mma_slots &s,
    int32_t channel0, int32_t channels, float4 *coefs, moments *room) {
    const int32_t first = channel0 / j.g.cg, groups = (channel0 + channels - 1) / j.g.cg - first + 1;
    const int32_t all = groups * sh.m.slots, most = j.g.cg * leaf_columns(j, j.max_t_out);
    const bool few = (int64_t)j.g.cg * leaf_columns(j, j.max_t_out) <= FEW;
    const int32_t lanes = !few ? THREADS : most <= FEW / 2 && all > THREADS / 32 ? 16 : 32;
    const int32_t lane = threadIdx.x & (lanes - 1);
#pragma unroll 1
    for (int32_t base = 0; base < all; base += THREADS / lanes) {
        const int32_t at = min(base + (int32_t)threadIdx.x / lanes, all - 1), slot = at / groups;
        const int32_t n = min(s.n0 + slot, j.n_frames - 1), group = first + at - slot * groups;
        const bool mine = at == base + (int32_t)threadIdx.x / lanes && n == s.n0 + slot;
        const nct_frame f = frame_at(j, n);
        const int32_t channel = group * j.g.cg + lane; /* its constants come while the leaves do */
        const float gamma = lane < j.g.cg ? __ldg(&j.gamma[channel]) : 0;
        const float beta = lane < j.g.cg ? __ldg(&j.beta[channel]) : 0;
        const int64_t count = (int64_t)j.g.cg * leaf_columns(j, f.t_out);
        const float4 *leaves = j.leaves + leaf_start(j, n) * j.g.co + (int64_t)group * count;
        double shift;
        moments w[FEW / 32] = {};
        if (few) {
            float4 leaf[FEW / 32];
#pragma unroll
            for (int i = 0; i < FEW / 32; i++) {
                leaf[i] = make_float4(0, 0, 0, 1);
                if (lane + lanes * i < count) leaf[i] = __ldcg(leaves + lane + lanes * i);
            }
            shift = __shfl_sync(~0u, leaf_center(leaf[0]), threadIdx.x & 31 & ~(lanes - 1));
#pragma unroll
            for (int i = 0; i < FEW / 32; i++)
                if (lane + lanes * i < count) moments_add(w[i], leaf[i], shift);
#pragma unroll
            for (int half = FEW / 64; half; half >>= 1)
#pragma unroll
                for (int i = 0; i < half; i++) w[i] = moments_sum(w[i], w[i + half]);
#pragma unroll 1
            for (int mask = lanes / 2; mask; mask >>= 1) w[0] = moments_shuffle(w[0], mask);
        } else {
            shift = leaf_center(__ldcg(leaves));
            w[0] = turned_merge<THREADS>(leaves, count, shift, room);
        }
        if (few || threadIdx.x < 32) {
            const norm_value v = turned_value(
                j, f, n, group, mine && lane == 0 && s.t0 == 0 && group * j.g.cg >= channel0, w[0], shift);
            for (int32_t c = lane; c < j.g.cg && mine; c += min(lanes, 32)) {
                const int32_t row = group * j.g.cg + c - channel0;
                if (row < 0 || row >= channels) continue;
                coefs[slot * BM + row] = c == lane ? make_float4(v.mean_hi, v.mean_lo, __fmul_rn(v.rstd, gamma), beta)
                                                   : coef_of(j, v, channel0 + row);
            }
        }
        if (!few) __syncthreads(); /* room is used again */
    }
}

/* Where a lane writes of each channel's row, and which 4 of the warp's 64 steps: they follow each other, or (whole rows
 * that allow no wide store) are 16 apart. */
struct turned_out {
    char *row;     /* of the tile's channel 0 */
    int64_t pitch; /* bytes */
    int32_t dtype, n, slot, left, from, first, step;
    bool wide;
};
__device__ __forceinline__ turned_out turned_out_of(
    const cuda_job &j, const turned_shape &sh, const mma_slots &s, int32_t channel0, int32_t column0) {
    const int32_t l = threadIdx.x & 15, steps = 1 << sh.m.slot_shift;
    const bool whole = steps >= 64;
    turned_out o;
    o.from = whole ? 0 : 4 * l; /* short slots lie on lanes of their own, 4 steps never cross one */
    o.slot = (column0 + o.from) >> sh.m.slot_shift;
    o.n = s.n0 + o.slot;
    o.left = 0;
    if (o.n >= j.n_frames) return o;
    const nct_frame f = frame_at(j, o.n);
    const int32_t t = s.t0 + ((column0 + o.from) & (steps - 1));
    const bool raw = j.what & DO_RAW;
    o.dtype = raw ? NCT_F32 : j.y_dtype;
    const int32_t size = o.dtype == NCT_F32 ? 4 : 2;
    char *base = raw ? (char *)raw_row(j, f, o.n, channel0) : (char *)j.y + (f.y_off + channel0 * f.y_pitch) * size;
    o.pitch = (raw ? (char *)raw_row(j, f, o.n, channel0 + 1) - base : f.y_pitch * size);
    o.row = base + (int64_t)t * size;
    o.left = f.t_out - t;
    o.wide = (((uintptr_t)o.row | (uintptr_t)o.pitch) & (4 * size - 1)) == 0;
    o.first = !whole ? 0 : o.wide ? 4 * l : l;
    o.step = whole && !o.wide ? 16 : 1;
    return o;
}
__device__ __forceinline__ void turned_put(const turned_out &o, char *row, const float *z) {
    if (!o.wide || o.first + 4 > o.left) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (o.first + e * o.step < o.left) store_element(row, o.dtype, o.first + e * o.step, z[e]);
    } else if (o.dtype == NCT_F32)
        __stcg((float4 *)row + o.first / 4, make_float4(z[0], z[1], z[2], z[3]));
    else {
        uint2 out;
        out.x = o.dtype == NCT_BF16 ? pack_bf16(z[0], z[1]) : pack_f16(z[0], z[1]);
        out.y = o.dtype == NCT_BF16 ? pack_bf16(z[2], z[3]) : pack_f16(z[2], z[3]);
        __stcg((uint2 *)row + o.first / 4, out);
    }
}
/* 16 rows of a warp's 64 steps, 16 lanes a row, 4 rows of a lane at once. */
template <int BM>
__device__ __forceinline__ void turned_rows(const cuda_job &j, const turned_out &o, int32_t channel0,
    int32_t channels, int32_t row0, const float *stage, const float4 *coefs) {
    if (o.left <= 0) return;
#pragma unroll 1
    for (int32_t r = threadIdx.x >> 4 & 1; r < 16; r += 8) {
        float z[16];
        char *to = o.row + (row0 + r) * o.pitch;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *from = stage + (r + 2 * k) * TURNED_PITCH + o.from + o.first;
            if (o.step == 1)
                *(float4 *)(z + 4 * k) = *(const float4 *)from;
            else
#pragma unroll
                for (int e = 0; e < 4; e++) z[4 * k + e] = from[16 * e];
        }
        if (j.what & DO_APPLY) {
            bool odd = false;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int32_t row = row0 + r + 2 * k;
                float4 c = {};
                if (j.what & DO_MEET)
                    c = coefs[o.slot * BM + row];
                else if (row < channels)
                    c = __ldcg(&j.coef[(int64_t)o.n * j.g.co + channel0 + row]);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float &v = z[4 * k + e];
                    odd |= !isfinite(v) && o.first + e * o.step < o.left && row < channels;
                    v = j.norm == NCT_NORM_GIVEN ? apply_given(v, c) : apply(v, c);
                }
            }
            if (j.norm == NCT_NORM_GIVEN && odd && j.flags) atomicOr(&j.flags[o.n], NCT_SAW_NONFINITE);
            act_row(z, j.g.act);
        }
#pragma unroll
        for (int k = 0; k < 4; k++, to += 2 * o.pitch)
            if (row0 + r + 2 * k < channels) turned_put(o, to, z + 4 * k);
    }
}

/* shared: the loop's memory, free by now. */
template <int WM, int WN, int MT>
__device__ __forceinline__ void turned_finish(const cuda_job &j, const turned_shape &sh, const mma_slots &s,
    int32_t group, int32_t block0, float (&acc)[MT][8][4], uint32_t *shared) {
    constexpr int BM = 16 * MT * WM, THREADS = 32 * WM * WN;
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const int32_t wm = warp % WM, wn = warp / WM;
    const int32_t in_group = block0 * 32, channels = min(BM, j.g.cog - in_group),
                  channel0 = group * j.g.cog + in_group;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t row = 16 * (wm * MT + i) + g + 8 * h;
            const float b = row < channels ? __ldg(&j.bias[channel0 + row]) : 0;
#pragma unroll
            for (int n = 0; n < 16; n++)
                acc[i][n >> 1][2 * h + (n & 1)] = __fadd_rn(acc[i][n >> 1][2 * h + (n & 1)], b);
        }
    if (j.what & DO_LEAVES) turned_leaves<WM, MT>(j, sh, s, group, in_group, acc);
    float4 *coefs = (float4 *)shared, *rest = coefs + sh.m.slots * BM;
    if (j.what & DO_MEET) {
        if (sh.meet) {
            __threadfence();
            cooperative_groups::this_grid().sync();
        } else
            __syncthreads();
        turned_coefs<THREADS, BM>(j, sh, s, channel0, channels, coefs, (moments *)rest);
        __syncthreads();
    }
    if (!(j.what & (DO_RAW | DO_APPLY))) return;
    float *stage = (float *)rest + warp * 16 * TURNED_PITCH;
    const turned_out out = turned_out_of(j, sh, s, channel0, 64 * wn);
#pragma unroll 1
    for (int i = 0; i < MT; i++, turned_round(acc)) {
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2 *)(stage + (g + 8 * h) * TURNED_PITCH + 8 * n + 2 * q) =
                    make_float2(acc[0][n][2 * h], acc[0][n][2 * h + 1]);
        __syncwarp();
        turned_rows<BM>(j, out, channel0, channels, 16 * (wm * MT + i), stage, coefs);
    }
}
#endif
