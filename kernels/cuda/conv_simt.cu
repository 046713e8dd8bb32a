/* conv_simt.cu: PLAN_SIMT, right for every layer, and fast where C_in*K is small (wav2vec2-l0, encodec48-l0)
 * or the conv is depthwise.
 *
 * Idea: a warp owns R channels x 32 J steps, lane = step, so that x is read by consecutive lanes (any stride,
 * pitch and alignment), weights are broadcasts and stores are coalesced 4-byte (or 2-byte) ones.
 * Products: one FMA chain per output over (input channel, tap) in slices of 256, slice sums added ascending in
 * f32, then the bias. A leaf is 1 channel x 256 steps. Neither R, J nor staging changes a bit.
 * Data flow: x (C_in window of 32 J steps, staged f32 in shared memory; R = 1 reads global memory) x
 *   w (C_in*K, C_out) -> acc[R][J] -> leaves | raw f32 | y. Small C_in*K runs twice (leaves, then apply) and
 *   moves y once: the chain costs less than 8 bytes of traffic.
 * Limits: a window over 48 KB of shared memory falls back to R = 1. */
#include "frame.cuh"
#include "stats.cuh"
#include "act.cuh"

enum { SIMT_WARPS = 8, SIMT_SHARED = 48 * 1024 };

/* ---- the epilogue: rows of values in registers, value (r, i) at step t0 + lane + 32 i ---- */

/* Sum each of R rows over the lanes; row `lane_row` ends in this lane. The tree is xor 16, 8, 4, 2, 1 for
 * every R: with 8 rows the first three levels halve the rows instead of repeating them. */
template <int R> __device__ __forceinline__ float rows_sum(float (&v)[R]) {
    int32_t lane = threadIdx.x & 31;
    if constexpr (R == 1) {
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) v[0] = __fadd_rn(v[0], __shfl_xor_sync(~0u, v[0], mask));
        return v[0];
    } else {
        int mask = 16;
#pragma unroll
        for (int half = R / 2; half; half >>= 1, mask >>= 1) {
            bool high = lane & mask;
#pragma unroll
            for (int i = 0; i < half; i++) {
                float send = high ? v[i] : v[i + half], keep = high ? v[i + half] : v[i];
                v[i] = __fadd_rn(keep, __shfl_xor_sync(~0u, send, mask));
            }
        }
        float s = v[0];
        for (; mask; mask >>= 1) s = __fadd_rn(s, __shfl_xor_sync(~0u, s, mask));
        return s;
    }
}
template <int R> __device__ __forceinline__ int32_t lane_row(int32_t lane) {
    return R == 1 ? 0 : R == 4 ? (lane >> 3) : (lane >> 2);
}
template <int R> __device__ __forceinline__ int32_t row_lane(int32_t r) {
    return R == 1 ? 0 : R == 4 ? r << 3 : r << 2;
}

template <int R, int J, bool FULL>
__device__ __forceinline__ void simt_leaves(
    const cuda_job &j, const nct_frame &f, place at, int32_t channel, const float (&v)[R][J]) {
    int32_t lane = threadIdx.x & 31, left = f.t_out - at.t0;
    int32_t n = left < SIMT_LEAF ? left : SIMT_LEAF;
    float sum[R], dev[R], sq[R], first[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        first[r] = __shfl_sync(~0u, v[r][0], 0);
        sum[r] = 0;
#pragma unroll
        for (int i = 0; i < J; i++)
            if (FULL || lane + 32 * i < left) sum[r] = __fadd_rn(sum[r], __fadd_rn(v[r][i], -first[r]));
    }
    float total = rows_sum<R>(sum);
#pragma unroll
    for (int r = 0; r < R; r++) {
        float p = leaf_mean(first[r], __shfl_sync(~0u, total, row_lane<R>(r)), n);
        first[r] = p;
        dev[r] = sq[r] = 0;
#pragma unroll
        for (int i = 0; i < J; i++) {
            float d = __fadd_rn(v[r][i], -p);
            if (FULL || lane + 32 * i < left) {
                dev[r] = __fadd_rn(dev[r], d);
                sq[r] = __fmaf_rn(d, d, sq[r]);
            }
        }
    }
    float sd = rows_sum<R>(dev), q = rows_sum<R>(sq), p = first[0];
    int32_t row = lane_row<R>(lane);
#pragma unroll
    for (int r = 1; r < R; r++)
        if (row == r) p = first[r];
    if (lane == row_lane<R>(row)) {
        int32_t columns = leaf_columns(j, f.t_out);
        int64_t leaf = leaf_start(j, at.n) * j.g.co + (int64_t)(channel + row) * columns + at.t0 / SIMT_LEAF;
        j.leaves[leaf] = leaf_make(p, sd, q, n);
    }
}

template <int J, bool FULL>
__device__ __forceinline__ void simt_apply(
    const cuda_job &j, const nct_frame &f, place at, int32_t channel, const float (&v)[J]) {
    int32_t lane = threadIdx.x & 31, left = f.t_out - at.t0;
    float4 c = j.coef[(int64_t)at.n * j.g.co + channel];
    float z[J];
    bool odd = false;
    if (j.norm == NCT_NORM_GIVEN) {
#pragma unroll
        for (int i = 0; i < J; i++) {
            z[i] = apply_given(v[i], c);
            odd |= (FULL || lane + 32 * i < left) && !isfinite(v[i]);
        }
        if (odd && j.flags) atomicOr(&j.flags[at.n], NCT_SAW_NONFINITE);
    } else {
#pragma unroll
        for (int i = 0; i < J; i++) z[i] = apply(v[i], c);
    }
    act_row(z, j.g.act);
    int64_t base = f.y_off + channel * f.y_pitch + at.t0 + lane;
    if (j.y_dtype == NCT_F32) {
        float *y = (float *)j.y + base;
#pragma unroll
        for (int i = 0; i < J; i++)
            if (FULL || lane + 32 * i < left) y[32 * i] = z[i];
    } else {
#pragma unroll
        for (int i = 0; i < J; i++)
            if (FULL || lane + 32 * i < left) store_element(j.y, j.y_dtype, base + 32 * i, z[i]);
    }
}

/* FULL: every step of the tile is one of the frame's. */
template <int R, int J, bool FULL>
__device__ __forceinline__ void simt_finish_tile(
    const cuda_job &j, const nct_frame &f, place at, int32_t channel, float (&v)[R][J]) {
    int32_t lane = threadIdx.x & 31, left = f.t_out - at.t0;
#pragma unroll
    for (int r = 0; r < R; r++) {
        float b = j.bias[channel + r];
#pragma unroll
        for (int i = 0; i < J; i++) v[r][i] = __fadd_rn(v[r][i], b);
    }
    if (j.what & DO_LEAVES) simt_leaves<R, J, FULL>(j, f, at, channel, v);
    if (j.what & DO_RAW) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            float *y = raw_row(j, f, at.n, channel + r) + at.t0 + lane;
#pragma unroll
            for (int i = 0; i < J; i++)
                if (FULL || lane + 32 * i < left) y[32 * i] = v[r][i];
        }
    }
    if (j.what & DO_APPLY) {
#pragma unroll
        for (int r = 0; r < R; r++) simt_apply<J, FULL>(j, f, at, channel + r, v[r]);
    }
}

template <int R, int J>
__device__ __forceinline__ void simt_finish(
    const cuda_job &j, const nct_frame &f, place at, int32_t channel, float (&v)[R][J]) {
    if (f.t_out - at.t0 >= 32 * J)
        simt_finish_tile<R, J, true>(j, f, at, channel, v);
    else
        simt_finish_tile<R, J, false>(j, f, at, channel, v);
}

/* ---- the conv ---- */

/* A sum in slices of SIMT_SLICE products: `part` is the running slice, `total` the slices before it. */
template <int R, int J, bool SLICED> struct simt_sums {
    float part[R][J], total[SLICED ? R : 1][SLICED ? J : 1];
    int32_t left;
    __device__ __forceinline__ void start() {
        left = SIMT_SLICE;
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < J; i++) {
                part[r][i] = 0;
                if constexpr (SLICED) total[r][i] = 0;
            }
    }
    __device__ __forceinline__ void close() {
        if constexpr (SLICED) {
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int i = 0; i < J; i++) {
                    total[r][i] = __fadd_rn(total[r][i], part[r][i]);
                    part[r][i] = 0;
                }
            left = SIMT_SLICE;
        }
    }
    __device__ __forceinline__ void count() {
        if constexpr (SLICED)
            if (--left == 0) close();
    }
    __device__ __forceinline__ void end() {
        if constexpr (SLICED) {
            if (left != SIMT_SLICE) close();
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int i = 0; i < J; i++) part[r][i] = total[r][i];
        }
    }
};

/* Channels per chunk that the host chose; x and w of a chunk in shared memory. */
template <int R, int J, bool SLICED>
__global__ void __launch_bounds__(256, R *J <= 32 && !SLICED ? 3 : 2)
    conv_simt(const __grid_constant__ cuda_job j, int32_t chunk, int32_t window, int32_t blocks) {
    extern __shared__ float shared[];
    constexpr int WIDE = SIMT_WARPS * R;
    int32_t block = blockIdx.x % (blocks * j.g.groups), warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    place at = place_of(j, blockIdx.x / (blocks * j.g.groups));
    nct_frame f = frame_at(j, at.n);
    if (at.t0 >= f.t_out) return;
    int32_t group = block / blocks, first = (block - group * blocks) * WIDE; /* within the conv group */
    float *xs = shared, *ws = shared + (((int64_t)chunk * window + 3) & ~3);
    int64_t base = (int64_t)at.t0 * j.g.stride - f.pad_left;
    int32_t taps = j.g.k, lo = (int32_t)(base < 0 ? min(-base, (int64_t)window) : 0);
    int32_t hi = (int32_t)max((int64_t)0, min((int64_t)f.t_in - base, (int64_t)window));
    simt_sums<R, J, SLICED> sums;
    sums.start();
    for (int32_t c0 = 0; c0 < j.g.cig; c0 += chunk) {
        int32_t rows = min(chunk, j.g.cig - c0);
        __syncthreads();
        for (int32_t c = 0; c < rows; c++) {
            int32_t channel = group * j.g.cig + c0 + c;
            int64_t from = f.x_off + channel * f.x_pitch + base;
#pragma unroll 4
            for (int32_t i = threadIdx.x; i < window; i += 256)
                xs[c * window + i] = i >= lo && i < hi           ? load_element(j.x, j.x_dtype, from + i)
                                     : j.g.pad_mode == NCT_ZEROS ? 0.0f
                                                                 : load_step(j, f, channel, base + i);
        }
        for (int32_t i = threadIdx.x; i < rows * taps * WIDE; i += 256) {
            int32_t o = first + i % WIDE;
            ws[i] = o < j.g.cog
                        ? ((const float *)j.weight)[(int64_t)(c0 * taps + i / WIDE) * j.g.co + group * j.g.cog + o]
                        : 0;
        }
        __syncthreads();
        const float *w = ws + warp * R;
        for (int32_t c = 0; c < rows; c++) {
            const float *x = xs + c * window + lane * j.g.stride;
            for (int32_t k = 0; k < taps; k++, w += WIDE, x += j.g.dil) {
                float wv[R], xv[J];
#pragma unroll
                for (int r = 0; r < R; r += 4) *(float4 *)(wv + r) = *(const float4 *)(w + r);
#pragma unroll
                for (int i = 0; i < J; i++) xv[i] = x[32 * i * j.g.stride];
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int i = 0; i < J; i++) sums.part[r][i] = __fmaf_rn(xv[i], wv[r], sums.part[r][i]);
                sums.count();
            }
        }
    }
    sums.end();
    int32_t mine = first + warp * R;
    if (mine < j.g.cog) simt_finish<R, J>(j, f, at, group * j.g.cog + mine, sums.part);
}

/* One channel a warp, x straight from global memory: depthwise, odd group sizes, windows of any length. */
template <int J, bool SLICED>
__global__ void __launch_bounds__(256) conv_simt_one(const __grid_constant__ cuda_job j, int32_t blocks) {
    int32_t channel = blockIdx.x % blocks * SIMT_WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    place at = place_of(j, blockIdx.x / blocks);
    nct_frame f = frame_at(j, at.n);
    if (at.t0 >= f.t_out || channel >= j.g.co) return;
    int32_t c0 = channel / j.g.cog * j.g.cig;
    int64_t base = (int64_t)(at.t0 + lane) * j.g.stride - f.pad_left;
    /* Inside: every position that a stored output reads lies in [0, t_in). */
    int64_t lowest = (int64_t)at.t0 * j.g.stride - f.pad_left;
    int64_t highest = lowest + (int64_t)(32 * J - 1) * j.g.stride + (int64_t)(j.g.k - 1) * j.g.dil;
    bool inside = lowest >= 0 && highest < f.t_in;
    const float *w = (const float *)j.weight + channel;
    simt_sums<1, J, SLICED> sums;
    sums.start();
    for (int32_t c = 0; c < j.g.cig; c++) {
        int64_t row = f.x_off + (c0 + c) * f.x_pitch + base;
        for (int32_t k = 0; k < j.g.k; k++, w += j.g.co) {
            float wv = __ldg(w), xv[J];
            int64_t reach = (int64_t)k * j.g.dil;
            if (inside) {
#pragma unroll
                for (int i = 0; i < J; i++)
                    xv[i] = load_element(j.x, j.x_dtype, row + reach + (int64_t)32 * i * j.g.stride);
            } else {
#pragma unroll
                for (int i = 0; i < J; i++)
                    xv[i] = load_step(j, f, c0 + c, base + reach + (int64_t)32 * i * j.g.stride);
            }
#pragma unroll
            for (int i = 0; i < J; i++) sums.part[0][i] = __fmaf_rn(xv[i], wv, sums.part[0][i]);
            sums.count();
        }
    }
    sums.end();
    simt_finish<1, J>(j, f, at, channel, sums.part);
}

/* ---- host ---- */

static int64_t simt_window(const geometry *g, int32_t steps) {
    return (int64_t)(steps - 1) * g->stride + (int64_t)(g->k - 1) * g->dil + 1;
}
/* Input channels per chunk, 0: not even one fits. */
static int32_t simt_chunk(const geometry *g, int32_t r, int32_t j) {
    int64_t bytes = 4 * (simt_window(g, 32 * j) + (int64_t)SIMT_WARPS * r * g->k) + 16;
    int64_t rows = SIMT_SHARED / bytes;
    return (int32_t)(rows < g->cig ? rows : g->cig);
}

int simt_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    const simt_tile *t = (const simt_tile *)row->tile;
    if (t->j < 8 && job->max_t_out > 32 * t->j) return 0;
    if (t->r == 1) return 1;
    if (l->g.cog % t->r || simt_chunk(&l->g, t->r, t->j) < 1) return 0;
    return t->r < 8 || l->g.cig * l->g.k <= SIMT_SLICE;
}

template <int R, int J, bool SLICED> static cudaError_t start(const cuda_job *job, cudaStream_t s) {
    const geometry *g = &job->g;
    if constexpr (R == 1) {
        int32_t blocks = (g->co + SIMT_WARPS - 1) / SIMT_WARPS;
        conv_simt_one<J, SLICED><<<(uint32_t)(blocks * job->tiles), 256, 0, s>>>(*job, blocks);
    } else {
        int32_t chunk = simt_chunk(g, R, J), blocks = (g->cog + SIMT_WARPS * R - 1) / (SIMT_WARPS * R);
        int32_t window = (int32_t)simt_window(g, 32 * J);
        size_t bytes = 4 * ((size_t)chunk * window + 4 + (size_t)chunk * g->k * SIMT_WARPS * R);
        conv_simt<R, J, SLICED>
            <<<(uint32_t)(blocks * g->groups * job->tiles), 256, bytes, s>>>(*job, chunk, window, blocks);
    }
    return cudaGetLastError();
}

cudaError_t simt_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    (void)l;
    const simt_tile *t = (const simt_tile *)row->tile;
    bool sliced = (int64_t)job->g.cig * job->g.k > SIMT_SLICE;
    if (t->r == 8) return t->j == 8 ? start<8, 8, false>(job, s) : start<8, 2, false>(job, s);
    if (t->r == 4 && t->j == 8) return sliced ? start<4, 8, true>(job, s) : start<4, 8, false>(job, s);
    if (t->r == 4) return sliced ? start<4, 2, true>(job, s) : start<4, 2, false>(job, s);
    if (t->j == 8) return sliced ? start<1, 8, true>(job, s) : start<1, 8, false>(job, s);
    return sliced ? start<1, 2, true>(job, s) : start<1, 2, false>(job, s);
}
