/* conv_thin_sm90.cu: PLAN_WGMMA for at most 8 blocks of 8 steps in all: rows "thin", Hopper, tf32 and bf16.
 *
 * Idea: the weights are the work, so many SMs stream them at once: 16 or 32 channels a CTA, and as much of its weights in
 * flight as shared memory holds beside x. M = 64 steps (8 blocks of 8 steps, short_x.cuh; rows of blocks that are not there
 * multiply what lies behind and reach nothing), N = the channels. Norm groups wider than a tile are held by a cluster, or meet
 * in memory under a cooperative launch. Weights are asked for before the launch before this one has ended: they are the
 * layer's own, and nothing that runs beside a job writes them.
 * Plan, packing and leaves are conv_wgmma_sm90.cu's: chunks of 32 words, taps, groups of 8 words, one chain; same bits.
 * Data flow: x (C_in, all steps) -> registers -> xs; w -> ring by bulk copies, whole chunks of taps a stage; acc (64 steps,
 *   channels) -> + bias -> tile [channel][frame, step] -> leaves -> cluster | memory -> group values -> y.
 * Limits: blocks of all frames <= 8; fused: a norm group has 8 to 256 channels, divides a tile or is whole tiles.
 *
 * Ladder (H200, us of a call in a graph, diffpolicy-n1 tf32 / bf16; PyTorch 32 / 27; weights alone from memory 9.8 / 5):
 *   321 / 222   mma-split
 *   35 / 23     conv_short's M = 64 steps with 32 channels, 64 CTAs, clusters of 8
 *   53 / 34     16 channels, 128 CTAs, cooperative launch, a stage of 4 taps, all of x resident
 *   39 / 26     a stage of 8 taps
 *   28 / 21     taps unrolled for K 3 and 5: a wgmma of 16 channels is done in 20 clocks, the loop took 300 a tap
 *   26.5 / 18   32 channels, 64 CTAs, clusters of 8: half of the SMs stream as fast (9 us for 40 MB by copies alone), and
 *               meeting in a cluster is 4 us shorter than in memory
 * Next: the 7 thousand clocks before the first product and the 15 thousand behind the last one. */
#include "short_mma.cuh"
#include "short_tile.cuh"

enum { THIN_SHARED = 227 * 1024, THIN_HEAD = 4096, THIN_STEPS = 8 };
enum {
    THIN_X = 8,
    THIN_W = 4,
    THIN_REST = 128 + 32 * THIN_X,
    THIN_THREADS = THIN_REST + 32 * THIN_W
}; /* warps of x, of weights */

struct thin_head {
    short_ring ring;
    short_slot slots[SHORT_SLOTS];
    short_channels per;
};
static_assert(sizeof(thin_head) <= THIN_HEAD, "the ring begins behind it");

/* Weights of NB channels: a stage is `span` steps (chunk, tap), shared by THIN_W warps since a copy costs its thread about
 * 100 clocks; 32 channels lie together, so that a warp's share is one copy. Lane 0. */
template <int NB>
__device__ __forceinline__ void thin_bring_weights(const cuda_job &j, const short_shape &sh, int32_t group,
    int32_t channel, int32_t which, short_ring *ring, uint8_t *ws) {
    const int32_t steps = j.m.chunks * j.g.k;
    const uint8_t *from = (const uint8_t *)j.weight + (((int64_t)group * j.m.blocks + (channel >> 5)) * steps << 12) +
                          (channel & 31) * 128;
    int32_t stage = 0, turn = 1;
    for (int32_t first = 0; first < steps; first += sh.span) {
        const int32_t here = min(sh.span, steps - first), each = (here + THIN_W - 1) / THIN_W;
        const int32_t i0 = min(which * each, here), mine = min(each, here - i0);
        uint64_t *full = &ring->full_w[stage];
        uint8_t *to = ws + (stage * sh.span + i0) * NB * 128;
        const uint8_t *at = from + ((int64_t)(first + i0) << 12);
        barrier_wait(&ring->empty_w[stage], turn);
        barrier_expect(full, mine * NB * 128);
        if (NB == 32) {
            if (mine) bulk_copy(to, at, mine * NB * 128, full);
        } else
#pragma unroll 1
            for (int32_t i = 0; i < mine; i++, to += NB * 128, at += 4096) bulk_copy(to, at, NB * 128, full);
        if (++stage == sh.stages) stage = 0, turn ^= 1;
    }
}
/* TAPS: of the kernel, unrolled; 0: any. A wgmma of few channels is done in 20 clocks, so hardly an instruction may stand
 * between two. A stage is `span` steps (chunk, tap), whole chunks. */
template <int PREC, int NB, int TAPS>
__device__ __forceinline__ void thin_products(
    const cuda_job &j, const short_shape &sh, short_ring *ring, uint32_t x, uint32_t w, float (&acc)[NB / 2]) {
    const int32_t lane = threadIdx.x & 127, deep2 = 2 * sh.deep, next_row = sh.tap_whole + sh.tap_rest * sh.phase,
                  of_stage = sh.span / j.g.k;
    const uint32_t full_w = shared_address(ring->full_w), full_x = shared_address(ring->full_x);
    uint32_t turn = 0, buffer = 0, buffer_turn = 0;
    int32_t stage = 0, before = -1, freed = 0,
            last = 0; /* the stage before; chunks given back, ended with the stage before */
    for (int32_t chunk = 0; chunk < j.m.chunks;) {
        barrier_wait(full_w + stage * 8, turn);
        uint32_t w_at = w + stage * sh.span * NB * 8;
        const int32_t end = min(chunk + of_stage, j.m.chunks);
#pragma unroll 1
        for (; chunk < end; chunk++) {
            barrier_wait(full_x + buffer * 8, buffer_turn);
            uint32_t x_at = x + buffer * sh.deep * 8, rest = 0;
            wgmma_fence();
#pragma unroll(TAPS ? TAPS : 1)
            for (int32_t tap = 0; tap < (TAPS ? TAPS : j.g.k); tap++) {
                if (!TAPS) wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    short_multiply<PREC>(acc, halves(x_at + k * deep2, sh.pitch),
                        halves(w_at + k * 2, (uint32_t)(SWIZZLED_HIGH >> 32)));
                if (!TAPS) wgmma_commit();
                w_at += NB * 8;
                x_at += next_row;
                if (TAPS) continue;
                rest += sh.tap_rest;
                if (rest >= sh.stride) rest -= sh.stride, x_at -= sh.stride * sh.phase - 1;
            }
            if (TAPS) wgmma_commit();
            if (++buffer == sh.buffers) buffer = 0, buffer_turn ^= 1;
        }
        wgmma_wait<1>(); /* the stage before has been read, and the chunks that ended in it */
        if (lane == 0 && before >= 0) {
            barrier_arrive(&ring->empty_w[before]);
            if (sh.buffers < j.m.chunks)
                for (; freed < last; freed++) barrier_arrive(&ring->empty_x[freed % sh.buffers]);
        }
        before = stage, last = chunk;
        if (++stage == sh.stages) stage = 0, turn ^= 1;
    }
    wgmma_wait<0>();
}
/* acc[4 c + 2 h + e] of a lane (g, q) of warp w: step g of block 2 w + h, channel 8 c + 2 q + e. */
template <int NB>
__device__ __forceinline__ void thin_write(const float (&acc)[NB / 2], const float *bias, short_memory<NB, 64> *m) {
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int i = 0; i < NB / 2; i++) {
        const int32_t channel = (i >> 2) * 8 + 2 * q + (i & 1), column = (2 * warp + (i >> 1 & 1)) * 8 + g;
        m->tile[channel][column] = __fadd_rn(acc[i], bias[channel]);
    }
}

template <int PREC, int NB>
__global__ void __launch_bounds__(THIN_THREADS, 1)
    conv_thin(const __grid_constant__ cuda_job j, const __grid_constant__ short_shape sh) {
    extern __shared__ __align__(1024) uint8_t memory[];
    thin_head *head = (thin_head *)memory;
    short_ring *ring = &head->ring;
    uint8_t *ws = memory + THIN_HEAD, *xs = ws + sh.stages * sh.span * NB * 128;
    short_place *places = (short_place *)(xs + sh.buffers * sh.deep * 128);
    const int32_t group = blockIdx.x / sh.co_tiles, channel = (blockIdx.x - group * sh.co_tiles) * NB;
    const int32_t warp = threadIdx.x >> 5;
    const short_tile_at at = {0, j.n_frames, group * j.g.cog + channel, min(NB, j.g.cog - channel), 0};
    if (threadIdx.x < SHORT_STAGES) {
        barrier_init(&ring->full_w[threadIdx.x], THIN_W);
        barrier_init(&ring->empty_w[threadIdx.x], 1);
    } else if (threadIdx.x >= 64 && threadIdx.x < 64 + SHORT_BUFFERS) {
        barrier_init(&ring->full_x[threadIdx.x - 64], sh.team);
        barrier_init(&ring->empty_x[threadIdx.x - 64], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    launch_next();
    __syncthreads();
    short_memory<NB, 64> *m = (short_memory<NB, 64> *)xs;
    if (warp >= 4 + THIN_X) {
        if ((threadIdx.x & 31) == 0) thin_bring_weights<NB>(j, sh, group, channel, warp - 4 - THIN_X, ring, ws);
        __syncwarp();
        launches_before();
    } else {
        launches_before();
        short_prepare<THIN_REST>(j, sh, 0, places, xs);
        if (threadIdx.x < SHORT_SLOTS) head->slots[threadIdx.x] = short_slot_of(j, threadIdx.x);
        if (threadIdx.x >= 64 && threadIdx.x < 64 + NB) {
            const int32_t c = threadIdx.x - 64, o = min(channel + c, j.g.cog - 1) + group * j.g.cog;
            head->per.bias[c] = j.bias[o];
            head->per.gamma[c] = j.gamma[o];
            head->per.beta[c] = j.beta[o];
        }
        short_sync<4 + THIN_X>(3);
        if (warp >= 4) {
            short_bring<PREC>(j, sh, places, ring, xs, group, warp - 4, THIN_X);
        } else {
            float acc[NB / 2];
#pragma unroll
            for (int i = 0; i < NB / 2; i++) acc[i] = 0;
            const uint32_t x = spread_low(xs, sh.deep), w = swizzled_low(ws);
            if (j.g.k == 5 && sh.stride == 1)
                thin_products<PREC, NB, 5>(j, sh, ring, x, w, acc);
            else if (j.g.k == 3 && sh.stride == 1)
                thin_products<PREC, NB, 3>(j, sh, ring, x, w, acc);
            else
                thin_products<PREC, NB, 0>(j, sh, ring, x, w, acc);
            short_sync<4>(1); /* the last reader of x */
            thin_write<NB>(acc, head->per.bias, m);
        }
    }
    short_finish<THIN_THREADS / 32>(j, sh, at, head->slots, &head->per, m);
}

/* ---- host ---- */

/* 0: does not fit. */
static size_t thin_shape_of(const cuda_layer *l, const cuda_job *job, const row *row, int meets, short_shape *ret) {
    const geometry *g = &job->g;
    const int32_t nb = row->tile_c;
    short_shape s = {};
    short_rows(g, job->max_t_out, &s);
    s.slots = job->n_frames;
    s.along_c = s.along_t = 1;
    if (job->n_frames > 8 || s.slots * s.blocks > 8 || !short_windows(job, s.slots * s.blocks, &s)) return 0;
    s.team = short_team(&s, l->precision, THIN_X);
    s.co_tiles = (g->cog + nb - 1) / nb;
    if (meets) {
        if (g->cg < 8 || g->cg > FEW || g->cog % g->cg || (nb % g->cg && g->cg % nb)) return 0;
        if (g->cg > nb && g->cg / nb <= 8)
            s.along_c = g->cg / nb;
        else
            s.meet = g->cg > nb;
        if (s.meet && (int64_t)s.co_tiles * g->groups > l->sms) return 0;
    }
    /* Blocks that are not there read what lies behind the last buffer; the tile takes the place of x. */
    s.span = (THIN_STEPS + g->k - 1) / g->k * g->k;
    const int64_t x = (int64_t)s.deep * 128, stage = (int64_t)s.span * nb * 128,
                  table = (int64_t)s.places * sizeof(short_place),
                  behind = (int64_t)(8 - s.slots * s.blocks) * s.pitch * 16, tile = sizeof(short_memory<32, 64>),
                  all = THIN_SHARED - THIN_HEAD;
    auto rest = [&] { /* beside the weights */
        int64_t bytes = s.buffers * x + (table > behind ? table : behind);
        return bytes > tile ? bytes : tile;
    };
    s.buffers = job->m.chunks < SHORT_BUFFERS ? job->m.chunks : SHORT_BUFFERS;
    while (s.buffers > 2 && rest() > all / 2) s.buffers--;
    /* A chunk is given back a stage after its last step. */
    if (s.buffers < job->m.chunks && s.buffers < 2 * s.span / g->k + 1) return 0;
    short_few_teams(job->m.chunks, THIN_X, &s);
    int64_t stages = (all - rest()) / stage;
    const int64_t most = ((int64_t)job->m.chunks * g->k + s.span - 1) / s.span;
    if (stages < 2) return 0;
    if (stages > most) stages = most;
    s.stages = (int32_t)(stages < SHORT_STAGES ? stages : SHORT_STAGES);
    *ret = s;
    return (size_t)(THIN_HEAD + s.stages * stage + rest());
}

template <int PREC, int NB>
static cudaError_t start(const cuda_job *job, const short_shape *sh, size_t bytes, cudaStream_t s) {
    auto kernel = conv_thin<PREC, NB>;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, THIN_SHARED);
    if (err) return err;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)(sh->co_tiles * job->g.groups));
    config.blockDim = dim3(THIN_THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = s;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    if (sh->meet) {
        attributes[1].id = cudaLaunchAttributeCooperative;
        attributes[1].val.cooperative = 1;
    } else {
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim.x = (uint32_t)sh->along_c;
        attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    }
    config.attrs = attributes;
    config.numAttrs = sh->meet || sh->along_c > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, *job, *sh);
}
template <int PREC>
static cudaError_t start_tile(
    const cuda_job *job, int32_t channels, const short_shape *sh, size_t bytes, cudaStream_t s) {
    if (channels == 32) return start<PREC, 32>(job, sh, bytes, s);
    return start<PREC, 16>(job, sh, bytes, s);
}

int thin_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    short_shape sh;
    return job->max_t_out <= MMA_LEAF && thin_shape_of(l, job, row, row->pass == PASS_FUSED, &sh) > 0;
}
cudaError_t thin_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    short_shape sh;
    size_t bytes = thin_shape_of(l, job, row, job->what & DO_MEET, &sh);
    return l->precision == NCT_PREC_BF16 ? start_tile<NCT_PREC_BF16>(job, row->tile_c, &sh, bytes, s)
                                         : start_tile<NCT_PREC_TF32>(job, row->tile_c, &sh, bytes, s);
}
