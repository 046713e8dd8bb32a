/* conv_wgmma_ss_sm90.cu: PLAN_WGMMA with both operands in shared memory: frames longer than 64 steps.
 *
 * Idea: M = 64 channels with weights as packed, N = 64 to 256 steps with x K-major, turned and rounded by a kernel of its
 * own before the conv (wgmma_units.cuh): the consumers' loop is barriers and wgmma alone, a tap is an address. CTAs of a
 * cluster (consecutive tiles of one block of channels) each bring a share of every stage of weights to all of them. A launch
 * begins its prologue while the one before it ends.
 * Data flow: x (C_in, window), turned -> bulk copies -> B; w, one (chunk, tap) a stage -> A; acc (64 channels, N steps) ->
 *   + bias -> tile [channel][step] in shared memory -> leaves | raw f32 | y.
 * Fused rows: leaves meet in memory under a cooperative launch (all CTAs, the driver's own barrier: a counter of ours would
 *   have to be cleared, 2 us), or through the shared memory of a cluster that holds a frame; then the tile is normalised
 *   where it lies and y is written once. Uniform jobs of more CTAs than have room go in several launches.
 * Plan: conv_wgmma_sm90.cu's, bit for bit. Limits: windows that fit twice beside three stages of weights.
 * Ladder (H200, one call in a graph, tf32 / bf16 us): the products of default alone, no x, y or statistics: 10.6 / 7.3, of
 * it 6.7 / 3.4 tensor cores at their full rate. Whole layers, x turned by three warps inside: default 55 / 38 (cluster of 2),
 * matcha 62 / 41, cosyvoice 70 / 50, default-n1 27 / 20, eeg64 26 / 20. x turned beforehand: default 35 / 28, matcha
 * 38 / 29, cosyvoice 45 / 30, default-n1 17 / 13, eeg64 21 / 18, demucs-l4 254 / 155, default-n64 138 / 112, default-long
 * 565 / 463. The thread that issues the copies of weights computed 100 instructions of addresses a stage, at 5 to 7 cycles
 * each for a lone thread; now additions: cosyvoice 32 / 23, demucs-l4 160 / 116, matcha 33 / 27, default-n1 15 / 13, eeg64
 * 19 / 18, default 34 / 28, default-n64 134 / 113, default-long 554 / 466. What is left of default: 15 for turning, products
 * and launches, 4 to 5 for storing y; the rest is what lies between, one warp a norm group in float64 above all. Next: leaves
 * from registers, several groups a warp, x turned and y stored under another frame's products. */
#include "regs_finish.cuh"
#include "wgmma_units.cuh"

enum { SS_SHARED = 227 * 1024, SS_HEAD = 7168, SS_PRODUCERS = 128, SS_STAGES = 8, SS_BUFFERS = 8 };

struct units_ring {
    uint64_t full_w[SS_STAGES], empty_w[SS_STAGES], full_x[SS_BUFFERS], empty_x[SS_BUFFERS];
};
struct units_memory {
    units_ring ring;
    meet_memory meet[2];
};
static_assert(sizeof(units_memory) <= SS_HEAD, "head");

/* A CTA's tile along time; left: steps to the frame's end, 0: no tile. */
struct units_place {
    int32_t n, t0, left;
};
__device__ __forceinline__ units_place place_at(const cuda_job &j, int32_t tile) {
    if (tile >= j.tiles) return {0, 0, 0};
    const place at = place_of(j, tile);
    return {at.n, at.t0, frame_at(j, at.n).t_out - at.t0};
}

/* ---- producers ---- */

/* Weights: stage (chunk, tap) is two blocks of 4 KB for 64 channels; every CTA of the cluster brings a share of it to all.
 * One lane. */
template <int BLOCKS>
__device__ __forceinline__ void share_weights(
    const cuda_job &j, const units_shape &sh, int32_t group, int32_t block0, units_ring *ring, uint8_t *ws) {
    const int32_t steps = j.m.chunks * j.g.k, bytes = min(BLOCKS, j.m.blocks - block0) * 4096;
    const int32_t share = bytes / sh.cluster, first = (int32_t)cluster_rank() * share;
    const int32_t piece = min(share & -share, 4096), pieces = share / piece; /* never across blocks; at most 4 */
    const char *from[4];
    uint8_t *to[4];
#pragma unroll
    for (int i = 0; i < 4; i++) { /* the thread's pace is the pipeline's: nothing but additions in the loop */
        int32_t at = first + i * piece;
        from[i] = (const char *)j.weight + (((int64_t)group * j.m.blocks + block0 + (at >> 12)) * steps << 12) +
                  (at & 4095);
        to[i] = ws + at;
    }
    const uint16_t all = (uint16_t)((1 << sh.cluster) - 1);
    for (int32_t step = 0, stage = 0, turn = 1, shift = 0; step < steps; step++) {
        barrier_wait(&ring->empty_w[stage], turn);
        barrier_expect(&ring->full_w[stage], bytes);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < pieces && sh.cluster == 1)
                bulk_copy(to[i] + shift, from[i], piece, &ring->full_w[stage]);
            else if (i < pieces)
                bulk_copy_all(to[i] + shift, from[i], piece, &ring->full_w[stage], all);
            from[i] += 4096;
        }
        shift += BLOCKS * 4096;
        if (++stage == sh.m.stages) stage = 0, turn ^= 1, shift = 0;
    }
}
/* x: a piece is one phase of a chunk, a copy a unit. One warp. */
__device__ __forceinline__ void bring_units(
    const cuda_job &j, const units_shape &sh, const units_place &p, int32_t group, units_ring *ring, uint8_t *xs) {
    const int32_t lane = threadIdx.x & 31, stride = j.g.stride, all = frame_rows(j.g, p.t0 + p.left);
    const int32_t rows = p.left > 0 ? min(sh.rows, all - p.t0) : 0;
    const uint8_t *from =
        turned_frame(j, p.n) + (((int64_t)group * j.m.chunks * 8 + (lane & 7)) * stride * all + p.t0) * 16;
    const int64_t phase_bytes = (int64_t)all * 16, chunk_bytes = 8 * stride * phase_bytes;
    uint8_t *to = xs + (lane & 7) * sh.rows * 16;
    for (int32_t chunk = 0, b = 0, turn = 1; chunk < j.m.chunks; chunk++) {
        for (int32_t piece = 0, phase = 0; piece < sh.pieces; piece++) {
            barrier_wait(&ring->empty_x[b], turn);
            if (lane == 0) barrier_expect(&ring->full_x[b], rows * 8 * 16);
            __syncwarp();
            if (rows && lane < 8)
                bulk_copy(to + b * sh.rows * 128, from + phase * phase_bytes, rows * 16, &ring->full_x[b]);
            if (++b == sh.m.buffers) b = 0, turn ^= 1;
            phase += sh.tap_phases;
            if (phase >= stride) phase -= stride;
        }
        from += chunk_bytes;
    }
}

/* ---- consumers ---- */

template <int PREC, int N> __device__ __forceinline__ void multiply_ss(float (&d)[N], uint64_t a, uint64_t b) {
    if constexpr (PREC == NCT_PREC_BF16)
        wgmma_ss_bf16(d, a, b);
    else
        wgmma_ss_tf32(d, a, b);
}
/* a: my channels of stage 0; b: my steps of buffer 0. LAG steps (chunk, tap) are with the tensor cores. */
template <int PREC, int N, int BLOCKS, int LAG>
__device__ __forceinline__ void multiply_all(
    const cuda_job &j, const units_shape &sh, units_ring *ring, uint64_t a, uint64_t b, float (&acc)[N / 2]) {
    const int32_t lane = threadIdx.x & 127;
    const int32_t last = j.g.k - sh.period; /* from this tap on a piece is used for the last time */
    int32_t stage = 0, turn = 0, piece = 0, piece_turn = 0, step = 0;
    int32_t read_stage = 0, read_tap = 0, read_in = 0, read_first = 0,
            read_piece = 0; /* the step that is done next */
    for (int32_t chunk = 0; chunk < j.m.chunks; chunk++) {
        const int32_t first = piece;
        int32_t phase = 0, row = 0, in = 0, at = first;
        for (int32_t tap = 0; tap < j.g.k; tap++, step++) {
            if (in == sh.period) in = 0, at = first;
            if (tap < sh.pieces) {
                barrier_wait(&ring->full_x[piece], piece_turn);
                if (++piece == sh.m.buffers) piece = 0, piece_turn ^= 1;
            }
            barrier_wait(&ring->full_w[stage], turn);
            const uint64_t at_a = a + (uint64_t)(stage * BLOCKS * 256), at_b = b + (uint64_t)(at * sh.rows * 8 + row);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) multiply_ss<PREC>(acc, at_a + k * 2, at_b + (uint64_t)(k * 2 * sh.rows));
            wgmma_commit();
            wgmma_wait<LAG>();
            if (step >= LAG) {
                if (sh.cluster == 1) {
                    if (lane == 0) barrier_arrive(&ring->empty_w[read_stage]);
                } else if (lane < sh.cluster)
                    barrier_arrive_in(&ring->empty_w[read_stage], lane);
                if (++read_stage == sh.m.stages) read_stage = 0;
                if (read_in == sh.period) read_in = 0, read_piece = read_first;
                if (lane == 0 && read_tap >= last) barrier_arrive(&ring->empty_x[read_piece]);
                if (++read_piece == sh.m.buffers) read_piece = 0;
                read_in++;
                if (++read_tap == j.g.k) {
                    read_tap = read_in = 0;
                    read_first += sh.pieces;
                    if (read_first >= sh.m.buffers) read_first -= sh.m.buffers;
                    read_piece = read_first;
                }
            }
            if (++stage == sh.m.stages) stage = 0, turn ^= 1;
            if (++at == sh.m.buffers) at = 0;
            in++;
            row += sh.tap_rows;
            phase += sh.tap_phases;
            if (phase >= sh.m.stride) phase -= sh.m.stride, row++;
        }
    }
    wgmma_wait<0>();
}

/* ---- the kernel ---- */

/* WM warpgroups along channels, WT along steps; a tile of 64 channels x N steps each. */
template <int PREC, int WM, int WT, int N>
__global__ void __launch_bounds__(128 * WM * WT + SS_PRODUCERS, 1)
    conv_units(const __grid_constant__ cuda_job j, const __grid_constant__ units_shape sh) {
    extern __shared__ __align__(1024) uint8_t memory[];
    constexpr int WGS = WM * WT, BLOCKS = 2 * WM;
    units_memory *m = (units_memory *)memory;
    units_ring *ring = &m->ring;
    uint8_t *ws = memory + SS_HEAD, *xs = ws + sh.m.stages * BLOCKS * 4096;
    const int32_t rank = (int32_t)cluster_rank(), blocks = sh.m.co_tiles * j.g.groups;
    const int32_t at = blockIdx.x / sh.cluster, tile = at / blocks, in_all = at - tile * blocks;
    const int32_t group = in_all / sh.m.co_tiles, block0 = (in_all - group * sh.m.co_tiles) * BLOCKS;
    if (threadIdx.x < sizeof *ring / 8) { /* a barrier a thread */
        const int32_t i = threadIdx.x, w = i - SS_STAGES, x = w - SS_STAGES, e = x - SS_BUFFERS;
        barrier_init((uint64_t *)ring + i, w < 0 || (x >= 0 && e < 0) ? 1 : x < 0 ? WGS * sh.cluster : WGS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    launch_next();
    __syncthreads();
    if (sh.cluster > 1) cluster_arrive();
    if (sh.cluster > 1) cluster_wait();
    const int32_t tid = threadIdx.x - 128 * WGS;
    if (tid >= 0) {
        if constexpr (WGS == 2) registers_less<72>();
        if (tid == 0) share_weights<BLOCKS>(j, sh, group, block0, ring, ws); /* no launch of a job writes them */
        if (tid >> 5 != 1) return;
        launches_before();
        const units_place p = place_at(j, tile * sh.cluster + rank);
        bring_units(j, sh, p, group, ring, xs);
        return;
    }
    if constexpr (WGS == 2) registers_more<216>();
    launches_before();
    const int32_t wg = threadIdx.x >> 7, wm = WM == 1 ? 0 : wg, wt = WM == 1 ? wg : 0;
    const units_place p = place_at(j, tile * sh.cluster + rank);
    const regs_tile t = {p.n, p.t0 + wt * N, p.left - wt * N, group * j.g.cog + block0 * 32 + wm * 64,
        min(64, j.g.cog - block0 * 32 - wm * 64)};
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[i] = 0;
    multiply_all<PREC, N, BLOCKS, (N > 64 ? 1 : 2)>(
        j, sh, ring, swizzled_rows(ws) + wm * 512, plain_rows(xs, sh.rows) + wt * N, acc);
    if (sh.cluster > 1) cluster_arrive(); /* nobody ends while another may still reach its memory */
    if (t.left > 0 && t.channels > 0)
        regs_finish<N>(j, sh.blocks, sh.set_blocks, group, t, acc, m->meet + wg, 1 + wg);
    if (sh.cluster > 1) cluster_wait();
}

/* ---- host ---- */

static int32_t divisor(int32_t a, int32_t b) {
    return b ? divisor(b, a % b) : a;
}
/* Fewest buffers of x: piece q + buffers is brought once q is done, `lag` steps after its last tap. */
static int32_t pieces_least(const geometry *g, const units_shape &sh, int32_t lag) {
    for (int32_t least = 2;; least++) {
        int32_t r = 0;
        for (; r < sh.pieces; r++) {
            int32_t last = r + (g->k - 1 - r) / sh.period * sh.period;
            if (last + lag + 1 > (r + least) / sh.pieces * g->k + (r + least) % sh.pieces) break;
        }
        if (r == sh.pieces) return least;
    }
}

static units_shape shape_for(const cuda_job *job, const row *row, size_t *ret_bytes) {
    const units_tile *t = (const units_tile *)row->tile;
    const geometry *g = &job->g;
    units_shape sh = {};
    sh.m = shape_of(job, row->tile_c, row->tile_t);
    sh.rows = (sh.m.window + g->stride - 1) / g->stride;
    sh.tap_rows = g->dil / g->stride;
    sh.tap_phases = g->dil % g->stride;
    sh.period = g->stride / divisor(g->stride, g->dil);
    sh.pieces = g->k < sh.period ? g->k : sh.period;
    sh.cluster = t->cluster;
    sh.blocks = (g->cog + 63) / 64;
    sh.set_blocks = g->cg / divisor(g->cg, 64);
    if (sh.set_blocks > sh.blocks) sh.set_blocks = sh.blocks;
    /* Four stages of weights matter more than one more piece ahead. */
    int64_t x = (int64_t)sh.rows * 128, stage = row->tile_c * 128, room = SS_SHARED - SS_HEAD;
    const int32_t least = pieces_least(g, sh, t->n > 64 ? 1 : 2);
    sh.m.buffers = least + 1 > SS_BUFFERS || (least + 1) * x + 4 * stage > room ? least : least + 1;
    if (sh.m.buffers > SS_BUFFERS) return sh; /* no stages */
    int64_t stages = (room - sh.m.buffers * x) / stage;
    sh.m.stages = (int32_t)(stages < 0 ? 0 : stages > SS_STAGES ? SS_STAGES : stages);
    *ret_bytes = (size_t)(SS_HEAD + sh.m.buffers * x + sh.m.stages * stage);
    return sh;
}

/* ret_places: how many CTAs can be on the device together; nothing is launched. */
template <int PREC, int WM, int WT, int N>
static cudaError_t start(const cuda_job *job, const row *row, cudaStream_t s, int64_t *ret_places) {
    size_t bytes;
    units_shape sh = shape_for(job, row, &bytes);
    auto kernel = conv_units<PREC, WM, WT, N>;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SS_SHARED);
    if (err) return err;
    cudaLaunchConfig_t config = {};
    int64_t tiles = (job->tiles + sh.cluster - 1) / sh.cluster * sh.cluster;
    config.gridDim = dim3((uint32_t)(tiles * sh.m.co_tiles * job->g.groups));
    config.blockDim = dim3(128 * WM * WT + SS_PRODUCERS);
    config.dynamicSmemBytes = bytes;
    config.stream = s;
    cudaLaunchAttribute attrs[3] = {};
    config.attrs = attrs;
    if (sh.cluster > 1) {
        attrs[0].id = cudaLaunchAttributeClusterDimension;
        attrs[0].val.clusterDim.x = (uint32_t)sh.cluster;
        attrs[0].val.clusterDim.y = attrs[0].val.clusterDim.z = 1;
        config.numAttrs = 1;
    }
    if (ret_places) {
        int n = 0;
        err = sh.cluster > 1 ? cudaOccupancyMaxActiveClusters(&n, kernel, &config)
                             : cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, config.blockDim.x, bytes);
        *ret_places = (int64_t)n * sh.cluster;
        return err;
    }
    cudaLaunchAttribute *behind = &attrs[config.numAttrs++];
    behind->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    behind->val.programmaticStreamSerializationAllowed = 1;
    if (job->what & DO_MEET) {
        cudaLaunchAttribute *a = &attrs[config.numAttrs++];
        a->id = cudaLaunchAttributeCooperative;
        a->val.cooperative = 1;
    }
    /* The second conv of a job that runs it twice finds x turned. */
    if (!(row->pass == PASS_AGAIN && job->what == DO_APPLY && job->norm != NCT_NORM_GIVEN))
        err = turn_start<PREC>(job, s);
    return err ? err : cudaLaunchKernelEx(&config, kernel, *job, sh);
}
template <int PREC>
static cudaError_t start_tile(const cuda_job *job, const row *row, cudaStream_t s, int64_t *ret_places) {
    const units_tile *t = (const units_tile *)row->tile;
    if (t->wm == 2 && t->n == 256) return start<PREC, 2, 1, 256>(job, row, s, ret_places);
    if (t->wm == 2) return start<PREC, 2, 1, 128>(job, row, s, ret_places);
    if (t->wt == 1) return start<PREC, 1, 1, 64>(job, row, s, ret_places);
    if (t->n == 128) return start<PREC, 1, 2, 128>(job, row, s, ret_places);
    return start<PREC, 1, 2, 64>(job, row, s, ret_places);
}

static cudaError_t start_any(
    const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s, int64_t *ret_places) {
    return l->precision == NCT_PREC_BF16 ? start_tile<NCT_PREC_BF16>(job, row, s, ret_places)
                                         : start_tile<NCT_PREC_TF32>(job, row, s, ret_places);
}

/* Frames that meet in one launch; 0: not even one. A uniform job goes in as many launches as it takes. */
static int64_t frames_together(const cuda_layer *l, const cuda_job *job, const row *row) {
    const units_tile *t = (const units_tile *)row->tile;
    const int64_t blocks = (job->g.cog + row->tile_c - 1) / row->tile_c * job->g.groups;
    int64_t places = l->sms;
    if (t->cluster > 1 && start_any(l, job, row, NULL, &places)) return 0;
    const int64_t most = places / (blocks * t->cluster) * t->cluster; /* tiles */
    if (job->tiles <= most) return job->n_frames;
    if (!job->uniform) return 0;
    int64_t each = job->tiles / job->n_frames, frames = most / each;
    if (!frames) return 0;
    int64_t launches = (job->n_frames + frames - 1) / frames;
    return (job->n_frames + launches - 1) / launches;
}

int units_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    size_t bytes;
    if (job->max_t_out <= MMA_LEAF || job->n_frames > 65535 || units_of_job(*job) > 65535) return 0;
    units_shape sh = shape_for(job, row, &bytes);
    if (sh.m.stages < 3 || bytes > SS_SHARED) return 0;
    return row->pass != PASS_FUSED || (l->g.cog % l->g.cg == 0 && frames_together(l, job, row) > 0);
}

cudaError_t units_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    if (!(job->what & DO_MEET)) return start_any(l, job, row, s, NULL);
    const int64_t frames = frames_together(l, job, row), each = job->tiles / job->n_frames;
    cudaError_t err = frames ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
    for (int64_t n = 0; !err && n < job->n_frames; n += frames) {
        cuda_job part = *job;
        if (frames < job->n_frames) { /* uniform: the leaves' room is used again */
            part.n_frames = (int32_t)(job->n_frames - n < frames ? job->n_frames - n : frames);
            part.tiles = (int32_t)(part.n_frames * each);
            part.row0.x_off += n * job->x_step;
            part.row0.y_off += n * job->y_step;
            if (job->frames) part.frames += n;
            if (job->flags) part.flags += n;
        }
        err = start_any(l, &part, row, s, NULL);
    }
    return err;
}
