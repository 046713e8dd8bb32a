/* conv_depth_sm90.cu: PLAN_DEPTH in one launch on Hopper: each row's outputs stay in shared memory while all CTAs meet.
 *
 * Idea: a depthwise conv is reading x and writing y. A row (frame, channel) of x comes by one bulk copy, raw, all rows of
 * the CTA at once, so that the memory bus is busy from the first cycle. A warp makes the row's outputs once and leaves them
 * in shared memory as f32 in place of x: y of step t lies where no later output reads x any more. When all CTAs have met,
 * a row is read back 16 bytes a lane, normalised, and stored 16 bytes a lane from the first whole 16 bytes of y on,
 * whatever its alignment.
 * In shared memory, a row's slot: y (t_out f32, begun `y skew` in, so that whole 16 bytes are whole in y) over
 * x (window, begun at `x_at` + `x skew`). Few rows a CTA: x and y lie apart, and the leaves of a row go to several warps.
 * Data flow: x (rows, window) -> y f32 (rows, t_out) and leaves -> all CTAs -> normalise, activate -> y.
 *
 * Ladder (H200, convtasnet-dw, tf32 / bf16 us; floor 12.3 / 6.1):
 *   windows of x as f32 kept while all CTAs meet, the conv twice, 32 warps      29 / 26
 *   this file: x raw by bulk copies, the conv once, y kept, 16-byte stores      27 / 21.6
 *   chains from the bias, addresses of stride 1 known when compiled             26 / 20.8
 *   Stamps (bf16): 2 us until the copies run, x and products until 11.5, meeting and merge 3.6, y 3.7. Lost: a row's copy in
 *   four parts with a barrier each, so that products begin earlier (28 / 23). Next: pairs of steps a lane for 16-bit x
 *   (the products are bound by issue slots), and a shorter merge.
 * Plan: conv_depth.cu's. Limits: norm of its own batch alone (DO_MEET); all rows' slots within the SMs' shared memory. */
#include "depth.cuh"
#include "group.cuh"
#include "wgmma.cuh"
#include <cooperative_groups.h>

enum { KEEP_SHARED = 216 * 1024, KEEP_WARPS = 16, KEEP_CTA = 32 * KEEP_WARPS, KEEP_ROWS = 64 };
enum { KEEP_F32, KEEP_BF16, KEEP_HALF }; /* x; HALF: f16 or i16 */

struct keep_shape {
    int32_t rows;   /* of a CTA */
    int32_t slot;   /* bytes of a row */
    int32_t x_at;   /* where x begins in it */
    int32_t leaves; /* of the longest row */
    int32_t apart;  /* x and y do not overlap: a unit is a leaf, else a row */
};
struct keep_row {
    nct_frame f;
    int32_t n, channel;
    char *slot;
};
__device__ __forceinline__ bool keep_row_at(
    keep_row &r, const cuda_job &j, const keep_shape &sh, char *shared, int32_t local) {
    int32_t row = blockIdx.x * sh.rows + local;
    if (local >= sh.rows || row >= j.n_frames * j.g.co) return false;
    r.n = row / j.g.co;
    r.channel = row - r.n * j.g.co;
    r.f = frame_at(j, r.n);
    r.slot = shared + (int64_t)local * sh.slot;
    return true;
}
__device__ __forceinline__ int64_t keep_from(const cuda_job &j, const keep_row &r) {
    return r.f.x_off + r.channel / j.g.cog * r.f.x_pitch - r.f.pad_left;
}

/* Start the row's copy, by one warp: whole units of 16 bytes within the frame; the rest by elements. */
template <int KIND>
__device__ __forceinline__ void keep_load(const cuda_job &j, const keep_row &r, char *to, uint64_t *full) {
    constexpr int SHIFT = KIND == KEEP_F32 ? 2 : 3, LANE = 1 << SHIFT; /* elements of 16 bytes */
    int64_t from = keep_from(j, r), p0;
    int32_t count = (r.f.t_out - 1) * j.g.stride + (j.g.k - 1) * j.g.dil + 1, skew = narrow_skew(j, from);
    int32_t units = (count + skew + LANE - 1) >> SHIFT;
    p0 = -(int64_t)r.f.pad_left - skew; /* of unit 0 */
    int32_t lo = p0 >= 0 ? 0 : (int32_t)min((-p0 + LANE - 1) >> SHIFT, (int64_t)units);
    int32_t hi = p0 >= r.f.t_in ? lo : max(lo, (int32_t)min((r.f.t_in - p0) >> SHIFT, (int64_t)units));
    const char *at = (const char *)j.x + ((from - skew) << (4 - SHIFT));
    const int32_t lane = threadIdx.x & 31, edge = (lo + units - hi) * LANE;
    if (lane == 0) {
        barrier_expect(full, (uint32_t)(hi - lo) * 16);
        if (hi > lo) bulk_copy(to + lo * 16, at + (int64_t)lo * 16, (uint32_t)(hi - lo) * 16, full);
    }
    for (int32_t e = lane; e < edge; e += 32) {
        int32_t i = e < lo * LANE ? e : e - lo * LANE + hi * LANE;
        int64_t step = source_step(j.g.pad_mode, p0 + i, r.f.t_in), element = from + r.f.pad_left + step;
        if constexpr (KIND == KEEP_F32)
            ((float *)to)[i] = step < 0 ? 0 : ((const float *)j.x)[element];
        else
            ((uint16_t *)to)[i] = step < 0 ? 0 : ((const uint16_t *)j.x)[element];
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(full);
}

template <int KIND> __device__ __forceinline__ float keep_x(const void *x, int32_t dtype, int32_t at) {
    if constexpr (KIND == KEEP_F32) return ((const float *)x)[at];
    uint32_t bits = ((const uint16_t *)x)[at];
    if constexpr (KIND == KEEP_BF16) return __uint_as_float(bits << 16);
    return dtype == NCT_F16 ? __half2float(__ushort_as_half((unsigned short)bits))
                            : __fmul_rn((float)(short)bits, 1.0f / 32768.0f);
}

struct keep_sums {
    float first, dev, sq;
};
/* Outputs of steps t0 + at + lane + 32 i, i < 4, of a leaf of `left` steps; WHOLE: all of them. y may overwrite x. K: taps,
 * of stride 1; 0: any of any. */
template <int KIND, int K, bool WHOLE>
__device__ __forceinline__ void keep_steps(const cuda_job &j, const void *x, float *y, const float *w,
    const float (&wk)[K ? K : 1], float bias, int32_t at, int32_t left, keep_sums &s) {
    float v[4] = {bias, bias, bias, bias};
    const int32_t stride = K ? 1 : j.g.stride, step = 32 * stride, lane = threadIdx.x & 31,
                  from = (at + lane) * stride;
    for (int32_t k = 0; k < (K ? 1 : j.g.k); k++) {
#pragma unroll
        for (int u = 0; u < (K ? K : 1); u++) {
            float tap = K ? wk[u] : __ldg(w + (int64_t)k * j.g.co);
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (WHOLE || at + lane + 32 * i < left)
                    v[i] = __fmaf_rn(keep_x<KIND>(x, j.x_dtype, from + (k + u) * j.g.dil + i * step), tap, v[i]);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (WHOLE || at + lane + 32 * i < left) y[at + lane + 32 * i] = v[i];
    }
    if (at == 0) s.first = __shfl_sync(~0u, v[0], 0);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float d = __fadd_rn(v[i], -s.first);
        if (!WHOLE && at + lane + 32 * i >= left) continue;
        s.dev = __fadd_rn(s.dev, d);
        s.sq = __fmaf_rn(d, d, s.sq);
    }
}
/* One leaf: its outputs and its statistics. */
template <int KIND, int K>
__device__ __forceinline__ void keep_leaf(const cuda_job &j, const keep_row &r, const char *x, float *y, int32_t t0) {
    constexpr int SIZE = KIND == KEEP_F32 ? 4 : 2;
    const float *w = (const float *)j.weight + r.channel;
    float wk[K ? K : 1], bias = j.bias[r.channel];
#pragma unroll
    for (int k = 0; k < K; k++) wk[k] = w[(int64_t)k * j.g.co];
    int32_t left = min(NARROW_LEAF, r.f.t_out - t0), at = 0;
    const void *from = x + (int64_t)t0 * j.g.stride * SIZE;
    keep_sums s = {};
    for (; at + 128 <= left; at += 128) keep_steps<KIND, K, true>(j, from, y + t0, w, wk, bias, at, left, s);
    if (at < left) keep_steps<KIND, K, false>(j, from, y + t0, w, wk, bias, at, left, s);
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) {
        s.dev = __fadd_rn(s.dev, __shfl_xor_sync(~0u, s.dev, mask));
        s.sq = __fadd_rn(s.sq, __shfl_xor_sync(~0u, s.sq, mask));
    }
    if ((threadIdx.x & 31) == 0)
        j.leaves[leaf_start(j, r.n) * j.g.co + (int64_t)r.channel * leaf_columns(j, r.f.t_out) + t0 / NARROW_LEAF] =
            leaf_make(s.first, s.dev, s.sq, left);
}

/* Values of y that lie before the row's first whole 16 bytes' beginning: y's step t is float skew + t of the slot. */
__device__ __forceinline__ int32_t keep_skew(const cuda_job &j, const keep_row &r) {
    int32_t size = j.y_dtype == NCT_F32 ? 4 : 2;
    return (
        int32_t)((((uint32_t)(uintptr_t)j.y + (uint32_t)(r.f.y_off + r.channel * r.f.y_pitch) * size) & 15) / size);
}
template <bool Y16>
__device__ __forceinline__ void keep_store(
    const cuda_job &j, const keep_row &r, const float4 &c, int32_t from, int32_t to) {
    constexpr int V = Y16 ? 8 : 4, SIZE = Y16 ? 2 : 4;
    const int32_t skew = keep_skew(j, r);
    const float *slot = (const float *)r.slot;
    int64_t base = r.f.y_off + r.channel * r.f.y_pitch - skew;
    char *y = (char *)j.y + base * SIZE;
#pragma unroll 2
    for (int32_t at = (from + skew) / V * V + V * (int32_t)(threadIdx.x & 31); at < to + skew; at += 32 * V) {
        float z[V];
#pragma unroll
        for (int i = 0; i < V; i += 4) *(float4 *)(z + i) = *(const float4 *)(slot + at + i);
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = narrow_value(z[i], c);
        narrow_act_job(z, j);
        if (at >= from + skew && at + V <= to + skew) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                if constexpr (Y16)
                    v[i] = narrow_pair(j.y_dtype, z[2 * i], z[2 * i + 1]);
                else
                    v[i] = __float_as_uint(z[i]);
            narrow_store16(y + (int64_t)at * SIZE, v);
        } else
#pragma unroll
            for (int i = 0; i < V; i++)
                if (at + i >= from + skew && at + i < to + skew) store_element(j.y, j.y_dtype, base + at + i, z[i]);
    }
}

/* Which row and steps unit `at` of the CTA's has. */
struct keep_unit {
    int32_t local, from, to;
};
__device__ __forceinline__ keep_unit keep_unit_of(const keep_shape &sh, int32_t at) {
    if (!sh.apart) return {at, 0, INT32_MAX};
    int32_t local = at / sh.leaves, leaf = at - local * sh.leaves;
    return {local, leaf * NARROW_LEAF, (leaf + 1) * NARROW_LEAF};
}

/* Normalising values of the (frame, group)s that the CTA's rows belong to. The CTA of a group's first row reports. */
__device__ __forceinline__ void keep_meet(
    const cuda_job &j, const keep_shape &sh, norm_value *values, moments *room) {
    cooperative_groups::this_grid().sync();
    int32_t row0 = blockIdx.x * sh.rows, last = min(row0 + sh.rows, j.n_frames * j.g.co) - 1;
    int32_t first = row0 / j.g.cg, warp = threadIdx.x >> 5;
    if ((int64_t)j.g.cg * leaf_columns(j, j.max_t_out) <= FEW) {
        for (int32_t id = first + warp; id <= last / j.g.cg; id += KEEP_WARPS) {
            int32_t n = id / j.g.norm_groups;
            norm_value v = group_value_few(j, frame_at(j, n), n, id - n * j.g.norm_groups, id * j.g.cg >= row0);
            if ((threadIdx.x & 31) == 0) values[id - first] = v;
        }
        __syncthreads();
        return;
    }
    for (int32_t id = first; id <= last / j.g.cg; id++) {
        int32_t n = id / j.g.norm_groups, group = id - n * j.g.norm_groups;
        nct_frame f = frame_at(j, n);
        int64_t count = (int64_t)j.g.cg * leaf_columns(j, f.t_out);
        const float4 *leaves = j.leaves + leaf_start(j, n) * j.g.co + group * count;
        double shift = leaf_center(__ldcg(leaves));
        moments m = moments_merge(leaves, count, shift, room);
        if (warp == 0) {
            norm_value v = group_finish(j, f, n, group, id * j.g.cg >= row0, m, shift);
            if (threadIdx.x == 0) values[id - first] = v;
        }
        __syncthreads();
    }
}

template <int KIND, int K, bool Y16>
__global__ void __launch_bounds__(KEEP_CTA, 1)
    depth_keep(const __grid_constant__ cuda_job j, const __grid_constant__ keep_shape sh) {
    extern __shared__ __align__(128) char shared[];
    __shared__ moments room[MERGE_THREADS];
    __shared__ norm_value values[KEEP_ROWS];
    __shared__ uint64_t full[KEEP_ROWS];
    constexpr int SIZE = KIND == KEEP_F32 ? 4 : 2;
    const int32_t warp = threadIdx.x >> 5, units = sh.apart ? sh.rows * sh.leaves : sh.rows;
    keep_row r;
    if (threadIdx.x < KEEP_ROWS) barrier_init(full + threadIdx.x, 2); /* the copy, the other elements */
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    for (int32_t local = warp; keep_row_at(r, j, sh, shared, local); local += KEEP_WARPS)
        keep_load<KIND>(j, r, r.slot + sh.x_at, full + local);
    for (int32_t at = warp; at < units; at += KEEP_WARPS) {
        keep_unit u = keep_unit_of(sh, at);
        if (!keep_row_at(r, j, sh, shared, u.local)) break;
        const char *x = r.slot + sh.x_at + narrow_skew(j, keep_from(j, r)) * SIZE;
        float *y = (float *)r.slot + keep_skew(j, r);
        barrier_wait(full + u.local, 0);
        for (int32_t t0 = u.from; t0 < min(u.to, r.f.t_out); t0 += NARROW_LEAF) keep_leaf<KIND, K>(j, r, x, y, t0);
    }
    keep_meet(j, sh, values, room);
    const int32_t first = blockIdx.x * sh.rows / j.g.cg;
    for (int32_t at = warp; at < units; at += KEEP_WARPS) {
        keep_unit u = keep_unit_of(sh, at);
        if (!keep_row_at(r, j, sh, shared, u.local)) break;
        int32_t id = (int32_t)(blockIdx.x * sh.rows + u.local) / j.g.cg;
        keep_store<Y16>(j, r, coef_of(j, values[id - first], r.channel), u.from, min(u.to, r.f.t_out));
    }
}

/* ---- host ---- */

/* rows: 0 where the slots do not fit. */
static keep_shape keep_shape_of(const cuda_layer *l, const cuda_job *job) {
    keep_shape sh = {};
    const geometry *g = &job->g;
    const int64_t size = job->x_dtype == NCT_F32 ? 4 : 2, t = job->max_t_out, total = (int64_t)job->n_frames * g->co;
    const int64_t window = (t - 1) * g->stride + (g->k - 1) * (int64_t)g->dil + 1;
    const int64_t rows = (total + l->sms - 1) / l->sms;
    const int64_t x_bytes = (window + 16) * size + 16, y_bytes = (t + 16) * 4;
    /* y of step t ends at 4 (t + 8), x of step t + 1 begins at x_at + size (t + 1): never before it. */
    int64_t over = ((4 - size) * t + 64 + 15) / 16 * 16;
    if (rows > KEEP_ROWS || window > INT32_MAX / 8) return sh;
    sh.leaves = (int32_t)((t + NARROW_LEAF - 1) / NARROW_LEAF);
    sh.apart = rows * (x_bytes + y_bytes + 32) <= KEEP_SHARED;
    int64_t x_at = sh.apart ? (y_bytes + 15) / 16 * 16 : over;
    int64_t slot = (x_at + x_bytes + 15) / 16 * 16;
    if (slot < y_bytes) slot = (y_bytes + 15) / 16 * 16;
    if (rows * slot > KEEP_SHARED) return sh;
    sh.x_at = (int32_t)x_at;
    sh.slot = (int32_t)slot;
    sh.rows = (int32_t)rows;
    return sh;
}
int keep_fits(const cuda_layer *l, const cuda_job *job) {
    return l->cc == 90 && l->precision != NCT_PREC_F32 && keep_shape_of(l, job).rows > 0;
}

template <int KIND, int K, bool Y16> static cudaError_t run(const cuda_job *job, keep_shape sh, cudaStream_t s) {
    cudaError_t err =
        cudaFuncSetAttribute(depth_keep<KIND, K, Y16>, cudaFuncAttributeMaxDynamicSharedMemorySize, KEEP_SHARED);
    if (err) return err;
    int64_t rows = (int64_t)job->n_frames * job->g.co;
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)((rows + sh.rows - 1) / sh.rows));
    config.blockDim = dim3(KEEP_CTA);
    config.dynamicSmemBytes = (size_t)sh.rows * sh.slot;
    config.stream = s;
    config.attrs = &together;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, depth_keep<KIND, K, Y16>, *job, sh);
}
template <int KIND> static cudaError_t run_kind(const cuda_job *job, keep_shape sh, cudaStream_t s) {
    bool y16 = job->y_dtype != NCT_F32;
    if (job->g.k == 3 && job->g.stride == 1)
        return y16 ? run<KIND, 3, true>(job, sh, s) : run<KIND, 3, false>(job, sh, s);
    return y16 ? run<KIND, 0, true>(job, sh, s) : run<KIND, 0, false>(job, sh, s);
}
cudaError_t keep_launch(const cuda_layer *l, const cuda_job *job, cudaStream_t s) {
    keep_shape sh = keep_shape_of(l, job);
    if (job->x_dtype == NCT_F32) return run_kind<KEEP_F32>(job, sh, s);
    return job->x_dtype == NCT_BF16 ? run_kind<KEEP_BF16>(job, sh, s) : run_kind<KEEP_HALF>(job, sh, s);
}

template <int KIND> static cudaError_t load(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, depth_keep<KIND, 3, false>);
    if (!err) err = cudaFuncGetAttributes(&a, depth_keep<KIND, 3, true>);
    if (!err) err = cudaFuncGetAttributes(&a, depth_keep<KIND, 0, false>);
    return err ? err : cudaFuncGetAttributes(&a, depth_keep<KIND, 0, true>);
}
cudaError_t keep_load_code(void) {
    int device, major = 0;
    cudaError_t err = cudaGetDevice(&device);
    if (!err) err = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (err || major != 9) return err; /* no code for other cards, and no row of theirs that needs it */
    err = load<KEEP_F32>();
    if (!err) err = load<KEEP_BF16>();
    return err ? err : load<KEEP_HALF>();
}
