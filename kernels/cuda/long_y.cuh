/* long_y.cuh: PLAN_LONG's y from a warp's accumulators: normalised, activated, and out to rows of any alignment.
 *
 * A lane has 4 consecutive steps of each 16 of its row, its quad the 16. Where rows begin between whole 4 elements of
 * memory, the quad's lanes shift their values on by as many elements (shuffles); and so that the four lanes of one store
 * fill 64 (16-bit y: 32) whole bytes, those beyond the boundary store one turn later. */
#ifndef NCT_CUDA_LONG_Y_CUH
#define NCT_CUDA_LONG_Y_CUH
#include "long_x.cuh"

/* The four values z of the lane's steps become what lies `by` elements earlier in the row; before: the lane's values of
 * the 16 steps before. */
__device__ __forceinline__ void long_shift(
    float (&out)[4], const float (&z)[4], const float (&before)[4], int32_t by) {
    const int32_t lane = threadIdx.x & 31, q = lane & 3;
    float v[7];
#pragma unroll
    for (int e = 1; e < 4; e++) {
        float give = q == 3 ? before[e] : z[e];
        v[e - 1] = __shfl_sync(~0u, give, (lane & 28) | ((q + 3) & 3));
    }
#pragma unroll
    for (int e = 0; e < 4; e++) v[3 + e] = z[e];
    float w[5];
#pragma unroll
    for (int e = 0; e < 5; e++) w[e] = by & 2 ? v[e] : v[e + 2];
#pragma unroll
    for (int e = 0; e < 4; e++) out[e] = by & 1 ? w[e] : w[e + 1];
}
/* Four consecutive values from step `at` on, those of [0, left); y: of step `at`, whole 4 elements. */
template <bool Y16>
__device__ __forceinline__ void long_store4(
    const cuda_job &j, char *y, const float (&z)[4], int32_t at, int32_t left) {
    if (at >= 0 && at + 4 <= left) {
        if constexpr (!Y16)
            asm volatile(
                "st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(y), "f"(z[0]), "f"(z[1]), "f"(z[2]), "f"(z[3])
                : "memory");
        else
            asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(y), "r"(narrow_pair(j.y_dtype, z[0], z[1])),
                         "r"(narrow_pair(j.y_dtype, z[2], z[3]))
                         : "memory");
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (at + e >= 0 && at + e < left) store_element(y, Y16 ? j.y_dtype : NCT_F32, e, z[e]);
}
/* One row: z[i] are steps 16 i + 4 q .. + 3 of it, i < COUNT; y: of step 0. SHIFT: some row begins between 4 elements. */
template <bool Y16, bool SHIFT>
__device__ __forceinline__ void long_row_out(
    const cuda_job &j, char *y, const float (&z)[LONG_TILES / 2][4], bool mine, int32_t left) {
    constexpr int SIZE = Y16 ? 2 : 4, COUNT = LONG_TILES / 2;
    const int32_t q = threadIdx.x & 3, place = (int32_t)((uint32_t)(uintptr_t)y & (16 * SIZE - 1)) / SIZE;
    const int32_t by = place & 3;
    const bool late = q >= 4 - (place >> 2);
    float now[4] = {}, before[4] = {};
    y += (4 * q - by) * SIZE;
#pragma unroll
    for (int i = 0; i <= COUNT + SHIFT; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) before[e] = now[e];
        if (i < COUNT + SHIFT) {
            float here[4], last[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                here[e] = i < COUNT ? z[i < COUNT ? i : 0][e] : 0;
                last[e] = i > 0 ? z[i > 0 ? i - 1 : 0][e] : 0;
            }
            if constexpr (SHIFT)
                long_shift(now, here, last, by);
            else
#pragma unroll
                for (int e = 0; e < 4; e++) now[e] = here[e];
        }
        const int32_t unit = late ? i - 1 : i;
        float out[4];
#pragma unroll
        for (int e = 0; e < 4; e++) out[e] = late ? before[e] : now[e];
        if (mine && unit >= 0 && unit < COUNT + SHIFT)
            long_store4<Y16>(j, y + unit * 16 * SIZE, out, 16 * unit + 4 * q - by, left);
    }
}

/* Row 8 H + g of the warp's. ACT, Y16: known when compiled, nothing given, not raw; NARROW_ANY: all at run time. */
template <int ACT, bool Y16, int H>
__device__ __forceinline__ void long_y_row(
    const float (&acc)[LONG_TILES][4], const cuda_job &j, const long_item &t, int32_t run0, const float4 *coef) {
    constexpr int SIZE = Y16 ? 2 : 4;
    const int32_t channel = 8 * H + ((threadIdx.x & 31) >> 2), q = threadIdx.x & 3;
    const bool raw = ACT == NARROW_ANY && j.what & DO_RAW,
               given = ACT == NARROW_ANY && j.norm == NCT_NORM_GIVEN && !raw;
    const int32_t left = min(t.left - run0, (int32_t)LONG_RUN);
    const bool mine = channel < j.g.co;
    const float4 c = mine && !raw ? coef[channel] : make_float4(0, 0, 0, 0);
    float z[LONG_TILES / 2][4];
    bool odd = false;
#pragma unroll
    for (int i = 0; i < LONG_TILES / 2; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v = acc[2 * i + (e & 1)][2 * H + (e >> 1)];
            if (given) {
                odd |= 16 * i + 4 * q + e < left && !isfinite(v);
                v = __fadd_rn(v, __fadd_rn(v, -v));
            }
            z[i][e] = raw ? v : narrow_value(v, c);
        }
        if constexpr (ACT == NARROW_ANY) {
            if (!raw) narrow_act_job(z[i], j);
        } else
            narrow_act<ACT>(z[i], j.g.act);
    }
    if (odd && mine && j.flags) atomicOr(&j.flags[t.n], NCT_SAW_NONFINITE);
    char *y = (char *)j.y + (t.f.y_off + channel * t.f.y_pitch + t.t0 + run0) * SIZE;
    if (__any_sync(~0u, mine && ((uintptr_t)y & (4 * SIZE - 1)) != 0))
        long_row_out<Y16, true>(j, y, z, mine, left);
    else
        long_row_out<Y16, false>(j, y, z, mine, left);
}
template <int ACT, bool Y16>
__device__ __forceinline__ void long_y(
    const float (&acc)[LONG_TILES][4], const cuda_job &j, const long_item &t, int32_t run0, const float4 *coef) {
    long_y_row<ACT, Y16, 0>(acc, j, t, run0, coef);
    long_y_row<ACT, Y16, 1>(acc, j, t, run0, coef);
}
#endif
