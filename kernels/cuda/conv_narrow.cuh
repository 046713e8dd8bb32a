/* conv_narrow.cuh: PLAN_NARROW on one tile: products by mma.sync tf32 over (input channel, tap), at most 32 of them.
 *
 * Idea: M = 16 output channels, N = 8 steps, K = 8 products (channel, tap). The products are so few that the whole weight
 * stays in registers and the conv is run twice, first for the statistics, then for y: one tensor-core instruction
 * makes 128 outputs, so the second time costs less than parking y would.
 * x: a window in shared memory, f32 rounded to tf32 as it comes in; a fragment reads x[c][t stride + tap dil] by one
 * 4-byte load a product, any stride and dilation. The eight columns of an MMA are steps dealt so that a lane ends up
 * with 4 (f32 y) or 8 (16-bit y) consecutive ones: 16-byte stores straight from the registers.
 * Rows: block b of B channel blocks holds channels b, b + B, b + 2 B ...: where B rows of y are whole 16 bytes all of
 * them share one distance from a 16-byte boundary, and the steps are dealt from there (T_out = 3199 of wav2vec2-l0).
 *
 * Ladder (H200, tf32 / bf16 us; wav2vec2-l0 floor 24.8 / 12.4, encodec48-l0 24.5 / 12.2):
 *   PLAN_SIMT, conv twice                                                157 / 149   199 / 192
 *   this conv in two launches and norm_finish; 4-byte stores             186 / 110    93 / 53
 *   one launch; 16-byte stores written out; 16 warps an SM                80 / 57     58 / 43
 *   32 channels a CTA, 24 warps an SM, any alignment by way of a stage    76 / 51     49 / 42
 *   blocks of 32 steps, the last window as short as it is                 82 / 49     50 / 40
 *   blocks from 64-byte boundaries where all rows share one               56 / 38     51 / 40
 *   16-bit y without an activation known when compiled (28 instructions an output, 17 after)  51 / 36
 *   The phases of a CTA (window, leaves, meeting, y) follow each other in one wave, so that neither the memory nor the
 *   issue slots are busy throughout: stamps (wav2vec2, bf16): window 6.7 us, leaves 8.6, meeting 1.8, y 12.8 and 6 more for
 *   the second CTA of each SM, whose warps come last. Unaligned rows (encodec48 with T + 1): 103 / 63.
 *   Lost: unaligned rows by way of a ring a warp, whole 64 bytes out of it (73 / 57 with T + 1, but 54 / 40 without); a list of
 *   items, chains of one unit between y of another, 24 warps a CTA that never wait for all: wav2vec2 53 / 40; for one group
 *   of all channels, frames counted one by one, 65 / 51. Next: bf16 x by m16n8k16, the ring as a kernel of its own.
 *
 * Plan: tf32 for both precisions (bf16 x and weights are exact in it). Leaf: 1 channel x 2048 steps about its first
 * output: chain ((t / 64) mod 16, (t mod 32) / 8) ascending, then chains over the last two bits, then the sixteen.
 * One pass about the first output multiplies the rounding of M2 by at most 1 + (y0 - mean)^2 / var of the leaf, which is
 * no more than the leaf's steps: 1e-4 where all of a group is one impulse, far inside what tf32 resolves. */
#ifndef NCT_CUDA_CONV_NARROW_CUH
#define NCT_CUDA_CONV_NARROW_CUH
#include "narrow_x.cuh"
#include "stats.cuh"
#include "act.cuh"

enum { NARROW_SUB = 64, NARROW_WARPS = 12, NARROW_CHAINS = 16, NARROW_LEAD = 32, NARROW_OVER = 64 };

struct narrow_shape {
    int32_t blocks; /* of 16 MT channels */
    int32_t step;   /* row r of block b is channel b * base + r * step */
    int32_t base;
    int32_t pitch;  /* floats of a channel's window in shared memory */
    int32_t floats; /* of all windows; the last tile of a frame needs less than a whole one */
    int32_t items;  /* tiles of a CTA */
    int32_t warps;
    int32_t local; /* a CTA's tiles are all of (frame, block), and its norm groups lie within */
};

/* D = A B + C */
__device__ __forceinline__ void narrow_mma(
    float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}

/* ---- a warp's products ---- */

struct
    narrow_product { /* where product p of an output lies: float `at` of a window, but for the skew of its channel */
    int32_t at, channel;
};
__device__ __forceinline__ narrow_product narrow_product_of(const geometry &g, int32_t pitch, int32_t p) {
    if (p >= g.ci * g.k) p = 0; /* a product of this very output, times 0 */
    int32_t c = p / g.k;
    return {c * pitch + (p - c * g.k) * g.dil, c};
}
/* Where the lane reads product 8 k + 4 e + q of step 0 of its column; steps are dealt so that a lane's results are RUN
 * consecutive ones. */
template <int KS, int RUN>
__device__ __forceinline__ void narrow_columns(const float *(&x)[KS][2], const cuda_job &j, const nct_frame &f,
    int64_t pos0, const narrow_product *products, const float *xs) {
    const int32_t g = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3;
    xs += (RUN * (g >> 1) + (g & 1) + NARROW_LEAD) * j.g.stride;
#pragma unroll
    for (int k = 0; k < KS; k++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            narrow_product p = products[8 * k + 4 * e + q];
            x[k][e] = xs + p.at + narrow_skew(j, f.x_off + p.channel * f.x_pitch + pos0);
        }
}

/* What a block's 32 channels need, in shared memory: the weights' fragments and their biases. */
template <int KS> struct narrow_block {
    uint4 a[2][KS][32];
    float bias[32];
    narrow_product product[8 * KS];
};
template <int KS>
__device__ __forceinline__ void narrow_block_fill(
    narrow_block<KS> &b, const cuda_job &j, const narrow_shape &sh, int32_t block) {
    const int32_t products = j.g.ci * j.g.k;
    uint32_t *words = (uint32_t *)b.a;
    for (int32_t i = threadIdx.x; i < KS * 256; i += blockDim.x) {
        int32_t e = i & 3, lane = i >> 2 & 31, k = (i >> 7) % KS, m = (i >> 7) / KS;
        int32_t channel = block * sh.base + sh.step * (16 * m + 8 * (e & 1) + (lane >> 2));
        int32_t p = 8 * k + 4 * (e >> 1) + (lane & 3);
        bool mine = channel < j.g.co && p < products;
        words[i] = mine ? round_tf32(((const float *)j.weight)[p * j.g.co + channel]) : 0;
    }
    if (threadIdx.x < 32) {
        int32_t channel = block * sh.base + sh.step * (int32_t)threadIdx.x;
        b.bias[threadIdx.x] = channel < j.g.co ? j.bias[channel] : 0;
    }
    if (threadIdx.x < 8 * KS) b.product[threadIdx.x] = narrow_product_of(j.g, sh.pitch, threadIdx.x);
}

/* Two m16 tiles of a block in registers. */
template <int KS> struct narrow_pair_of {
    uint32_t a[2][KS][4];
    float bias[2][2];
    __device__ __forceinline__ void load(const narrow_block<KS> &b) {
        const int32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int k = 0; k < KS; k++) *(uint4 *)a[m][k] = b.a[m][k][lane];
            bias[m][0] = b.bias[16 * m + (lane >> 2)];
            bias[m][1] = b.bias[16 * m + 8 + (lane >> 2)];
        }
    }
    /* Outputs of the eight columns whose products of this lane lie at x[k][e][at]: d[m][2 h + e] is row 16 m + 8 h + g,
     * column 2 q + e. */
    __device__ __forceinline__ void outputs(float (&d)[2][4], const float *const (&x)[KS][2], int32_t at) const {
        uint32_t b[KS][2];
#pragma unroll
        for (int k = 0; k < KS; k++)
#pragma unroll
            for (int e = 0; e < 2; e++) b[k][e] = __float_as_uint(x[k][e][at]);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            narrow_mma(d[m], a[m][0], b[0][0], b[0][1], bias[m][0], bias[m][0], bias[m][1], bias[m][1]);
#pragma unroll
            for (int k = 1; k < KS; k++)
                narrow_mma(d[m], a[m][k], b[k][0], b[k][1], d[m][0], d[m][1], d[m][2], d[m][3]);
        }
    }
};

/* ---- statistics of a leaf ---- */

struct narrow_sums {
    float first[2][2], dev[2][2], sq[2][2];
};
template <int KS, bool FULL>
__device__ __forceinline__ void narrow_sub(const narrow_pair_of<KS> &w, narrow_sums &s,
    const float *const (&x)[KS][2], int32_t stride, int32_t t0, int32_t left) {
    const int32_t q = threadIdx.x & 3;
#pragma unroll 2
    for (int32_t i = 0; i < NARROW_SUB / 8; i++) {
        int32_t t = t0 + 32 * (i >> 2) + 2 * (i & 3);
        float d[2][4];
        w.outputs(d, x, t * stride);
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float v = __fadd_rn(d[m][e], -s.first[m][e >> 1]);
                if (!FULL && t + 8 * q + (e & 1) >= left) continue;
                s.dev[m][e >> 1] = __fadd_rn(s.dev[m][e >> 1], v);
                s.sq[m][e >> 1] = __fmaf_rn(v, v, s.sq[m][e >> 1]);
            }
    }
}
/* Chain `chain` of the leaf of `left` steps, two m16 tiles. */
template <int KS>
__device__ __forceinline__ void narrow_chain(const narrow_pair_of<KS> &w, narrow_sums &s,
    const float *const (&x)[KS][2], int32_t stride, int32_t left, int32_t chain) {
    float d[2][4];
    w.outputs(d, x, 0);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s.first[m][h] = __shfl_sync(~0u, d[m][2 * h], threadIdx.x & 28);
            s.dev[m][h] = s.sq[m][h] = 0;
        }
    for (int32_t at = chain * NARROW_SUB; at < left; at += NARROW_CHAINS * NARROW_SUB) {
        if (at + NARROW_SUB <= left)
            narrow_sub<KS, true>(w, s, x, stride, at, 0);
        else
            narrow_sub<KS, false>(w, s, x, stride, at, left);
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s.dev[m][h] = quad_sum(s.dev[m][h]);
            s.sq[m][h] = quad_sum(s.sq[m][h]);
        }
}
/* Of a row's sixteen chains, lying `step` apart: i and i + 8, + 4, + 2, + 1. */
__device__ __forceinline__ float narrow_sixteen(const float *v, int32_t step) {
    float a[8];
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] = __fadd_rn(v[i * step], v[(i + 8) * step]);
#pragma unroll
    for (int half = 4; half; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) a[i] = __fadd_rn(a[i], a[i + half]);
    return a[0];
}

/* ---- y ---- */

/* mean_lo is under 2^-24 of the mean: below what tf32 resolves, and 0 where a group is constant. */
__device__ __forceinline__ float narrow_value(float v, const float4 &c) {
    return __fmaf_rn(__fadd_rn(v, -c.x), c.z, c.w);
}
enum { /* known when compiled: nothing given, y not raw and not f16; GELU within the bounds of tf32, of bf16 */
    NARROW_ANY,
    NARROW_GELU,
    NARROW_GELU_16,
    NARROW_NONE
};
template <int ACT, int V> __device__ __forceinline__ void narrow_act(float (&z)[V], int32_t act) {
    if constexpr (ACT == NARROW_ANY)
        act_row(z, act);
    else if constexpr (ACT != NARROW_NONE) {
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = ACT == NARROW_GELU ? act_gelu_tf32(z[i]) : act_gelu_bf16(z[i]);
    }
}
/* The GELU that precision and y's type allow, at run time. */
template <int V> __device__ __forceinline__ void narrow_act_job(float (&z)[V], const cuda_job &j) {
    if (j.g.act != NCT_GELU)
        act_row(z, j.g.act);
    else if (j.precision == NCT_PREC_BF16 && j.y_dtype == NCT_BF16)
        narrow_act<NARROW_GELU_16>(z, NCT_GELU);
    else
        narrow_act<NARROW_GELU>(z, NCT_GELU);
}
__device__ __forceinline__ uint32_t narrow_pair(int32_t dtype, float lo, float hi) {
    return dtype == NCT_BF16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
}
/* 16 bytes, written out: the compiler takes four single stores where another branch of the same code needs them. */
__device__ __forceinline__ void narrow_store16(void *to, const uint32_t (&v)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
/* 16 bytes of a lane: 4 floats, or 8 values of 16 bits. */
template <int ACT, bool Y16>
__device__ __forceinline__ void narrow_bytes16(uint32_t (&v)[4], const cuda_job &j, const float *z) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        if constexpr (!Y16)
            v[i] = __float_as_uint(z[i]);
        else
            v[i] = ACT == NARROW_ANY ? narrow_pair(j.y_dtype, z[2 * i], z[2 * i + 1])
                                     : pack_bf16(z[2 * i], z[2 * i + 1]);
}

enum { NARROW_STAGE = 80 }; /* bytes of a row in a warp's staging room: 64 and a pad against bank conflicts */

/* 16 staged rows of 64 bytes to memory by single elements, neighbouring lanes neighbouring steps. to: of the lane's element
 * in the first of its rows; rows lie `step` bytes apart. */
template <bool Y16>
__device__ __forceinline__ void narrow_unstage(const char *stage, char *to, int64_t step, int32_t rows, bool inside) {
    const int32_t lane = threadIdx.x & 31;
    __syncwarp();
    if constexpr (Y16) {
#pragma unroll
        for (int32_t r = 0; r < 16; r++, to += step)
            if (inside && r < rows)
                *(unsigned short *)to = *(const unsigned short *)(stage + r * NARROW_STAGE + lane * 2);
    } else {
        stage += (lane >> 4) * NARROW_STAGE + (lane & 15) * 4;
        to += (lane >> 4) * step;
#pragma unroll
        for (int32_t r = 0; r < 16; r += 2, to += 2 * step)
            if (inside && r + (lane >> 4) < rows) *(uint32_t *)to = *(const uint32_t *)(stage + r * NARROW_STAGE);
    }
    __syncwarp();
}

/* Step of a lane's value e of the 32 of a block: 8 consecutive ones (16-bit y), or 4 of each 16. */
template <bool Y16> __device__ __forceinline__ int32_t narrow_step(int32_t e) {
    const int32_t q = threadIdx.x & 3;
    return Y16 ? 8 * q + e : 16 * (e >> 2) + 4 * q + (e & 3);
}
/* The lane's eight values of one row: normalised (c: mean, -, scale, beta) and activated. */
template <int ACT, bool Y16>
__device__ __forceinline__ void narrow_values(
    float (&z)[8], const cuda_job &j, int32_t n, const float4 &c, int32_t t, int32_t left, bool mine) {
    if (ACT == NARROW_ANY && j.what & DO_RAW) return;
    bool odd = false;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        if (ACT == NARROW_ANY && j.norm == NCT_NORM_GIVEN) {
            int32_t at = t + narrow_step<Y16>(e);
            odd |= !isfinite(z[e]) && at >= 0 && at < left;
            z[e] = __fadd_rn(z[e], __fadd_rn(z[e], -z[e]));
        }
        z[e] = narrow_value(z[e], c);
    }
    if (ACT == NARROW_ANY && odd && mine && j.flags) atomicOr(&j.flags[n], NCT_SAW_NONFINITE);
    narrow_act<ACT>(z, j.g.act);
}

/* Steps t .. t + 31 of the tile's channels: products again, values, stored. WHOLE: all of them are within [0, left), y is
 * aligned there and the block has all its channels; else by way of `stage`. */
template <int KS, int ACT, bool Y16, bool WHOLE>
__device__ __forceinline__ void narrow_apply(const cuda_job &j, const nct_frame &f, int32_t n, int32_t t0,
    const float *const (&x)[KS][2], const narrow_block<KS> &b, const float4 *row, const narrow_shape &sh,
    int32_t block, int32_t t, int32_t left, char *stage) {
    constexpr int SIZE = Y16 ? 2 : 4;
    const int32_t lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    uint32_t xv[4][KS][2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int32_t at = (t + (Y16 ? 2 * i : 16 * (i >> 1) + 2 * (i & 1))) * j.g.stride;
#pragma unroll
        for (int k = 0; k < KS; k++)
#pragma unroll
            for (int e = 0; e < 2; e++) xv[i][k][e] = __float_as_uint(x[k][e][at]);
    }
    int32_t channel0 = block * sh.base;
    int64_t step = f.y_pitch * sh.step * SIZE; /* bytes from row to row */
    char *y = (char *)j.y + (f.y_off + channel0 * f.y_pitch + t0 + t) * SIZE;
    char *mine = y + g * step + 16 * q;
    int32_t rows = (j.g.co - channel0 + sh.step - 1) / sh.step;
#pragma unroll 1
    for (int32_t m = 0; m < 2; m++) {
        uint32_t a[KS][4];
#pragma unroll
        for (int k = 0; k < KS; k++) *(uint4 *)a[k] = b.a[m][k][lane];
        float bias[2] = {b.bias[16 * m + g], b.bias[16 * m + 8 + g]};
        float d[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            narrow_mma(d[i], a[0], xv[i][0][0], xv[i][0][1], bias[0], bias[0], bias[1], bias[1]);
#pragma unroll
            for (int k = 1; k < KS; k++)
                narrow_mma(d[i], a[k], xv[i][k][0], xv[i][k][1], d[i][0], d[i][1], d[i][2], d[i][3]);
        }
        uint32_t v[2][2][4]; /* [h][16 steps of f32] */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float z[8];
#pragma unroll
            for (int e = 0; e < 8; e++) z[e] = d[e >> 1][2 * h + (e & 1)];
            narrow_values<ACT, Y16>(z, j, n, row[16 * m + 8 * h + g], t, left, 16 * m + 8 * h + g < rows);
            narrow_bytes16<ACT, Y16>(v[h][0], j, z);
            if constexpr (!Y16) narrow_bytes16<ACT, Y16>(v[h][1], j, z + 4);
            if constexpr (WHOLE) {
                narrow_store16(mine, v[h][0]);
                if constexpr (!Y16) narrow_store16(mine + 64, v[h][1]);
                mine += 8 * step;
            }
        }
        if constexpr (!WHOLE) {
#pragma unroll
            for (int part = 0; part < (Y16 ? 1 : 2); part++) {
#pragma unroll
                for (int h = 0; h < 2; h++)
                    *(uint4 *)(stage + (8 * h + g) * NARROW_STAGE + 16 * q) =
                        make_uint4(v[h][part][0], v[h][part][1], v[h][part][2], v[h][part][3]);
                int32_t at = 16 * part + (Y16 ? lane : lane & 15);
                narrow_unstage<Y16>(
                    stage, y + 16 * m * step + at * SIZE, step, rows - 16 * m, t + at >= 0 && t + at < left);
            }
        }
    }
}
/* First step, at most 0, from which blocks of 32 steps begin at whole 16 bytes of y in every row of the block, or as many
 * more as the rows have in common, up to 64. 1: there is none. */
template <int V>
__device__ __forceinline__ int32_t narrow_first(
    const cuda_job &j, const nct_frame &f, const narrow_shape &sh, int32_t block, int32_t t0) {
    constexpr uint32_t size = 16 / V;
    uint32_t step = (uint32_t)(f.y_pitch * sh.step) * size | 64, common = step & (0u - step);
    uint32_t at = (uint32_t)(uintptr_t)j.y + (uint32_t)(f.y_off + block * sh.base * f.y_pitch + t0) * size;
    return common < 16 || at & (size - 1) ? 1 : -(int32_t)((at & (common - 1)) / size);
}
#endif
