/* conv_depth.cu: PLAN_DEPTH, depthwise convs (one input channel a conv group) under tf32 and bf16.
 *
 * Idea: a conv of K products an output is nothing but reading x and writing y. A warp owns one leaf: a channel x 2048
 * steps; its window of x lies in shared memory as f32 (16-byte loads where x allows), lane = step. The conv is run twice,
 * in two launches, for the statistics and for y; the second finds x in the L2. On Hopper conv_depth_sm90.cu does it in one.
 *
 * Plan: f32 FMA chain over the taps that starts from the bias. Leaf: 1 channel x 2048 steps about its first output, lane
 * t mod 32 ascending, then the lanes by xor 16 ... 1; see conv_narrow.cuh for what one pass about the first output costs.
 * Ladder (H200, convtasnet-dw, tf32 / bf16 us; floor 12.3 / 6.1):
 *   PLAN_SIMT, conv twice, 1 channel a warp from global memory                  61 / 90
 *   windows in shared memory, two launches and norm_finish                      38 / 32
 * Limits: a leaf's window (2047 stride + (K - 1) dil steps) within 97 KB. */
#include "depth.cuh"
#include "group.cuh"

enum { DEPTH_SHARED = 99 * 1024, DEPTH_WARPS = 8 };

struct depth_shape {
    int32_t slot; /* floats of a leaf's window in shared memory */
};

struct depth_unit { /* one leaf of one channel */
    nct_frame f;
    int32_t n, channel, t0, left;
    float *xs;
};

/* The window of x of the leaf, by the calling warp; ends with it in order. */
__device__ __forceinline__ void depth_fill(const cuda_job &j, depth_unit &u) {
    int64_t pos0 = (int64_t)u.t0 * j.g.stride - u.f.pad_left;
    int32_t channel = u.channel / j.g.cog, count = (u.left - 1) * j.g.stride + (j.g.k - 1) * j.g.dil + 1;
    narrow_fill_row<4, false>(j, u.f, channel, pos0, count, u.xs, threadIdx.x & 31, 32);
    u.xs += narrow_skew(j, u.f.x_off + channel * u.f.x_pitch + pos0);
    __syncwarp();
}

/* Four outputs 32 steps apart, from step t of the leaf. */
template <int K>
__device__ __forceinline__ void depth_outputs(
    float (&v)[4], const cuda_job &j, const float *x, const float *w, const float (&wk)[K ? K : 1], float bias) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = bias;
    int32_t step = 32 * j.g.stride;
    if constexpr (K > 0) {
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = __fmaf_rn(x[k * j.g.dil + i * step], wk[k], v[i]);
    } else {
        for (int32_t k = 0; k < j.g.k; k++) {
            float tap = __ldg(w + (int64_t)k * j.g.co);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = __fmaf_rn(x[k * j.g.dil + i * step], tap, v[i]);
        }
    }
}

/* Calls each(t, v, whole) for the lane's outputs, four at a time; whole: all four are steps of the leaf. */
template <int K, typename F>
__device__ __forceinline__ void depth_steps(const cuda_job &j, const depth_unit &u, F each) {
    const int32_t lane = threadIdx.x & 31;
    const float *w = (const float *)j.weight + u.channel;
    float wk[K ? K : 1], bias = j.bias[u.channel];
#pragma unroll
    for (int k = 0; k < K; k++) wk[k] = w[(int64_t)k * j.g.co];
    int32_t t = lane;
    const float *x = u.xs + lane * j.g.stride;
    for (; t - lane + 128 <= u.left; t += 128, x += 128 * j.g.stride) {
        float v[4];
        depth_outputs<K>(v, j, x, w, wk, bias);
        each(t, v, true);
    }
    if (t - lane >= u.left) return;
    float v[4] = {};
    for (int i = 0; i < 4; i++)
        if (t + 32 * i < u.left) {
            float one = bias;
            for (int32_t k = 0; k < j.g.k; k++)
                one = __fmaf_rn(x[k * j.g.dil + 32 * i * j.g.stride], __ldg(w + (int64_t)k * j.g.co), one);
            v[i] = one;
        }
    each(t, v, false);
}

template <int K> __device__ __forceinline__ void depth_stats(const cuda_job &j, const depth_unit &u) {
    float first = 0, dev = 0, sq = 0;
    depth_steps<K>(j, u, [&](int32_t t, const float(&v)[4], bool whole) {
        if (t < 32) first = __shfl_sync(~0u, v[0], 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float d = __fadd_rn(v[i], -first);
            if (!whole && t + 32 * i >= u.left) continue;
            dev = __fadd_rn(dev, d);
            sq = __fmaf_rn(d, d, sq);
        }
    });
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) {
        dev = __fadd_rn(dev, __shfl_xor_sync(~0u, dev, mask));
        sq = __fadd_rn(sq, __shfl_xor_sync(~0u, sq, mask));
    }
    if ((threadIdx.x & 31) == 0)
        j.leaves[leaf_start(j, u.n) * j.g.co + (int64_t)u.channel * leaf_columns(j, u.f.t_out) + u.t0 / NARROW_LEAF] =
            leaf_make(first, dev, sq, u.left);
}

template <int K> __device__ __forceinline__ void depth_y(const cuda_job &j, const depth_unit &u, const float4 &c) {
    int64_t base = u.f.y_off + u.channel * u.f.y_pitch + u.t0;
    bool raw = j.what & DO_RAW, given = j.norm == NCT_NORM_GIVEN && !raw;
    depth_steps<K>(j, u, [&](int32_t t, float(&v)[4], bool whole) {
        if (given) {
            bool odd = false;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                odd |= (whole || t + 32 * i < u.left) && !isfinite(v[i]);
                v[i] = __fadd_rn(v[i], __fadd_rn(v[i], -v[i]));
            }
            if (odd && j.flags) atomicOr(&j.flags[u.n], NCT_SAW_NONFINITE);
        }
        if (!raw) {
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = narrow_value(v[i], c);
            narrow_act_job(v, j);
        }
        if (j.y_dtype == NCT_F32) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (whole || t + 32 * i < u.left) __stcs((float *)j.y + base + t + 32 * i, v[i]);
        } else if (j.y_dtype == NCT_BF16) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (whole || t + 32 * i < u.left)
                    ((__nv_bfloat16 *)j.y)[base + t + 32 * i] = __float2bfloat16_rn(v[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (whole || t + 32 * i < u.left) ((__half *)j.y)[base + t + 32 * i] = __float2half_rn(v[i]);
        }
    });
}

/* ---- two launches ---- */

template <int K>
__global__ void __launch_bounds__(32 * DEPTH_WARPS, 3)
    depth_pass(const __grid_constant__ cuda_job j, const __grid_constant__ depth_shape sh) {
    extern __shared__ float4 shared[];
    const int32_t warps = blockDim.x >> 5, warp = threadIdx.x >> 5, blocks = (j.g.co + warps - 1) / warps;
    depth_unit u;
    place at = place_of(j, blockIdx.x / blocks);
    u.n = at.n;
    u.t0 = at.t0;
    u.f = frame_at(j, at.n);
    u.channel = blockIdx.x % blocks * warps + warp;
    u.left = min(NARROW_LEAF, u.f.t_out - u.t0);
    u.xs = (float *)shared + warp * sh.slot;
    if (u.left <= 0 || u.channel >= j.g.co) return;
    depth_fill(j, u);
    if (j.what & DO_LEAVES) depth_stats<K>(j, u);
    if (j.what & (DO_APPLY | DO_RAW))
        depth_y<K>(j, u, j.what & DO_RAW ? make_float4(0, 0, 0, 0) : j.coef[(int64_t)u.n * j.g.co + u.channel]);
}

/* ---- host ---- */

static int64_t depth_floats(const geometry *g, int64_t steps) {
    return ((steps - 1) * g->stride + (int64_t)(g->k - 1) * g->dil + 1 + 8 + 7 + 7) / 8 * 8;
}
static int32_t leaf_steps(int32_t t_out) {
    return t_out < NARROW_LEAF ? t_out : NARROW_LEAF;
}
int depth_holds(const geometry *g) {
    return g->cig == 1 && g->groups > 1 && depth_floats(g, NARROW_LEAF) * 4 <= DEPTH_SHARED - 2048;
}
int depth_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    if (l->precision == NCT_PREC_F32) return 0;
    return row->pass != PASS_FUSED || keep_fits(l, job);
}

template <int K> static cudaError_t run_pass(const cuda_job *job, cudaStream_t s) {
    depth_shape sh = {(int32_t)depth_floats(&job->g, leaf_steps(job->max_t_out))};
    int32_t warps = (DEPTH_SHARED - 2048) / (sh.slot * 4);
    if (warps > DEPTH_WARPS) warps = DEPTH_WARPS;
    if (warps > job->g.co) warps = job->g.co;
    cudaError_t err =
        cudaFuncSetAttribute(depth_pass<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, DEPTH_SHARED - 2048);
    if (err) return err;
    int32_t blocks = (job->g.co + warps - 1) / warps;
    depth_pass<K>
        <<<(uint32_t)(blocks * job->tiles), (uint32_t)(32 * warps), (size_t)warps * sh.slot * 4, s>>>(*job, sh);
    return cudaGetLastError();
}
cudaError_t depth_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    (void)row;
    if (job->what & DO_MEET) return keep_launch(l, job, s);
    return job->g.k == 3 ? run_pass<3>(job, s) : run_pass<0>(job, s);
}

cudaError_t depth_load(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, depth_pass<3>);
    if (!err) err = cudaFuncGetAttributes(&a, depth_pass<0>);
    return err ? err : keep_load_code();
}
