/* conv_wgmma_ss_sm90.cu: PLAN_WGMMA with both operands in shared memory: frames longer than 64 steps.
 *
 * Idea: M = 64 channels with weights as packed, N = 64 to 256 steps with x K-major, turned and rounded by a kernel of its
 * own before the conv (wgmma_units.cuh): the consumers' loop is barriers and wgmma alone, a tap is an address. Weights go
 * through a ring of stages (some taps of a chunk), x through a ring of pieces (one phase of the stride of a chunk, kept until
 * its last tap). CTAs of a cluster (consecutive tiles of one block of channels) each bring a share of every stage of weights
 * to all of them. A launch begins its prologue, weights included, while the one before it ends.
 * Data flow: x (C_in, window), turned -> bulk copies -> B; w -> A; acc (64 channels, N steps) of a warpgroup -> + bias ->
 *   leaves | raw f32 | y out of its registers (regs_finish.cuh).
 * Fused rows: the warpgroups whose tiles share norm groups meet by a counter that the turn kernel has cleared
 *   (tiles_meet.cuh), under a cooperative launch; y is written once. Uniform jobs of more CTAs than have room go in several
 *   launches.
 * Plan: conv_wgmma_sm90.cu's, bit for bit. Limits: a chunk's phases that are used twice beside three stages of weights.
 * Ladder (H200, one call in a graph, tf32 / bf16 us): the products of default alone, no x, y or statistics: 10.6 / 7.3, of
 * it 6.7 / 3.4 tensor cores at their full rate. Whole layers, x turned by three warps inside: default 55 / 38 (cluster of 2),
 * matcha 62 / 41, cosyvoice 70 / 50, default-n1 27 / 20, eeg64 26 / 20. x turned beforehand: default 35 / 28, matcha
 * 38 / 29, cosyvoice 45 / 30, default-n1 17 / 13, eeg64 21 / 18, demucs-l4 254 / 155. Copies of weights issued by additions
 * alone, not 100 instructions of addresses: cosyvoice 32 / 23, demucs-l4 160 / 116, matcha 33 / 27, default-n1 15 / 13.
 * Then with phases stamped by the clock (cosyvoice tf32: turning 2.7, first x 1.2, products 21, leaves 0.6, meeting 1.2,
 * values 1.7, y 2.6):
 * - x by phases, so that 128x256 fits a stride of 4: demucs-l4's products run at 1044 cycles a tap of 1024 (80 of 67 us, since
 *   860 steps are four tiles of 256), where 128x128 in two waves took 2 x 47.
 * - All from registers, meeting by sets instead of the grid: nothing at first. quad_leaves shuffled accumulators where they
 *   lie, NVVM kept them as integers, and ptxas waited after every wgmma (C7517 in -Xptxas -v: look for it). Then y: 20000
 *   unrolled instructions that run once wait for their fetching, 47 us on demucs-l4; rolled 6.
 * - The loop was 228 instructions a tap, 3.5 cycles each for a lone warp of a scheduler (parameters and shared addresses
 *   made again): 790 cycles a tap whatever the tile. Kept in registers by a shuffle, a barrier a chunk instead of a tap, every
 *   loop seen not to be empty: 55. demucs-l4 165 -> 121 / 118 -> 76, cosyvoice 33 -> 22 / 25 -> 18, 512->512 K3 T 1024 103 -> 66.
 * - The turn kernel: loads unrolled over dtypes and edges ran 6.7 us on matcha's 8 MB, with one path 5.3 / 3.3.
 * - A commit behind the loop of taps was an empty product of its own, and wgmma_wait<1> waited for all others; committed a
 *   tap, with y 16 values at once: matcha 31 -> 26 / 24 -> 20, cosyvoice 20 -> 19 / 15 -> 14, demucs-l4 121 -> 114 / 72 -> 68.
 * Lost: clusters of 4 for 128x256 (demucs-l4 216: 30 places); a cluster for 64x256 (its own barrier, 0.7 us).
 * Now: default 29 / 22, default-n1 10.7 / 9.2, default-n64 115 / 89, default-long 502 / 382, matcha 26 / 20, cosyvoice 19 / 14,
 * eeg64 16 / 14, demucs-l4 114 / 68, convtasnet 35 / 24, 512->512 K3 T 1024 N 8 60 / 41. What is left of matcha: turning and its
 * launch 6, prologue and first x 3, leaves 2, meeting and values 3, y 4. Next: C_in * K in two slices for cosyvoice (a chain of
 * products with 64 steps took 390 cycles a tap, not 128, before the last step), x turned inside the launch, tiles of 7 leaves
 * for demucs-l4. */
#include "regs_finish.cuh"
#include "wgmma_units_ring.cuh"

enum { SS_SHARED = 227 * 1024, SS_HEAD = 7168, SS_PRODUCERS = 128 };

struct units_memory {
    units_ring ring;
    meet_memory meet[2];
};
static_assert(sizeof(units_memory) <= SS_HEAD, "head");

/* ---- the kernel ---- */

/* WM warpgroups along channels, WT along steps; a tile of 64 channels x N steps each. */
template <int PREC, int WM, int WT, int N>
__global__ void __launch_bounds__(128 * WM * WT + SS_PRODUCERS, 1)
    conv_units(const __grid_constant__ cuda_job j, const __grid_constant__ units_shape sh) {
    extern __shared__ __align__(1024) uint8_t memory[];
    constexpr int WGS = WM * WT, BLOCKS = 2 * WM;
    units_memory *m = (units_memory *)memory;
    units_ring *ring = &m->ring;
    uint8_t *ws = memory + SS_HEAD, *xs = ws + sh.m.stages * sh.together * BLOCKS * 4096;
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
        if (tid < 32) share_weights<BLOCKS>(j, sh, group, block0, ring, ws); /* no launch of a job writes them */
        if (tid >> 5 != 1) return;
        if (!j.uniform) launches_before(); /* what they wrote says where frames begin */
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
    multiply_all<PREC, N, BLOCKS>(j, sh, ring, swizzled_rows(ws) + wm * 512, plain_rows(xs, sh.rows) + wt * N, acc);
    if (sh.cluster > 1) cluster_arrive(); /* nobody ends while another may still reach its memory */
    if (t.left > 0 && t.channels > 0)
        regs_finish<N>(j, sh.blocks, sh.set_blocks, group, t, acc, m->meet + wg, 1 + wg);
    if (sh.cluster > 1) cluster_wait();
}

/* ---- host ---- */

static int32_t divisor(int32_t a, int32_t b) {
    return b ? divisor(b, a % b) : a;
}
/* Fewest buffers of x: piece q + buffers is brought when the stage of q's last tap is done, which shows in the stage after
 * the next. */
static int32_t pieces_least(const geometry *g, const units_shape &sh) {
    const int32_t parts = (g->k + sh.together - 1) / sh.together;
    for (int32_t least = 2;; least++) {
        int32_t r = 0;
        for (; r < sh.pieces; r++) {
            int32_t last = r + (g->k - 1 - r) / sh.period * sh.period, next = r + least;
            if (last / sh.together + 2 > next / sh.pieces * parts + next % sh.pieces / sh.together) break;
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
    /* As many taps a stage as leave four stages, which matter more than one more piece ahead. */
    int64_t x = (int64_t)sh.rows * 128, room = SS_SHARED - SS_HEAD, stage = 0;
    for (int32_t parts = 1; parts <= g->k; parts++) {
        sh.together = (g->k + parts - 1) / parts;
        stage = (int64_t)sh.together * row->tile_c * 128;
        sh.m.buffers = pieces_least(g, sh);
        if (sh.together * row->tile_c <= 32 * 32 && sh.m.buffers * x + 4 * stage <= room) break;
    }
    if (sh.m.buffers > SS_BUFFERS) return sh; /* no stages */
    if (sh.m.buffers < SS_BUFFERS && (sh.m.buffers + 1) * x + 4 * stage <= room) sh.m.buffers++;
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
