/* wgmma_units_tile.cuh: a tile of conv_wgmma_ss_sm90.cu after its products: leaves, the exchange in a cluster,
 * normalising and storing. Every function is called by all consumer warps.
 *
 * acc[4 c + 2 h + e] of a lane (g, q) of warp w: channel 16 w + g + 8 h, step 8 c + 2 q + e of the warpgroup's. */
#ifndef NCT_CUDA_WGMMA_UNITS_TILE_CUH
#define NCT_CUDA_WGMMA_UNITS_TILE_CUH
#include "wgmma_tile.cuh"
#include "wgmma_units.cuh"
#include <cooperative_groups.h>

struct units_memory { /* of one CTA, in shared memory */
    float4 *coefs;    /* of the tile's channels */
    float4 *leaves;   /* fused: [channel][column of the frame] */
    float *tile;
};

/* All leaves of the tile: to every CTA of the cluster, or to memory. */
template <int BT, int WARPS>
__device__ __forceinline__ void units_leaves(const cuda_job &j, const units_shape &sh, const mma_slots &s,
    const units_memory &m, int32_t channel0, int32_t channels, int32_t pitch) {
    if (!sh.fused) return tile_leaves<WARPS>(j, sh.m, s, BT, channels, m.tile, pitch, leaf_store(j, channel0));
    tile_leaves<WARPS>(j, sh.m, s, BT, channels, m.tile, pitch,
        [&](int32_t row, int32_t column, const leaf_column &l, const float4 &leaf) {
            float4 *to = m.leaves + row * l.columns + (s.t0 + column) / MMA_LEAF;
            for (int32_t rank = threadIdx.x & 3; rank < sh.cluster; rank += 4) store_in(to, rank, leaf);
        });
}
/* The coefficients of the tile's groups, a warp a group; their leaves are in shared memory, or have met in memory. */
template <int WARPS>
__device__ __forceinline__ void units_coefs(const cuda_job &j, const units_shape &sh, const units_memory &m,
    const nct_frame &f, int32_t n, int32_t channel0, int32_t channels, bool report) {
    const int32_t count = j.g.cg * leaf_columns(j, f.t_out);
    for (int32_t at = threadIdx.x >> 5; at < channels / j.g.cg; at += WARPS) {
        const int32_t group = channel0 / j.g.cg + at;
        norm_value v;
        if (sh.fused) {
            const float4 *leaves = m.leaves + at * count;
            double shift = leaf_center(leaves[0]);
            v = group_finish(j, f, n, group, report, moments_merge_few<true>(leaves, count, shift), shift);
        } else
            v = group_value_few(j, f, n, group, report);
        for (int32_t c = threadIdx.x & 31; c < j.g.cg; c += 32)
            m.coefs[at * j.g.cg + c] = coef_of(j, v, channel0 + at * j.g.cg + c);
    }
}

/* V values of a lane to y: E together, the next E 32 * E steps on; or (not wide) one every 32 steps. */
template <int V, int E>
__device__ __forceinline__ void units_put(
    const cuda_job &j, int64_t y_at, int32_t t0, int32_t left, bool wide, const float (&z)[V]) {
#pragma unroll
    for (int i = 0; i < V; i += E) {
        const int32_t t = t0 + i * 32;
        if (!wide || t + E > left) {
#pragma unroll
            for (int e = 0; e < E; e++) {
                int32_t at = t + e * (wide ? 1 : 32);
                if (at < left) store_element(j.y, j.y_dtype, y_at + at, z[i + e]);
            }
            continue;
        }
        if (j.y_dtype == NCT_F32) {
            float *y = (float *)j.y + y_at + t;
            if constexpr (E == 4)
                __stcg((float4 *)y, make_float4(z[i], z[i + 1], z[i + 2], z[i + 3]));
            else
                __stcg((float2 *)y, make_float2(z[i], z[i + 1]));
            continue;
        }
        uint32_t out[E / 2];
#pragma unroll
        for (int e = 0; e < E / 2; e++)
            out[e] = j.y_dtype == NCT_BF16 ? pack_bf16(z[i + 2 * e], z[i + 2 * e + 1])
                                           : pack_f16(z[i + 2 * e], z[i + 2 * e + 1]);
        unsigned short *y = (unsigned short *)j.y + y_at + t;
        if constexpr (E == 4)
            __stcg((uint2 *)y, make_uint2(out[0], out[1]));
        else
            __stcg((uint32_t *)y, out[0]);
    }
}
/* A warp's row of the tile to y, normalised: 16 bytes a lane where y allows, else a lane a step; same bits. */
template <int BT>
__device__ __forceinline__ void units_row(
    const cuda_job &j, int64_t y_at, int32_t left, const float *row, const float4 &coef) {
    constexpr int V = BT / 32 > 8 ? 8 : BT / 32, E = V < 4 ? V : 4;
    const int32_t lane = threadIdx.x & 31, size = j.y_dtype == NCT_F32 ? 4 : 2;
    const bool wide = ((uintptr_t)j.y + y_at * size) % (E * size) == 0;
#pragma unroll 1
    for (int32_t t = wide ? lane * E : lane; t < left; t += 32 * V) {
        float z[V];
#pragma unroll
        for (int i = 0; i < V; i += E)
            if (!wide)
#pragma unroll
                for (int e = 0; e < E; e++) z[i + e] = row[t + (i + e) * 32];
            else if constexpr (E == 4)
                *(float4 *)(z + i) = *(const float4 *)(row + t + i * 32);
            else
                *(float2 *)(z + i) = *(const float2 *)(row + t + i * 32);
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = apply(z[i], coef);
        act_row(z, j.g.act);
        units_put<V, E>(j, y_at, t, left, wide, z);
    }
}

template <int WM, int WT, int N>
__device__ __forceinline__ void units_finish(const cuda_job &j, const units_shape &sh, const mma_slots &s,
    int32_t group, int32_t block0, float (&acc)[N / 2], const float (&bias)[2], const units_memory &m) {
    constexpr int BM = 64 * WM, BT = N * WT, PITCH = BT + 8, WARPS = 4 * WM * WT, THREADS = 128 * WM * WT;
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, wg = warp >> 2;
    const int32_t row = (WM == 1 ? 0 : wg * 64) + 16 * (warp & 3) + g, column = WM == 1 ? wg * N : 0;
    const int32_t channels = min(BM, j.g.cog - block0 * 32), channel0 = group * j.g.cog + block0 * 32;
    if (sh.cluster > 1 && !sh.fused && !sh.meet) { /* nobody ends while another may still reach its memory */
        cluster_arrive();
        cluster_wait();
    }
    if (s.empty) {
        if (sh.meet) cooperative_groups::this_grid().sync();
        return;
    }
    const nct_frame f = frame_at(j, s.n0);
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[i] = __fadd_rn(acc[i], bias[i >> 1 & 1]);
    consumers_sync<THREADS>(); /* the last reader of x and weights */
#pragma unroll
    for (int c = 0; c < N / 8; c++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(m.tile + (row + 8 * h) * PITCH + column + 8 * c + 2 * q) =
                make_float2(acc[4 * c + 2 * h], acc[4 * c + 2 * h + 1]);
    consumers_sync<THREADS>();
    if (j.what & DO_LEAVES) units_leaves<BT, WARPS>(j, sh, s, m, channel0, channels, PITCH);
    if (sh.fused || sh.meet) {
        if (sh.meet) {
            __threadfence();
            cooperative_groups::this_grid().sync();
        } else {
            cluster_arrive();
            cluster_wait();
        }
        units_coefs<WARPS>(j, sh, m, f, s.n0, channel0, channels, s.t0 == 0);
        consumers_sync<THREADS>();
    }
    if (!(j.what & (DO_RAW | DO_APPLY))) return;
    if (s.t0 >= f.t_out) return;
    for (int32_t c = warp; c < channels; c += WARPS) {
        float4 coef = {};
        if (sh.fused || sh.meet) {
            units_row<BT>(j, f.y_off + (channel0 + c) * f.y_pitch + s.t0, min(BT, f.t_out - s.t0), m.tile + c * PITCH,
                m.coefs[c]);
            continue;
        }
        if (j.what & DO_APPLY) coef = __ldcg(&j.coef[(int64_t)s.n0 * j.g.co + channel0 + c]);
        row_store(j, f, s.n0, s.t0, BT, channel0 + c, m.tile + c * PITCH, coef);
    }
}
#endif
