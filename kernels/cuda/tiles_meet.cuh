/* tiles_meet.cuh: warpgroups that hold tiles of the same norm groups meet through memory, without a barrier of the grid: each
 * writes its leaves, counts itself in on its set's counter and waits until the set is whole; then every one merges the
 * leaves of its own groups, in stats.cuh's fixed tree. All tiles of a set must be under way at the same time (a cooperative
 * launch); counters are zero before the launch. One warpgroup a tile; `id` is a named barrier of its 128 threads. */
#ifndef NCT_CUDA_TILES_MEET_CUH
#define NCT_CUDA_TILES_MEET_CUH
#include "group.cuh"

enum { MEET_THREADS = 128 };
struct meet_memory { /* of one warpgroup, in shared memory */
    norm_value values[64];
    moments room[MEET_THREADS];
};

__device__ __forceinline__ void meet_sync(int32_t id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}
/* What the warpgroup wrote before is seen by all of the set after. */
__device__ __forceinline__ void meet_set(int32_t *counter, int32_t tiles, int32_t id) {
    meet_sync(id);
    if ((threadIdx.x & 127) == 0) {
        __threadfence();
        atomicAdd(counter, 1);
        int32_t seen;
        do {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
        } while (seen < tiles);
    }
    meet_sync(id);
}

/* The value of one (frame, norm group) from its sums, by the calling lane alone; statistics of the frame's own. */
__device__ __forceinline__ norm_value value_own(
    const cuda_job &j, const nct_frame &f, int32_t n, int32_t group, bool report, moments m, double shift) {
    nct_stat s = stat_of(m, shift, (double)j.g.cg * f.t_out);
    if (!stat_finite(s)) s.mean = s.m2 = NAN;
    const norm_value v = norm_of(s, j.g.eps);
    if (!report) return v;
    const uint32_t saw = norm_flags(j, s, v);
    if (saw && j.flags) atomicOr(&j.flags[n], saw);
    if (f.stat_out >= 0) j.stats[(int64_t)f.stat_out * j.g.norm_groups + group] = s;
    return v;
}
/* Sums of G groups of at most 32 * SLOTS leaves each by one warp, interleaved; the tree of moments_merge. */
template <int G, int SLOTS>
__device__ __forceinline__ void merge_groups(
    const float4 *const (&leaves)[G], int32_t count, const double (&shift)[G], moments (&sum)[G]) {
    moments w[G][SLOTS] = {};
    const int32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
#pragma unroll
        for (int g = 0; g < G; g++)
            if (lane + 32 * i < count) moments_add(w[g][i], __ldcg(leaves[g] + lane + 32 * i), shift[g]);
#pragma unroll
    for (int half = SLOTS / 2; half; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++)
#pragma unroll
            for (int g = 0; g < G; g++) w[g][i] = moments_sum(w[g][i], w[g][i + half]);
#pragma unroll
    for (int mask = 16; mask; mask >>= 1)
#pragma unroll
        for (int g = 0; g < G; g++) w[g][0] = moments_shuffle(w[g][0], mask);
#pragma unroll
    for (int g = 0; g < G; g++) sum[g] = w[g][0];
}
/* Sums of one group of many leaves by the warpgroup; its first warp gets them. */
__device__ __forceinline__ moments merge_many(
    const float4 *leaves, int32_t count, double shift, moments *room, int32_t id) {
    constexpr int EACH = MERGE_LANES / MEET_THREADS;
    const int32_t tid = threadIdx.x & 127;
    moments lane[EACH] = {};
    for (int32_t base = 0; base < count; base += MERGE_LANES)
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int32_t at = base + tid + i * MEET_THREADS;
            if (at < count) moments_add(lane[i], __ldcg(leaves + at), shift);
        }
#pragma unroll
    for (int half = EACH / 2; half; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++) lane[i] = moments_sum(lane[i], lane[i + half]);
    room[tid] = lane[0];
    meet_sync(id);
    moments w[4] = {};
    if (tid < 32) {
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = room[i * 32 + tid];
#pragma unroll
        for (int half = 2; half; half >>= 1)
#pragma unroll
            for (int i = 0; i < half; i++) w[i] = moments_sum(w[i], w[i + half]);
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) w[0] = moments_shuffle(w[0], mask);
    }
    meet_sync(id); /* room is used again */
    return w[0];
}

/* The values of the `groups` norm groups from `first` on of frame n into m->values, by the warpgroup, after its set has met;
 * of those that begin at channel `report` or later, statistics and flags are written too. Seen by all after this. */
__device__ __forceinline__ void meet_values(const cuda_job &j, const nct_frame &f, int32_t n, int32_t first,
    int32_t groups, int32_t report, meet_memory *m, int32_t id) {
    auto told = [&](int32_t at) { return (first + at) * j.g.cg >= report; };
    const int32_t warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, count = j.g.cg * leaf_columns(j, f.t_out);
    const float4 *leaves = j.leaves + leaf_start(j, n) * j.g.co;
    if (count <= 128)
        for (int32_t at = warp * 2; at < groups; at += 8) { /* two a warp */
            const int32_t last = min(at + 1, groups - 1);
            const float4 *const of[2] = {
                leaves + (int64_t)(first + at) * count, leaves + (int64_t)(first + last) * count};
            const double shift[2] = {leaf_center(__ldcg(of[0])), leaf_center(__ldcg(of[1]))};
            moments sum[2];
            merge_groups<2, 4>(of, count, shift, sum);
            const int32_t mine = lane ? last : at;
            if (lane < 2 && at + lane < groups)
                m->values[mine] =
                    value_own(j, f, n, first + mine, told(mine), lane ? sum[1] : sum[0], lane ? shift[1] : shift[0]);
        }
    else if (count <= FEW)
        for (int32_t at = warp; at < groups; at += 4) {
            const float4 *const of[1] = {leaves + (int64_t)(first + at) * count};
            const double shift[1] = {leaf_center(__ldcg(of[0]))};
            moments sum[1];
            merge_groups<1, 8>(of, count, shift, sum);
            if (lane == 0) m->values[at] = value_own(j, f, n, first + at, told(at), sum[0], shift[0]);
        }
    else
        for (int32_t at = 0; at < groups; at++) {
            const float4 *of = leaves + (int64_t)(first + at) * count;
            const double shift = leaf_center(__ldcg(of));
            const moments sum = merge_many(of, count, shift, m->room, id);
            if (warp == 0 && lane == 0) m->values[at] = value_own(j, f, n, first + at, told(at), sum, shift);
        }
    meet_sync(id);
}
#endif
