/* norm.cu: what comes after the conv: leaves -> statistics -> coefficients, and the pass that normalises.
 *
 * Called by backend.cu on the job's stream; no plan of its own: the arithmetic is stats.cuh's and act.cuh's, so
 * how the work is cut here changes no bit. One CTA merges a (frame, norm group); where that is at most 1024
 * leaves the apply pass does it itself, once a CTA, which saves a launch (2 us on the H200 in a graph). */
#include "group.cuh"
#include "mma_tile.cuh"

/* ---- ragged jobs: where each frame's leaf columns begin ---- */

__global__ void __launch_bounds__(1024) prefix_kernel(const __grid_constant__ cuda_job j, int32_t *start) {
    __shared__ int32_t sums[1024];
    int32_t per = (j.n_frames + 1023) / 1024, tid = threadIdx.x, total = 0;
    int32_t first = min(tid * per, j.n_frames), last = min(first + per, j.n_frames);
    auto columns = [&](int32_t n) {
        int32_t c = leaf_columns(j, j.frames[n].t_out);
        return (c + j.tile_leaves - 1) / j.tile_leaves * j.tile_leaves;
    };
    for (int32_t n = first; n < last; n++) total += columns(n);
    sums[tid] = total;
    for (int32_t step = 1; step < 1024; step *= 2) {
        __syncthreads();
        int32_t before = tid >= step ? sums[tid - step] : 0;
        __syncthreads();
        sums[tid] += before;
    }
    int32_t at = sums[tid] - total;
    for (int32_t n = first; n < last; n++) {
        start[n] = at;
        at += columns(n);
    }
    if (tid == 1023) start[j.n_frames] = sums[1023];
}
cudaError_t norm_prefix(const cuda_job *job, int32_t *leaf_start, cudaStream_t s) {
    prefix_kernel<<<1, 1024, 0, s>>>(*job, leaf_start);
    return cudaGetLastError();
}

/* ---- one group's statistics ---- */

/* The value that normalises (frame, group), in the CTA's first warp. `report`: write stat_out and flags. `alone`:
 * every warp is its own caller, and the leaves are few. */
__device__ norm_value group_value(
    const cuda_job &j, const nct_frame &f, int32_t n, int32_t group, bool report, bool alone, moments *room) {
    int64_t count = (int64_t)j.g.cg * leaf_columns(j, f.t_out);
    if (alone || count <= FEW || j.norm == NCT_NORM_GIVEN)
        return alone || threadIdx.x < 32 ? group_value_few(j, f, n, group, report) : norm_value{};
    const float4 *leaves = j.leaves + leaf_start(j, n) * j.g.co + (int64_t)group * count;
    double shift = leaf_center(leaves[0]);
    moments m = moments_merge(leaves, count, shift, room);
    return threadIdx.x < 32 ? group_finish(j, f, n, group, report, m, shift) : norm_value{};
}
/* The same, in every thread of the CTA. */
__device__ __forceinline__ norm_value group_value_all(
    const cuda_job &j, const nct_frame &f, int32_t n, int32_t group, bool report, moments *room) {
    __shared__ norm_value all;
    norm_value v = group_value(j, f, n, group, report, false, room);
    if (threadIdx.x == 0) all = v;
    __syncthreads();
    return all;
}
__device__ __forceinline__ bool few_leaves(const cuda_job &j) {
    return (int64_t)j.g.cg * leaf_columns(j, j.max_t_out) <= FEW || j.norm == NCT_NORM_GIVEN;
}

/* few: a warp a (frame, group); else a CTA. */
__global__ void __launch_bounds__(MERGE_THREADS) finish_kernel(const __grid_constant__ cuda_job j) {
    __shared__ moments room[256];
    bool few = few_leaves(j);
    int64_t at = few ? (int64_t)blockIdx.x * (MERGE_THREADS / 32) + (threadIdx.x >> 5) : blockIdx.x;
    if (at >= (int64_t)j.n_frames * j.g.norm_groups) return;
    int32_t n = (int32_t)(at / j.g.norm_groups), group = (int32_t)(at - (int64_t)n * j.g.norm_groups);
    nct_frame f = frame_at(j, n);
    norm_value v = few ? group_value(j, f, n, group, true, true, room) : group_value_all(j, f, n, group, true, room);
    int32_t step = few ? 32 : MERGE_THREADS;
    for (int32_t c = group * j.g.cg + threadIdx.x % step; c < (group + 1) * j.g.cg; c += step)
        j.coef[(int64_t)n * j.g.co + c] = coef_of(j, v, c);
}
cudaError_t norm_finish(const cuda_job *job, cudaStream_t s) {
    int64_t groups = (int64_t)job->n_frames * job->g.norm_groups;
    int64_t leaves = (int64_t)job->g.cg * ((job->max_t_out + job->leaf_t - 1) / job->leaf_t);
    if (leaves <= FEW || job->norm == NCT_NORM_GIVEN) groups = (groups + 7) / 8;
    finish_kernel<<<(uint32_t)groups, MERGE_THREADS, 0, s>>>(*job);
    return cudaGetLastError();
}

/* ---- apply ---- */

enum { SEGMENT = 512, FLAT_STEPS = 128 };

template <int V> __device__ __forceinline__ void norm_values(const cuda_job &j, float (&z)[V], const float4 &c) {
#pragma unroll
    for (int i = 0; i < V; i++) z[i] = j.norm == NCT_NORM_GIVEN ? apply_given(z[i], c) : apply(z[i], c);
    act_row(z, j.g.act);
}
template <int V> __device__ __forceinline__ void odd_values(const cuda_job &j, int32_t n, const float (&z)[V]) {
    if (j.norm != NCT_NORM_GIVEN || !j.flags) return;
    bool odd = false;
#pragma unroll
    for (int i = 0; i < V; i++) odd |= !isfinite(z[i]);
    if (odd) atomicOr(&j.flags[n], NCT_SAW_NONFINITE);
}

/* A warp's segment of a row: steps [0, left), left <= SEGMENT. */
__device__ __forceinline__ void segment_apply(
    const cuda_job &j, int32_t n, const float *raw, int64_t y_at, int32_t left, const float4 &c) {
    int32_t lane = threadIdx.x & 31, size = j.y_dtype == NCT_F32 ? 4 : 2;
    const char *y = (const char *)j.y + y_at * size;
    bool wide = ((uintptr_t)raw & 15) == 0 && ((uintptr_t)y & (4 * size - 1)) == 0;
    int32_t t = 0;
    if (wide) {
        float z[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (lane * 4 + 128 * i + 3 < left) *(float4 *)z[i] = *(const float4 *)(raw + lane * 4 + 128 * i);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int32_t at = lane * 4 + 128 * i;
            if (at + 3 >= left) continue;
            odd_values(j, n, z[i]);
            norm_values(j, z[i], c);
            if (size == 4)
                *(float4 *)((float *)j.y + y_at + at) = *(float4 *)z[i];
            else {
                ushort4 v;
                store_element(&v, j.y_dtype, 0, z[i][0]);
                store_element(&v, j.y_dtype, 1, z[i][1]);
                store_element(&v, j.y_dtype, 2, z[i][2]);
                store_element(&v, j.y_dtype, 3, z[i][3]);
                *(ushort4 *)((unsigned short *)j.y + y_at + at) = v;
            }
        }
        t = left & ~3;
    }
    for (t += lane; t < left; t += 128) {
        float z[4];
#pragma unroll
        for (int i = 0; i < 4; i++) z[i] = t + 32 * i < left ? raw[t + 32 * i] : 0;
        odd_values(j, n, z);
        norm_values(j, z, c);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (t + 32 * i < left) store_element(j.y, j.y_dtype, y_at + t + 32 * i, z[i]);
    }
}

/* Short rows: threads over (channel, step), first to last of the group's elements. */
__device__ __forceinline__ void flat_apply(const cuda_job &j, const nct_frame &f, int32_t n, int32_t group,
    int32_t first, int32_t last, const norm_value &v, bool merged) {
    for (int32_t i = first + threadIdx.x; i < last; i += MERGE_THREADS) {
        int32_t row = i / f.t_out, t = i - row * f.t_out, channel = group * j.g.cg + row;
        float4 c = merged ? coef_of(j, v, channel) : j.coef[(int64_t)n * j.g.co + channel];
        float z[1] = {raw_row(j, f, n, channel)[t]};
        odd_values(j, n, z);
        norm_values(j, z, c);
        store_element(j.y, j.y_dtype, f.y_off + channel * f.y_pitch + t, z[0]);
    }
}

__device__ __forceinline__ void rows_apply(const cuda_job &j, const nct_frame &f, int32_t n, int32_t group,
    int32_t part, int32_t parts, const norm_value &v, bool merged) {
    if (f.t_out < FLAT_STEPS) {
        int32_t all = j.g.cg * f.t_out;
        flat_apply(j, f, n, group, (int32_t)((int64_t)all * part / parts),
            (int32_t)((int64_t)all * (part + 1) / parts), v, merged);
        return;
    }
    int32_t segments = (f.t_out + SEGMENT - 1) / SEGMENT;
    int64_t all = (int64_t)j.g.cg * segments, last = all * (part + 1) / parts;
    for (int64_t u = all * part / parts + (threadIdx.x >> 5); u < last; u += MERGE_THREADS / 32) {
        int32_t row = (int32_t)(u / segments), t0 = (int32_t)(u - (int64_t)row * segments) * SEGMENT;
        int32_t channel = group * j.g.cg + row;
        float4 c = merged ? coef_of(j, v, channel) : j.coef[(int64_t)n * j.g.co + channel];
        segment_apply(
            j, n, raw_row(j, f, n, channel) + t0, f.y_off + channel * f.y_pitch + t0, min(SEGMENT, f.t_out - t0), c);
    }
}

__global__ void __launch_bounds__(MERGE_THREADS, 4)
    apply_kernel(const __grid_constant__ cuda_job j, int32_t parts, int32_t merge) {
    __shared__ moments room[256];
    int32_t part = blockIdx.x % parts, rest = blockIdx.x / parts;
    int32_t n = rest / j.g.norm_groups, group = rest - n * j.g.norm_groups;
    nct_frame f = frame_at(j, n);
    norm_value v = {};
    if (merge) v = group_value_all(j, f, n, group, part == 0, room);
    rows_apply(j, f, n, group, part, parts, v, merge);
}

int norm_merges(const cuda_job *job) {
    int64_t columns = (job->max_t_out + job->leaf_t - 1) / job->leaf_t;
    /* Several parts would read a running slot that one of them writes. */
    return job->norm == NCT_NORM_OWN && columns * job->g.cg <= FEW;
}

cudaError_t norm_apply(const cuda_job *job, int merge, cudaStream_t s) {
    int64_t groups = (int64_t)job->n_frames * job->g.norm_groups, work = (int64_t)job->g.cg * job->max_t_out;
    int64_t most = (work + 1023) / 1024, parts = (132 * 4 + groups - 1) / groups;
    /* Long groups: parts of at most 16384 elements, so that the last CTAs of a wave cost little. */
    if (parts * 16384 < work) parts = (work + 16383) / 16384;
    if (parts > most) parts = most;
    apply_kernel<<<(uint32_t)(groups * parts), MERGE_THREADS, 0, s>>>(*job, (int32_t)parts, merge);
    return cudaGetLastError();
}

/* ---- slices' sums of short frames: everything after the products in one kernel ---- */

__global__ void __launch_bounds__(MERGE_THREADS) combine_kernel(const __grid_constant__ cuda_job j, int32_t slices) {
    __shared__ moments room[256];
    int32_t n = blockIdx.x / j.g.norm_groups, group = blockIdx.x - n * j.g.norm_groups;
    nct_frame f = frame_at(j, n);
    int32_t q = threadIdx.x & 3;
    int64_t slice_step = (int64_t)j.n_frames * j.g.co * j.slot_steps;
    /* Whole warps turn, so that the quads' shuffles see every lane. */
    for (int32_t base = 0; base < j.g.cg; base += MERGE_THREADS / 4) {
        int32_t row = base + (threadIdx.x >> 2), channel = group * j.g.cg + min(row, j.g.cg - 1);
        const float *from = j.partial + ((int64_t)n * j.g.co + channel) * j.slot_steps + 2 * q;
        float v[16] = {};
        float b = j.bias[channel], *raw = raw_row(j, f, n, channel);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (8 * i + 2 * q >= f.t_out) continue;
            float lo = 0, hi = 0;
#pragma unroll 4
            for (int32_t s = 0; s < slices; s++) {
                float2 p = *(const float2 *)(from + s * slice_step + 8 * i);
                lo = __fadd_rn(lo, p.x);
                hi = __fadd_rn(hi, p.y);
            }
            v[2 * i] = __fadd_rn(lo, b);
            v[2 * i + 1] = __fadd_rn(hi, b);
        }
        if (j.what & DO_LEAVES) {
            float4 leaf = quad_leaf(v, 0, f.t_out);
            if (row < j.g.cg && q == 0) j.leaves[leaf_start(j, n) * j.g.co + channel] = leaf;
        }
        if (row < j.g.cg && j.what & DO_RAW)
#pragma unroll
            for (int i = 0; i < 16; i++) {
                int32_t t = (i >> 1) * 8 + 2 * q + (i & 1);
                if (t < f.t_out) raw[t] = v[i];
            }
    }
    if (j.what == DO_RAW) return;
    __syncthreads();
    norm_value v = group_value_all(j, f, n, group, true, room);
    if (j.what & DO_APPLY) rows_apply(j, f, n, group, 0, 1, v, true);
}
cudaError_t norm_combine(const cuda_job *job, int32_t slices, cudaStream_t s) {
    combine_kernel<<<(uint32_t)(job->n_frames * job->g.norm_groups), MERGE_THREADS, 0, s>>>(*job, slices);
    return cudaGetLastError();
}

/* Load the code of every kernel here: nct_warm, since lazy loading would break a capture. */
cudaError_t norm_load(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, prefix_kernel);
    if (!err) err = cudaFuncGetAttributes(&a, finish_kernel);
    if (!err) err = cudaFuncGetAttributes(&a, apply_kernel);
    return err ? err : cudaFuncGetAttributes(&a, combine_kernel);
}
