/* wgmma_tile.cuh: a PLAN_WGMMA tile after its products: leaves, the fused exchange, normalising and storing, out of shared
 * memory as [channel][step]. Used by conv_wgmma_sm90.cu; every function is called by all consumer warps. */
#ifndef NCT_CUDA_WGMMA_TILE_CUH
#define NCT_CUDA_WGMMA_TILE_CUH
#include "group.cuh"
#include "wgmma_ss.cuh"
#include "wgmma_x.cuh"
#include <cooperative_groups.h>

template <int THREADS> __device__ __forceinline__ void consumers_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/* ---- leaves; the tile's pitch is 4 mod 32 ---- */

/* A lane's 8 steps of a tile row: which leaf they belong to. */
struct leaf_lane {
    int32_t lanes, valid, n_valid; /* lanes of a leaf; valid steps of mine and of the leaf */
    int32_t columns;
    int64_t at; /* of channel 0's leaf; channels are `columns` apart */
    bool here;  /* inside the tile */
};
__device__ __forceinline__ leaf_lane leaf_lane_of(
    const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t tile_steps, int32_t column0 = 0) {
    int32_t column = column0 + (threadIdx.x & 31) * 8, steps = min(1 << sh.slot_shift, 64),
            n = s.n0 + (column >> sh.slot_shift);
    int32_t t = s.t0 + (column & ((1 << sh.slot_shift) - 1));
    leaf_lane l = {steps / 8, 0, 0, 0, 0, column < tile_steps};
    if (!l.here || n >= j.n_frames) return l;
    int32_t t_out = frame_at(j, n).t_out;
    l.valid = max(0, min(8, t_out - t));
    l.n_valid = min(steps, t_out - (t & ~(steps - 1)));
    l.columns = leaf_columns(j, t_out);
    l.at = leaf_start(j, n) * j.g.co + t / MMA_LEAF;
    return l;
}
/* Leaves of R channel rows from a warp; put(r, leaf) in every lane of a leaf. FULL: whole leaves of 64 steps everywhere. */
template <int R, bool FULL, class PUT>
__device__ __forceinline__ void rows_leaves(const leaf_lane &l, const float *row, int32_t pitch, PUT put) {
    const int32_t lane = threadIdx.x & 31;
    float v[R][8], first[R], sum[R], sd[R], sq[R];
    auto all = [&](float(&u)[R]) {
        if constexpr (FULL) {
#pragma unroll
            for (int mask = 1; mask < 8; mask <<= 1)
#pragma unroll
                for (int r = 0; r < R; r++) u[r] = __fadd_rn(u[r], __shfl_xor_sync(~0u, u[r], mask));
        } else
            for (int mask = 1; mask < l.lanes; mask <<= 1)
#pragma unroll
                for (int r = 0; r < R; r++) u[r] = __fadd_rn(u[r], __shfl_xor_sync(~0u, u[r], mask));
    };
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[r][i] = 0;
        sum[r] = sd[r] = sq[r] = 0;
        if (l.here) {
            *(float4 *)v[r] = *(const float4 *)(row + r * pitch + lane * 8);
            *(float4 *)(v[r] + 4) = *(const float4 *)(row + r * pitch + lane * 8 + 4);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        first[r] = __shfl_sync(~0u, v[r][0], lane & ~(FULL ? 7 : l.lanes - 1));
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (FULL || i < l.valid) sum[r] = __fadd_rn(sum[r], __fadd_rn(v[r][i], -first[r]));
    }
    all(sum);
#pragma unroll
    for (int r = 0; r < R; r++) {
        first[r] = leaf_mean(first[r], sum[r], FULL ? 64 : l.n_valid);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (FULL || i < l.valid) {
                float d = __fadd_rn(v[r][i], -first[r]);
                sd[r] = __fadd_rn(sd[r], d);
                sq[r] = __fmaf_rn(d, d, sq[r]);
            }
    }
    all(sd);
    all(sq);
    if (l.n_valid > 0)
#pragma unroll
        for (int r = 0; r < R; r++) put(r, leaf_make(first[r], sd[r], sq[r], l.n_valid));
}
/* Leaves of rows c0, c0 + step ... of `channels`, ROWS at once; put(row of the tile, leaf). */
template <int ROWS, class PUT>
__device__ __forceinline__ void tile_leaves(
    const leaf_lane &l, int32_t c0, int32_t step, int32_t channels, const float *tile, int32_t pitch, PUT put) {
    bool full = __all_sync(~0u, !l.here || (l.valid == 8 && l.n_valid == 64 && l.lanes == 8));
    int32_t c = c0;
    for (; full && c + (ROWS - 1) * step < channels; c += ROWS * step)
        rows_leaves<ROWS, true>(
            l, tile + c * pitch, step * pitch, [&](int r, const float4 &leaf) { put(c + r * step, leaf); });
    for (; c < channels; c += step)
        rows_leaves<1, false>(l, tile + c * pitch, pitch, [&](int, const float4 &leaf) { put(c, leaf); });
}
/* To memory. */
__device__ __forceinline__ auto leaf_store(const cuda_job &j, const leaf_lane &l, int32_t channel0) {
    return [&j, &l, channel0](int32_t row, const float4 &leaf) {
        if ((threadIdx.x & (l.lanes - 1)) == 0) j.leaves[l.at + (int64_t)(channel0 + row) * l.columns] = leaf;
    };
}

/* ---- from accumulators to y ---- */

/* The accumulators, with bias, into the tile. d[8 c + 4 .. ]: columns 8 c + 2 q + e, rows 16 warp + g + 8 h. */
template <int MT, int NB>
__device__ __forceinline__ void tile_write(float (&acc)[MT][NB / 2], const float *bias, float *tile, int32_t pitch) {
    int32_t warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int32_t row = (threadIdx.x >> 7) * 64 * MT + 16 * warp + g;
#pragma unroll
    for (int c = 0; c < NB / 8; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int32_t column = 8 * c + 2 * q + e;
            float b = bias[column];
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    tile[column * pitch + row + 64 * i + 8 * h] = __fadd_rn(acc[i][4 * c + 2 * h + e], b);
        }
}

/* Fused, frames of several tiles: all CTAs of the launch have published their leaves, producers too take part. The driver's
 * own barrier of a cooperative launch: counters of ours would have to be cleared first, which costs 2 us. */
__device__ __forceinline__ bool tiles_meet(const cuda_job &j) {
    return j.what & DO_MEET && j.max_t_out > MMA_LEAF;
}
__device__ __forceinline__ void meet() {
    __threadfence();
    cooperative_groups::this_grid().sync();
}
/* Fused: the coefficients of the tile's groups, a warp a (slot, group). */
template <int WARPS>
__device__ __forceinline__ void tile_coefs(
    const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t channel0, int32_t channels) {
    int32_t groups = channels / j.g.cg, lane = threadIdx.x & 31;
    for (int32_t at = threadIdx.x >> 5; at < groups * sh.slots; at += WARPS) {
        int32_t slot = at / groups, n = s.n0 + slot, group = channel0 / j.g.cg + at - slot * groups;
        if (n >= j.n_frames) break;
        nct_frame f = frame_at(j, n);
        norm_value v = group_value_few(j, f, n, group, s.t0 == 0);
        for (int32_t c = lane; c < j.g.cg; c += 32)
            j.coef[(int64_t)n * j.g.co + group * j.g.cg + c] = coef_of(j, v, group * j.g.cg + c);
    }
}

template <int WGS, int MT, int NB, int PREC>
__device__ __forceinline__ void finish_tile(const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t group,
    int32_t block0, int32_t in_all, float (&acc)[MT][NB / 2], const float *bias, float *tile) {
    constexpr int BM = 64 * MT * WGS, PITCH = BM + 4, WARPS = 4 * WGS, THREADS = 128 * WGS;
    int32_t channels = min(NB, j.g.cog - block0 * 32), channel0 = group * j.g.cog + block0 * 32;
    int32_t warp = threadIdx.x >> 5, steps = 1 << sh.slot_shift;
    consumers_sync<THREADS>(); /* the last reader of x and weights */
    tile_write<MT, NB>(acc, bias, tile, PITCH);
    consumers_sync<THREADS>();
    if (j.what & DO_LEAVES) {
        leaf_lane l = leaf_lane_of(j, sh, s, BM);
        tile_leaves<4>(l, warp, WARPS, channels, tile, PITCH, leaf_store(j, l, channel0));
    }
    if (j.what & DO_MEET) {
        if (tiles_meet(j)) {
            meet();
        } else
            consumers_sync<THREADS>();
        tile_coefs<WARPS>(j, sh, s, channel0, channels);
        consumers_sync<THREADS>();
    }
    if (!(j.what & (DO_RAW | DO_APPLY))) return;
    for (int32_t slot = 0; slot < sh.slots && s.n0 + slot < j.n_frames; slot++) {
        nct_frame f = frame_at(j, s.n0 + slot);
        /* The warp's coefficients at once, a lane a row. */
        float4 mine = {};
        int32_t row = warp + (threadIdx.x & 31) * WARPS;
        if (j.what & DO_APPLY && row < channels)
            mine = __ldcg(&j.coef[(int64_t)(s.n0 + slot) * j.g.co + channel0 + row]);
        for (int32_t c = warp, k = 0; c < channels; c += WARPS, k++) {
            float4 coef = {__shfl_sync(~0u, mine.x, k), __shfl_sync(~0u, mine.y, k), __shfl_sync(~0u, mine.z, k),
                __shfl_sync(~0u, mine.w, k)};
            row_store(j, f, s.n0 + slot, s.t0, steps, channel0 + c, tile + c * PITCH + slot * steps, coef);
        }
    }
}
#endif
