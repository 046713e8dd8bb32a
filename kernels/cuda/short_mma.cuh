/* short_mma.cuh: what conv_short_sm90.cu adds to wgmma_ss.cuh. sm_90a only. */
#ifndef NCT_CUDA_SHORT_MMA_CUH
#define NCT_CUDA_SHORT_MMA_CUH
#include "cuda.cuh"
#include "wgmma_ss.cuh"

/* Descriptors in halves, so that the loop adds 32 bits: the low word is a place in units of 16 bytes and the distance to the
 * next 16 bytes along K. Rows of 16 bytes without swizzle: row r of a group of 8 at start + r, groups `rows8` apart, the
 * next along K `deep` apart; any start is right, so that a tap is an addition. */
__device__ __forceinline__ uint32_t spread_low(const void *p, uint32_t deep) {
    return (shared_address(p) & 0x3ffff) >> 4 | deep << 16;
}
__device__ __forceinline__ uint32_t swizzled_low(const void *p) {
    return (shared_address(p) & 0x3ffff) >> 4 | 1u << 16;
}
__device__ __forceinline__ uint64_t halves(uint32_t low, uint32_t high) {
    return (uint64_t)high << 32 | low;
}
__device__ __forceinline__ int32_t cluster_number() { /* along x */
    uint32_t r;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(r));
    return (int32_t)r;
}
/* D (64 steps x N channels) += A B. Generated, one a width. */
__device__ __forceinline__ void wgmma_ss_tf32(float (&d)[4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0, %1, %2, %3}, %4, %5, 1, 1, 1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_ss_bf16(float (&d)[4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_ss_tf32(float (&d)[8], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_ss_bf16(float (&d)[8], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, "
                 "1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_ss_tf32(float (&d)[16], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
                 "%11, %12, %13, %14, %15}, %16, %17, 1, 1, 1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_ss_bf16(float (&d)[16], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
                 "%11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "l"(a), "l"(b));
}
template <int PREC, int N> __device__ __forceinline__ void short_multiply(float (&d)[N], uint64_t a, uint64_t b) {
    if constexpr (PREC == NCT_PREC_BF16)
        wgmma_ss_bf16(d, a, b);
    else
        wgmma_ss_tf32(d, a, b);
}
#endif
