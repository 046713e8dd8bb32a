/* mma_tile.cuh: a PLAN_MMA tile around its products: where x lies in shared memory, which frames the columns
 * belong to, and the epilogue. Used by conv_mma.cu.
 *
 * Frames longer than 64 steps: a tile is BN steps of one frame (one slot). Shorter ones: a tile is BN / SW
 * slots of SW = 8, 16, 32 or 64 steps, a frame in each, so that short frames fill the tensor cores. */
#ifndef NCT_CUDA_MMA_TILE_CUH
#define NCT_CUDA_MMA_TILE_CUH
#include "frame.cuh"
#include "stats.cuh"
#include "act.cuh"

enum { MMA_STAGES = 3, MMA_SLOTS = 16, MMA_SHARED = 98 * 1024 };

struct mma_shape {
    int32_t co_tiles;          /* tiles of BM channels in a conv group */
    int32_t slots;             /* frames in a tile */
    int32_t slot_shift;        /* log2 of a slot's steps */
    int32_t window;            /* positions of x that a slot reads */
    int32_t stride, phase;     /* phase: words of one phase, ceil(window / stride) */
    int32_t slot_words, pitch; /* words of a slot and of a word row; pitch is 8 mod 32 */
    int32_t wide;  /* x lies so that 16 bytes can be read at once: one slot, stride 1, pitches of whole 16 bytes */
    int32_t units; /* wide: 16-byte units that cover the window of a row */
    int32_t stages, buffers;           /* of weights and of x (wgmma) */
    int32_t bulk;                      /* wgmma: rows of x come by bulk copies and are made words where they lie */
    uint32_t unit_magic, stride_magic; /* ceil(2^32 / units), / stride */
};

/* ---- host ---- */

static inline uint32_t magic_of(int64_t d) {
    return (uint32_t)(((1ull << 32) + (uint64_t)d - 1) / (uint64_t)d);
}
static inline int64_t window_of(const geometry *g, int64_t steps) {
    return (steps - 1) * g->stride + (int64_t)(g->k - 1) * g->dil + 1;
}
/* Steps of a slot in a tile of bn: all of them, or for short frames the power of two that holds the longest, more where a
 * long reach would make the slots' windows together longer than the tile's own. */
static inline int32_t slot_steps_of(const geometry *g, int32_t max_t_out, int32_t bn) {
    if (max_t_out > MMA_LEAF) return bn;
    int32_t steps = 8;
    while (steps < max_t_out) steps *= 2;
    int64_t most = window_of(g, bn) + 64;
    if (most < 320) most = 320;
    while (steps < bn && bn / steps * window_of(g, steps) > most) steps *= 2;
    return steps;
}
static inline mma_shape shape_of(const cuda_job *job, int32_t bm, int32_t bn) {
    const geometry *g = &job->g;
    mma_shape s = {};
    int32_t steps = slot_steps_of(g, job->max_t_out, bn);
    s.co_tiles = (g->cog + bm - 1) / bm;
    s.slots = bn / steps;
    for (s.slot_shift = 0; 1 << s.slot_shift < steps; s.slot_shift++) {
    }
    s.window = (int32_t)window_of(g, steps);
    s.stride = g->stride;
    s.phase = (s.window + g->stride - 1) / g->stride;
    s.slot_words = s.phase * g->stride;
    int32_t lane = 16 / (int32_t)dtype_size(job->x_dtype);
    s.wide = job->x_wide && s.slots == 1 && s.stride == 1;
    s.units = (s.window + 2 * lane - 2) / lane;
    int32_t words = s.wide ? s.units * lane : s.slots * s.slot_words;
    s.pitch = (words + 31) / 32 * 32 + 8;
    s.unit_magic = magic_of(s.units > 1 ? s.units : 2);
    s.stride_magic = magic_of(g->stride > 1 ? g->stride : 2);
    return s;
}
static inline int32_t mma_slices(const geometry *g, const mma_layout *m) {
    int32_t steps = m->chunks * g->k;
    return m->slice ? (steps + m->slice - 1) / m->slice : 1;
}
/* More than one slice for some frame of the job. */
static inline bool job_sliced(const cuda_job *job) {
    return job->m.slice && job->m.slice < job->m.chunks * job->g.k;
}

/* ---- words ---- */

__device__ __forceinline__ uint32_t round_tf32(float v) {
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
    return r;
}
__device__ __forceinline__ uint32_t low_tf32(uint32_t v, uint32_t high) {
    return round_tf32(__fadd_rn(__uint_as_float(v), -__uint_as_float(high)));
}
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&v;
}

__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
    __half2 v = __floats2half2_rn(lo, hi);
    return *(uint32_t *)&v;
}

/* ---- slots ---- */

struct slot_frame { /* what staging needs of a slot's frame; lo == hi: an empty slot */
    int64_t at;     /* element of [channel 0][position 0 of the window]; may lie outside x */
    int64_t x_pitch;
    int32_t lo, hi; /* positions of the window inside the frame */
    int32_t n;
};
struct mma_slots {
    int32_t n0, t0, last_channel;
    bool empty;
    slot_frame only; /* the one slot's */
    int32_t shift;   /* wide: elements between the 16-byte boundary before position 0 and it */
};
__device__ __forceinline__ slot_frame slot_read(const cuda_job &j, const mma_shape &sh, int32_t n, int32_t t0) {
    nct_frame f = frame_at(j, n);
    int64_t base = (int64_t)t0 * j.g.stride - f.pad_left, hi = f.t_in - base, lo = -base;
    auto inside = [&](int64_t p) { return (int32_t)(p < 0 ? 0 : p > sh.window ? sh.window : p); };
    return {f.x_off + base, f.x_pitch, inside(lo), inside(hi), n};
}
__device__ __forceinline__ mma_slots slots_of(
    const cuda_job &j, const mma_shape &sh, int32_t tile, int32_t last_channel) {
    mma_slots s;
    s.last_channel = last_channel;
    s.n0 = tile * sh.slots;
    s.t0 = 0;
    s.empty = false;
    s.only = {};
    s.shift = 0;
    if (j.max_t_out > MMA_LEAF) {
        place at = place_of(j, tile);
        s.n0 = at.n;
        s.t0 = at.t0;
        s.empty = at.t0 >= frame_at(j, at.n).t_out;
    }
    if (sh.slots == 1 || sh.bulk) s.only = slot_read(j, sh, s.n0, s.t0);
    if (sh.wide) {
        uint32_t size = j.x_dtype == NCT_F32 ? 4 : 2;
        s.shift = (((uint32_t)(uintptr_t)j.x + (uint32_t)s.only.at * size) & 15) / size;
    }
    return s;
}
__device__ __forceinline__ slot_frame slot_of(
    const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t slot) {
    if (sh.slots == 1) return s.only;
    if (s.n0 + slot >= j.n_frames) return {0, 0, 0, 0, -1};
    return slot_read(j, sh, s.n0 + slot, 0);
}
/* ---- epilogue ---- */

__device__ __forceinline__ float quad_sum(float v) {
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 1));
    return __fadd_rn(v, __shfl_xor_sync(~0u, v, 2));
}

/* Leaf of one row (channel) of a slot, from this lane's 16 values: value (n, e) is column 8 n + 2 q + e of the
 * warp's 64; columns [from, from + n_valid) are the leaf. Called by whole warps. */
__device__ __forceinline__ float4 quad_leaf(const float (&v)[16], int32_t from, int32_t n_valid) {
    int32_t q = threadIdx.x & 3;
    float first = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
        if (n * 8 == from) first = v[2 * n];
    first = __shfl_sync(~0u, first, threadIdx.x & 28);
    float sum = 0, sd = 0, sq = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int32_t at = (i >> 1) * 8 + 2 * q + (i & 1) - from;
        if (at >= 0 && at < n_valid) sum = __fadd_rn(sum, __fadd_rn(v[i], -first));
    }
    float p = leaf_mean(first, quad_sum(sum), n_valid);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int32_t at = (i >> 1) * 8 + 2 * q + (i & 1) - from;
        if (at >= 0 && at < n_valid) {
            float d = __fadd_rn(v[i], -p);
            sd = __fadd_rn(sd, d);
            sq = __fmaf_rn(d, d, sq);
        }
    }
    sd = quad_sum(sd);
    sq = quad_sum(sq);
    return leaf_make(p, sd, sq, n_valid);
}

/* Leaves of a row: one per slot that begins in the warp's 64 columns (a long frame's slot: its 64 columns). */
__device__ __forceinline__ void row_leaves(const cuda_job &j, const mma_shape &sh, const mma_slots &s,
    int32_t column0, int32_t channel, bool mine, const float (&v)[16]) {
    int32_t steps = min(1 << sh.slot_shift, 64), q = threadIdx.x & 3;
    for (int32_t from = 0; from < 64; from += steps) {
        int32_t n = s.n0 + ((column0 + from) >> sh.slot_shift);
        int32_t t = s.t0 + ((column0 + from) & ((1 << sh.slot_shift) - 1));
        if (n >= j.n_frames) break;
        int32_t t_out = frame_at(j, n).t_out;
        if (t >= t_out) continue;
        float4 leaf = quad_leaf(v, from, min(steps, t_out - t));
        if (mine && q == 0)
            j.leaves[leaf_start(j, n) * j.g.co + (int64_t)channel * leaf_columns(j, t_out) + t / MMA_LEAF] = leaf;
    }
}

template <int V>
__device__ __forceinline__ void row_values(const cuda_job &j, int32_t n, float (&z)[V], const float4 &c) {
    if (j.norm == NCT_NORM_GIVEN) {
        bool odd = false;
#pragma unroll
        for (int i = 0; i < V; i++) {
            odd |= !isfinite(z[i]);
            z[i] = apply_given(z[i], c);
        }
        if (odd && j.flags) atomicOr(&j.flags[n], NCT_SAW_NONFINITE);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) z[i] = apply(z[i], c);
    }
    act_row(z, j.g.act);
}

/* One row of a slot from shared memory (16-byte aligned) to memory: 16-byte stores where y allows, else coalesced single
 * ones; same bits. */
__device__ __forceinline__ void row_store(const cuda_job &j, const nct_frame &f, int32_t n, int32_t t0, int32_t steps,
    int32_t channel, const float *v, const float4 &c) {
    int32_t lane = threadIdx.x & 31, left = min(steps, f.t_out - t0), size = j.y_dtype == NCT_F32 ? 4 : 2;
    if (j.what & DO_RAW) {
        float *y = raw_row(j, f, n, channel) + t0;
        bool wide = ((uintptr_t)y & 15) == 0;
        int32_t done = wide ? left & ~3 : 0;
        for (int32_t t = lane * 4; t < done; t += 128) __stcg((float4 *)(y + t), *(const float4 *)(v + t));
        for (int32_t t = done + lane; t < left; t += 32) y[t] = v[t];
    }
    if (!(j.what & DO_APPLY)) return;
    int64_t base = f.y_off + channel * f.y_pitch + t0;
    bool wide = (((uintptr_t)j.y + base * size) & (4 * size - 1)) == 0;
    int32_t done = wide ? left & ~3 : 0;
    for (int32_t t = lane * 4; t < done; t += 128) {
        float z[4];
        *(float4 *)z = *(const float4 *)(v + t);
        row_values(j, n, z, c);
        if (size == 4)
            __stcg((float4 *)((float *)j.y + base + t), make_float4(z[0], z[1], z[2], z[3]));
        else {
            uint2 out;
            out.x = j.y_dtype == NCT_BF16 ? pack_bf16(z[0], z[1]) : pack_f16(z[0], z[1]);
            out.y = j.y_dtype == NCT_BF16 ? pack_bf16(z[2], z[3]) : pack_f16(z[2], z[3]);
            *(uint2 *)((unsigned short *)j.y + base + t) = out;
        }
    }
    for (int32_t t = done + lane; t < left; t += 32) {
        float z[1] = {v[t]};
        row_values(j, n, z, c);
        store_element(j.y, j.y_dtype, base + t, z[0]);
    }
}

/* Bias, leaves, and the tile through shared memory. acc[i][n][e]: channel 16 (wm MT + i) + g + 8 (e / 2),
 * column 64 wn + 8 n + 2 q + e % 2. channel0: of the tile, within the conv group. */
template <int WM, int WN, int MT>
__device__ __forceinline__ void mma_finish(const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t group,
    int32_t channel0, float (&acc)[MT][8][4], float *room) {
    constexpr int BM = 16 * MT * WM, BN = 64 * WN, PITCH = BN + 4;
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const int32_t wm = warp % WM, wn = warp / WM;
    const bool partial = j.what & DO_PARTIAL;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int32_t row = 16 * (wm * MT + i) + g + 8 * h, channel = channel0 + row;
            bool mine = channel < j.g.cog;
            channel += group * j.g.cog;
            float b = mine && !partial ? j.bias[channel] : 0, v[16];
#pragma unroll
            for (int n = 0; n < 16; n++) {
                float u = acc[i][n >> 1][2 * h + (n & 1)];
                v[n] = partial ? u : __fadd_rn(u, b);
            }
            if (j.what & DO_LEAVES) row_leaves(j, sh, s, 64 * wn, channel, mine, v);
#pragma unroll
            for (int n = 0; n < 8; n++)
                *(float2 *)(room + row * PITCH + 64 * wn + 8 * n + 2 * q) = make_float2(v[2 * n], v[2 * n + 1]);
        }
    if (!(j.what & (DO_RAW | DO_APPLY | DO_PARTIAL))) return;
    asm volatile("bar.sync 1, %0;" ::"n"(32 * WM * WN) : "memory"); /* producers are gone */
    const int32_t steps = 1 << sh.slot_shift, rows = min(BM, j.g.cog - channel0);
    for (int32_t at = warp; at < rows * sh.slots; at += WM * WN) {
        int32_t row = at / sh.slots, slot = at - row * sh.slots, n = s.n0 + slot;
        if (n >= j.n_frames) continue;
        int32_t channel = group * j.g.cog + channel0 + row;
        const float *v = room + row * PITCH + slot * steps;
        if (partial) {
            float *to = j.partial + (((int64_t)blockIdx.y * j.n_frames + n) * j.g.co + channel) * steps;
            for (int32_t t = lane; t < steps; t += 32) to[t] = v[t];
        } else
            row_store(j, frame_at(j, n), n, s.t0, steps, channel, v,
                j.what & DO_APPLY ? j.coef[(int64_t)n * j.g.co + channel] : make_float4(0, 0, 0, 0));
    }
}
#endif
