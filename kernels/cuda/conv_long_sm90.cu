/* conv_long_sm90.cu: PLAN_LONG, at most 16 channels out of many, long frames (Demucs' dconv: 64 -> 16 over 220500 steps).
 *
 * Idea: reading x is the work, so a frame is spread over all SMs and its outputs stay in registers while the CTAs meet.
 * A CTA of 16 warps owns a node of 2048 steps, a warp 128 of them: M = 16 output channels, N = 8 steps, accumulators of
 * 16 MMAs. x comes in chunks of 32 bytes' worth of channels (8 f32, 16 of 16 bits) by bulk copies, one a row, each started
 * by a warp of its own, two or three chunks ahead; a tap is an address shift. When a frame's leaves are out, the copies of
 * the next frame's x are already running, so that the memory bus works through the meeting.
 * Steps are dealt to the MMA's columns so that a lane's results are 4 consecutive steps (long_y.cuh stores them).
 *
 * Plan: chunk, then tap ascending, one MMA chain that starts from the bias; tf32, or bf16 where x is bf16 under bf16.
 * Leaf: 1 channel x 2048 steps: 16 runs of 128 by two passes each, merged about the first run's mean in float64.
 * Data flow: x (C_in, node + reach) -> acc (16, 2048) -> leaves -> all CTAs -> normalise, activate -> y.
 * Schedules: fused (a frame within the SMs, several short ones at once), again (leaves, norm_finish, conv again, y).
 * Ladder (H200, dconv, tf32 / bf16 us; floor 66 / 33; T + 1 beside it):
 *   PLAN_WGMMA, 32 x 256 tiles, raw f32 y kept, then applied                    305 / 336
 *   this file, two passes over x (again)                                        283 / 180
 *   fused: y in registers while the SMs meet                                    181 / 123      245 / 199
 *   rounding x left out, put back; copies started by each warp in turn          180 / 122: not the limit
 *   activation known when compiled; whole runs without a test a step            185 / 119: not the limit
 *   no barrier of all warps a chunk; y by shifted, whole 64 bytes               181 / 125      185 / 161
 *   what the next turns need in shared memory instead of registers              163 / 112
 *   no undefined value alive through the main loop (20 registers of a conditional load in the merge): words of four tiles
 *   on their way while four are multiplied; weights before the copies           150 / 100      154 / 136
 *   Bulk copies run at 3.8 to 4.2 TB/s at most distances from 128 bytes, 3.3 at the worst. Stamps of a turn
 *   (tf32): products 19 us for 56 MB, leaves 1.3,
 *   meeting 1.5, merge 2.2, y 5; but all wait 7 us (bf16 3.5) for the frame's first CTA, all of whose warps put padding
 *   into every chunk. Next: padding by the warps that read it. Lost: one tap and 128 channels (convtasnet), 62 / 51 where
 *   64 / 49 was; a 17th warp for the copies (96 registers a thread instead of 128).
 * Limits: stride 1, one conv group, C_in*K <= 384, reach <= 256 steps. */
#include "long_y.cuh"
#include <cooperative_groups.h>

enum { LONG_WARPS = 16, LONG_CTA = 32 * LONG_WARPS };
enum { LONG_SHARED = 214 * 1024, LONG_PRODUCTS = 384, LONG_REACH = 256 };
enum { LONG_MERGE = 512, LONG_LEAVES = 5 * LONG_MERGE };

/* The chunk's channel that lane q's product (p of a word of PER, half e) of an MMA takes: rows that are read together lie
 * side by side in shared memory. */
template <int PER> __device__ __forceinline__ int32_t long_row(int32_t q, int32_t p, int32_t e) {
    return q + 4 * p + 4 * PER * e;
}
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
            int32_t r = long_row<PER>(q, p, e);
            if (r >= rows) r = 0; /* a product of this very output, times 0 */
            row[e][p] = stage + r * sh.pitch + skew[e * PER + p] + (t0 + 2 * g) * SIZE;
        }
    for (int32_t tap = 0; tap < j.g.k; tap++, w += 32) {
        uint32_t a[4];
        *(uint4 *)a = w[lane];
        /* LONG_AHEAD tiles' words are on their way while those before are multiplied. */
        uint32_t b[2][LONG_AHEAD / 2][2][2];
        auto fetch = [&](int32_t i) {
#pragma unroll
            for (int u = 0; u < LONG_AHEAD / 2; u++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    long_fetch<KIND, PAIR>(b[i / LONG_AHEAD & 1][u][e], row[e][0], row[e][PER - 1], 8 * (i + 2 * u));
        };
        fetch(0);
#pragma unroll
        for (int i = 0; i < LONG_TILES; i += LONG_AHEAD) {
            if (i + LONG_AHEAD < LONG_TILES) fetch(i + LONG_AHEAD);
#pragma unroll
            for (int u = 0; u < LONG_AHEAD / 2; u++) {
                uint32_t(&w)[2][2] = b[i / LONG_AHEAD & 1][u];
#pragma unroll
                for (int e = 0; e < 2; e++) long_make<KIND>(w[e], j.x_dtype);
#pragma unroll
                for (int v = 0; v < 2; v++) {
                    float(&d)[4] = acc[i + 2 * u + v];
                    if constexpr (KIND == LONG_BF16)
                        long_mma_bf16(d, a, w[0][v], w[1][v]);
                    else
                        narrow_mma(d, a, w[0][v], w[1][v], d[0], d[1], d[2], d[3]);
                }
            }
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

/* Run leaves (mean, sd, q, n) of the lane's two channels to leaves[warp][channel]. FULL: all 128 steps are there. */
template <bool FULL>
__device__ __forceinline__ void long_run(const float (&acc)[LONG_TILES][4], int32_t n, float4 (*leaves)[16]) {
    const int32_t lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, warp = threadIdx.x >> 5;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float first = __shfl_sync(~0u, acc[0][2 * h], lane & 28), sum = 0, sd = 0, sq = 0;
        long_each([&](int i, int e, int32_t t) {
            if (FULL || t < n) sum = __fadd_rn(sum, __fadd_rn(acc[i][2 * h + e], -first));
        });
        float p =
            __fadd_rn(first, FULL ? __fmul_rn(quad_sum(sum), 1.0f / LONG_RUN) : __fdiv_rn(quad_sum(sum), (float)n));
        long_each([&](int i, int e, int32_t t) {
            float d = __fadd_rn(acc[i][2 * h + e], -p);
            if (FULL || t < n) sd = __fadd_rn(sd, d), sq = __fmaf_rn(d, d, sq);
        });
        sd = quad_sum(sd);
        sq = quad_sum(sq);
        if (q == 0) leaves[warp][8 * h + g] = leaf_make(p, sd, sq, n > 0 ? n : 0);
    }
}
__device__ __forceinline__ void long_runs(const float (&acc)[LONG_TILES][4], int32_t left, float4 (*leaves)[16]) {
    if (left >= LONG_RUN)
        long_run<true>(acc, LONG_RUN, leaves);
    else
        long_run<false>(acc, left, leaves);
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

/* moments_merge's sums of at most LONG_LEAVES leaves, in every lane of the first warp: all loads in flight at once. */
__device__ __forceinline__ moments long_merge(const float4 *leaves, int32_t count, double &shift, moments *room) {
    const int32_t tid = threadIdx.x;
    if (tid < LONG_MERGE) {
        float4 v[LONG_LEAVES / LONG_MERGE], zero = __ldcg(leaves);
#pragma unroll
        for (int i = 0; i < LONG_LEAVES / LONG_MERGE; i++)
            v[i] = __ldcg(leaves + min(tid + i * LONG_MERGE, count - 1));
        shift = leaf_center(zero);
        moments lane[2] = {};
#pragma unroll
        for (int i = 0; i < LONG_LEAVES / LONG_MERGE; i++)
            if (tid + i * LONG_MERGE < count) moments_add(lane[i & 1], v[i], shift);
        room[tid] = moments_sum(lane[0], lane[1]);
    }
    __syncthreads();
    if (tid >= 32) return {};
    moments w[8];
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = moments_sum(room[i * 32 + tid], room[(i + 8) * 32 + tid]);
#pragma unroll
    for (int half = 4; half; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++) w[i] = moments_sum(w[i], w[i + half]);
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) w[0] = moments_shuffle(w[0], mask);
    return w[0];
}
/* What normalises the item's channels, in `coef`, by all threads; ends in order. */
__device__ __forceinline__ void long_meet(const cuda_job &j, const long_item &t, float4 *coef, moments *room) {
    for (int32_t group = 0; group < j.g.norm_groups; group++) {
        int32_t count = j.g.cg * leaf_columns(j, t.f.t_out), lane = threadIdx.x;
        double shift;
        moments m = long_merge(j.leaves + leaf_start(j, t.n) * j.g.co + (int64_t)group * count, count, shift, room);
        if (threadIdx.x < 32) {
            norm_value v = group_finish(j, t.f, t.n, group, t.t0 == 0, m, shift);
            if (lane < j.g.cg) coef[group * j.g.cg + lane] = coef_of(j, v, group * j.g.cg + lane);
        }
        __syncthreads();
    }
}

/* ---- the kernel ---- */

/* Fragments of all weights: [chunk][tap][lane]. */
template <int KIND>
__device__ __forceinline__ void long_weights(uint32_t *to, const cuda_job &j, const long_shape &sh) {
    const float *w = (const float *)j.weight;
    const int32_t lane = threadIdx.x & 31, q = lane & 3;
    for (int32_t at = threadIdx.x >> 5; at < sh.chunks * j.g.k; at += LONG_WARPS) {
        const int32_t chunk = at / j.g.k, tap = at - chunk * j.g.k;
        auto weight = [&](int32_t channel, int32_t row) {
            int32_t c = chunk * sh.rows + row;
            return row < sh.rows && c < j.g.cig && channel < j.g.co ? w[(c * j.g.k + tap) * j.g.co + channel] : 0.0f;
        };
        uint32_t v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int32_t channel = (lane >> 2) + 8 * (e & 1);
            if constexpr (KIND == LONG_BF16)
                v[e] =
                    pack_bf16(weight(channel, long_row<2>(q, 0, e >> 1)), weight(channel, long_row<2>(q, 1, e >> 1)));
            else
                v[e] = round_tf32(weight(channel, long_row<1>(q, 0, e >> 1)));
        }
        ((uint4 *)to)[at * 32 + lane] = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

template <int KIND, bool PAIR, int ACT, bool Y16>
__global__ void __launch_bounds__(LONG_CTA, 1)
    conv_long(const __grid_constant__ cuda_job j, const __grid_constant__ long_shape sh) {
    constexpr int SIZE = KIND == LONG_F32 ? 4 : 2, PER = KIND == LONG_BF16 ? 2 : 1;
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t full[LONG_STAGES_MAX], empty[LONG_STAGES_MAX];
    __shared__ float4 runs[LONG_WARPS][16], coef[16];
    __shared__ moments room[LONG_MERGE];
    __shared__ long_item items[8]; /* turn mod 8, four turns ahead: in memory, so that registers are left */
    const int32_t warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3, stage_bytes = sh.stage;
    uint32_t *weights = (uint32_t *)(shared + sh.stages * stage_bytes);
    if (threadIdx.x == 0)
        for (int32_t i = 0; i < sh.stages; i++) {
            barrier_init(full + i, sh.rows);
            barrier_init(empty + i, LONG_WARPS);
        }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const int32_t turns = j.what & DO_MEET ? (j.n_frames + sh.slots - 1) / sh.slots : 1, run0 = warp * LONG_RUN;
    if (threadIdx.x < 5) items[threadIdx.x] = long_item_at(j, sh, threadIdx.x);
    __syncthreads();
    /* Copies run ahead: the warp's row of chunk `chunk` of turn `turn`, the at-th of all. */
    int32_t ahead_turn = 0, ahead_chunk = 0, ahead_s = 0, ahead_phase = 1;
    auto load = [&] {
        if (ahead_turn >= turns) return;
        if (warp < sh.rows && (threadIdx.x & 31) == 0) {
            const long_item &t = items[ahead_turn % 8];
            const int32_t c = ahead_chunk * sh.rows + warp;
            long_copy copy = {};
            if (t.left > 0 && c < j.g.cig) copy = long_copy_of<SIZE>(j, long_rows_of<SIZE>(j, t), c);
            barrier_wait(empty + ahead_s, ahead_phase);
            barrier_expect(full + ahead_s, copy.bytes);
            char *to = shared + ahead_s * stage_bytes + warp * sh.pitch + copy.to;
            if (copy.bytes) bulk_copy(to, copy.from, copy.bytes, full + ahead_s);
        }
        __syncwarp();
        if (++ahead_s == sh.stages) ahead_s = 0, ahead_phase ^= 1;
        if (++ahead_chunk == sh.chunks) ahead_chunk = 0, ahead_turn++;
    };
    load();
    long_weights<KIND>(weights, j, sh); /* not behind all the copies */
    for (int32_t i = 1; i < sh.stages; i++) load();
    __syncthreads();
    int32_t s = 0, phase = 0;
    for (int32_t turn = 0; turn < turns; turn++) {
        const long_item &t = items[turn % 8];
        if (threadIdx.x == 0 && turn > 0) items[(turn + 4) % 8] = long_item_at(j, sh, turn + 4);
        float acc[LONG_TILES][4], b[2] = {g < j.g.co ? j.bias[g] : 0, 8 + g < j.g.co ? j.bias[8 + g] : 0};
#pragma unroll
        for (int i = 0; i < LONG_TILES; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][e] = b[e >> 1];
        const bool ragged = t.left > 0 && long_ragged(j, t);
        for (int32_t chunk = 0; chunk < sh.chunks; chunk++) {
            const int32_t rows = min(sh.rows, j.g.cig - chunk * sh.rows);
            char *stage = shared + s * stage_bytes;
            barrier_wait(full + s, phase);
            if (ragged) {
                long_patch<SIZE>(j, sh, t, chunk, stage);
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncthreads();
            }
            if (run0 < t.left) {
                int32_t skew[4];
#pragma unroll
                for (int e = 0; e < 2 * PER; e++) {
                    int32_t r = long_row<PER>(q, e % PER, e / PER);
                    int32_t c = chunk * sh.rows + (r < rows ? r : 0);
                    skew[e] = long_skew<SIZE>(j, t, c);
                }
                long_chunk<KIND, PAIR>(
                    acc, j, sh, stage, (const uint4 *)weights + chunk * j.g.k * 32, rows, skew, run0);
            }
            __syncwarp();
            if ((threadIdx.x & 31) == 0) barrier_arrive(empty + s);
            if (++s == sh.stages) s = 0, phase ^= 1;
            /* One chunk late, so that nobody waits for the slowest warp; all of them before the CTAs meet. */
            if (chunk) load();
            if (chunk == sh.chunks - 1) load();
        }
        if (t.left > 0 && j.what & DO_LEAVES) {
            long_runs(acc, t.left - run0, runs);
            __syncthreads();
            long_leaf(j, t, runs);
        }
        if (j.what & DO_MEET) {
            cooperative_groups::this_grid().sync();
            if (t.left <= 0) continue;
            long_meet(j, t, coef, room);
        } else if (t.left > 0 && j.what & DO_APPLY) {
            if ((int32_t)threadIdx.x < j.g.co) coef[threadIdx.x] = j.coef[(int64_t)t.n * j.g.co + threadIdx.x];
            __syncthreads();
        }
        if (t.left > run0 && j.what & (DO_APPLY | DO_RAW)) long_y<ACT, Y16>(acc, j, t, run0, coef);
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
    int64_t bytes = (steps + (g->k - 1) * (int64_t)g->dil + 1) * size + 64;
    const int32_t want = 32; /* rows 32 bytes apart in the banks */
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

template <int KIND, bool PAIR, int ACT, bool Y16>
static cudaError_t run_kernel(const cuda_layer *l, const cuda_job *job, cudaStream_t s) {
    long_shape sh = long_shape_of(l, job);
    auto kernel = conv_long<KIND, PAIR, ACT, Y16>;
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
template <int KIND, bool PAIR> static cudaError_t run(const cuda_layer *l, const cuda_job *job, cudaStream_t s) {
    bool plain = job->norm != NCT_NORM_GIVEN && !(job->what & DO_RAW) && job->g.act == NCT_GELU;
    if constexpr (KIND == LONG_F32)
        if (plain && job->y_dtype == NCT_F32) return run_kernel<KIND, PAIR, NARROW_GELU, false>(l, job, s);
    if constexpr (KIND == LONG_BF16)
        if (plain && job->y_dtype == NCT_BF16) return run_kernel<KIND, PAIR, NARROW_GELU_16, true>(l, job, s);
    if (job->y_dtype != NCT_F32 && !(job->what & DO_RAW)) return run_kernel<KIND, PAIR, NARROW_ANY, true>(l, job, s);
    return run_kernel<KIND, PAIR, NARROW_ANY, false>(l, job, s);
}
cudaError_t long_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    (void)row;
    bool even = long_even(job);
    if (job->x_dtype == NCT_F32) return run<LONG_F32, false>(l, job, s);
    if (l->precision == NCT_PREC_BF16 && job->x_dtype == NCT_BF16)
        return even ? run<LONG_BF16, true>(l, job, s) : run<LONG_BF16, false>(l, job, s);
    return run<LONG_HALF, false>(l, job, s);
}
cudaError_t long_load_code(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, conv_long<LONG_F32, false, NARROW_ANY, false>);
    if (!err) err = cudaFuncGetAttributes(&a, conv_long<LONG_F32, false, NARROW_GELU, false>);
    if (!err) err = cudaFuncGetAttributes(&a, conv_long<LONG_BF16, true, NARROW_GELU_16, true>);
    if (!err) err = cudaFuncGetAttributes(&a, conv_long<LONG_BF16, false, NARROW_GELU_16, true>);
    if (!err) err = cudaFuncGetAttributes(&a, conv_long<LONG_BF16, true, NARROW_ANY, false>);
    if (!err) err = cudaFuncGetAttributes(&a, conv_long<LONG_BF16, false, NARROW_ANY, false>);
    return err ? err : cudaFuncGetAttributes(&a, conv_long<LONG_HALF, false, NARROW_ANY, false>);
}
