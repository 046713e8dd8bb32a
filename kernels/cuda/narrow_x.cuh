/* narrow_x.cuh: windows of x as f32 in shared memory, by 16-byte loads wherever a row allows, whatever its alignment: the
 * row keeps its distance from a 16-byte boundary (skew), what lies outside the frame is put in by element. Used by
 * PLAN_NARROW (rounded to tf32) and PLAN_DEPTH. */
#ifndef NCT_CUDA_NARROW_X_CUH
#define NCT_CUDA_NARROW_X_CUH
#include "frame.cuh"
#include "mma_tile.cuh"

__device__ __forceinline__ float narrow_round(float v) {
    return __uint_as_float(round_tf32(v));
}
/* 16 bytes of x as floats, rounded to tf32 if ROUND, to shared memory. */
template <bool ROUND> __device__ __forceinline__ void narrow_put(float *to, uint4 v, int32_t dtype) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    float o[8];
    if (dtype == NCT_F32) {
#pragma unroll
        for (int i = 0; i < 4; i++) o[i] = ROUND ? narrow_round(__uint_as_float(w[i])) : __uint_as_float(w[i]);
        *(float4 *)to = make_float4(o[0], o[1], o[2], o[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t lo = w[i] & 0xffffu, hi = w[i] >> 16;
        if (dtype == NCT_BF16) {
            o[2 * i] = __uint_as_float(lo << 16);
            o[2 * i + 1] = __uint_as_float(hi << 16);
        } else if (dtype == NCT_F16) {
            o[2 * i] = __half2float(__ushort_as_half((unsigned short)lo));
            o[2 * i + 1] = __half2float(__ushort_as_half((unsigned short)hi));
        } else {
            o[2 * i] = __fmul_rn((float)(short)lo, 1.0f / 32768.0f);
            o[2 * i + 1] = __fmul_rn((float)(short)hi, 1.0f / 32768.0f);
            if (ROUND) o[2 * i] = narrow_round(o[2 * i]), o[2 * i + 1] = narrow_round(o[2 * i + 1]);
        }
    }
    *(float4 *)to = make_float4(o[0], o[1], o[2], o[3]);
    *(float4 *)(to + 4) = make_float4(o[4], o[5], o[6], o[7]);
}

/* Elements between the 16-byte boundary before x[element] and it. */
__device__ __forceinline__ int32_t narrow_skew(const cuda_job &j, int64_t element) {
    int32_t shift = j.x_dtype == NCT_F32 ? 2 : 1;
    return (int32_t)((((uint32_t)(uintptr_t)j.x + ((uint32_t)element << shift)) & 15) >> shift);
}
/* `count` positions from `pos0` (of the unpadded frame) of input channel c, by `threads` threads with UNROLL loads in
 * flight; position i at row[skew + i]. */
template <int UNROLL, bool ROUND>
__device__ __forceinline__ void narrow_fill_row(const cuda_job &j, const nct_frame &f, int32_t c, int64_t pos0,
    int32_t count, float *row, int32_t tid, int32_t threads) {
    const int32_t shift = j.x_dtype == NCT_F32 ? 2 : 3, lane = 1 << shift; /* elements of 16 bytes */
    int64_t from = f.x_off + c * f.x_pitch + pos0;
    int32_t skew = narrow_skew(j, from), units = (count + skew + lane - 1) >> shift;
    int64_t p0 = pos0 - skew; /* of unit 0 */
    int32_t lo = p0 >= 0 ? 0 : (int32_t)min((-p0 + lane - 1) >> shift, (int64_t)units);
    int32_t hi = p0 >= f.t_in ? lo : max(lo, (int32_t)min((f.t_in - p0) >> shift, (int64_t)units));
    const char *at = (const char *)j.x + ((from - skew) << (4 - shift));
    for (int32_t u = lo + tid; u < hi; u += UNROLL * threads) {
        uint4 v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (u + i * threads < hi) v[i] = __ldg((const uint4 *)at + u + i * threads);
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (u + i * threads < hi) narrow_put<ROUND>(row + (u + i * threads) * lane, v[i], j.x_dtype);
    }
    int32_t edge = (lo + units - hi) * lane; /* units that reach beyond the frame, by elements */
    for (int32_t e = tid; e < edge; e += threads) {
        int32_t at_e = e < lo * lane ? e : e - lo * lane + hi * lane;
        float v = load_step(j, f, c, p0 + at_e);
        row[at_e] = ROUND ? narrow_round(v) : v;
    }
}
/* The window of every input channel, by the CTA: channel c at xs + c * pitch. */
__device__ __forceinline__ void narrow_fill(
    const cuda_job &j, const nct_frame &f, int64_t pos0, int32_t count, int32_t pitch, float *xs) {
    for (int32_t c = 0; c < j.g.ci; c++)
        narrow_fill_row<8, true>(j, f, c, pos0, count, xs + c * pitch, threadIdx.x, blockDim.x);
}
#endif
