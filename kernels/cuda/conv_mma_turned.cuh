/* conv_mma_turned.cuh: PLAN_MMA with x turned beforehand (mma_turned.cuh): every dtype, layout, stride and padding by the same
 * loop, which is cp.async, ldmatrix and mma.sync alone.
 *
 * Idea: a warp has 64 channels x 64 steps (f32: 32 x 64), so that a step of 8 words costs 8 reads of shared memory for 32
 * products of 16 x 8; fragments of the next 8 words are loaded while the tensor cores run these. Weights come as they are
 * packed, one (chunk, tap) a stage; x a chunk at a time, with the stages.
 * Plan: conv_mma.cuh's, bit for bit.
 * Data flow: x turned (units, window) -> ldmatrix -> B; w, fragments as packed -> A; acc -> + bias -> leaves | raw f32 | y
 *   (mma_turned_tile.cuh). Fused rows: all CTAs are on the device together, leaves meet in memory, y is written once.
 * Limits: chunks of 16 or 32 word rows; the stages of weights and buffers of x of a row in 98 KB.
 * Ladder (H200, one call in a graph, 128x256-fused on default, tf32 / bf16 us; 318 / 637 TFLOP/s of mma.sync were measured, so
 * the products alone are 10 / 5): rows of conv_mma.cuh 62 / 77. First version 70 / 48: 600 instructions of addresses a step
 * and 18000 that run once, read from memory as they run. Counters for divisions, leaves and stores as loops 47 / 38; each
 * warp its own share of a stage 47 / 37; 16 values of a lane stored at once, half a warp a norm group, leaves of all rows side
 * by side 41 / 31, of it clocks (tf32): first stages 1900, products 27000, leaves 4000, meeting 2900, coefficients 4200,
 * storing 14000; x turned and launches take 11 us. Lost: x brought in thirds with the taps (demucs-l4 325 us for 246), a
 * ninth warp that brings (168 registers a thread, spills), f32 with the small products in bf16 (7 % faster, but 5.2e-6 off).
 * Next: x turned inside the launch; fewer instructions a step for tiles of 64x64 (1180 clocks, 200 of them products). */
#ifndef NCT_CUDA_CONV_MMA_TURNED_CUH
#define NCT_CUDA_CONV_MMA_TURNED_CUH
#include "mma_turned_tile.cuh"

__device__ __forceinline__ void turned_multiply_tf32(
    float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void turned_multiply_bf16(
    float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Four 8 x 8 tiles of words: lane i gives the address of row i % 8 of tile i / 8 and gets word i % 4 of row i / 4 of each. */
__device__ __forceinline__ void load_tiles(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* What one step of 8 words needs: channels, steps. */
template <int MT, int PLANES> struct turned_fragments { uint32_t a[PLANES][MT][4], b[4][4]; };
/* Sums of one output: hi * hi; f32: the other two products, and slices before this one. */
template <int MT, int PLANES, bool SLICED> struct turned_sums {
    float acc[MT][8][4], low[PLANES == 2 ? MT : 1][8][4], total[SLICED ? MT : 1][8][4];

    __device__ __forceinline__ void clear() {
        each([&](int i, int n, int e) {
            acc[i][n][e] = 0;
            if constexpr (PLANES == 2) low[i][n][e] = 0;
            if constexpr (SLICED) total[i][n][e] = 0;
        });
    }
    __device__ __forceinline__ void close_slice() {
        each([&](int i, int n, int e) {
            if constexpr (PLANES == 2) {
                acc[i][n][e] = __fadd_rn(acc[i][n][e], low[i][n][e]);
                low[i][n][e] = 0;
            }
            if constexpr (SLICED) {
                total[i][n][e] = __fadd_rn(total[i][n][e], acc[i][n][e]);
                acc[i][n][e] = 0;
            }
        });
    }
    template <class F> __device__ __forceinline__ void each(F f) {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) f(i, n, e);
    }
};

template <int PREC, int MT, int PLANES, bool SLICED>
__device__ __forceinline__ void turned_multiply(
    turned_sums<MT, PLANES, SLICED> &d, const turned_fragments<MT, PLANES> &f) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const uint32_t b0 = f.b[n >> 1][2 * (n & 1)], b1 = f.b[n >> 1][2 * (n & 1) + 1];
        if constexpr (PREC == NCT_PREC_F32) {
            const uint32_t h0 = round_tf32(__uint_as_float(b0)), h1 = round_tf32(__uint_as_float(b1));
            const uint32_t l0 = low_tf32(b0, h0), l1 = low_tf32(b1, h1);
#pragma unroll
            for (int i = 0; i < MT; i++) turned_multiply_tf32(d.low[i][n], f.a[1][i], h0, h1);
#pragma unroll
            for (int i = 0; i < MT; i++) turned_multiply_tf32(d.acc[i][n], f.a[0][i], h0, h1);
#pragma unroll
            for (int i = 0; i < MT; i++) turned_multiply_tf32(d.low[i][n], f.a[0][i], l0, l1);
        } else
#pragma unroll
            for (int i = 0; i < MT; i++)
                if constexpr (PREC == NCT_PREC_TF32)
                    turned_multiply_tf32(d.acc[i][n], f.a[0][i], b0, b1);
                else
                    turned_multiply_bf16(d.acc[i][n], f.a[0][i], b0, b1);
    }
}

/* ---- the kernel ---- */

__device__ __forceinline__ void load_words(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* What a warp brings: its part of every stage of weights, and runs of rows of x. */
template <int WARPS, int BM, int PLANES, int STAGES> struct turned_share {
    const char *w_from; /* of the next step */
    uint32_t w_to, block_bytes, part;
    int32_t left, stage; /* steps left to bring; none for a warp whose channels lie beyond the group */

    __device__ __forceinline__ void bring_w() {
        if (left-- > 0) {
            const uint32_t to = w_to + stage * (BM / 32 * block_bytes);
#pragma unroll
            for (int i = 0; i < BM * PLANES / 4 / WARPS; i++)
                if (i * 512 < part) copy_async16(to + i * 512, w_from + i * 512, 16);
            w_from += block_bytes;
            if (++stage == STAGES) stage = 0;
        }
    }
    __device__ __forceinline__ void bring_x(
        const turned_shape &sh, const turned_slot *slots, int32_t chunk, uint32_t to) const {
        const int32_t lane = threadIdx.x & 31, ups = sh.units * sh.m.stride;
        for (int32_t run = threadIdx.x >> 5; run < ups * sh.m.slots; run += WARPS) {
            int32_t up = run, slot = 0;
            if (sh.m.slots > 1) up = __umulhi(run, sh.slots_magic), slot = run - up * sh.m.slots;
            const turned_slot f = slots[slot];
            const uint8_t *from = f.from + ((int64_t)(chunk * ups + up) * f.rows + lane) * 16;
            const uint32_t at = to + (up * sh.phase_rows + slot * sh.slot_rows + lane) * 16;
            const int32_t left = f.left - lane;
            int32_t r = 0;
            for (; r + 96 < left; r += 128)
#pragma unroll
                for (int i = 0; i < 4; i++) copy_async16(at + r * 16 + i * 512, from + r * 16 + i * 512, 16);
#pragma unroll 1
            for (; r < left; r += 32) copy_async16(at + r * 16, from + r * 16, 16);
        }
    }
};

template <int PREC, int WM, int WN, int MT, bool SLICED, int STAGES, int CTAS>
__global__ void __launch_bounds__(32 * WM * WN, CTAS)
    conv_turned(const __grid_constant__ cuda_job j, const __grid_constant__ turned_shape sh) {
    constexpr int BM = 16 * MT * WM, PLANES = PREC == NCT_PREC_F32 ? 2 : 1, WARPS = WM * WN;
    constexpr bool AHEAD = !SLICED; /* three sums an output leave no registers for fragments of the next words */
    extern __shared__ __align__(16) uint32_t shared[];
    __shared__ turned_slot x_slots[TURNED_SLOTS];
    static_assert(
        MMA_SHARED + sizeof x_slots <= 99 * 1024, "cards of compute capability 8.6 and 8.9 give a CTA 99 KB");
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, wm = warp % WM, wn = warp / WM;
    const int32_t co_tiles = sh.m.co_tiles, tile = blockIdx.x / (co_tiles * j.g.groups);
    const int32_t in_all = blockIdx.x - tile * co_tiles * j.g.groups, group = in_all / co_tiles;
    const int32_t block0 = (in_all - group * co_tiles) * (BM / 32); /* of 32 channels, in the conv group */
    const mma_slots slots = slots_of(j, sh.m, tile, (group + 1) * j.g.cig);
    if (slots.empty) {
        if (sh.meet) cooperative_groups::this_grid().sync();
        return;
    }
    if (threadIdx.x < sh.m.slots) x_slots[threadIdx.x] = turned_slot_of(j, sh, slots, group, threadIdx.x);
    __syncthreads();

    const int32_t groups8 = j.m.rows / 8, steps = j.m.chunks * j.g.k;
    const uint32_t block_bytes = groups8 * 1024 * PLANES, stage_bytes = BM / 32 * block_bytes;
    const uint32_t ws = (uint32_t)__cvta_generic_to_shared(shared), xs = ws + STAGES * stage_bytes;
    turned_share<WARPS, BM, PLANES, STAGES> share;
    {
        share.block_bytes = block_bytes;
        share.part = stage_bytes / WARPS;
        const uint32_t first = warp * share.part, block = first / block_bytes;
        share.w_from = (const char *)j.weight +
                       (((int64_t)group * j.m.blocks + block0 + block) * steps - block) * block_bytes + first +
                       lane * 16;
        share.w_to = ws + first + lane * 16;
        share.left = block0 + (int32_t)block < j.m.blocks ? steps : 0;
        share.stage = 0;
    }
    int32_t next_chunk = 0, next_buffer = 0; /* of x */
    auto bring_x = [&] {                     /* of the next chunk */
        if (next_chunk >= j.m.chunks) return;
        share.bring_x(sh, x_slots, next_chunk++, xs + next_buffer * sh.copies * 16);
        if (++next_buffer == sh.buffers) next_buffer = 0;
    };

    /* Rows of x that this lane addresses, a pair of n8 columns each: its column's row, of the lower or upper 4 words. */
    uint32_t base[4];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const int32_t column = wn * 64 + p * 16 + (lane >> 4) * 8, slot = column >> sh.m.slot_shift;
        const int32_t row = slot * sh.slot_rows + (column & ((1 << sh.m.slot_shift) - 1)) + (lane & 7);
        base[p] = (row + (lane >> 3 & 1) * sh.deep) * 16;
        asm volatile("" : "+r"(base[p])); /* kept, not computed again for every word */
    }
    const uint32_t w_lane = ws + wm * MT / 2 * block_bytes + lane * 16, deep = sh.deep * 32;
    turned_sums<MT, PLANES, SLICED> sums;
    sums.clear();

    /* The step that is multiplied, and where its next 8 words lie. */
    int32_t left = steps, tap = 0, rest = 0, whole = 0, k8 = 0, stage = 0, buffer = 0, since = 0;
    uint32_t at_w = 0, at_x = 0;
    auto enter = [&] {
        if (sh.x_later)
            copy_wait<2 * STAGES - 3>();
        else
            copy_wait<2 * STAGES - 4>();
        __syncthreads();
        at_w = w_lane + stage * stage_bytes;
        at_x = xs + (buffer * sh.copies + rest * sh.phase_rows + whole) * 16;
    };
    auto bring = [&] { /* everybody has left the step before; x, more than a step ahead, behind the weights */
        share.bring_w();
        copy_commit();
        if (tap == 0) bring_x();
        copy_commit();
    };
    const bool early =
        (warp & 4) == 0; /* of two warps on a quarter of the SM one brings while the other multiplies */
    auto load = [&](turned_fragments<MT, PLANES> &f) {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int plane = 0; plane < PLANES; plane++) {
                const int32_t m16 = MT == 1 ? wm & 1 : i;
                load_words(f.a[plane][i], at_w + (m16 >> 1) * block_bytes + ((m16 & 1) * PLANES + plane) * 512);
            }
#pragma unroll
        for (int p = 0; p < 4; p++) load_tiles(f.b[p], at_x + base[p]);
        at_w += 1024 * PLANES;
        at_x += deep;
    };

    for (int32_t s = 0, due = 0; s < STAGES - 1; s++) { /* a chunk comes with its first step, or before */
        if (s == due && next_chunk < sh.buffers - 1) {
            bring_x();
            due += j.g.k;
        }
        share.bring_w();
        copy_commit();
        copy_commit();
    }
    enter();
    turned_fragments<MT, PLANES> f[AHEAD ? 2 : 1];
    load(f[0]);
    bring();
#pragma unroll 1
    for (;;) { /* 16 words a turn */
        if constexpr (AHEAD) load(f[AHEAD]);
        turned_multiply<PREC>(sums, f[0]);
        if constexpr (!AHEAD) {
            load(f[0]);
            turned_multiply<PREC>(sums, f[0]);
        }
        const bool ends = (k8 += 2) == groups8;
        if (ends) {
            k8 = 0;
            if (--left == 0) break;
            if (++stage == STAGES) stage = 0;
            rest += sh.tap_rest, whole += sh.tap_whole;
            if (rest >= sh.m.stride) rest -= sh.m.stride, whole++;
            if (++tap == j.g.k) {
                tap = rest = whole = 0;
                if (++buffer == sh.buffers) buffer = 0;
            }
            enter();
        }
        load(f[0]);
        if (ends && early) bring();
        if constexpr (AHEAD) turned_multiply<PREC>(sums, f[AHEAD]);
        if (ends && !early) bring();
        if (SLICED && ends && ++since == j.m.slice) {
            sums.close_slice();
            since = 0;
        }
    }
    if constexpr (AHEAD) turned_multiply<PREC>(sums, f[AHEAD]);
    if (PLANES == 2) sums.close_slice();
    copy_wait<0>();
    __syncthreads();
    if constexpr (SLICED)
        turned_finish<WM, WN, MT>(j, sh, slots, group, block0, sums.total, shared);
    else
        turned_finish<WM, WN, MT>(j, sh, slots, group, block0, sums.acc, shared);
}

/* ---- host ---- */

template <int PREC, int WM, int WN, int MT, bool SLICED, int STAGES, int CTAS>
static cudaError_t turned_start(const cuda_job *job, const turned_tile *t, cudaStream_t s, int32_t *ret_places) {
    size_t bytes;
    turned_shape sh = turned_shape_of(job, t, STAGES, &bytes);
    auto kernel = conv_turned<PREC, WM, WN, MT, SLICED, STAGES, CTAS>;
    if (ret_places) *ret_places = 0;
    if (bytes > MMA_SHARED || sh.m.slots > TURNED_SLOTS || job->m.rows < 16)
        return ret_places ? cudaSuccess : cudaErrorInvalidConfiguration;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MMA_SHARED);
    if (err) return err;
    if (ret_places) return cudaOccupancyMaxActiveBlocksPerMultiprocessor(ret_places, kernel, 32 * WM * WN, bytes);
    /* Short frames meet inside a CTA where it holds whole norm groups. */
    sh.meet =
        job->what & DO_MEET && (job->max_t_out > MMA_LEAF || 16 * MT * WM % job->g.cg || job->g.cog % job->g.cg);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)(job->tiles * sh.m.co_tiles * job->g.groups));
    config.blockDim = dim3(32 * WM * WN);
    config.dynamicSmemBytes = bytes;
    config.stream = s;
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    config.attrs = &together;
    config.numAttrs = sh.meet ? 1 : 0;
    err = mma_turn_start<PREC>(job, s);
    return err ? err : cudaLaunchKernelEx(&config, kernel, *job, sh);
}
#endif
