/* act.cuh: the activations, one table for every CUDA kernel; explicit roundings, so that every file that
 * includes it computes the same bits.
 *
 * Built on ex2.approx (2 ulp) and rcp.approx (1 ulp). Absolute error over max(1, |z|), by float64 comparison
 * on [-30, 30]: all below 3e-7 (tests/gpu). GELU: Abramowitz and Stegun 7.1.26, |erf error| <= 1.5e-7,
 * 13 instructions where erff takes 31. NaN stays NaN. */
#ifndef NCT_CUDA_ACT_CUH
#define NCT_CUDA_ACT_CUH
#include "nct_layer.h"

__device__ __forceinline__ float act_ex2(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
__device__ __forceinline__ float act_rcp(float v) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* z * sigmoid(u) = z / (1 + 2^(-u log2 e)) */
__device__ __forceinline__ float act_gate(float z, float u) {
    return __fmul_rn(z, act_rcp(__fadd_rn(1.0f, act_ex2(__fmul_rn(u, -1.44269504f)))));
}
__device__ __forceinline__ float act_relu(float z) {
    return z < 0.0f ? 0.0f : z;
}
/* max(z, 0) - |z| q / 2, where erfc(|z| / sqrt 2) = q = poly(t) exp(-z^2 / 2), t = 1 / (1 + p |z| / sqrt 2) */
__device__ __forceinline__ float act_gelu(float z) {
    float a = fabsf(z);
    float t = act_rcp(__fmaf_rn(a, 0.231641888f, 1.0f));
    float q = __fmaf_rn(t, 0.530702715f, -0.726576014f);
    q = __fmaf_rn(t, q, 0.710706871f);
    q = __fmaf_rn(t, q, -0.142248368f);
    q = __fmaf_rn(t, q, 0.127414796f);
    q = __fmul_rn(t, q);
    q = __fmul_rn(q, act_ex2(__fmul_rn(__fmul_rn(z, z), -0.721347520f)));
    return __fmaf_rn(-a, q, fmaxf(z, 0.0f));
}
/* GELU where the products are tf32 or y has 16 bits: max(z, 0) - |z| Phi(-|z|) with log2 Phi(-a) a polynomial (weighted
 * minimax of |z| Phi on [0, 7.5], falling beyond): one ex2 and no rcp. Absolute error over max(1, |z|): degree 5
 * 2.2e-7 in 9 instructions, degree 2 3.1e-4 in 6. */
__device__ __forceinline__ float act_gelu_tf32(float z) {
    float a = fabsf(z);
    float p = __fmaf_rn(a, -4.98414948e-4f, 7.24957347e-3f);
    p = __fmaf_rn(a, p, -5.22097527e-2f);
    p = __fmaf_rn(a, p, -4.59613382e-1f);
    p = __fmaf_rn(a, p, -1.15094154f);
    p = __fmaf_rn(a, p, -1.00001875f);
    return __fmaf_rn(-a, act_ex2(p), fmaxf(z, 0.0f));
}
__device__ __forceinline__ float act_gelu_bf16(float z) {
    float a = fabsf(z);
    float p = __fmaf_rn(a, __fmaf_rn(a, -5.72419311e-1f, -1.06873936f), -1.01645336f);
    return __fmaf_rn(-a, act_ex2(p), fmaxf(z, 0.0f));
}
/* z sigmoid(2 sqrt(2/pi) (z + 0.044715 z^3)) */
__device__ __forceinline__ float act_gelu_tanh(float z) {
    float u = __fmaf_rn(__fmul_rn(__fmul_rn(z, z), 0.0713548163f), z, __fmul_rn(z, 1.59576912f));
    return act_gate(z, u);
}
/* z tanh(log(1 + e)) = z n / (n + 2), n = e (e + 2), e = exp z */
__device__ __forceinline__ float act_mish(float z) {
    float e = act_ex2(__fmul_rn(fminf(z, 20.0f), 1.44269504f));
    float n = __fmul_rn(e, __fadd_rn(e, 2.0f));
    float r = __fmul_rn(__fmul_rn(z, n), act_rcp(__fadd_rn(n, 2.0f)));
    return z > 20.0f ? z : r;
}
__device__ __forceinline__ float act_elu(float z) {
    return z < 0.0f ? __fadd_rn(act_ex2(__fmul_rn(z, 1.44269504f)), -1.0f) : z;
}

/* V values at once: one switch for all of them. */
template <int V> __device__ __forceinline__ void act_row(float (&z)[V], int32_t act) {
    switch (act) {
    case NCT_RELU:
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = act_relu(z[i]);
        break;
    case NCT_GELU:
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = act_gelu(z[i]);
        break;
    case NCT_GELU_TANH:
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = act_gelu_tanh(z[i]);
        break;
    case NCT_SILU:
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = act_gate(z[i], z[i]);
        break;
    case NCT_MISH:
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = act_mish(z[i]);
        break;
    case NCT_ELU:
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = act_elu(z[i]);
        break;
    default: break;
    }
}
#endif
