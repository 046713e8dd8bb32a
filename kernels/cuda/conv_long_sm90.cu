/* conv_long_sm90.cu: PLAN_LONG, at most 16 channels out of many, long frames (Demucs' dconv: 64 -> 16 over 220500 steps).
 *
 * Idea: reading x is the work, so a frame is spread over all SMs and its outputs stay in registers while the CTAs meet.
 * A CTA of 16 warps owns a node of 2048 steps, a warp 128 of them: M = 16 output channels, N = 8 steps, accumulators of
 * 16 MMAs. x comes in chunks of 32 bytes' worth of channels (8 f32, 16 of 16 bits) by bulk copies, one a row, three
 * chunks in flight beside the one in use; a tap is an address shift. When a frame's leaves are out, the copies of the
 * next frame's x are already running, so that the memory bus works through the meeting.
 * Steps are dealt to the MMA's columns so that a lane's results are 4 consecutive steps, and its fragments 2 (pairs: where
 * all shifts are even, one load serves two MMAs).
 *
 * Plan: chunk, then tap ascending, one MMA chain that starts from the bias; tf32, or bf16 where x is bf16 under bf16.
 * Leaf: 1 channel x 2048 steps: 16 runs of 128 by two passes each, merged about the first run's mean in float64.
 * Data flow: x (C_in, node + reach) -> acc (16, 2048) -> leaves -> all CTAs -> normalise, activate -> y.
 * Schedules: fused (a frame within the SMs, several short ones at once), again (leaves, norm_finish, conv again, y).
 * Ladder (H200, dconv, tf32 / bf16 us; floor 66 / 33):
 *   PLAN_WGMMA, 32 x 256 tiles, raw f32 y kept, then applied                    305 / 336
 *   this file, two passes over x (again)                                        283 / 180
 *   fused: y in registers while the SMs meet                                    181 / 123
 *   rounding x left out (the tensor cores cut it)                               180 / 122: not the limit, put back
 *   bulk copies started by each warp in turn instead of the first               181 / 123: not the limit either
 *   The profiler (tf32): 1.3 instructions a clock, two of three issue slots have no warp that could: fragment loads wait
 *   for each other in the few registers that 64 accumulators leave. Next: 64 steps a warp on twice the nodes, or wgmma
 *   with x turned once. Lost as well: the same kernel for one tap and 128 channels (convtasnet), 62 / 51 where 64 / 49 was.
 * Limits: stride 1, one conv group, C_in*K <= 384, reach <= 256 steps. */
#include "long_x.cuh"
#include <cooperative_groups.h>

enum { LONG_WARPS = 16, LONG_CTA = 32 * LONG_WARPS, LONG_RUN = 128, LONG_TILES = LONG_RUN / 8 };
enum { LONG_SHARED = 217 * 1024, LONG_PRODUCTS = 384, LONG_REACH = 256 };

/* One chunk into the warp's accumulators. */
template <int KIND, bool PAIR>
__device__ __forceinline__ void long_chunk(float (&acc)[LONG_TILES][4], const cuda_job &j, const long_shape &sh,
    const char *stage, const uint4 *w, int32_t rows, const int32_t (&skew)[4], int32_t t0) {
    constexpr int SIZE = KIND == LONG_F32 ? 4 : 2, PER = KIND == LONG_BF16 ? 2 : 1;
    const int32_t lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const char *row[2][PER];
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
        for (int p = 0; p < PER; p++) {
            int32_t r = PER * q + p + 4 * PER * e;
            if (r >= rows) r = 0; /* a product of this very output, times 0 */
            row[e][p] = stage + r * sh.pitch + skew[e * PER + p] + (t0 + 2 * g) * SIZE;
        }
    for (int32_t tap = 0; tap < j.g.k; tap++, w += 32) {
        uint32_t a[4];
        *(uint4 *)a = w[lane];
#pragma unroll
        for (int i = 0; i < LONG_TILES; i += 2) {
            uint32_t b[2][2];
#pragma unroll
            for (int e = 0; e < 2; e++) long_words<KIND, PAIR>(b[e], j.x_dtype, row[e][0], row[e][PER - 1], 8 * i);
#pragma unroll
            for (int v = 0; v < 2; v++)
                if constexpr (KIND == LONG_BF16)
                    long_mma_bf16(acc[i + v], a, b[0][v], b[1][v]);
                else
                    narrow_mma(
                        acc[i + v], a, b[0][v], b[1][v], acc[i + v][0], acc[i + v][1], acc[i + v][2], acc[i + v][3]);
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int p = 0; p < PER; p++) row[e][p] += j.g.dil * SIZE;
    }
}
/* ---- statistics ---- */

/* Each (tile i, column e) with its step of the warp's run. */
template <typename F> __device__ __forceinline__ void long_each(F each) {
    const int32_t q = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < LONG_TILES; i += 2)
#pragma unroll
        for (int s = 0; s < 4; s++) each(i + (s & 1), s >> 1, 8 * i + 4 * q + s);
}

/* Run leaves (mean, sd, q, n) of the lane's two channels to leaves[warp][channel]. */
__device__ __forceinline__ void long_runs(const float (&acc)[LONG_TILES][4], int32_t left, float4 (*leaves)[16]) {
    const int32_t lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, warp = threadIdx.x >> 5;
    int32_t n = min(LONG_RUN, left);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float first = __shfl_sync(~0u, acc[0][2 * h], lane & 28), sum = 0, sd = 0, sq = 0;
        long_each([&](int i, int e, int32_t t) {
            if (t < n) sum = __fadd_rn(sum, __fadd_rn(acc[i][2 * h + e], -first));
        });
        float p = __fadd_rn(first, __fdiv_rn(quad_sum(sum), (float)n));
        long_each([&](int i, int e, int32_t t) {
            float d = __fadd_rn(acc[i][2 * h + e], -p);
            if (t < n) sd = __fadd_rn(sd, d), sq = __fmaf_rn(d, d, sq);
        });
        sd = quad_sum(sd);
        sq = quad_sum(sq);
        if (q == 0) leaves[warp][8 * h + g] = leaf_make(p, sd, sq, n > 0 ? n : 0);
    }
}
/* The 16 runs of each channel -> its leaf in memory. Threads 0..255: channel = thread / 16. */
__device__ __forceinline__ void long_leaf(const cuda_job &j, const long_item &t, const float4 (*leaves)[16]) {
    int32_t channel = threadIdx.x >> 4, run = threadIdx.x & 15;
    if (threadIdx.x >= 256) return;
    double shift = leaf_center(leaves[0][channel]);
    moments m = {};
    float4 leaf = leaves[run][channel];
    if (leaf.w > 0) moments_add(m, leaf, shift);
#pragma unroll
    for (int mask = 8; mask; mask >>= 1) m = moments_shuffle(m, mask);
    if (run || channel >= j.g.co) return;
    nct_stat s = stat_of(m, shift, (double)t.left);
    float p = __double2float_rn(s.mean);
    double off = __dadd_rn(s.mean, -(double)p), sd = __dmul_rn(off, s.count);
    j.leaves[leaf_start(j, t.n) * j.g.co + (int64_t)channel * leaf_columns(j, t.f.t_out) + t.t0 / NARROW_LEAF] =
        leaf_make(p, __double2float_rn(sd), __double2float_rn(__fma_rn(off, sd, s.m2)), t.left);
}

/* ---- y ---- */

__device__ __forceinline__ void long_y(
    const float (&acc)[LONG_TILES][4], const cuda_job &j, const long_item &t, int32_t run0, const float4 *coef) {
    const int32_t g = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3,
                  size = j.y_dtype == NCT_F32 || j.what & DO_RAW ? 4 : 2;
    const bool raw = j.what & DO_RAW, given = j.norm == NCT_NORM_GIVEN && !raw;
    int32_t left = t.left - run0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int32_t channel = 8 * h + g;
        if (channel >= j.g.co) continue;
        float4 c = coef[channel];
        int64_t base = t.f.y_off + channel * t.f.y_pitch + t.t0 + run0;
        bool wide = (((uintptr_t)j.y + base * size) & (4 * size - 1)) == 0;
#pragma unroll
        for (int i = 0; i < LONG_TILES; i += 2) {
            float z[4] = {acc[i][2 * h], acc[i + 1][2 * h], acc[i][2 * h + 1], acc[i + 1][2 * h + 1]};
            int32_t step = 8 * i + 4 * q;
            bool odd = false;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                odd |= given && step + e < left && !isfinite(z[e]);
                if (given) z[e] = __fadd_rn(z[e], __fadd_rn(z[e], -z[e]));
                if (!raw) z[e] = narrow_value(z[e], c);
            }
            if (odd && j.flags) atomicOr(&j.flags[t.n], NCT_SAW_NONFINITE);
            if (!raw) narrow_act_job(z, j);
            long_store4(j, base + step, z, wide, size, left - step);
        }
    }
}

/* ---- the kernel ---- */

/* Fragments of all weights: [chunk][tap][lane]. */
template <int KIND>
__device__ __forceinline__ void long_weights(uint32_t *to, const cuda_job &j, const long_shape &sh) {
    int32_t words = sh.chunks * j.g.k * 128;
    const float *w = (const float *)j.weight;
#pragma unroll 8
    for (int32_t i = threadIdx.x; i < words; i += LONG_CTA) {
        int32_t e = i & 3, lane = i >> 2 & 31, tap = (i >> 7) % j.g.k, chunk = (i >> 7) / j.g.k;
        int32_t channel = (lane >> 2) + 8 * (e & 1), r = (lane & 3) + 4 * (e >> 1);
        auto weight = [&](int32_t row) {
            int32_t c = chunk * sh.rows + row;
            return row < sh.rows && c < j.g.cig && channel < j.g.co ? w[(c * j.g.k + tap) * j.g.co + channel] : 0.0f;
        };
        to[i] = KIND == LONG_BF16 ? pack_bf16(weight(2 * r), weight(2 * r + 1)) : round_tf32(weight(r));
    }
}

template <int KIND, bool PAIR>
__global__ void __launch_bounds__(LONG_CTA, 1)
    conv_long(const __grid_constant__ cuda_job j, const __grid_constant__ long_shape sh) {
    constexpr int SIZE = KIND == LONG_F32 ? 4 : 2, PER = KIND == LONG_BF16 ? 2 : 1;
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t full[LONG_STAGES_MAX];
    __shared__ float4 runs[LONG_WARPS][16], coef[16];
    __shared__ moments room[MERGE_THREADS];
    __shared__ norm_value value;
    const int32_t warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3, stage_bytes = sh.stage;
    uint32_t *weights = (uint32_t *)(shared + sh.stages * stage_bytes);
    if (threadIdx.x == 0)
        for (int32_t i = 0; i < sh.stages; i++) barrier_init(full + i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    /* Chunk `at` of all chunks of all turns; the copies run so many ahead. */
    auto load = [&](int32_t at) {
        if (warp != at % LONG_WARPS) return; /* each takes its turn: the others go on */
        long_item t = long_item_at(j, sh, at / sh.chunks);
        int32_t s = at % sh.stages;
        if (t.left <= 0 && (threadIdx.x & 31) == 0) barrier_expect(full + s, 0);
        if (t.left <= 0) return;
        long_load<SIZE, 1>(j, sh, t, at % sh.chunks, shared + s * stage_bytes, full + s, 0);
    };
    for (int32_t i = 0; i < sh.stages; i++) load(i);
    long_weights<KIND>(weights, j, sh);
    __syncthreads();
    const int32_t turns = j.what & DO_MEET ? (j.n_frames + sh.slots - 1) / sh.slots : 1, run0 = warp * LONG_RUN;
    int32_t at = 0;
    for (int32_t turn = 0; turn < turns; turn++) {
        long_item t = long_item_at(j, sh, turn);
        float acc[LONG_TILES][4], b[2] = {g < j.g.co ? j.bias[g] : 0, 8 + g < j.g.co ? j.bias[8 + g] : 0};
#pragma unroll
        for (int i = 0; i < LONG_TILES; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][e] = b[e >> 1];
        bool ragged = t.left > 0 && long_ragged(j, t);
        for (int32_t chunk = 0; chunk < sh.chunks; chunk++, at++) {
            int32_t s = at % sh.stages, rows = min(sh.rows, j.g.cig - chunk * sh.rows);
            char *stage = shared + s * stage_bytes;
            barrier_wait(full + s, at / sh.stages & 1);
            if (ragged) {
                long_patch<SIZE>(j, sh, t, chunk, stage);
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncthreads();
            }
            if (run0 < t.left) {
                int32_t skew[4];
#pragma unroll
                for (int e = 0; e < 2 * PER; e++) {
                    int32_t r = PER * q + e % PER + 4 * PER * (e / PER);
                    int32_t c = chunk * sh.rows + (r < rows ? r : 0);
                    skew[e] = long_skew<SIZE>(j, t, c);
                }
                long_chunk<KIND, PAIR>(
                    acc, j, sh, stage, (const uint4 *)weights + chunk * j.g.k * 32, rows, skew, run0);
            }
            __syncthreads();
            load(at + sh.stages);
        }
        if (t.left > 0) {
            if (j.what & DO_LEAVES) {
                long_runs(acc, t.left - run0, runs);
                __syncthreads();
                long_leaf(j, t, runs);
            }
        }
        if (j.what & DO_MEET) {
            cooperative_groups::this_grid().sync();
            if (t.left <= 0) continue;
            for (int32_t group = 0; group < j.g.norm_groups; group++) {
                int64_t count = (int64_t)j.g.cg * leaf_columns(j, t.f.t_out);
                const float4 *leaves = j.leaves + leaf_start(j, t.n) * j.g.co + group * count;
                double shift = leaf_center(__ldcg(leaves));
                moments m = moments_merge(leaves, count, shift, room);
                if (warp == 0) {
                    norm_value v = group_finish(j, t.f, t.n, group, t.t0 == 0, m, shift);
                    if (threadIdx.x == 0) value = v;
                }
                __syncthreads();
                if ((int32_t)threadIdx.x < j.g.cg)
                    coef[group * j.g.cg + threadIdx.x] = coef_of(j, value, group * j.g.cg + threadIdx.x);
                __syncthreads();
            }
        } else if (t.left > 0 && j.what & DO_APPLY) {
            if ((int32_t)threadIdx.x < j.g.co) coef[threadIdx.x] = j.coef[(int64_t)t.n * j.g.co + threadIdx.x];
            __syncthreads();
        }
        if (t.left > run0 && j.what & (DO_APPLY | DO_RAW)) long_y(acc, j, t, run0, coef);
    }
}

/* ---- host ---- */

static long_shape long_shape_of(const cuda_layer *l, const cuda_job *job) {
    const geometry *g = &job->g;
    int32_t size = job->x_dtype == NCT_F32 ? 4 : 2;
    int32_t bf16 = l->precision == NCT_PREC_BF16 && job->x_dtype == NCT_BF16;
    long_shape sh = {};
    sh.rows = bf16 ? 16 : 8;
    sh.chunks = (g->cig + sh.rows - 1) / sh.rows;
    int64_t steps =
        job->max_t_out < NARROW_LEAF ? (job->max_t_out + LONG_RUN - 1) / LONG_RUN * LONG_RUN : NARROW_LEAF;
    int64_t bytes = (steps + (g->k - 1) * (int64_t)g->dil + 1) * size + 48;
    /* rows 32 bytes (bf16: two rows 16) apart in the banks */
    int32_t want = bf16 ? 16 : 32;
    sh.pitch = (int32_t)((bytes - want + 127) / 128 * 128 + want);
    sh.nodes = (job->max_t_out + NARROW_LEAF - 1) / NARROW_LEAF;
    sh.slots = sh.nodes <= l->sms ? l->sms / sh.nodes : 0;
    sh.leaf = NARROW_LEAF;
    sh.stages = LONG_STAGES_MAX;
    sh.stage = sh.rows * sh.pitch;
    return sh;
}
static size_t long_bytes(const geometry *g, const long_shape *sh) {
    return (size_t)sh->stages * sh->stage + (size_t)sh->chunks * g->k * 512;
}
int long_holds(const geometry *g) {
    return g->groups == 1 && g->stride == 1 && g->co <= 16 && g->ci >= 8 && (int64_t)g->ci * g->k <= LONG_PRODUCTS &&
           (int64_t)(g->k - 1) * g->dil <= LONG_REACH;
}
int long_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    long_shape sh = long_shape_of(l, job);
    return l->precision != NCT_PREC_F32 && long_bytes(&job->g, &sh) <= LONG_SHARED &&
           (row->pass != PASS_FUSED || sh.slots > 0);
}

template <int KIND, bool PAIR> static cudaError_t run(const cuda_layer *l, const cuda_job *job, cudaStream_t s) {
    long_shape sh = long_shape_of(l, job);
    auto kernel = conv_long<KIND, PAIR>;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, LONG_SHARED);
    if (err) return err;
    int32_t meet = job->what & DO_MEET;
    int32_t slots = sh.slots < job->n_frames ? sh.slots : job->n_frames;
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)(meet ? slots * sh.nodes : job->tiles));
    config.blockDim = dim3(LONG_CTA);
    config.dynamicSmemBytes = long_bytes(&job->g, &sh);
    config.stream = s;
    config.attrs = &together;
    config.numAttrs = meet ? 1 : 0;
    if (meet) sh.slots = slots;
    return cudaLaunchKernelEx(&config, kernel, *job, sh);
}
cudaError_t long_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    (void)row;
    bool even = long_even(job);
    if (job->x_dtype == NCT_F32) return even ? run<LONG_F32, true>(l, job, s) : run<LONG_F32, false>(l, job, s);
    if (l->precision == NCT_PREC_BF16 && job->x_dtype == NCT_BF16)
        return even ? run<LONG_BF16, true>(l, job, s) : run<LONG_BF16, false>(l, job, s);
    return run<LONG_HALF, false>(l, job, s);
}
cudaError_t long_load_code(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, conv_long<LONG_F32, true>);
    if (!err) err = cudaFuncGetAttributes(&a, conv_long<LONG_F32, false>);
    if (!err) err = cudaFuncGetAttributes(&a, conv_long<LONG_BF16, true>);
    if (!err) err = cudaFuncGetAttributes(&a, conv_long<LONG_BF16, false>);
    return err ? err : cudaFuncGetAttributes(&a, conv_long<LONG_HALF, false>);
}
