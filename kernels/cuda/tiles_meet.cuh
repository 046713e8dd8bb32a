/* tiles_meet.cuh: warpgroups that hold tiles of the same norm groups meet through memory, without a barrier of the grid: each
 * writes its leaves, counts itself in on its set's counter and waits until the set is whole; then every one merges the
 * leaves of its own groups, in stats.cuh's fixed tree. All tiles of a set must be under way at the same time (a cooperative
 * launch); counters are zero before the launch. One warpgroup a tile; `id` is a named barrier of its 128 threads. */
#ifndef NCT_CUDA_TILES_MEET_CUH
#define NCT_CUDA_TILES_MEET_CUH
#include "group.cuh"
#include "wgmma_units.cuh"

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
/* Sums of G groups of at most 32 * SLOTS leaves each by one warp, interleaved, about their first leaves' centres; the tree of
 * moments_merge. All leaves are under way before the first is needed. */
template <int G, int SLOTS>
__device__ __forceinline__ void merge_groups(
    const float4 *const (&leaves)[G], int32_t count, double (&shift)[G], moments (&sum)[G]) {
    const int32_t lane = threadIdx.x & 31;
    float4 leaf[G][SLOTS];
    moments w[G][SLOTS] = {};
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
#pragma unroll
        for (int g = 0; g < G; g++) {
            leaf[g][i] = make_float4(0, 0, 0, 0);
            if (lane + 32 * i < count) leaf[g][i] = __ldcg(leaves[g] + lane + 32 * i);
        }
#pragma unroll
    for (int g = 0; g < G; g++) {
        const float4 v = leaf[g][0];
        shift[g] =
            leaf_center(make_float4(__shfl_sync(~0u, v.x, 0), __shfl_sync(~0u, v.y, 0), 0, __shfl_sync(~0u, v.w, 0)));
    }
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
#pragma unroll
        for (int g = 0; g < G; g++)
            if (lane + 32 * i < count) moments_add(w[g][i], leaf[g][i], shift[g]);
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
/* Of a group of many leaves, the sums of virtual lanes 4 part ... 4 part + 3 mod 32, by the warpgroup: to[0 ... 3]. */
enum { MEET_PARTS = 8 };
__device__ __forceinline__ void merge_part(
    const float4 *leaves, int32_t count, int32_t part, moments *to, moments *room, int32_t id) {
    const int32_t tid = threadIdx.x & 127;
    const double shift = leaf_center(__ldcg(leaves));
    moments w[4] = {};
#pragma unroll 4
    for (int32_t at = (tid >> 2) * 32 + 4 * part + (tid & 3); at < count; at += MERGE_LANES)
        moments_add(w[0], __ldcg(leaves + at), shift);
    room[tid] = w[0];
    meet_sync(id);
    if (tid < 32) {
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = room[i * 32 + tid];
        w[0] = moments_sum(moments_sum(w[0], w[2]), moments_sum(w[1], w[3]));
#pragma unroll
        for (int mask = 16; mask > 2; mask >>= 1) w[0] = moments_shuffle(w[0], mask);
        if (tid < 4) __stcg((double2 *)(to + tid), make_double2(w[0].s1, w[0].s2));
    }
    meet_sync(id); /* room is used again */
}

struct meet_place {        /* a tile in its set */
    int32_t *counters;     /* of the set: two */
    int32_t tiles, at;     /* how many tiles; which is this */
    int32_t first, groups; /* the set's norm groups */
};
/* Of the tile at t0 of `steps` steps of block `block` of 64 channels; set_blocks consecutive blocks of a conv group's `blocks`
 * share norm groups. */
__device__ __forceinline__ meet_place meet_place_of(const cuda_job &j, const nct_frame &f, int32_t n, int32_t t0,
    int32_t steps, int32_t group, int32_t block, int32_t blocks, int32_t set_blocks) {
    const int32_t block0 = block - block % set_blocks, members = min(set_blocks, blocks - block0),
                  tiles = (f.t_out + steps - 1) / steps, begin = group * j.g.cog + block0 * 64,
                  end = group * j.g.cog + min(j.g.cog, (block0 + members) * 64);
    return {j.counters + n * job_counters(j) + 2 * (group * blocks + block0), members * tiles,
        (block - block0) * tiles + t0 / steps, begin / j.g.cg, (end - 1) / j.g.cg + 1 - begin / j.g.cg};
}
/* The values of the `groups` norm groups from `first` on of frame n into m->values, by the warpgroup, whose leaves are
 * written; of those that begin at channel `report` or later, statistics and flags are written too. Seen by all after this.
 * Many leaves: the set's tiles share the merging and meet again. */
__device__ __forceinline__ void meet_values(const cuda_job &j, const nct_frame &f, int32_t n, const meet_place &set,
    int32_t first, int32_t groups, int32_t report, meet_memory *m, int32_t id) {
    const int32_t warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, count = j.g.cg * leaf_columns(j, f.t_out);
    const float4 *leaves = j.leaves + leaf_start(j, n) * j.g.co;
    auto told = [&](int32_t at) { return (first + at) * j.g.cg >= report; };
    meet_set(set.counters, set.tiles, id);
    const bool many = count > FEW;
    moments *parts = (moments *)(j.scratch + leaf_start(j, n) * j.leaf_t * j.g.co);
    if (many) {
        for (int32_t at = set.at; at < set.groups * MEET_PARTS; at += set.tiles) {
            const int32_t group = set.first + at / MEET_PARTS, part = at % MEET_PARTS;
            merge_part(leaves + (int64_t)group * count, count, part, parts + group * 32 + part * 4, m->room, id);
        }
        meet_set(set.counters + 1, set.tiles, id);
    }
    /* Two a warp, lanes 0 and 1 finish them; one where two would not fit in the registers beside a tile. */
    const int32_t each = many || count <= 128 ? 2 : 1;
    for (int32_t at = warp * each; at < groups; at += 4 * each) {
        const int32_t last = min(at + each - 1, groups - 1);
        const float4 *const of[2] = {
            leaves + (int64_t)(first + at) * count, leaves + (int64_t)(first + last) * count};
        double shift[2];
        moments sum[2];
        if (many) {
#pragma unroll
            for (int g = 0; g < 2; g++) {
                shift[g] = leaf_center(__ldcg(of[g]));
                const double2 v = __ldcg((const double2 *)(parts + (first + (g ? last : at)) * 32 + lane));
                sum[g] = {v.x, v.y};
            }
#pragma unroll
            for (int mask = 16; mask; mask >>= 1)
#pragma unroll
                for (int g = 0; g < 2; g++) sum[g] = moments_shuffle(sum[g], mask);
        } else if (count <= 128)
            merge_groups<2, 4>(of, count, shift, sum);
        else {
            const float4 *const one[1] = {of[0]};
            double about[1];
            moments alone[1];
            merge_groups<1, 8>(one, count, about, alone);
            shift[0] = shift[1] = about[0];
            sum[0] = sum[1] = alone[0];
        }
        const int32_t mine = lane ? last : at;
        if (lane < each && at + lane < groups)
            m->values[mine] =
                value_own(j, f, n, first + mine, told(mine), lane ? sum[1] : sum[0], lane ? shift[1] : shift[0]);
    }
    meet_sync(id);
}
#endif
