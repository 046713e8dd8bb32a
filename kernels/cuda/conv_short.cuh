/* conv_short.cuh: PLAN_WGMMA for frames of at most 64 steps: rows "short", Hopper, tf32 and bf16.
 *
 * Idea: M = 64 channels a warpgroup with weights as packed, N = 128 steps: blocks of 8 steps of any frames, x rounded and
 * turned into shared memory (short_x.cuh). Both operands from there; consumers issue wgmma and nothing else. Tiles hold whole
 * frames; norm groups wider than a tile are held by the CTAs of a cluster. CTAs of a cluster whose channels are the same each
 * bring a share of every stage of weights to all of them. One launch does everything, y is written once, no workspace.
 * Plan, packing and leaves are conv_wgmma_sm90.cu's: chunks of 32 words, taps, groups of 8 words, one chain; same bits.
 * Data flow: x (frames, C_in, T) -> registers -> xs; w -> ring by bulk copies; acc (64 WM channels, 128 steps) -> + bias ->
 *   tile [channel][frame, step] -> leaves -> group values -> y; or leaves and raw f32 for the general passes.
 * Limits: T_out <= 64; fused: a norm group has 8 to 256 channels, divides a tile or is up to 8 tiles.
 *
 * Ladder (H200, us of a call in a graph, tf32 / bf16: diffpolicy; 256 frames of 17 steps; 256 frames of 16 steps, 1024 -> 2048,
 * K 5; best PyTorch: 25 / 17 compiled, 58 / 51, 350 / 229):
 *   72 / 62, -, -                    wgmma-64x64-fused (RS)
 *   31 / 24, 73 / 56, 742 / 477      M = 64 steps, slots of 8 to 64 steps, a unit of x found place by place
 *   38 / 28, 80 / 60, 1006 / 678     M = channels, blocks of 8 steps, weights shared by two CTAs; a stage is one tap
 *   36 / 27, 64 / 49, -              x by 16-byte loads of 4 steps, a lane of the epilogue stays with its columns
 *   27 / 19, 59 / 48, 587 / 372      a stage is all taps of a chunk, so that a warpgroup that can issue but one or two wgmma ahead
 *                                    waits once a chunk and not once a tap (880 clocks a tap, 256 of them products)
 *   41 / 27, 38 / 31, 555 / 303      the same with 128x128: wins where 64x128 takes two waves
 * Lost: two steps (chunk, tap) with the tensor cores instead of one, nothing; other warps run through the epilogue's code once
 * before it is needed, nothing (ncu: 14 % of samples wait for instructions, but not in a row of launches).
 * What bounds it, clock64 on diffpolicy tf32 (48 thousand clocks): 4 until the cluster is there, 2.4 for the places of x,
 * then a chunk of x every 3.3 (365 instructions a 4x4 piece at 8 to 9 clocks), where its products take 1.3; after the
 * products 14: tile 0.4, leaves 3.9, values 3.3, y 6.7. Next: more warps or fewer instructions for x, leaves from registers,
 * a 128x256 tile for many frames. Slower than PyTorch still: diffpolicy against channels-last compiled, frames of 30 steps with
 * groups of 48 channels (52 / 41 against 46 / 36: not fused), 1024 -> 2048. */
#ifndef NCT_CUDA_CONV_SHORT_CUH
#define NCT_CUDA_CONV_SHORT_CUH
#include "short_mma.cuh"
#include "short_tile.cuh"

enum { SHORT_SHARED = 227 * 1024, SHORT_HEAD = 4096 };

struct short_head {
    short_ring ring;
    short_slot slots[SHORT_SLOTS];
    short_channels per;
};
static_assert(sizeof(short_head) <= SHORT_HEAD, "the ring begins behind it");

/* Warps beside the consumers: the last one brings weights, the others x; they help to finish the tile. */
template <int WM> struct short_warps {
    static constexpr int X = WM == 2 ? 7 : 8, FINISH = 4 * WM + X, THREADS = 128 * WM + 32 * (X + 1);
};

/* ---- the kernel ---- */

template <int V> struct short_count { static constexpr int value = V; };
/* Which CTA of its cluster this is: CTAs of one norm group follow each other. */
struct short_rank {
    int32_t all, c, t; /* in the cluster; along channels, along frames */
};
__device__ __forceinline__ short_rank short_rank_of(const short_shape &sh) {
    short_rank r = {0, 0, 0};
    if (sh.along_c * sh.along_t > 1) r.all = r.c = (int32_t)cluster_rank();
    for (; r.c >= sh.along_c; r.c -= sh.along_c) r.t++;
    return r;
}
/* Weights: a stage is up to `span` taps of a chunk, each two blocks of 4 KB for 64 channels; of along_t CTAs each brings a
 * share of it to all, PIECES copies. One lane, whose pace is the pipeline's: a lone thread takes 5 to 7 clocks an instruction. */
template <int BLOCKS, int PIECES, bool ALL>
__device__ __forceinline__ void short_bring_pieces(const cuda_job &j, const short_shape &sh, const short_rank &rank,
    const char *weights, int32_t first, int32_t piece, int32_t bytes, short_ring *ring, uint8_t *ws) {
    uint32_t mask = 0;
    for (int32_t t = 0; t < sh.along_t; t++) mask |= 1u << (t * sh.along_c + rank.c);
    const char *from[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int32_t at = first + i * piece; /* never across blocks */
        from[i] = weights + (((int64_t)(at >> 12) * j.m.chunks * j.g.k) << 12) + (at & 4095);
    }
    int32_t stage = 0, turn = 1;
    for (int32_t chunk = 0; chunk < j.m.chunks; chunk++)
        for (int32_t tap = 0; tap < j.g.k; tap += sh.span) {
            const int32_t here = min(sh.span, j.g.k - tap);
            uint64_t *full = &ring->full_w[stage];
            uint8_t *to = ws + stage * sh.span * BLOCKS * 4096 + first;
            barrier_wait(&ring->empty_w[stage], turn);
            barrier_expect(full, here * bytes);
#pragma unroll 1
            for (int32_t t = 0; t < here; t++, to += BLOCKS * 4096)
#pragma unroll
                for (int i = 0; i < PIECES; i++) {
                    if constexpr (ALL)
                        bulk_copy_all(
                            shared_address(to + i * piece), from[i], piece, shared_address(full), (uint16_t)mask);
                    else
                        bulk_copy(to + i * piece, from[i], piece, full);
                    from[i] += 4096;
                }
            if (++stage == sh.stages) stage = 0, turn ^= 1;
        }
}
template <int BLOCKS>
__device__ __forceinline__ void short_bring_weights(const cuda_job &j, const short_shape &sh, const short_rank &rank,
    int32_t group, int32_t block0, short_ring *ring, uint8_t *ws) {
    const int32_t bytes = min(BLOCKS, j.m.blocks - block0) * 4096, share = bytes / sh.along_t, first = rank.t * share,
                  piece = min(share & -share, 4096);
    const char *weights =
        (const char *)j.weight + (((int64_t)group * j.m.blocks + block0) * j.m.chunks * j.g.k << 12);
    auto bring = [&](auto pieces) {
        if (sh.along_t > 1)
            short_bring_pieces<BLOCKS, pieces.value, true>(j, sh, rank, weights, first, piece, bytes, ring, ws);
        else
            short_bring_pieces<BLOCKS, pieces.value, false>(j, sh, rank, weights, first, piece, bytes, ring, ws);
    };
    if (share == piece)
        bring(short_count<1>());
    else if (share == 2 * piece)
        bring(short_count<2>());
    else if (share == 3 * piece)
        bring(short_count<3>());
    else
        bring(short_count<4>());
}
/* a: low word of my channels of stage 0; b: of buffer 0. The warpgroup can issue but one or two wgmma ahead of the tensor
 * cores, so little stands between them: what a stage needs is asked for once. freed: my lane's view of the first stage's
 * `empty` barrier, 0 if it has none to tell. */
template <int PREC, int N, int BLOCKS>
__device__ __forceinline__ void short_products(const cuda_job &j, const short_shape &sh, short_ring *ring,
    uint32_t freed, uint32_t a, uint32_t b, float (&acc)[N / 2]) {
    const int32_t lane = threadIdx.x & 127, deep2 = 2 * sh.deep, next_row = sh.tap_whole + sh.tap_rest * sh.phase;
    const uint32_t full_w = shared_address(ring->full_w), full_x = shared_address(ring->full_x),
                   empty_x = shared_address(ring->empty_x);
    uint32_t turn = 0, buffer = 0, buffer_turn = 0;
    int32_t stage = 0, before = -1, buffer_before = -1;
    for (int32_t chunk = 0; chunk < j.m.chunks; chunk++) {
        barrier_wait(full_x + buffer * 8, buffer_turn);
        uint32_t b_at = b + buffer * sh.deep * 8, rest = 0;
        for (int32_t left = j.g.k; left > 0; left -= sh.span) {
            barrier_wait(full_w + stage * 8, turn);
            uint32_t a_at = a + stage * sh.span * BLOCKS * 256;
#pragma unroll 1
            for (int32_t i = min(left, sh.span); i > 0; i--) {
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    short_multiply<PREC>(acc, halves(a_at + k * 2, (uint32_t)(SWIZZLED_HIGH >> 32)),
                        halves(b_at + k * deep2, sh.pitch));
                wgmma_commit();
                a_at += BLOCKS * 256;
                b_at += next_row;
                rest += sh.tap_rest;
                if (rest >= sh.stride) rest -= sh.stride, b_at -= sh.stride * sh.phase - 1;
            }
            wgmma_wait<1>(); /* the stage before has been read */
            if (freed && before >= 0) barrier_arrive_at(freed + before * 8);
            if (lane == 0 && buffer_before >= 0) barrier_arrive_at(empty_x + buffer_before * 8);
            before = stage, buffer_before = -1;
            if (++stage == sh.stages) stage = 0, turn ^= 1;
        }
        buffer_before = buffer;
        if (++buffer == sh.buffers) buffer = 0, buffer_turn ^= 1;
    }
    wgmma_wait<0>();
}

template <int PREC, int WM, int N>
__global__ void __launch_bounds__(short_warps<WM>::THREADS, 1)
    conv_short(const __grid_constant__ cuda_job j, const __grid_constant__ short_shape sh) {
    using warps = short_warps<WM>;
    constexpr int BM = 64 * WM, BLOCKS = 2 * WM;
    extern __shared__ __align__(1024) uint8_t memory[];
    short_head *head = (short_head *)memory;
    short_ring *ring = &head->ring;
    uint8_t *ws = memory + SHORT_HEAD, *xs = ws + sh.stages * sh.span * BLOCKS * 4096;
    short_place *places = (short_place *)(xs + sh.buffers * sh.deep * 128);
    const int32_t size = sh.along_c * sh.along_t;
    const short_rank rank = short_rank_of(sh);
    /* Clusters along frames, blocks of channels, conv groups. */
    const int32_t tile_t = cluster_number() * sh.along_t + rank.t, group = blockIdx.z;
    const int32_t block0 = (blockIdx.y * sh.along_c + rank.c) * BLOCKS, warp = threadIdx.x >> 5,
                  n0 = tile_t * sh.slots;
    short_tile_at at;
    at.n0 = n0;
    at.count = max(min(sh.slots, j.n_frames - n0), 0);
    at.channel0 = group * j.g.cog + block0 * 32;
    at.channels = min(BM, j.g.cog - block0 * 32);
    at.rank0 = rank.all - rank.c;
    if (threadIdx.x < SHORT_STAGES) {
        barrier_init(&ring->full_w[threadIdx.x], 1);
        barrier_init(&ring->empty_w[threadIdx.x], WM * sh.along_t);
    } else if (threadIdx.x >= 64 && threadIdx.x < 64 + SHORT_BUFFERS) {
        barrier_init(&ring->full_x[threadIdx.x - 64], sh.team);
        barrier_init(&ring->empty_x[threadIdx.x - 64], WM);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    launch_next();
    if (size > 1) {
        cluster_arrive();
        cluster_wait();
    } else
        __syncthreads();
    if (warp == 4 * WM + warps::X) {
        /* The layer's own, whatever launches before this one do. */
        if ((threadIdx.x & 31) == 0) short_bring_weights<BLOCKS>(j, sh, rank, group, block0, ring, ws);
        return;
    }
    launches_before();
    constexpr int REST = warps::THREADS - 32;
    short_prepare<REST>(j, sh, n0, places, xs);
    if (threadIdx.x < SHORT_SLOTS)
        head->slots[threadIdx.x] = short_slot_of(j, threadIdx.x < sh.slots ? n0 + threadIdx.x : j.n_frames);
    for (int32_t c = threadIdx.x; c < BM; c += REST) {
        int32_t o = min(block0 * 32 + c, j.g.cog - 1) + group * j.g.cog;
        head->per.bias[c] = j.bias[o];
        head->per.gamma[c] = j.gamma[o];
        head->per.beta[c] = j.beta[o];
    }
    short_sync<REST / 32>(3);
    short_memory<BM, N> *m = (short_memory<BM, N> *)ws;
    if (warp >= 4 * WM) {
        short_bring<PREC>(j, sh, places, ring, xs, group, warp - 4 * WM, warps::X);
    } else {
        /* Uniform, so that descriptors are made in uniform registers. */
        const int32_t wg = __shfl_sync(~0u, threadIdx.x >> 7, 0);
        float acc[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) acc[i] = 0;
        const int32_t lane = threadIdx.x & 127;
        const uint32_t freed =
            lane < sh.along_t ? address_in(shared_address(ring->empty_w), lane * sh.along_c + rank.c) : 0;
        short_products<PREC, N, BLOCKS>(
            j, sh, ring, freed, swizzled_low(ws) + wg * 512, spread_low(xs, sh.deep), acc);
        short_sync<4 * WM>(1); /* the last reader of x and weights */
        short_write<BM, N>(acc, wg * 64 + (warp & 3) * 16, head->per.bias, m);
    }
    const bool meets = j.what & DO_MEET && sh.along_c > 1;
    if (size > 1 && !meets) cluster_arrive(); /* nobody ends while another may still reach its memory */
    short_finish<warps::FINISH>(j, sh, at, head->slots, &head->per, m);
    if (size > 1 && !meets) cluster_wait();
}

/* ---- host ---- */

template <int PREC, int WM, int N>
static cudaError_t start(const cuda_job *job, const short_shape *sh, size_t bytes, cudaStream_t s) {
    constexpr size_t tile = SHORT_HEAD + sizeof(short_memory<64 * WM, N>);
    static_assert(tile <= SHORT_SHARED, "a tile fits");
    auto kernel = conv_short<PREC, WM, N>;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHORT_SHARED);
    if (err) return err;
    const int64_t tiles = ((job->n_frames + sh->slots - 1) / sh->slots + sh->along_t - 1) / sh->along_t * sh->along_t;
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3((uint32_t)(tiles * sh->along_c), (uint32_t)(sh->co_tiles / sh->along_c), (uint32_t)job->g.groups);
    config.blockDim = dim3(short_warps<WM>::THREADS);
    config.dynamicSmemBytes = bytes > tile ? bytes : tile;
    config.stream = s;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (uint32_t)(sh->along_c * sh->along_t);
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = sh->along_c * sh->along_t > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, *job, *sh);
}
template <int PREC>
static cudaError_t start_tile(
    const cuda_job *job, const short_tile *t, const short_shape *sh, size_t bytes, cudaStream_t s) {
    if (t->wm == 2) return start<PREC, 2, 128>(job, sh, bytes, s);
    return start<PREC, 1, 128>(job, sh, bytes, s);
}

/* One file a precision, so that they compile side by side. */
cudaError_t short_start_tf32(
    const cuda_job *job, const short_tile *t, const short_shape *sh, size_t bytes, cudaStream_t s);
cudaError_t short_start_bf16(
    const cuda_job *job, const short_tile *t, const short_shape *sh, size_t bytes, cudaStream_t s);
#endif
