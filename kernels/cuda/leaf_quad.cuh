/* leaf_quad.cuh: leaves of PLAN_WGMMA by quads of lanes, in the order in which wgmma leaves its accumulators: lane q of a
 * quad holds steps 8 c + 2 q and 8 c + 2 q + 1 of every block c of 8 steps and sums them ascending from zero; then lanes
 * xor 1, then xor 2. Steps that are not there add nothing, so that a shorter leaf is the same sum. Used by every row of the
 * plan, from registers and from shared memory. */
#ifndef NCT_CUDA_LEAF_QUAD_CUH
#define NCT_CUDA_LEAF_QUAD_CUH
#include "stats.cuh"

template <int L> __device__ __forceinline__ void quad_all(float (&u)[L]) {
#pragma unroll
    for (int mask = 1; mask < 4; mask <<= 1)
#pragma unroll
        for (int l = 0; l < L; l++) u[l] = __fadd_rn(u[l], __shfl_xor_sync(~0u, u[l], mask));
}
/* L leaves at once, whole warps: value(l, c, e) is this lane's step 8 c + 2 q + e of leaf l, c < BLOCKS, and may be
 * anything from step valid(l) on. FULL: 64 steps in every leaf, valid is not asked. Every lane gets the leaves. */
template <int L, int BLOCKS, bool FULL, class VALUE, class VALID>
__device__ __forceinline__ void quad_leaves(VALUE value, VALID valid, float4 (&leaf)[L]) {
    const int32_t q = threadIdx.x & 3;
    float first[L], sum[L], sq[L];
#pragma unroll
    for (int l = 0; l < L; l++) {
        float
            v; /* a copy: shuffled where it lies, an accumulator would live as an integer, and wgmma wait for the moves */
        asm("mov.f32 %0, %1;" : "=f"(v) : "f"(value(l, 0, 0)));
        first[l] = __shfl_sync(~0u, v, threadIdx.x & 28);
        sum[l] = 0;
    }
    auto each = [&](auto &&add) {
#pragma unroll
        for (int c = 0; c < BLOCKS; c++)
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int l = 0; l < L; l++)
                    if (FULL || 8 * c + 2 * q + e < valid(l)) add(l, value(l, c, e));
    };
    each([&](int l, float v) { sum[l] = __fadd_rn(sum[l], __fadd_rn(v, -first[l])); });
    quad_all(sum);
#pragma unroll
    for (int l = 0; l < L; l++) {
        first[l] = leaf_mean(first[l], sum[l], FULL ? 64 : valid(l));
        sum[l] = sq[l] = 0;
    }
    each([&](int l, float v) {
        float d = __fadd_rn(v, -first[l]);
        sum[l] = __fadd_rn(sum[l], d);
        sq[l] = __fmaf_rn(d, d, sq[l]);
    });
    quad_all(sum);
    quad_all(sq);
#pragma unroll
    for (int l = 0; l < L; l++) leaf[l] = leaf_make(first[l], sum[l], sq[l], FULL ? 64 : valid(l));
}
#endif
