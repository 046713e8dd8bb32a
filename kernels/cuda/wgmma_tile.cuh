/* wgmma_tile.cuh: a PLAN_WGMMA tile after its products: leaves, the fused exchange, normalising and storing, out of shared
 * memory as [channel][step]. Used by conv_wgmma_sm90.cu; every function is called by all consumer warps. */
#ifndef NCT_CUDA_WGMMA_TILE_CUH
#define NCT_CUDA_WGMMA_TILE_CUH
#include "group.cuh"
#include "leaf_quad.cuh"
#include "wgmma_ss.cuh"
#include "wgmma_x.cuh"
#include <cooperative_groups.h>
#include <type_traits>

template <int THREADS> __device__ __forceinline__ void consumers_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/* ---- leaves ---- */

/* One leaf column of the tile, the same in a whole warp: where its channel 0's leaf lies, channels `columns` apart. */
struct leaf_column {
    int32_t valid, columns; /* steps; 0: nothing there */
    int64_t at;
};
__device__ __forceinline__ leaf_column leaf_column_of(
    const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t column) {
    const int32_t n = s.n0 + (column >> sh.slot_shift), t = s.t0 + (column & ((1 << sh.slot_shift) - 1));
    if (n >= j.n_frames) return {0, 0, 0};
    const int32_t t_out = frame_at(j, n).t_out, columns = leaf_columns(j, t_out);
    return {max(0, min(min(1 << sh.slot_shift, 64), t_out - t)), columns, leaf_start(j, n) * j.g.co + t / MMA_LEAF};
}
/* Leaves of a tile [channel][step]: a warp takes 8 rows at once, a quad a row. put(row, column, its leaf_column, leaf) in
 * every lane of the quad. */
template <int WARPS, class PUT>
__device__ __forceinline__ void tile_leaves(const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t steps,
    int32_t channels, const float *tile, int32_t pitch, PUT put) {
    constexpr int L = 2;
    const int32_t lane = threadIdx.x & 31, q = lane & 3, each = min(1 << sh.slot_shift, 64);
    auto leaves = [&](auto count, auto full, int32_t row, int32_t column) {
        constexpr int COUNT = decltype(count)::value;
        constexpr bool FULL = decltype(full)::value;
        leaf_column l[COUNT];
        float2 v[COUNT][8];
        float4 leaf[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            l[i] = leaf_column_of(j, sh, s, column + i * each);
#pragma unroll
            for (int c = 0; c < 8; c++)
                if (FULL || 8 * c + 2 * q < l[i].valid)
                    v[i][c] = *(const float2 *)(tile + row * pitch + column + i * each + 8 * c + 2 * q);
                else
                    v[i][c] = {};
        }
        quad_leaves<COUNT, 8, FULL>(
            [&](int i, int c, int e) { return e ? v[i][c].y : v[i][c].x; }, [&](int i) { return l[i].valid; }, leaf);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (row < channels && l[i].valid > 0) put(row, column + i * each, l[i], leaf[i]);
    };
    for (int32_t row = (threadIdx.x >> 5) * 8; row < channels; row += WARPS * 8)
        for (int32_t column = 0; column < steps;) {
            bool full = column + (L - 1) * each < steps;
            for (int32_t i = L - 1; full && i >= 0; i--)
                full = leaf_column_of(j, sh, s, column + i * each).valid == 64;
            if (full) {
                leaves(std::integral_constant<int, L>(), std::true_type(), row + (lane >> 2), column);
                column += L * each;
            } else {
                leaves(std::integral_constant<int, 1>(), std::false_type(), row + (lane >> 2), column);
                column += each;
            }
        }
}
/* To memory, by the quad's first lane. */
__device__ __forceinline__ auto leaf_store(const cuda_job &j, int32_t channel0) {
    return [&j, channel0](int32_t row, int32_t, const leaf_column &l, const float4 &leaf) {
        if ((threadIdx.x & 3) == 0) j.leaves[l.at + (int64_t)(channel0 + row) * l.columns] = leaf;
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
        tile_leaves<WARPS>(j, sh, s, BM, channels, tile, PITCH, leaf_store(j, channel0));
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
