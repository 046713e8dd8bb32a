/* conv_resident_sm90.cu: PLAN_WGMMA where the weights of 64 output channels fit in shared memory: frames longer than 64 steps.
 *
 * Idea: a CTA keeps the weights of one block of 64 channels for all of its tiles; x, turned beforehand (wgmma_units.cuh), streams
 * through two or three chunks. Two consumer warpgroups take tiles in turns: while one multiplies, the other is in its
 * epilogue, all of it from registers (regs_tile.cuh). Tiles that share norm groups meet by a counter (tiles_meet.cuh), y is
 * written once.
 * Data flow: w (64, C_in * K) -> A, resident; x (C_in, window) turned -> chunk by chunk -> B; acc (64, N) -> + bias -> leaves
 *   to memory -> set meets -> values -> normalised, activated -> y.
 * Who takes what: block b of channels has sh.ctas CTAs; in phase p (even: warpgroup 0, odd: 1) they hold whole frames, or in
 *   two phases (span 2) together; no set ever waits for a tile that begins after it.
 * Plan: conv_wgmma_sm90.cu's, bit for bit. Limits: weights beside two chunks of x in 227 KB, as many blocks of channels as SMs. */
#include "regs_finish.cuh"
#include "resident_x.cuh"
#include <cooperative_groups.h>

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
/* One tile. begun: chunks that the CTA's tiles before it had. LAG steps (chunk, tap) are with the tensor cores; a chunk's
 * buffer goes back when its last one is done. */
template <int PREC, int N>
__device__ __forceinline__ void multiply_tile(const cuda_job &j, const resident_shape &sh, int32_t begun,
    resident_ring *m, uint64_t a, uint64_t b, float (&acc)[N / 2]) {
    constexpr int LAG = N > 64 ? 1 : 2;
    const bool first = (threadIdx.x & 127) == 0;
    int32_t buffer = begun % sh.buffers, turn = begun / sh.buffers & 1;
    int32_t step = 0, read_tap = 0, read_buffer = buffer; /* the step that is done next */
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[i] = 0;
    for (int32_t chunk = 0; chunk < j.m.chunks; chunk++) {
        barrier_wait(&m->full_w[chunk], 0);
        barrier_wait(&m->full_x[buffer], turn);
        int32_t phase = 0, row = buffer * sh.rows * 8;
        for (int32_t tap = 0; tap < j.g.k; tap++, step++) {
            const uint64_t at_a = a + (uint64_t)(step * 512), at_b = b + (uint64_t)(phase * sh.phase_rows + row);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) product<PREC>(acc, at_a + k * 2, at_b + (uint64_t)(k * 2 * sh.rows));
            wgmma_commit();
            wgmma_wait<LAG>();
            if (step >= LAG && ++read_tap == j.g.k) {
                read_tap = 0;
                if (first) barrier_arrive(&m->empty_x[read_buffer]);
                if (++read_buffer == sh.buffers) read_buffer = 0;
            }
            row += sh.tap_rows;
            phase += sh.tap_phases;
            if (phase >= j.g.stride) phase -= j.g.stride, row++;
        }
        if (++buffer == sh.buffers) buffer = 0, turn ^= 1;
    }
    wgmma_wait<0>();
    for (; step < j.m.chunks * j.g.k + LAG; step++)
        if (step >= LAG && ++read_tap == j.g.k) {
            read_tap = 0;
            if (first) barrier_arrive(&m->empty_x[read_buffer]);
            if (++read_buffer == sh.buffers) read_buffer = 0;
        }
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
    if (threadIdx.x < sizeof(resident_ring) / 8) {
        barrier_init((uint64_t *)&m->ring + threadIdx.x, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    launch_next();
    const int32_t warp = threadIdx.x >> 5, role = warp >> 2, tid = threadIdx.x - 288;
    if (warp == 9) bring_weights(j, group, block, &m->ring, ws); /* no launch of a job writes them */
    launches_before();
    clear_counters(j, sh);
    turn_share<PREC>(j, sh, 0, blockIdx.x * RESIDENT_WARPS + warp, gridDim.x * RESIDENT_WARPS);
    cooperative_groups::this_grid().sync();
    if (role == 2) {
        registers_less<72>();
        if (warp == 8) {
            asm volatile("fence.proxy.async.global;" ::: "memory");
            bring_x(j, sh, N, cta, group, &m->ring, xs);
        } else
            turn_rounds<PREC, 96>(j, sh, tid);
        if (warp == 9) weights_there(j, &m->ring);
    } else {
        registers_more<216>();
        float acc[N / 2];
        const uint64_t a = swizzled_rows(ws), b = plain_rows(xs, sh.rows);
        for (int32_t phase = 0, begun = 0; phase < sh.rounds * sh.span; phase++) {
            const resident_place p = place_in(j, sh, N, phase, cta);
            if (p.empty) continue;
            if ((phase & 1) == role) {
                multiply_tile<PREC, N>(j, sh, begun, &m->ring, a, b, acc);
                const regs_tile t = {p.n, p.t0, frame_at(j, p.n).t_out - p.t0, group * j.g.cog + block * 64,
                    min(64, j.g.cog - block * 64)};
                regs_finish<N>(j, sh.blocks, sh.set_blocks, group, t, acc, &m->meet[role], 1 + role);
            }
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
    const int64_t positions = (int64_t)frame_rows(*g, job->max_t_out) * g->stride, pieces = (positions + 31) / 32,
                  units = units_of_job(*job), warps = sh.ctas * blocks * RESIDENT_WARPS;
    sh.deep = pieces * units * sh.frames <= 2 * warps ? 1 : job->precision == NCT_PREC_BF16 ? 4 : 8;
    sh.segments = (int32_t)((pieces + sh.deep - 1) / sh.deep);
    if (positions > INT32_MAX || sh.segments * units * sh.frames > INT32_MAX) return 0;
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
    config.numAttrs = 2;
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
/* Phases follow one another at the tensor cores' pace, or at that of every second epilogue; the last one is waited for. */
int64_t resident_cost(const row *row, const cuda_layer *l, const cuda_job *job) {
    enum { FIXED = 5000, AROUND = 3000, STEP = 16 }; /* a launch and its first x; an epilogue, and for every step */
    resident_shape sh;
    if (!resident_fits(row, l, job) || !shape_for(job, row, l->sms, row->pass == PASS_FUSED, &sh)) return 0;
    const int32_t steps = row->tile_t, cycles = steps == 256 ? 128 : steps == 128 ? 66 : 40;
    const int64_t tile = (int64_t)job->m.chunks * job->g.k * 4 * cycles, around = AROUND + STEP * steps,
                  phases = (int64_t)sh.rounds * sh.span;
    const int64_t flow = tile > (tile + around) / 2 ? tile : (tile + around) / 2;
    return FIXED + tile + (phases - 1) * flow + around;
}
cudaError_t resident_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    return l->precision == NCT_PREC_BF16 ? start_steps<NCT_PREC_BF16>(l, job, row, s)
                                         : start_steps<NCT_PREC_TF32>(l, job, row, s);
}
