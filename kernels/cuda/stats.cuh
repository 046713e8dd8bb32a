/* stats.cuh: leaf, merge and apply: the arithmetic of the statistics, written once for every CUDA kernel.
 *
 * A leaf is one channel x a fixed block of steps counted from output 0 of its frame. With y0 its first step it
 * keeps p = y0 + sum(y - y0) / n (the f32 mean; exactly y0 where all are equal), sd = sum(y - p),
 * q = sum((y - p)^2) and n: mean p + sd / n and M2 q - sd^2 / n, the corrected two-pass of Chan, Golub,
 * LeVeque 1983. Leaves merge in float64 about the first leaf's mean (k-way Chan), in a fixed tree:
 * leaf i belongs to virtual lane i mod 1024, lanes sum their leaves in ascending order, then lanes i and
 * i + 512, i + 256 ... i + 1 are added. Absent leaves and steps add exact zeros, so that a kernel with fewer
 * lanes or steps makes the same bits. */
#ifndef NCT_CUDA_STATS_CUH
#define NCT_CUDA_STATS_CUH
#include "cuda.cuh"

enum { MERGE_LANES = 1024, MERGE_THREADS = 256, FEW = 256 };

__device__ __forceinline__ float leaf_mean(float y0, float sum, int32_t n) {
    /* A power of two divides exactly either way. */
    return __fadd_rn(y0, n == 64 ? __fmul_rn(sum, 1.0f / 64) : __fdiv_rn(sum, (float)n));
}
__device__ __forceinline__ float4 leaf_make(float p, float sd, float q, int32_t n) {
    return make_float4(p, sd, q, (float)n);
}

struct moments { /* about a shift: sums of n (m - shift) and of M2 + n (m - shift)^2 */
    double s1, s2;
};
__device__ __forceinline__ double leaf_center(float4 leaf) {
    return __dadd_rn((double)leaf.x, __dmul_rn((double)leaf.y, __drcp_rn((double)leaf.w)));
}
__device__ __forceinline__ void moments_add(moments &m, float4 leaf, double shift) {
    double n = leaf.w, sd = leaf.y, e = __dadd_rn((double)leaf.x, -shift);
    double part = __fma_rn(n, e, sd);                      /* n (m - shift) = n (p - shift) + sd */
    double cross = __fma_rn(__dadd_rn(sd, sd), e, leaf.z); /* sum (y - shift)^2 = q + 2 sd e + n e^2 */
    m.s1 = __dadd_rn(m.s1, part);
    m.s2 = __dadd_rn(m.s2, __fma_rn(__dmul_rn(n, e), e, cross));
}
__device__ __forceinline__ moments moments_sum(moments a, moments b) {
    return {__dadd_rn(a.s1, b.s1), __dadd_rn(a.s2, b.s2)};
}
__device__ __forceinline__ moments moments_shuffle(moments a, int mask) {
    moments b = {__shfl_xor_sync(~0u, a.s1, mask), __shfl_xor_sync(~0u, a.s2, mask)};
    return moments_sum(a, b);
}

/* `count` leaves at `leaves`, merged by a CTA of MERGE_THREADS or more; the first warp gets the sums about the first
 * leaf's centre. room: 8 * 32 moments of shared memory. Ends without a barrier. */
__device__ inline moments moments_merge(const float4 *leaves, int64_t count, double shift, moments *room) {
    moments lane[4] = {};
    int32_t tid = threadIdx.x;
#pragma unroll 2
    for (int64_t base = 0; base < count && tid < MERGE_THREADS; base += MERGE_LANES) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t at = base + tid + i * MERGE_THREADS;
            if (at < count) moments_add(lane[i], leaves[at], shift);
        }
    }
    if (tid < MERGE_THREADS) room[tid] = moments_sum(moments_sum(lane[0], lane[2]), moments_sum(lane[1], lane[3]));
    __syncthreads();
    moments w[8];
    if (tid >= 32) return w[0] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = room[i * 32 + tid];
#pragma unroll
    for (int half = 4; half; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++) w[i] = moments_sum(w[i], w[i + half]);
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) w[0] = moments_shuffle(w[0], mask);
    return w[0];
}

/* The same for at most FEW leaves, by one warp: lane i holds virtual lanes i, i + 32 ... leaf(i): leaf i. */
template <class LEAF> __device__ __forceinline__ moments moments_merge_of(LEAF leaf, int32_t count, double shift) {
    const int32_t lane = threadIdx.x & 31;
    moments w[FEW / 32] = {};
#pragma unroll
    for (int i = 0; i < FEW / 32; i++)
        if (lane + 32 * i < count) moments_add(w[i], leaf(lane + 32 * i), shift);
#pragma unroll
    for (int half = FEW / 64; half; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++) w[i] = moments_sum(w[i], w[i + half]);
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) w[0] = moments_shuffle(w[0], mask);
    return w[0];
}
/* SHARED: in shared memory. */
template <bool SHARED = false>
__device__ __forceinline__ moments moments_merge_few(const float4 *leaves, int32_t count, double shift) {
    return moments_merge_of([&](int32_t i) { return SHARED ? leaves[i] : __ldcg(leaves + i); }, count, shift);
}

/* ---- from sums to what normalises ---- */

__device__ __forceinline__ nct_stat stat_of(moments m, double shift, double count) {
    double mean = __dmul_rn(m.s1, __drcp_rn(count));
    nct_stat s = {count, __dadd_rn(shift, mean), __fma_rn(-m.s1, mean, m.s2)};
    if (s.m2 < 0) s.m2 = 0;
    return s;
}
/* Two-way Chan; a is the older one. */
__device__ __forceinline__ nct_stat stat_merge(nct_stat a, nct_stat b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    double n = __dadd_rn(a.count, b.count), delta = __dadd_rn(b.mean, -a.mean);
    double share = __ddiv_rn(b.count, n);
    double spread = __dmul_rn(__dmul_rn(delta, delta), __dmul_rn(a.count, share));
    return {n, __fma_rn(delta, share, a.mean), __dadd_rn(__dadd_rn(a.m2, b.m2), spread)};
}
__device__ __forceinline__ bool stat_finite(const nct_stat &s) {
    return isfinite(s.mean) && isfinite(s.m2);
}

struct norm_value {
    float mean_hi, mean_lo, rstd;
};
/* Biased variance; eps always added; not finite or empty: NaN, never beta. */
__device__ __forceinline__ norm_value norm_of(const nct_stat &s, double eps) {
    double var = __dmul_rn(s.m2, __drcp_rn(s.count));
    if (var < 0) var = 0;
    double rstd = rsqrt(__dadd_rn(var, eps));
    if (!isfinite(var) || !isfinite(s.mean)) rstd = NAN;
    float hi = __double2float_rn(s.mean);
    return {hi, __double2float_rn(__dadd_rn(s.mean, -(double)hi)), __double2float_rn(rstd)};
}
__device__ __forceinline__ uint32_t norm_flags(const cuda_job &j, const nct_stat &s, const norm_value &v) {
    uint32_t saw = stat_finite(s) && v.rstd == v.rstd ? 0 : NCT_SAW_NONFINITE;
    if (fabs(s.mean) * v.rstd > j.g.offset_limit) saw |= NCT_SAW_OFFSET;
    return saw;
}
__device__ __forceinline__ float4 coef_of(const cuda_job &j, const norm_value &v, int32_t channel) {
    return make_float4(v.mean_hi, v.mean_lo, __fmul_rn(v.rstd, j.gamma[channel]), j.beta[channel]);
}
/* ((y - mean_hi) - mean_lo) * (rstd gamma) + beta: a constant group gives exactly beta. */
__device__ __forceinline__ float apply(float v, const float4 &c) {
    return __fmaf_rn(__fadd_rn(__fadd_rn(v, -c.x), -c.y), c.z, c.w);
}
/* The same under GIVEN statistics: an output that is not finite becomes NaN. */
__device__ __forceinline__ float apply_given(float v, const float4 &c) {
    return apply(__fadd_rn(v, __fadd_rn(v, -v)), c);
}
#endif
