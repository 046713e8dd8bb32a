/* conv_short_sm90.cu: PLAN_WGMMA for frames of at most 64 steps: rows "short", Hopper, tf32 and bf16.
 *
 * Idea: both operands from shared memory (SS form). x is staged once, rounded, as [16 bytes of channels][slot][position], wgmma's
 * layout without swizzle, in which any start is right: a tap is 16 bytes further, and an m64 tile is 8 steps of 8 frames (or
 * 64 steps of one). Consumers issue wgmma and nothing else. Tiles hold whole frames; norm groups wider than a tile are held
 * by the CTAs of a cluster. So one launch does everything, y is written once and no workspace is used.
 * Few frames: the weights are the work; 32 channels a CTA and up to 40 stages of 4 KB in flight stream them once.
 * Plan, packing and leaves are conv_wgmma_sm90.cu's: chunks of 32 words, taps, groups of 8 words, one chain; same bits.
 * Data flow: x (frames, C_in, T) -> registers -> xs; w -> ring by bulk copies; acc (64 MT WGS rows, NB channels) -> + bias ->
 *   tile [channel][frame, step] -> leaves -> group values -> y; or leaves and raw f32 for the general passes.
 * Limits: T_out <= 64; fused: a norm group has 8 to 256 channels, divides a tile or is up to 8 tiles.
 *
 * Ladder (H200, us of a call in a graph, tf32 / bf16; diffpolicy, then diffpolicy-n1; PyTorch 56 / 47 and 37 / 30):
 *   72 / 62 and 321 / 222   wgmma-64x64-fused (RS); mma-split
 *   28 / 21 and 41 / 22     SS form, without norm, places of x found by divisions, descriptors in vector registers
 *   31 / 23 and 32 / 21     norm fused, descriptors in uniform registers (250 clocks a step of 4 wgmma m64n32, before 400)
 *   28 / 21 and 31 / 20     a group's sums by warps, its value by a thread; launched early (0.15 us)
 *   31 / 24 and 35 / --     weights asked for before the frames are known, a stage's barrier looked at before the products of
 *                           the one before, producers help with leaves and y: a tenth slower, one by one to be taken back
 * Lost: x by bulk copies as it lies, then turned by the producers with places found anew, 39 / 27 and 35 / 24 (5700 clocks
 *   a chunk against 3700); slots of 64 steps for 16, 94 / 69; 4 producer warps, 35 / 26.
 * What bounds it, by clock64 on diffpolicy tf32 (48 thousand clocks): the first chunk of x comes after 8, then one of 8
 *   every 3.7, where its 40 wgmma take 1.3 (alone 32 clocks each: SS without swizzle is as fast as any); after the products
 *   15: tile 1.6, leaves 1.9, values 4.2, y 7.1. Two producer warps a scheduler wait on the latency of about 150 instructions
 *   a 16-byte place: fewer of them come next, then a 16-channel tile for few frames.
 * Slower than PyTorch still (us, ours against its best): 256 frames of 17 steps 73 / 56 against 58 / 51 (slots of 32 take the
 *   slow way of finding places), 32 frames of 30 steps, 512 -> 384, K 9: 102 / 69 against 46 / 36; 256 frames of 16 steps,
 *   1024 -> 2048, K 5: 742 / 477 against 350 / 229 (wants 128 channels a tile). */
#include "short_mma.cuh"
#include "short_tile.cuh"

enum { SHORT_SHARED = 227 * 1024, SHORT_HEAD = 3072, PRODUCER_WARPS = 8, MOST_STAGES = 40, MOST_BUFFERS = 8 };

struct short_ring {
    uint64_t full_w[MOST_STAGES], empty_w[MOST_STAGES], full_x[MOST_BUFFERS], empty_x[MOST_BUFFERS];
};
struct short_head {
    short_ring ring;
    unit_slot x[SHORT_SLOTS];
    short_slot slots[SHORT_SLOTS];
    short_channels<64> per; /* or of 32 channels */
};
static_assert(sizeof(short_head) <= SHORT_HEAD, "the ring begins behind it");

/* ---- the kernel ---- */

__device__ __forceinline__ void short_slot_read(const cuda_job &j, int32_t n, unit_slot *x, short_slot *y) {
    *x = {};
    *y = {};
    if (n >= j.n_frames) return;
    nct_frame f = frame_at(j, n);
    int64_t size = j.y_dtype == NCT_F32 || j.what & DO_RAW ? 4 : 2;
    int32_t wide = (((uintptr_t)j.y + f.y_off * size) & (4 * size - 1)) == 0 && (f.y_pitch & 3) == 0;
    *x = {f.x_off, f.x_pitch, f.t_in, f.pad_left};
    *y = {f.y_off, f.y_pitch, f.t_out, wide};
}

/* Weights: stage (chunk, tap) is NB / 32 blocks of 4 KB. One lane; steps [first, last). */
template <int NB>
__device__ __forceinline__ void short_bring_weights(const cuda_job &j, const short_shape &sh, int32_t group,
    int32_t block0, int32_t first, int32_t last, short_ring *ring, uint8_t *ws) {
    int32_t steps = j.m.chunks * j.g.k, blocks = min(NB / 32, j.m.blocks - block0);
    const uint8_t *from = (const uint8_t *)j.weight + ((int64_t)group * j.m.blocks + block0) * steps * 4096;
    for (int32_t step = first, stage = first % sh.stages, turn = first / sh.stages & 1 ^ 1; step < last; step++) {
        barrier_wait(&ring->empty_w[stage], turn);
        barrier_expect(&ring->full_w[stage], blocks * 4096);
        for (int32_t b = 0; b < blocks; b++)
            bulk_copy(ws + stage * NB * 128 + b * 4096, from + ((int64_t)b * steps + step) * 4096, 4096,
                &ring->full_w[stage]);
        if (++stage == sh.stages) stage = 0, turn ^= 1;
    }
}
template <int PREC, int WGS, int MT, int NB>
__device__ __forceinline__ void short_products(const cuda_job &j, const short_shape &sh, short_ring *ring,
    const uint8_t *ws, const uint8_t *xs, float (&acc)[MT][NB / 2]) {
    const bool leader = (threadIdx.x & 127) == 0;
    /* Uniform, so that descriptors are made in uniform registers. */
    const int32_t wg = __shfl_sync(~0u, threadIdx.x >> 7, 0);
    uint32_t start[MT];
#pragma unroll
    for (int i = 0; i < MT; i++) start[i] = sh.start[wg * MT + i];
    int32_t stage = 0, turn = 0, before = 0, buffer = 0, buffer_turn = 0, buffer_before = 0;
    bool ready = false;
    for (int32_t chunk = 0; chunk < j.m.chunks; chunk++) {
        barrier_wait(&ring->full_x[buffer], buffer_turn);
        const uint32_t x = (shared_address(xs) >> 4) + buffer * 8 * sh.x.deep;
        for (int32_t tap = 0, rest = 0, whole = 0; tap < j.g.k; tap++) {
            const uint32_t from = x + rest * sh.x.phase + whole;
            const uint64_t b = swizzled_rows(ws + stage * NB * 128);
            rest += sh.x.tap_rest, whole += sh.x.tap_whole;
            if (rest >= sh.x.stride) rest -= sh.x.stride, whole++;
            if (!ready) barrier_wait(&ring->full_w[stage], turn);
            const int32_t next = stage + 1 == sh.stages ? 0 : stage + 1, next_turn = next ? turn : turn ^ 1;
            /* Asked here, since behind the products the answer would wait for them. */
            ready = barrier_peek(&ring->full_w[next], next_turn);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    const uint64_t a = plain_rows(from + start[i] + k * 2 * sh.x.deep, sh.x.deep, sh.rows8);
                    if constexpr (PREC == NCT_PREC_BF16)
                        wgmma_bf16(acc[i], a, b + k * 2);
                    else
                        wgmma_tf32(acc[i], a, b + k * 2);
                }
            wgmma_commit();
            wgmma_wait<1>();
            if (leader && (chunk || tap)) { /* the stage before has been read */
                barrier_arrive(&ring->empty_w[before]);
                if (tap == 0) barrier_arrive(&ring->empty_x[buffer_before]);
            }
            before = stage;
            stage = next, turn = next_turn;
        }
        buffer_before = buffer;
        if (++buffer == sh.buffers) buffer = 0, buffer_turn ^= 1;
    }
    wgmma_wait<0>();
}

template <int PREC, int WGS, int MT, int NB>
__global__ void __launch_bounds__(128 * WGS + 32 * PRODUCER_WARPS + 32, 1)
    conv_short(const __grid_constant__ cuda_job j, const __grid_constant__ short_shape sh) {
    constexpr int BM = 64 * MT * WGS, WORKERS = 4 * WGS + PRODUCER_WARPS;
    extern __shared__ __align__(1024) uint8_t memory[];
    short_head *head = (short_head *)memory;
    short_ring *ring = &head->ring;
    uint8_t *ws = memory + SHORT_HEAD, *xs = ws + sh.stages * NB * 128;
    const int32_t tiles_c = sh.co_tiles * j.g.groups, tile = blockIdx.x / tiles_c,
                  in_all = blockIdx.x - tile * tiles_c;
    const int32_t group = in_all / sh.co_tiles, block0 = (in_all - group * sh.co_tiles) * (NB / 32);
    const int32_t n0 = tile * sh.slots, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int32_t steps = j.m.chunks * j.g.k, early_steps = min(steps, sh.stages);
    if (warp == WORKERS && lane == 0) {
        for (int32_t i = 0; i < sh.stages; i++) {
            barrier_init(&ring->full_w[i], 1);
            barrier_init(&ring->empty_w[i], WGS);
        }
        for (int32_t i = 0; i < sh.buffers; i++) {
            barrier_init(&ring->full_x[i], sh.x.team);
            barrier_init(&ring->empty_x[i], WGS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    grid_wait(); /* launched early: what came before on the stream is done from here on */
    if (warp == WORKERS && lane == 0) short_bring_weights<NB>(j, sh, group, block0, 0, early_steps, ring, ws);
    if (threadIdx.x < SHORT_SLOTS)
        short_slot_read(j, threadIdx.x < sh.slots ? n0 + threadIdx.x : j.n_frames, &head->x[threadIdx.x],
            &head->slots[threadIdx.x]);
    short_channels<NB> *per = (short_channels<NB> *)&head->per;
    if (threadIdx.x >= 64 && threadIdx.x < 64 + NB) {
        int32_t c = threadIdx.x - 64, o = min(block0 * 32 + c, j.g.cog - 1) + group * j.g.cog;
        per->bias[c] = j.bias[o];
        per->gamma[c] = j.gamma[o];
        per->beta[c] = j.beta[o];
    }
    __syncthreads();
    if (warp >= WORKERS) {
        if (warp == WORKERS && lane == 0) short_bring_weights<NB>(j, sh, group, block0, early_steps, steps, ring, ws);
        return;
    }
    short_memory<NB, BM> *m = (short_memory<NB, BM> *)ws;
    if (warp >= 4 * WGS) {
        int32_t producer = warp - 4 * WGS, team = producer / sh.x.team;
        short_buffers to = {ring->full_x, ring->empty_x, xs, sh.buffers, 8 * sh.x.deep * 16};
        unit_crew crew = {team, PRODUCER_WARPS / sh.x.team, j.m.chunks, (producer - team * sh.x.team) * 32 + lane};
        unit_bring<PREC>(j, sh.x, head->x, group, crew, to);
    } else {
        float acc[MT][NB / 2];
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int c = 0; c < NB / 2; c++) acc[i][c] = 0;
        short_products<PREC, WGS, MT, NB>(j, sh, ring, ws, xs, acc);
        short_sync<4 * WGS>(1); /* the last reader of x and weights */
        short_write<MT, NB, BM>(sh, acc, per->bias, m);
    }
    short_finish<WORKERS, NB, BM>(
        j, sh, head->slots, n0, group * j.g.cog + block0 * 32, min(NB, j.g.cog - block0 * 32), per, m);
}

/* ---- host ---- */

/* Norm groups inside a tile: 1; as many tiles as hold one: 2 to 8; else 0: leaves and raw f32 for the general passes. */
static int32_t short_cluster(const geometry *g, int32_t nb) {
    if (g->cog % g->cg) return 0;
    if (nb % g->cg == 0) return g->cg >= 8;
    return g->cg % nb == 0 && g->cg / nb <= 8 && g->cg <= FEW ? g->cg / nb : 0;
}
/* 0: does not fit. */
static size_t short_shape_of(const cuda_job *job, int32_t precision, const short_tile *t, short_shape *ret) {
    const geometry *g = &job->g;
    const int32_t rows = 64 * t->mt * t->wgs, most_steps = job->max_t_out;
    short_shape s = {};
    for (s.steps = 8; s.steps < most_steps;) s.steps *= 2;
    if (t->flat) s.steps = 64;
    s.flat = s.steps == 64;
    s.slots = rows / s.steps;
    if (s.slots < (s.flat ? 1 : 8) || s.slots > SHORT_SLOTS) return 0;
    s.x = unit_shape_of(g, 32, s.steps, s.slots < job->n_frames ? s.slots : job->n_frames, PRODUCER_WARPS);
    s.rows8 = s.flat ? 8 : s.x.pitch;
    for (int i = 0; i < t->mt * t->wgs; i++) {
        int32_t per = s.steps / 8;
        s.start[i] = s.flat ? i * s.x.pitch : i / per * 8 * s.x.pitch + i % per * 8;
    }
    s.co_tiles = (g->cog + t->nb - 1) / t->nb;
    s.cluster = short_cluster(g, t->nb);
    s.group_magic = magic_of(g->cg > 1 ? g->cg : 2);
    /* Absent frames of an m64 tile read what lies behind the last buffer. */
    const int64_t x = unit_bytes(&s.x), stage = (int64_t)t->nb * 128,
                  behind = (64ll + (int64_t)s.slots * s.x.pitch) * 16;
    const int64_t all = SHORT_SHARED - SHORT_HEAD - behind;
    s.buffers = job->m.chunks < MOST_BUFFERS ? job->m.chunks : MOST_BUFFERS;
    auto room = [&] { return (all - s.buffers * x) / stage; };
    while (s.buffers > 3 && room() < 12) s.buffers--;
    while (s.buffers > 2 && room() < 6) s.buffers--;
    int64_t stages = room();
    if (stages < 2) return 0;
    s.stages = (int32_t)(stages < MOST_STAGES ? stages : MOST_STAGES);
    size_t loop = (size_t)(s.stages * stage + s.buffers * x + behind);
    size_t tile = (size_t)t->nb * (rows + 4 + SHORT_SLOTS * 4) * 4 + 40ull * SHORT_SLOTS * (t->nb / 8);
    *ret = s;
    return SHORT_HEAD + (loop > tile ? loop : tile);
}

template <int PREC, int WGS, int MT, int NB>
static cudaError_t start(const cuda_job *job, const short_shape *sh, size_t bytes, cudaStream_t s) {
    auto kernel = conv_short<PREC, WGS, MT, NB>;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHORT_SHARED);
    if (err) return err;
    const int64_t tiles = (job->n_frames + sh->slots - 1) / sh->slots;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)(tiles * sh->co_tiles * job->g.groups));
    config.blockDim = dim3(128 * WGS + 32 * PRODUCER_WARPS + 32);
    config.dynamicSmemBytes = bytes;
    config.stream = s;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (uint32_t)sh->cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = job->what & DO_MEET && sh->cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, *job, *sh);
}
template <int PREC>
static cudaError_t start_tile(
    const cuda_job *job, const short_tile *t, const short_shape *sh, size_t bytes, cudaStream_t s) {
    if (t->nb == 32) return start<PREC, 1, 1, 32>(job, sh, bytes, s);
    if (t->mt == 2) return start<PREC, 2, 2, 64>(job, sh, bytes, s);
    return start<PREC, 2, 1, 64>(job, sh, bytes, s);
}

int short_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    short_shape sh;
    if (job->max_t_out > MMA_LEAF || !short_shape_of(job, l->precision, (const short_tile *)row->tile, &sh)) return 0;
    return row->pass != PASS_FUSED || sh.cluster > 0;
}
int64_t short_ctas(const row *row, const cuda_layer *l, const cuda_job *job) {
    short_shape sh;
    if (!short_fits(row, l, job)) return 0;
    short_shape_of(job, l->precision, (const short_tile *)row->tile, &sh);
    return (int64_t)((job->n_frames + sh.slots - 1) / sh.slots) * sh.co_tiles * job->g.groups;
}
cudaError_t short_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    const short_tile *t = (const short_tile *)row->tile;
    short_shape sh;
    size_t bytes = short_shape_of(job, l->precision, t, &sh);
    if (!(job->what & DO_MEET)) sh.cluster = 1;
    return l->precision == NCT_PREC_BF16 ? start_tile<NCT_PREC_BF16>(job, t, &sh, bytes, s)
                                         : start_tile<NCT_PREC_TF32>(job, t, &sh, bytes, s);
}
