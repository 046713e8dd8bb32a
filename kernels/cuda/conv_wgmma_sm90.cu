/* conv_wgmma_sm90.cu: PLAN_WGMMA, Hopper: tf32 and bf16 layers with 16 or more channels in a conv group.
 *
 * Idea: M = 64 steps with x in registers (RS form: a tap is an address shift of the reads from shared memory, any K,
 * dilation, stride), N = channels with weights K-major in shared memory, packed and swizzled when the layer is made.
 * One producer warpgroup: a warp brings weights, one (chunk, tap) a stage, by bulk copies; three warps bring x, 32 word
 * rows a chunk, two or three chunks in flight (wgmma_x.cuh). One or two consumer warpgroups load the fragments of
 * the next stage while the tensor cores run the last one.
 * Plan: chunks of 32 words, taps, groups of 8 words, ascending, one chain per output. Leaves: 1 channel x 64 steps, 8
 * lanes of 8 consecutive steps, in-lane ascending, then lanes xor 1, 2, 4.
 * Data flow: x (C_in, window) -> shared memory, rows as they are -> A; w -> B; acc (steps, N) -> + bias ->
 *   tile [channel][step] in shared memory -> leaves | raw f32 | y.
 * Fused rows: the tiles of a (frame, channels) block meet in global memory under a cooperative launch: leaves out, the
 *   driver's barrier of all CTAs, leaves in, then the tile is normalised where it lies and y is written once.
 * Limits: two chunks of x beside the weights in 227 KB.
 * Ladder (H200, one call in a graph, tf32 / bf16 us): 16-byte stores of y as one instruction (they came out as four), no counters
 * to clear (2 us), the prologue under the launch before, pitches of the common windows as constants, tf32 by two instructions
 * (the tensor cores drop the low bits): default 37 / 31 to 34 / 28, default-long 908 / 1081 to 521 / 428, default-n64
 * 145 / 125 to 140 / 122. A step of (chunk, tap) cost 1.2 us for every tile, 0.3 to 0.5 of them tensor cores: with 4 or
 * 8 consumer warps its 200 instructions an SM partition are a chain of latencies. conv_wgmma_ss_sm90.cu has none of them. */
#include "wgmma_tile.cuh"

enum { ROWS = 32, WGMMA_SHARED = 227 * 1024 - 1024, PRODUCERS = 128, X_THREADS = 96 };

/* ---- the kernel ---- */

template <int PREC, int N>
__device__ __forceinline__ void multiply(float (&d)[N], const uint32_t (&a)[4], uint64_t b) {
    if constexpr (PREC == NCT_PREC_BF16)
        wgmma_bf16(d, a, b);
    else
        wgmma_tf32(d, a, b);
}
/* Everything of one tile that the roles share. */
struct wgmma_ring {
    uint64_t full_w[8], empty_w[8], full_x[3], empty_x[3], copied[3];
};

/* Weights: stage (chunk, tap) is NB / 32 blocks of 4 KB. One lane. */
template <int NB>
__device__ __forceinline__ void bring_weights(
    const cuda_job &j, const mma_shape &sh, int32_t group, int32_t block0, wgmma_ring *ring, uint32_t *ws) {
    int32_t steps = j.m.chunks * j.g.k, blocks = min(NB / 32, j.m.blocks - block0);
    const uint32_t *from = (const uint32_t *)j.weight + ((int64_t)group * j.m.blocks + block0) * steps * 1024;
    for (int32_t step = 0, stage = 0, turn = 1; step < steps; step++) {
        barrier_wait(&ring->empty_w[stage], turn);
        barrier_expect(&ring->full_w[stage], blocks * 4096);
        for (int32_t b = 0; b < blocks; b++)
            bulk_copy(ws + stage * NB * 32 + b * 1024, from + ((int64_t)b * steps + step) * 1024, 4096,
                &ring->full_w[stage]);
        if (++stage == sh.stages) stage = 0, turn ^= 1;
    }
}

/* x: chunk c in buffer c mod buffers; the copies of the next chunks are in flight while edges are mended. */
template <int PREC>
__device__ __forceinline__ void bring_x(const cuda_job &j, const mma_shape &sh, const mma_slots &s, int32_t channel0,
    wgmma_ring *ring, uint8_t *xs, int32_t tid) {
    using T = x_type<PREC>;
    const int32_t bytes = T::CHANNELS * sh.pitch * T::SIZE;
    auto issue = [&](int32_t chunk) {
        int32_t b = chunk % sh.buffers;
        barrier_wait(&ring->empty_x[b], (chunk / sh.buffers & 1) ^ 1);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        bulk_issue<PREC, X_THREADS>(j, sh, s, channel0 + chunk * T::CHANNELS, xs + b * bytes, &ring->copied[b], tid);
    };
    for (int32_t chunk = 0; sh.bulk && chunk < sh.buffers; chunk++) {
        if (chunk < j.m.chunks) issue(chunk);
        copy_commit();
    }
    for (int32_t chunk = 0; chunk < j.m.chunks; chunk++) {
        int32_t b = chunk % sh.buffers, c0 = channel0 + chunk * T::CHANNELS, turn = chunk / sh.buffers & 1;
        if (sh.bulk) {
            /* Several slots: one group a chunk, all `buffers` of them before chunk 0, then one behind every later chunk. */
            int32_t behind = sh.buffers - (chunk ? 2 : 1);
            if (sh.slots == 1)
                barrier_wait(&ring->copied[b], turn);
            else if (behind == 2)
                copy_wait<2>();
            else if (behind == 1)
                copy_wait<1>();
            else
                copy_wait<0>();
            if (sh.slots > 1)
                asm volatile("bar.sync 2, %0;" ::"n"((int)X_THREADS) : "memory"); /* before edges overwrite */
            bulk_edges<PREC, X_THREADS>(j, sh, s, c0, xs + b * bytes, tid);
        } else {
            barrier_wait(&ring->empty_x[b], turn ^ 1);
            stage_elements<PREC, X_THREADS>(j, sh, s, c0, xs + b * bytes, tid);
        }
        barrier_arrive(&ring->full_x[b]);
        int32_t next = chunk - 1 + sh.buffers;
        if (sh.bulk && chunk > 0 && next < j.m.chunks) issue(next);
        if (sh.bulk && chunk > 0) copy_commit();
    }
}

template <int PREC, int WGS, int MT, int NB, int PITCH>
__global__ void __launch_bounds__(128 * (WGS + 1), WGS == 1 ? 2 : 1)
    conv_wgmma(const __grid_constant__ cuda_job j, const __grid_constant__ mma_shape sh) {
    extern __shared__ __align__(1024) uint8_t memory[];
    wgmma_ring *ring = (wgmma_ring *)memory;
    using T = x_type<PREC>;
    uint32_t *ws = (uint32_t *)(memory + 1024);
    uint8_t *xs = (uint8_t *)(ws + sh.stages * NB * 32);
    const int32_t tile = blockIdx.x / (sh.co_tiles * j.g.groups),
                  in_all = blockIdx.x - tile * sh.co_tiles * j.g.groups;
    const int32_t group = in_all / sh.co_tiles, block0 = (in_all - group * sh.co_tiles) * (NB / 32);
    launch_next();
    launches_before();
    mma_slots slots = slots_of(j, sh, tile, (group + 1) * j.g.cig);
    const int32_t pitch = PITCH ? PITCH : sh.pitch;
    slots.shift = (int32_t)(slots.only.at + (int64_t)group * j.g.cig * slots.only.x_pitch) & (x_type<PREC>::UNIT - 1);
    if (slots.empty) {
        if (tiles_meet(j)) meet();
        return;
    }
    float *bias = (float *)(memory + 512);
    if (threadIdx.x < NB) {
        int32_t o = block0 * 32 + threadIdx.x;
        bias[threadIdx.x] = o < j.g.cog ? j.bias[group * j.g.cog + o] : 0;
    }
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < sh.stages; i++) {
            barrier_init(&ring->full_w[i], 1);
            barrier_init(&ring->empty_w[i], 4 * WGS);
        }
        for (int32_t i = 0; i < 3; i++) {
            barrier_init(&ring->copied[i], X_THREADS);
            barrier_init(&ring->full_x[i], X_THREADS);
            barrier_init(&ring->empty_x[i], 4 * WGS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 128 * WGS) {
        if constexpr (WGS == 2) registers_less<72>();
        if constexpr (WGS == 1 && MT * NB > 128) registers_less<48>();
        int32_t tid = threadIdx.x - 128 * WGS;
        if (tid == X_THREADS) bring_weights<NB>(j, sh, group, block0, ring, ws);
        if (tid < X_THREADS) bring_x<PREC>(j, sh, slots, group * j.g.cig, ring, xs, tid);
        __syncwarp();
        if (tiles_meet(j)) meet();
        return;
    }
    if constexpr (WGS == 2) registers_more<216>();
    if constexpr (WGS == 1 && MT * NB > 128) registers_more<208>();
    const int32_t warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const int32_t my_row = q * (T::CHANNELS / 32), my_shift = sh.bulk ? row_shift<PREC>(slots, my_row) : 0;
    const int32_t odd = pitch + (sh.bulk ? row_shift<PREC>(slots, my_row + 1) - my_shift : 0);
    int32_t base[MT][2];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int32_t row = (threadIdx.x >> 7) * 64 * MT + 64 * i + 16 * warp + g + 8 * h;
            base[i][h] = (row >> sh.slot_shift) * sh.slot_words + (row & ((1 << sh.slot_shift) - 1)) * sh.stride +
                         my_shift + my_row * pitch;
        }
    float acc[MT][NB / 2];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int c = 0; c < NB / 2; c++) acc[i][c] = 0;
    uint32_t a[2][2][MT][4];
    int32_t stage = 0, turn = 0, before = 0, buffer = 0, buffer_turn = 0, buffer_before = 0;
    for (int32_t chunk = 0; chunk < j.m.chunks; chunk++) {
        barrier_wait(&ring->full_x[buffer], buffer_turn);
        for (int32_t tap = 0; tap < j.g.k; tap++) {
            const uint8_t *x = xs + (buffer * T::CHANNELS * pitch + tap * j.g.dil) * T::SIZE;
            barrier_wait(&ring->full_w[stage], turn);
            uint64_t b = swizzled_rows(ws + stage * NB * 32);
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int i = 0; i < MT; i++)
                        load_fragment<PREC>(a[half][k][i], x + (half * 2 + k) * (T::CHANNELS / 4) * pitch * T::SIZE,
                            base[i][0], base[i][1], pitch, odd);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int i = 0; i < MT; i++) multiply<PREC>(acc[i], a[half][k][i], b + (half * 2 + k) * 2);
                wgmma_commit();
                wgmma_wait<1>();
                if (half || !(chunk || tap)) continue;
                __syncwarp();    /* lane 0 speaks for the loads of all lanes */
                if (lane == 0) { /* the stage before has been read */
                    barrier_arrive(&ring->empty_w[before]);
                    if (tap == 0) barrier_arrive(&ring->empty_x[buffer_before]);
                }
            }
            before = stage;
            if (++stage == sh.stages) stage = 0, turn ^= 1;
        }
        buffer_before = buffer;
        if (++buffer == sh.buffers) buffer = 0, buffer_turn ^= 1;
    }
    wgmma_wait<0>();
    finish_tile<WGS, MT, NB, PREC>(j, sh, slots, group, block0, in_all, acc, bias, (float *)ws);
}

/* ---- host ---- */

static mma_shape shape_for(const cuda_job *job, int32_t precision, const wgmma_tile *t, size_t *ret_bytes) {
    const geometry *g = &job->g;
    int32_t steps = 64 * t->mt * t->wgs, size = precision == NCT_PREC_BF16 ? 2 : 4, unit = 16 / size;
    mma_shape sh = shape_of(job, t->nb, steps);
    int32_t dtype = precision == NCT_PREC_BF16 ? NCT_BF16 : NCT_F32, units = (sh.window + 2 * unit - 2) / unit;
    int alike = job->uniform && job->x_step * size % 16 == 0 && job->row0.x_off * size % 16 == 0 &&
                job->row0.t_in * (int64_t)size % 16 == 0 && g->pad_mode == NCT_ZEROS;
    sh.bulk = job->x_dtype == dtype && (uintptr_t)job->x % 16 == 0 && (sh.slots == 1 || alike);
    sh.wide = 0;
    sh.slot_words = units * unit;
    sh.unit_magic = magic_of(units > 1 ? units : 2);
    /* Elements: the four rows of a fragment load land 8 banks apart. */
    int32_t line = 128 / size;
    sh.pitch = (sh.slots * sh.slot_words + line - 1) / line * line + (size == 4 ? 8 : 8);
    size_t x = (size_t)(size == 4 ? 32 : 64) * sh.pitch * size, stage = (size_t)t->nb * 128;
    size_t most = t->wgs == 1 && 2 * x + 3 * stage + 1024 <= 112 * 1024 ? 112 * 1024 : WGMMA_SHARED;
    size_t tile = (size_t)t->nb * (steps + 4) * 4;
    sh.buffers = 3 * x + 4 * stage + 1024 <= most ? 3 : 2;
    int64_t room = (int64_t)most - 1024 - (int64_t)(sh.buffers * x);
    sh.stages = (int32_t)(room < (int64_t)(2 * stage) ? 0 : room / (int64_t)stage);
    if (sh.stages > 6) sh.stages = 6;
    size_t loop = sh.buffers * x + sh.stages * stage;
    *ret_bytes = 2048 + (loop > tile ? loop : tile);
    return sh;
}

static int meets(const cuda_layer *l, const cuda_job *job, const wgmma_tile *t) {
    int64_t leaves = (int64_t)l->g.cg * ((job->max_t_out + MMA_LEAF - 1) / MMA_LEAF);
    return t->nb % l->g.cg == 0 && l->g.cog % l->g.cg == 0 && leaves <= FEW;
}
template <int PREC, int WGS, int MT, int NB, int PITCH>
static cudaError_t start_as(const cuda_job *job, const wgmma_tile *t, cudaStream_t s, int64_t *ret_places) {
    size_t bytes;
    mma_shape sh = shape_for(job, PREC, t, &bytes);
    auto kernel = conv_wgmma<PREC, WGS, MT, NB, PITCH>;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, WGMMA_SHARED + 1024);
    if (err) return err;
    if (ret_places) {
        int each = 0;
        err = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, 128 * (WGS + 1), bytes);
        *ret_places = each;
        return err;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)(job->tiles * sh.co_tiles * job->g.groups));
    config.blockDim = dim3(128 * (WGS + 1));
    config.dynamicSmemBytes = bytes;
    config.stream = s;
    cudaLaunchAttribute attrs[2] = {};
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeCooperative;
    attrs[1].val.cooperative = 1;
    config.attrs = attrs;
    config.numAttrs = job->what & DO_MEET && job->max_t_out > MMA_LEAF ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, *job, sh);
}
/* The pitch of the commonest windows as a constant: addresses of fragments are then offsets of one register. */
template <int PREC, int WGS, int MT, int NB>
static cudaError_t start(const cuda_job *job, const wgmma_tile *t, cudaStream_t s, int64_t *ret_places) {
    constexpr int LINE = 128 / x_type<PREC>::SIZE, STEPS = 64 * MT * WGS;
    constexpr int PITCH = (STEPS + 2 + 2 * x_type<PREC>::UNIT + LINE - 1) / LINE * LINE + 8;
    size_t bytes;
    if constexpr (NB != 32)
        if (shape_for(job, PREC, t, &bytes).pitch == PITCH)
            return start_as<PREC, WGS, MT, NB, PITCH>(job, t, s, ret_places);
    return start_as<PREC, WGS, MT, NB, 0>(job, t, s, ret_places);
}
template <int PREC>
static cudaError_t start_tile(const cuda_job *job, const wgmma_tile *t, cudaStream_t s, int64_t *ret_places) {
    if (t->wgs == 2 && t->nb == 128) return start<PREC, 2, 2, 128>(job, t, s, ret_places);
    if (t->wgs == 2) return start<PREC, 2, 2, 32>(job, t, s, ret_places);
    if (t->nb == 128) return start<PREC, 1, 2, 128>(job, t, s, ret_places);
    return start<PREC, 1, 1, 64>(job, t, s, ret_places);
}
static cudaError_t start_any(
    int32_t precision, const cuda_job *job, const wgmma_tile *t, cudaStream_t s, int64_t *ret_places) {
    return precision == NCT_PREC_BF16 ? start_tile<NCT_PREC_BF16>(job, t, s, ret_places)
                                      : start_tile<NCT_PREC_TF32>(job, t, s, ret_places);
}

int wgmma_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    const wgmma_tile *t = (const wgmma_tile *)row->tile;
    size_t bytes;
    mma_shape sh = shape_for(job, l->precision, t, &bytes);
    if (sh.stages < 2 || bytes > WGMMA_SHARED + 1024) return 0;
    if (row->pass != PASS_FUSED) return 1;
    if (!meets(l, job, t)) return 0;
    if (job->max_t_out <= MMA_LEAF) return 1;
    int64_t places = 0, tiles = 0;
    if (start_any(l->precision, job, t, NULL, &places)) return 0;
    tiles = job_ctas(job, row);
    return tiles > 0 && tiles <= places * l->sms;
}
cudaError_t wgmma_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    const wgmma_tile *t = (const wgmma_tile *)row->tile;
    return start_any(l->precision, job, t, s, NULL);
}
