/* conv_mma.cuh: PLAN_MMA, tensor cores by mma.sync (sm_80 and later): every layer whose conv groups have 8 or
 * more channels in and out.
 *
 * Idea: M = 16 output channels, N = 8 steps, K = 8 words of x. x stays T-contiguous in shared memory and a tap
 * is an address shift of the B fragment, so any K and dilation cost nothing; stride s is laid out phase-major
 * ([p mod s][p / s]) and reads without bank conflicts. A word is one channel (tf32, rounded to nearest, ties
 * away), a pair of channels (bf16), or one f32 channel that is split into hi + lo as the fragment is read.
 * Weights come packed in fragment order and are copied by cp.async, one (chunk, tap) a stage, three stages.
 *
 * Plan: steps (chunk, tap) ascending, in each the groups of 8 words ascending, one MMA chain per output. f32
 * is 3xTF32 with hi*lo and lo*hi in a chain of their own, added when a slice of at most 384 products ends
 * (interleaved in one chain it was 8.5e-6 off: tensor cores truncate as they accumulate); slice sums are added
 * ascending in f32. tf32 and bf16 have one slice, layers of 8M weights or more slices of 12 steps, which the split
 * row spreads over all SMs when frames are few and short. Leaves: 1 channel x 64 steps, in-lane n8 ascending, then quads.
 * Data flow: w (C_out, steps) x x (words, BN steps or BN/SW slots of short frames) -> acc -> + bias ->
 *   leaves | tile through shared memory -> raw f32 | y, coalesced for any pitch and alignment.
 * Shared memory stays below 99 KB (8.6, 8.9). */
#ifndef NCT_CUDA_CONV_MMA_CUH
#define NCT_CUDA_CONV_MMA_CUH
#include "mma_stage.cuh"

/* ---- instructions ---- */

__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- the kernel ---- */

template <int PREC, int WM, int WN, int MT, bool SLICED, bool PACKED, bool ASYNC>
__global__ void __launch_bounds__(32 * WM * WN, MT == 4 ? 2 : 1)
    conv_mma(const __grid_constant__ cuda_job j, const __grid_constant__ mma_shape sh) {
    constexpr int THREADS = 32 * WM * WN, BM = 16 * MT * WM, PLANES = PREC == NCT_PREC_F32 ? 2 : 1;
    extern __shared__ uint32_t shared[];
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const int32_t wm = warp % WM, wn = warp / WM;
    const int32_t co_tiles = sh.co_tiles, tile = blockIdx.x / (co_tiles * j.g.groups);
    const int32_t in_all = blockIdx.x - tile * co_tiles * j.g.groups, group = in_all / co_tiles;
    const int32_t block0 = (in_all - group * co_tiles) * (BM / 32); /* of 32 channels, in the conv group */
    mma_slots slots = slots_of(j, sh, tile, (group + 1) * j.g.cig);
    if (slots.empty) return;

    const int32_t groups8 = j.m.rows / 8, all_steps = j.m.chunks * j.g.k;
    int32_t first = 0, last = all_steps;
    if (SLICED && (j.what & DO_PARTIAL)) {
        first = blockIdx.y * j.m.slice;
        last = min(first + j.m.slice, all_steps);
    }
    const int32_t block_words = groups8 * 256 * PLANES; /* of one block of 32 channels in one step */
    const int32_t stage_words = BM / 32 * block_words;
    uint32_t *ws = shared, *xs = shared + MMA_STAGES * stage_words;
    const uint32_t *weights = (const uint32_t *)j.weight + (int64_t)group * j.m.blocks * all_steps * block_words;

    float acc[MT][8][4], low[PLANES == 2 ? MT : 1][PLANES == 2 ? 8 : 1][4];
    float total[SLICED ? MT : 1][SLICED ? 8 : 1][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                acc[i][n][e] = 0;
                if constexpr (PLANES == 2) low[i][n][e] = 0;
                if constexpr (SLICED) total[i][n][e] = 0;
            }

    auto close_slice = [&] {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if constexpr (PLANES == 2) {
                        acc[i][n][e] = __fadd_rn(acc[i][n][e], low[i][n][e]);
                        low[i][n][e] = 0;
                    }
                    if constexpr (SLICED) {
                        total[i][n][e] = __fadd_rn(total[i][n][e], acc[i][n][e]);
                        acc[i][n][e] = 0;
                    }
                }
        }
    };
    auto stage_w = [&](int32_t step) {
        if (step < last) {
            uint32_t to = (uint32_t)__cvta_generic_to_shared(ws + step % MMA_STAGES * stage_words);
            int32_t quads = block_words / 4;
#pragma unroll
            for (int b = 0; b < BM / 32; b++) {
                if (block0 + b >= j.m.blocks) break;
                const uint32_t *from = weights + ((int64_t)(block0 + b) * all_steps + step) * block_words;
                for (int32_t i = threadIdx.x; i < quads; i += THREADS)
                    copy_async16(to + (b * block_words + i * 4) * 4, from + i * 4, 16);
            }
        }
    };
    const int32_t x_words = j.m.rows * sh.pitch;
    auto stage_chunk = [&](int32_t chunk, uint32_t *to) {
        int32_t c0 = chunk * j.m.rows * (PREC == NCT_PREC_BF16 ? 2 : 1);
        stage_x<PREC, THREADS, ASYNC>(j, sh, slots, group * j.g.cig + c0, j.m.rows, to, threadIdx.x);
    };

    /* Of the eight n8 columns of this warp, plus the lane's column and row; long frames: 8 apart. */
    int32_t base[PACKED ? 8 : 1];
#pragma unroll
    for (int n = 0; n < (PACKED ? 8 : 1); n++) {
        int32_t column = wn * 64 + n * 8;
        base[n] =
            g + q * sh.pitch + slots.shift +
            (PACKED ? (column >> sh.slot_shift) * sh.slot_words + (column & ((1 << sh.slot_shift) - 1)) : column);
    }

    const int32_t chunk0 = first / j.g.k;
    int32_t chunk = chunk0, tap = first - chunk * j.g.k, since = 0;
    if (ASYNC) stage_chunk(chunk, xs);
    stage_w(first);
    copy_commit();
    stage_w(first + 1);
    copy_commit();
    for (int32_t step = first; step < last; step++) {
        if (!ASYNC && (step == first || tap == 0)) {
            __syncthreads(); /* the last reader of the chunk before */
            stage_chunk(chunk, xs);
        }
        if (ASYNC && j.g.k == 1)
            copy_wait<0>(); /* the chunk's x is in the last group */
        else
            copy_wait<1>();
        __syncthreads();
        if (ASYNC && (step == first || tap == 0) && (chunk + 1) * j.g.k < last)
            stage_chunk(chunk + 1, xs + ((chunk + 1 - chunk0) & 1) * x_words);
        stage_w(step + 2);
        copy_commit();
        const uint32_t *x = ASYNC ? xs + ((chunk - chunk0) & 1) * x_words : xs;
        int32_t shift =
            sh.stride == 1 ? tap * j.g.dil : tap * j.g.dil % sh.stride * sh.phase + tap * j.g.dil / sh.stride;
        int32_t words_left =
            (j.g.cig + (PREC == NCT_PREC_BF16 ? 1 : 0)) / (PREC == NCT_PREC_BF16 ? 2 : 1) - chunk * j.m.rows;
        int32_t used8 = min(groups8, (words_left + 7) / 8);
        const uint32_t *w = ws + step % MMA_STAGES * stage_words;
        x += shift + (PACKED ? 0 : base[0]);
        const uint32_t *x4 = x + 4 * sh.pitch;
        for (int32_t k8 = 0; k8 < used8; k8++, x += 8 * sh.pitch, x4 += 8 * sh.pitch) {
            uint32_t a[MT][4], a_low[PLANES == 2 ? MT : 1][4];
#pragma unroll
            for (int i = 0; i < MT; i++) {
                int32_t m16 = wm * MT + i;
                const uint32_t *from =
                    w + (m16 >> 1) * block_words + ((k8 * 2 + (m16 & 1)) * PLANES) * 128 + lane * 4;
                *(uint4 *)a[i] = *(const uint4 *)from;
                if constexpr (PLANES == 2) *(uint4 *)a_low[i] = *(const uint4 *)(from + 128);
            }
#pragma unroll
            for (int n = 0; n < 8; n++) {
                int32_t column = 8 * n;
                if constexpr (PACKED) column = base[n];
                uint32_t b0 = x[column], b1 = x4[column];
                if constexpr (PREC == NCT_PREC_F32) {
                    uint32_t h0 = round_tf32(__uint_as_float(b0)), h1 = round_tf32(__uint_as_float(b1));
                    uint32_t l0 = low_tf32(b0, h0), l1 = low_tf32(b1, h1);
#pragma unroll
                    for (int i = 0; i < MT; i++) {
                        mma_tf32(low[i][n], a_low[i], h0, h1);
                        mma_tf32(low[i][n], a[i], l0, l1);
                        mma_tf32(acc[i][n], a[i], h0, h1);
                    }
                } else {
                    if (PREC == NCT_PREC_TF32 && ASYNC) {
                        b0 = round_tf32(__uint_as_float(b0));
                        b1 = round_tf32(__uint_as_float(b1));
                    }
#pragma unroll
                    for (int i = 0; i < MT; i++)
                        if constexpr (PREC == NCT_PREC_TF32)
                            mma_tf32(acc[i][n], a[i], b0, b1);
                        else
                            mma_bf16(acc[i][n], a[i], b0, b1);
                }
            }
        }
        if (++tap == j.g.k) {
            tap = 0;
            chunk++;
        }
        if (SLICED && ++since == j.m.slice) {
            close_slice();
            since = 0;
        }
    }
    close_slice();
    copy_wait<0>();
    __syncthreads();
    if constexpr (SLICED) {
        mma_finish<WM, WN, MT>(j, sh, slots, group, block0 * 32, total, (float *)shared);
    } else
        mma_finish<WM, WN, MT>(j, sh, slots, group, block0 * 32, acc, (float *)shared);
}

/* ---- host ---- */

static inline int32_t tile_c(const mma_tile *t) {
    return 16 * t->wm * t->mt;
}

/* Bytes of shared memory of a tile; ASYNC has two buffers of x. */
static inline size_t shared_bytes(const mma_tile *t, const mma_layout *m, const mma_shape *sh, int async) {
    size_t stages = (size_t)MMA_STAGES * tile_c(t) * m->rows * m->planes;
    size_t k_loop = stages + (size_t)(async ? 2 : 1) * m->rows * sh->pitch;
    size_t tile = (size_t)tile_c(t) * (64 * t->wn + 4);
    return 4 * (k_loop > tile ? k_loop : tile);
}

template <int PREC, int WM, int WN, int MT, bool SLICED, bool PACKED>
static cudaError_t start(const cuda_job *job, const mma_tile *t, cudaStream_t s) {
    mma_shape sh = shape_of(job, tile_c(t), 64 * t->wn);
    int async = PREC != NCT_PREC_BF16 && !PACKED && job->x_dtype == NCT_F32 && job->g.pad_mode == NCT_ZEROS;
    async = async && shared_bytes(t, &job->m, &sh, 1) <= MMA_SHARED;
    size_t bytes = shared_bytes(t, &job->m, &sh, async);
    int32_t slices = SLICED && job->what & DO_PARTIAL ? mma_slices(&job->g, &job->m) : 1;
    dim3 grid((uint32_t)(job->tiles * sh.co_tiles * job->g.groups), (uint32_t)slices);
    auto kernel = conv_mma<PREC, WM, WN, MT, SLICED, PACKED, false>;
    if constexpr (PREC != NCT_PREC_BF16 && !PACKED)
        if (async) kernel = conv_mma<PREC, WM, WN, MT, SLICED, PACKED, true>;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MMA_SHARED);
    if (err) return err;
    kernel<<<grid, 32 * WM * WN, bytes, s>>>(*job, sh);
    return cudaGetLastError();
}

/* Frames of at most 64 steps are packed; what a row cannot do mma_fits has refused. */
template <int PREC>
static cudaError_t start_low(const cuda_job *job, const mma_tile *t, bool sliced, bool packed, cudaStream_t s) {
    if (t->mt == 4) return start<PREC, 2, 2, 4, false, false>(job, t, s);
    if (t->wm == 1) return start<PREC, 1, 4, 2, false, false>(job, t, s);
    if (t->mt == 2 && packed)
        return sliced ? start<PREC, 2, 2, 2, true, true>(job, t, s) : start<PREC, 2, 2, 2, false, true>(job, t, s);
    if (t->mt == 2)
        return sliced ? start<PREC, 2, 2, 2, true, false>(job, t, s) : start<PREC, 2, 2, 2, false, false>(job, t, s);
    if (packed)
        return sliced ? start<PREC, 4, 1, 1, true, true>(job, t, s) : start<PREC, 4, 1, 1, false, true>(job, t, s);
    return start<PREC, 4, 1, 1, false, false>(job, t, s);
}

/* One file a precision, so that they compile side by side. */
cudaError_t mma_start_tf32(const cuda_job *job, const mma_tile *t, bool sliced, bool packed, cudaStream_t s);
cudaError_t mma_start_bf16(const cuda_job *job, const mma_tile *t, bool sliced, bool packed, cudaStream_t s);
cudaError_t mma_start_f32(const cuda_job *job, const mma_tile *t, bool sliced, bool packed, cudaStream_t s);
#endif
