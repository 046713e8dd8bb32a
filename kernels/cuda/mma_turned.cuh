/* mma_turned.cuh: x for conv_mma_turned.cuh: words of K side by side, in memory, made by a kernel of its own before the conv.
 *
 * A unit is 16 bytes: 4 channels of one step (tf32: rounded here, once; f32: as they are) or 8 in bf16. Memory: frame by
 * frame as [conv group, chunk, unit][phase of the stride][row of 16 bytes], row r of phase p being position r * stride + p of
 * the padded frame; positions outside it are what the padding mode shows. Any dtype, pitch and alignment of x ends here:
 * a tile's window is a run of rows a (unit, phase), a tap is a shift by rows, 8 rows are one tile of ldmatrix. */
#ifndef NCT_CUDA_MMA_TURNED_CUH
#define NCT_CUDA_MMA_TURNED_CUH
#include "mma_rows.cuh"
#include "mma_stage.cuh"

enum { MMA_TURN_THREADS = 256, TURNED_SLOTS = 32 };

struct turned_shape {
    mma_shape m;                   /* slots of the tile */
    int32_t units;                 /* of one chunk and position */
    int32_t slot_rows, phase_rows; /* in shared memory: of a slot and phase; of a phase */
    int32_t deep, copies;          /* rows of a unit; of a chunk */
    int32_t buffers;               /* of x */
    int32_t tap_rest, tap_whole;   /* dil mod stride, dil / stride */
    int32_t meet;                  /* all CTAs of the launch exchange leaves */
    int32_t x_later;               /* a chunk of x is not needed before the step after the weights it comes with */
    uint32_t slots_magic;
};

__host__ __device__ __forceinline__ int32_t turned_reach(
    const geometry &g) { /* rows of a phase beyond the outputs' */
    return (g.k - 1) * g.dil / g.stride;
}
__host__ __device__ __forceinline__ int32_t turned_units(const cuda_job &j) { /* of all channels of one position */
    return j.g.groups * j.m.chunks * (j.m.rows / 4);
}
/* Of frame n: its first unit's first row. */
__device__ __forceinline__ uint8_t *turned_at(const cuda_job &j, int32_t n) {
    int64_t rows = leaf_start(j, n) * MMA_LEAF + (int64_t)n * turned_reach(j.g);
    return j.turned + rows * j.g.stride * turned_units(j) * 16;
}

template <int PREC> struct turned_unit { static constexpr int E = PREC == NCT_PREC_BF16 ? 8 : 4; };
/* 16 bytes from the elements of E channels as they lie in memory. */
template <int PREC>
__device__ __forceinline__ uint4 turned_words(const cuda_job &j, const uint32_t (&v)[turned_unit<PREC>::E]) {
    auto value = [&](int e) { return j.x_dtype == NCT_F32 ? __uint_as_float(v[e]) : half_value(v[e], j.x_dtype); };
    uint32_t w[4];
#pragma unroll
    for (int e = 0; e < 4; e++)
        if constexpr (PREC != NCT_PREC_BF16)
            w[e] = word_of<PREC>(value(e));
        else if (j.x_dtype == NCT_BF16)
            w[e] = v[2 * e] | v[2 * e + 1] << 16;
        else
            w[e] = pack_bf16(value(2 * e), value(2 * e + 1));
    return make_uint4(w[0], w[1], w[2], w[3]);
}

enum { TURN_EACH = 4 }; /* units of a thread: their loads are in flight together */
/* grid: positions of the longest frame x units / TURN_EACH, frames. */
template <int PREC>
__global__ void __launch_bounds__(MMA_TURN_THREADS) mma_turn(const __grid_constant__ cuda_job j, int32_t pieces) {
    constexpr int E = turned_unit<PREC>::E;
    const int32_t n = blockIdx.y, unit0 = blockIdx.x / pieces;
    const int32_t p = (blockIdx.x - unit0 * pieces) * MMA_TURN_THREADS + threadIdx.x;
    const nct_frame f = frame_at(j, n);
    const int32_t rows = f.t_out + turned_reach(j.g), stride = j.g.stride;
    const int32_t row = stride == 1 ? p : p / stride, phase = p - row * stride;
    if (row >= rows) return;
    const int64_t from = source_step(j.g.pad_mode, (int64_t)p - f.pad_left, f.t_in);
    const int32_t each = j.m.chunks * (j.m.rows / 4), units = j.g.groups * each;
    uint32_t v[TURN_EACH][E];
#pragma unroll
    for (int u = 0; u < TURN_EACH; u++) {
        const int32_t unit = unit0 * TURN_EACH + u, group = unit / each;
        const int32_t channel = group * j.g.cig + (unit - group * each) * E, last = (group + 1) * j.g.cig;
        const int64_t at = f.x_off + channel * f.x_pitch + from;
#pragma unroll
        for (int e = 0; e < E; e++) {
            v[u][e] = 0;
            if (from < 0 || channel + e >= last || unit >= units) continue;
            v[u][e] = j.x_dtype == NCT_F32 ? __ldg((const uint32_t *)j.x + at + e * f.x_pitch)
                                           : __ldg((const unsigned short *)j.x + at + e * f.x_pitch);
        }
    }
    uint8_t *to = turned_at(j, n) + (((int64_t)unit0 * TURN_EACH * stride + phase) * rows + row) * 16;
#pragma unroll
    for (int u = 0; u < TURN_EACH; u++, to += (int64_t)stride * rows * 16)
        if (unit0 * TURN_EACH + u < units) *(uint4 *)to = turned_words<PREC>(j, v[u]);
}
template <int PREC> static cudaError_t mma_turn_start(const cuda_job *job, cudaStream_t s) {
    const int64_t positions = (int64_t)(job->max_t_out + turned_reach(job->g)) * job->g.stride;
    const int32_t pieces = (int32_t)((positions + MMA_TURN_THREADS - 1) / MMA_TURN_THREADS);
    const int32_t units = (turned_units(*job) + TURN_EACH - 1) / TURN_EACH;
    mma_turn<PREC>
        <<<dim3((uint32_t)(pieces * units), (uint32_t)job->n_frames), MMA_TURN_THREADS, 0, s>>>(*job, pieces);
    return cudaGetLastError();
}

/* ---- a tile's x in shared memory: [unit][phase][slot][row of 16 bytes] ---- */

struct turned_slot {
    const uint8_t *from; /* of the conv group's first unit, phase 0: the slot's first row */
    int32_t rows, left;  /* of a phase of the frame; of them in the slot's window */
};
__device__ __forceinline__ turned_slot turned_slot_of(
    const cuda_job &j, const turned_shape &sh, const mma_slots &s, int32_t group, int32_t slot) {
    if (s.n0 + slot >= j.n_frames) return {};
    const int32_t rows = frame_at(j, s.n0 + slot).t_out + turned_reach(j.g);
    const int64_t at = (int64_t)group * j.m.chunks * sh.units * j.g.stride * rows + s.t0;
    return {turned_at(j, s.n0 + slot) + at * 16, rows, min(sh.slot_rows, rows - s.t0)};
}
/* ---- host ---- */

/* Shared memory of the loop: `stages` of weights, and as many buffers of x as bring a chunk that far ahead. */
static inline turned_shape turned_shape_of(
    const cuda_job *job, const turned_tile *t, int32_t stages, size_t *ret_bytes) {
    const geometry *g = &job->g;
    const int32_t bm = 16 * t->wm * t->mt, bn = 64 * t->wn, warps = t->wm * t->wn;
    turned_shape sh = {};
    sh.m = shape_of(job, bm, bn);
    sh.m.wide = 0;
    sh.units = job->m.rows / 4;
    sh.slot_rows = (1 << sh.m.slot_shift) + turned_reach(*g);
    sh.phase_rows = sh.m.slots * sh.slot_rows;
    sh.deep = g->stride * sh.phase_rows;
    sh.copies = sh.units * sh.deep;
    sh.buffers = (stages - 1 + g->k - 1) / g->k + 1;
    sh.x_later = g->k * (sh.buffers - 1) >= stages;
    sh.slots_magic = magic_of(sh.m.slots > 1 ? sh.m.slots : 2);
    sh.tap_rest = g->dil % g->stride;
    sh.tap_whole = g->dil / g->stride;
    size_t loop = (size_t)stages * bm * job->m.rows * job->m.planes * 4 + (size_t)sh.buffers * sh.copies * 16;
    size_t room = (size_t)sh.m.slots * bm * 16 + (size_t)warps * 16 * TURNED_PITCH * 4;
    *ret_bytes = loop > room ? loop : room;
    return sh;
}
#endif
