/* conv_resident_sm90.cu: PLAN_WGMMA where the weights of 64 output channels fit in shared memory: frames longer than 64 steps.
 *
 * Idea: a CTA keeps the weights of one block of 64 channels for all of its tiles; x, turned beforehand (wgmma_units.cuh), streams
 * through two or three chunks. Two consumer warpgroups take tiles in turns: while one multiplies, the other is in its
 * epilogue, all of it from registers (regs_tile.cuh). Tiles that share norm groups meet by a counter (tiles_meet.cuh), y is
 * written once.
 * Data flow: w (64, C_in * K) -> A, resident; x (C_in, window) turned -> chunk by chunk -> B; acc (64, N) -> + bias -> leaves
 *   to memory -> set meets -> values -> normalised, activated -> y.
 * Who takes what: block b of channels has sh.ctas CTAs; in phase p (even: warpgroup 0, odd: 1) they hold whole frames, or in
 *   two phases (span 2) together; no set ever waits for a tile that begins after it. x comes for both warpgroups through
 *   one ring: one that waits for a later turn of a buffer has to know that the turn before it came (seen).
 * Plan: conv_wgmma_sm90.cu's, bit for bit. Limits: weights beside two chunks of x in 227 KB, as many blocks of channels as SMs.
 * Ladder (H200, one call in a graph, tf32 / bf16 us; default / default-n64 / eeg64): everything unrolled (20000 instructions
 * for N = 256) and x turned inside the launch, by all warps before the grid's barrier and by three warps later: 54 / 41,
 * 181 / 137, 42 / 38. Leaves and stores in loops over 64 steps, accumulators moving down (5000 instructions; what runs once
 * costs 10 to 26 cycles an instruction, its fetching): 42 / 33, 148 / 108, 24 / 20. x turned by the kernel before (turning
 * inside: 37000 cycles for three warps, the barrier 6500), a loop of products of 25 instructions a tap, 16-byte stores:
 * 26.7 / 19.9, 91 / 68, 19 / 16 (15 / 13 with N = 64); default-long 413 / 311, default-n1 11.1 / 9.7. Lost: N = 128 33 / 25,
 * N = 64 48 / 36 on default; the idle warpgroup of one-tile jobs running the epilogue beforehand to fetch it: nothing.
 * Where default's 43000 cycles go: first x 5700, products 7400 + 7900, then after the last product leaves 4000, meeting 2400,
 * values 2800, storing 12000 (both warpgroups at once). Next: stores through shared memory in whole rows (now 32 bytes of
 * each of 8 rows an instruction), odd pitches (T = 1025: 46 us), one pass over the accumulators less in the leaves. */
#include "regs_finish.cuh"
#include "resident_x.cuh"

enum { RESIDENT_WARPS = 12, RESIDENT_THREADS = 32 * RESIDENT_WARPS, RESIDENT_SHARED = 227 * 1024 };

struct resident_memory {
    resident_ring ring;
    meet_memory meet[2];
};
enum { RESIDENT_HEAD = (sizeof(resident_memory) + 1023) / 1024 * 1024 };

/* ---- consumers ---- */

template <int PREC, int V> __device__ __forceinline__ void product(float (&d)[V], uint64_t a, uint64_t b) {
    if constexpr (PREC == NCT_PREC_BF16)
        wgmma_ss_bf16(d, a, b);
    else
        wgmma_ss_tf32(d, a, b);
}
/* Until the other warpgroup's warps have together seen the last chunks of `tiles`. */
__device__ __forceinline__ void seen_wait(int32_t *seen, int32_t tiles) {
    while (*(volatile int32_t *)seen < tiles) {
    }
    __syncwarp();
}
/* A value that is kept in a register instead of being made again at every use. */
template <class V> __device__ __forceinline__ V kept(V v) {
    return __shfl_sync(~0u, v, 0);
}
/* One tile. begun: chunks that the CTA's tiles before it had, all of them seen to arrive (a parity tells one turn of a
 * buffer from the next, not from the one after it). A chunk's buffer goes back when the next chunk is with the tensor
 * cores. a: weights; b: x (the low words of their descriptors). */
template <int PREC, int N>
__device__ __forceinline__ void multiply_tile(const cuda_job &j, const resident_shape &sh, int32_t begun,
    resident_ring *ring, uint32_t a, uint32_t b, float (&acc)[N / 2]) {
    const bool first = (threadIdx.x & 127) == 0;
    const int32_t buffers = kept(sh.buffers), taps = kept(j.g.k), k_rows = kept(sh.rows * 2),
                  buffer_rows = kept(sh.rows * 8), tap_rows = kept(sh.tap_rows), tap_phases = kept(sh.tap_phases),
                  phase_rows = kept(sh.phase_rows), stride = kept(j.g.stride);
    const uint32_t full_x = kept(shared_address(ring->full_x)), empty_x = full_x + RESIDENT_BUFFERS * 8;
    uint32_t full_w = kept(shared_address(ring->full_w));
    int32_t buffer = begun % buffers, turn = begun / buffers & 1, before = -1, chunk = kept(j.m.chunks);
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[i] = 0;
    do { /* ptxas has to see that no loop here is empty: else it waits after every product */
        barrier_wait(full_w, 0);
        barrier_wait(full_x + buffer * 8, turn);
        int32_t phase = 0, row = b + buffer * buffer_rows, tap = taps;
#pragma unroll 1
        do {
            const uint32_t at = row + phase * phase_rows;
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++)
                product<PREC>(acc, SWIZZLED_HIGH | (a + k * 2), PLAIN_HIGH | (at + k * k_rows));
            a += 512;
            row += tap_rows;
            phase += tap_phases;
            if (phase >= stride) phase -= stride, row++;
        } while (--tap);
        wgmma_commit();
        wgmma_wait<1>();
        if (first && before >= 0) barrier_arrive(empty_x + before * 8);
        before = buffer;
        if (++buffer == buffers) buffer = 0, turn ^= 1;
        full_w += 8;
    } while (--chunk);
    __syncwarp();
    if ((threadIdx.x & 31) == 0) atomicAdd_block(&ring->seen[threadIdx.x >> 7], 1);
    wgmma_wait<0>();
    if (first) barrier_arrive(empty_x + before * 8);
}
/* ---- the kernel ---- */

template <int PREC, int N>
__global__ void __launch_bounds__(RESIDENT_THREADS, 1)
    conv_resident(const __grid_constant__ cuda_job j, const __grid_constant__ resident_shape sh) {
    extern __shared__ __align__(1024) uint8_t memory[];
    resident_memory *m = (resident_memory *)memory;
    uint8_t *ws = memory + RESIDENT_HEAD, *xs = ws + sh.w_bytes;
    const int32_t blocks = sh.blocks * j.g.groups, cta = blockIdx.x / blocks, in_all = blockIdx.x - cta * blocks;
    const int32_t group = in_all / sh.blocks, block = in_all - group * sh.blocks;
    if (threadIdx.x < 2) m->ring.seen[threadIdx.x] = 0;
    if (threadIdx.x < RESIDENT_BARRIERS) {
        barrier_init((uint64_t *)&m->ring + threadIdx.x, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    launch_next();
    const int32_t warp = kept(threadIdx.x >> 5), role = warp >> 2;
    if (role == 2) {
        registers_less<72>();
        if (warp == 8) {
            launches_before();
            bring_x(j, sh, N, cta, group, &m->ring, xs);
        }
        if (warp == 9) { /* no launch of a job writes weights */
            bring_weights(j, group, block, &m->ring, ws);
            weights_there(j, &m->ring);
        }
    } else {
        registers_more<216>();
        launches_before();
        float acc[N / 2];
        const uint32_t a = (uint32_t)swizzled_rows(ws), b = (uint32_t)plain_rows(xs, sh.rows);
        int32_t begun = 0, others = 0; /* chunks; tiles of the other warpgroup */
        for (int32_t phase = 0; phase < sh.rounds * sh.span; phase++) {
            const resident_place p = place_in(j, sh, N, phase, cta);
            if (kept((int32_t)p.empty)) continue;
            if ((phase & 1) == role) {
                seen_wait(&m->ring.seen[role ^ 1], 4 * others);
                multiply_tile<PREC, N>(j, sh, begun, &m->ring, a, b, acc);
                const regs_tile t = {p.n, p.t0, frame_at(j, p.n).t_out - p.t0, group * j.g.cog + block * 64,
                    min(64, j.g.cog - block * 64)};
                regs_finish<N>(j, sh.blocks, sh.set_blocks, group, t, acc, &m->meet[role], 1 + role);
            } else
                others++;
            begun += j.m.chunks;
        }
    }
}

/* ---- host ---- */

static int64_t common(int64_t a, int64_t b) {
    return b ? common(b, a % b) : a;
}
/* Bytes of shared memory; 0: does not fit. */
static size_t shape_for(const cuda_job *job, const row *row, int32_t sms, int meets, resident_shape *ret) {
    const geometry *g = &job->g;
    const int32_t steps = ((const resident_tile *)row->tile)->steps;
    resident_shape sh = {};
    sh.phase_rows = (int32_t)((window_of(g, steps) + g->stride - 1) / g->stride);
    sh.rows = sh.phase_rows * g->stride;
    sh.tap_rows = g->dil / g->stride;
    sh.tap_phases = g->dil % g->stride;
    sh.blocks = (g->cog + 63) / 64;
    sh.set_blocks = (int32_t)(g->cg / common(g->cg, 64));
    if (sh.set_blocks > sh.blocks) sh.set_blocks = sh.blocks;
    const int64_t w = (int64_t)job->m.chunks * g->k * 8192, x = (int64_t)sh.rows * 128,
                  room = RESIDENT_SHARED - RESIDENT_HEAD - w;
    if (job->m.chunks > RESIDENT_CHUNKS || room < 2 * x) return 0;
    sh.buffers = room / x > RESIDENT_BUFFERS ? RESIDENT_BUFFERS : (int32_t)(room / x);
    sh.w_bytes = (int32_t)w;
    sh.spread = (job->max_t_out + steps - 1) / steps;
    const int64_t blocks = (int64_t)sh.blocks * g->groups, most = sms / blocks;
    const int64_t tiles = (int64_t)job->n_frames * sh.spread;
    if (!most || tiles > INT32_MAX) return 0;
    if (!meets) { /* one round, tile after tile */
        sh.span = (int32_t)((tiles + most - 1) / most);
        sh.frames = job->n_frames;
        sh.rounds = 1;
    } else {
        sh.span = most >= sh.spread ? 1 : 2;
        const int64_t frames = sh.span * most / sh.spread;
        if (!frames || g->cog % g->cg) return 0;
        sh.rounds = (int32_t)((job->n_frames + frames - 1) / frames);
        sh.frames = (job->n_frames + sh.rounds - 1) / sh.rounds;
    }
    sh.ctas = (int32_t)(((int64_t)sh.frames * sh.spread + sh.span - 1) / sh.span);
    *ret = sh;
    return (size_t)(RESIDENT_HEAD + w + sh.buffers * x);
}

template <int PREC, int N>
static cudaError_t start(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    resident_shape sh;
    const size_t bytes = shape_for(job, row, l->sms, job->what & DO_MEET, &sh);
    if (!bytes) return cudaErrorCooperativeLaunchTooLarge;
    auto kernel = conv_resident<PREC, N>;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, RESIDENT_SHARED);
    if (!err) err = turn_start<PREC>(job, s);
    if (err) return err;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)(sh.ctas * sh.blocks * job->g.groups));
    config.blockDim = dim3(RESIDENT_THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = s;
    cudaLaunchAttribute attrs[2] = {};
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeCooperative;
    attrs[1].val.cooperative = 1;
    config.attrs = attrs;
    config.numAttrs = job->what & DO_MEET ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, *job, sh);
}
template <int PREC>
static cudaError_t start_steps(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    switch (row->tile_t) {
    case 256: return start<PREC, 256>(l, job, row, s);
    case 128: return start<PREC, 128>(l, job, row, s);
    default: return start<PREC, 64>(l, job, row, s);
    }
}

int resident_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    resident_shape sh;
    if (job->max_t_out <= MMA_LEAF || job->n_frames > 65535 || units_of_job(*job) > 65535) return 0;
    return shape_for(job, row, l->sms, row->pass == PASS_FUSED, &sh) > 0;
}
int64_t resident_phases(const row *row, const cuda_layer *l, const cuda_job *job) {
    resident_shape sh;
    if (!resident_fits(row, l, job) || !shape_for(job, row, l->sms, row->pass == PASS_FUSED, &sh)) return 0;
    return (int64_t)sh.rounds * sh.span;
}
cudaError_t resident_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    return l->precision == NCT_PREC_BF16 ? start_steps<NCT_PREC_BF16>(l, job, row, s)
                                         : start_steps<NCT_PREC_TF32>(l, job, row, s);
}
