/* group.cuh: one (frame, norm group) from its leaves to the value that normalises it, by one warp. */
#ifndef NCT_CUDA_GROUP_CUH
#define NCT_CUDA_GROUP_CUH
#include "frame.cuh"
#include "stats.cuh"

/* From the leaves' sums (unused under GIVEN); `report`: lane 0 writes stat_out and flags. */
__device__ __forceinline__ norm_value group_finish(
    const cuda_job &j, const nct_frame &f, int32_t n, int32_t group, bool report, moments m, double shift) {
    nct_stat s = {0, 0, 0};
    if (f.stat_in >= 0) s = j.stats[(int64_t)f.stat_in * j.g.norm_groups + group];
    if (j.norm != NCT_NORM_GIVEN) {
        nct_stat own = stat_of(m, shift, (double)j.g.cg * f.t_out);
        s = j.norm == NCT_NORM_RUNNING ? stat_merge(s, own) : own;
        if (!stat_finite(s)) s.mean = s.m2 = NAN;
    }
    norm_value v = norm_of(s, j.g.eps);
    __syncwarp(); /* stat_in may be stat_out */
    if (report && (threadIdx.x & 31) == 0) {
        uint32_t saw = norm_flags(j, s, v);
        if (saw && j.flags) atomicOr(&j.flags[n], saw);
        if (f.stat_out >= 0) j.stats[(int64_t)f.stat_out * j.g.norm_groups + group] = s;
    }
    return v;
}
/* At most FEW leaves (none under GIVEN). */
__device__ __forceinline__ norm_value group_value_few(
    const cuda_job &j, const nct_frame &f, int32_t n, int32_t group, bool report) {
    moments m = {};
    double shift = 0;
    if (j.norm != NCT_NORM_GIVEN) {
        int32_t count = j.g.cg * leaf_columns(j, f.t_out);
        const float4 *leaves = j.leaves + leaf_start(j, n) * j.g.co + (int64_t)group * count;
        shift = leaf_center(__ldcg(leaves));
        m = moments_merge_few(leaves, count, shift);
    }
    return group_finish(j, f, n, group, report, m, shift);
}
/* At most 2 leaves, by the calling thread alone: the tree of moments_merge over so few. */
__device__ __forceinline__ norm_value group_value_lane(
    const cuda_job &j, const nct_frame &f, int32_t n, int32_t group, const float4 *leaves, int32_t count) {
    moments m = {0, 0}, second = {0, 0};
    double shift = leaf_center(__ldcg(leaves));
    moments_add(m, __ldcg(leaves), shift);
    if (count > 1) moments_add(second, __ldcg(leaves + 1), shift);
    m = moments_sum(moments_sum(m, {0, 0}), moments_sum(second, {0, 0}));
    nct_stat s = stat_of(m, shift, (double)j.g.cg * f.t_out);
    if (!stat_finite(s)) s.mean = s.m2 = NAN;
    norm_value v = norm_of(s, j.g.eps);
    uint32_t saw = norm_flags(j, s, v);
    if (saw && j.flags) atomicOr(&j.flags[n], saw);
    if (f.stat_out >= 0) j.stats[(int64_t)f.stat_out * j.g.norm_groups + group] = s;
    return v;
}
#endif
