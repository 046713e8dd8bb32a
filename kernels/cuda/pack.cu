/* pack.cu: weights from the caller's tensors into what the plans read. Called by backend.cu when a layer is made
 * or repacked, on the caller's stream; host tensors are brought to f32 on the host and copied. */
#include "cuda.cuh"
#include "mma_tile.cuh"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static float host_f32(const void *data, int32_t dtype, int64_t i) {
    uint16_t h = dtype == NCT_F32 || dtype == NCT_F64 ? 0 : ((const uint16_t *)data)[i];
    switch (dtype) {
    case NCT_F32: return ((const float *)data)[i];
    case NCT_F64: return (float)((const double *)data)[i];
    case NCT_F16: return __half2float(__ushort_as_half(h));
    default: {
        uint32_t bits = (uint32_t)h << 16;
        float v;
        memcpy(&v, &bits, sizeof v);
        return v;
    }
    }
}

__global__ void convert_kernel(float *dst, const void *src, int32_t dtype, int64_t count, float absent) {
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll)
        dst[i] = !src               ? absent
                 : dtype == NCT_F64 ? __double2float_rn(((const double *)src)[i])
                                    : load_element(src, dtype, i);
}

static uint32_t blocks_for(int64_t count) {
    int64_t b = (count + 255) / 256;
    return (uint32_t)(b < 1 ? 1 : b > 4096 ? 4096 : b);
}

int pack_f32(float *dst, const nct_tensor *src, int64_t count, float absent, cudaStream_t s, nct_why *why) {
    if (!src->data || src->on_device) {
        convert_kernel<<<blocks_for(count), 256, 0, s>>>(dst, src->data, src->dtype, count, absent);
        return cuda_error(cudaGetLastError(), "converting weights", why);
    }
    float *host = (float *)malloc((size_t)count * sizeof(float));
    if (!host) return why_set(why, -ENOMEM, "no host memory for %lld weights", (long long)count);
    for (int64_t i = 0; i < count; i++) host[i] = host_f32(src->data, src->dtype, i);
    cudaError_t err = cudaMemcpyAsync(dst, host, (size_t)count * sizeof(float), cudaMemcpyHostToDevice, s);
    if (!err) err = cudaStreamSynchronize(s);
    free(host);
    return cuda_error(err, "copying weights to the device", why);
}

/* (C_out, C_in/groups, K) -> [C_in/groups * K][C_out] */
__global__ void simt_kernel(float *dst, const float *raw, int32_t co, int32_t products) {
    int64_t count = (int64_t)co * products;
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll)
        dst[i] = raw[i % co * products + i / co];
}
cudaError_t pack_simt(float *dst, const float *raw, const geometry *g, cudaStream_t s) {
    simt_kernel<<<blocks_for((int64_t)g->co * g->cig * g->k), 256, 0, s>>>(dst, raw, g->co, g->cig * g->k);
    return cudaGetLastError();
}

/* [group][block of 32][chunk][tap][k8][m16][plane][lane][4]: word e of lane (g, q) is channel g + 8 (e & 1) of the
 * m16, word row q + 4 (e / 2) of the k8. */
int64_t pack_mma_words(const geometry *g, const mma_layout *m) {
    return (int64_t)g->groups * m->blocks * m->chunks * g->k * (m->rows / 8) * 256 * m->planes;
}
/* cvt.rna.tf32 in integers (this file is also built for cards without it): nearest, ties away; Inf and NaN stay. */
__device__ __forceinline__ uint32_t tf32_bits(float v) {
    uint32_t bits = __float_as_uint(v);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}
/* The word of (channel o of the group, word row): one channel, or a pair in bf16; plane 1 is the low part of f32. */
__device__ __forceinline__ uint32_t packed_word(const float *raw, const geometry &g, int32_t precision, int32_t group,
    int32_t o, int32_t word, int32_t tap, int32_t plane) {
    auto weight = [&](int32_t c) {
        return o < g.cog && c < g.cig ? raw[((int64_t)(group * g.cog + o) * g.cig + c) * g.k + tap] : 0.0f;
    };
    if (precision == NCT_PREC_BF16) return pack_bf16(weight(2 * word), weight(2 * word + 1));
    float v = weight(word);
    uint32_t high = tf32_bits(v);
    return plane ? tf32_bits(__fadd_rn(v, -__uint_as_float(high))) : high;
}
struct digits { /* of a mixed-radix number, lowest first */
    int64_t rest;
    __device__ __forceinline__ int32_t next(int32_t base) {
        int32_t d = (int32_t)(rest % base);
        rest /= base;
        return d;
    }
};

__global__ void mma_kernel(
    uint32_t *dst, const float *raw, geometry g, mma_layout m, int32_t precision, int64_t count) {
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
        digits d = {i};
        int32_t e = d.next(4), lane = d.next(32), plane = d.next(m.planes), m16 = d.next(2), k8 = d.next(m.rows / 8);
        int32_t tap = d.next(g.k), chunk = d.next(m.chunks), block = d.next(m.blocks), group = (int32_t)d.rest;
        int32_t o = block * 32 + m16 * 16 + (lane >> 2) + 8 * (e & 1);
        int32_t word = chunk * m.rows + k8 * 8 + (lane & 3) + 4 * (e >> 1);
        dst[i] = packed_word(raw, g, precision, group, o, word, tap, plane);
    }
}
cudaError_t pack_mma(
    uint32_t *dst, const float *raw, const geometry *g, const mma_layout *m, int32_t precision, cudaStream_t s) {
    int64_t count = pack_mma_words(g, m);
    mma_kernel<<<blocks_for(count), 256, 0, s>>>(dst, raw, *g, *m, precision, count);
    return cudaGetLastError();
}

/* [group][block of 32][chunk][tap][channel][32 words], the words' 16-byte units swizzled as wgmma reads them:
 * unit u of channel r lies at u xor (r mod 8). As many words as pack_mma_words says (rows 32, one plane). */
__global__ void wgmma_kernel(
    uint32_t *dst, const float *raw, geometry g, mma_layout m, int32_t precision, int64_t count) {
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
        digits d = {i};
        int32_t e = d.next(4), unit = d.next(8), r = d.next(32);
        int32_t tap = d.next(g.k), chunk = d.next(m.chunks), block = d.next(m.blocks), group = (int32_t)d.rest;
        int32_t word = chunk * 32 + (unit ^ (r & 7)) * 4 + e;
        dst[i] = packed_word(raw, g, precision, group, block * 32 + r, word, tap, 0);
    }
}
cudaError_t pack_wgmma(
    uint32_t *dst, const float *raw, const geometry *g, const mma_layout *m, int32_t precision, cudaStream_t s) {
    int64_t count = pack_mma_words(g, m);
    wgmma_kernel<<<blocks_for(count), 256, 0, s>>>(dst, raw, *g, *m, precision, count);
    return cudaGetLastError();
}
