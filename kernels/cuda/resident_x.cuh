/* resident_x.cuh: what conv_resident_sm90.cu brings into shared memory: weights once, x chunk by chunk, and x turned inside the
 * same launch.
 *
 * The frames of the first round are turned (wgmma_units.cuh says into what) by all warps of all CTAs before the grid's one
 * barrier; those of later rounds by the producers' spare warps while the rounds before are multiplied: a CTA that has done
 * its share of a round counts it, and who brings x waits for all of them. Nobody who turns ever waits. */
#ifndef NCT_CUDA_RESIDENT_X_CUH
#define NCT_CUDA_RESIDENT_X_CUH
#include "wgmma_units.cuh"

enum { RESIDENT_CHUNKS = 32, RESIDENT_BUFFERS = 3 };

struct resident_shape {
    int32_t phase_rows, rows;     /* of one phase of the stride, of a unit, in shared memory */
    int32_t tap_rows, tap_phases; /* from a tap to the next */
    int32_t buffers;              /* of x */
    int32_t blocks;               /* of 64 channels in a conv group */
    int32_t set_blocks;           /* consecutive blocks that share norm groups */
    int32_t ctas;                 /* of one block of channels */
    int32_t spread;               /* tiles of the longest frame */
    int32_t span, frames;         /* a round: `frames` frames are under way in `span` phases */
    int32_t rounds;
    int32_t segments, deep; /* of a unit of the longest frame, when turned; 1: of 32 positions each, else more */
    int32_t w_bytes;
};
struct resident_ring {
    uint64_t full_w[RESIDENT_CHUNKS], full_x[RESIDENT_BUFFERS], empty_x[RESIDENT_BUFFERS];
};

/* ---- who takes what ---- */

struct resident_place {
    int32_t n, t0;
    bool empty;
};
/* Of CTA `cta` of a block of channels. */
__device__ __forceinline__ resident_place place_in(
    const cuda_job &j, const resident_shape &sh, int32_t steps, int32_t phase, int32_t cta) {
    const int32_t round = phase / sh.span, slot = (phase - round * sh.span) * sh.ctas + cta;
    const int32_t at = slot / sh.spread, tile = slot - at * sh.spread, n = round * sh.frames + at;
    if (at >= sh.frames || n >= j.n_frames) return {0, 0, true};
    return {n, tile * steps, tile * steps >= frame_at(j, n).t_out};
}

/* ---- turning ---- */

/* Positions of a lane in one segment. */
template <int PREC> __host__ __device__ constexpr int segment_deep() {
    return PREC == NCT_PREC_BF16 ? 4 : 8;
}
__device__ __forceinline__ int32_t *round_counter(const cuda_job &j, int32_t round) {
    return j.counters + (int64_t)j.n_frames * job_counters(j) + round;
}
/* One warp: positions p0 + 32 k + lane, k < DEEP, of a unit of frame n. */
template <int PREC, int DEEP>
__device__ __forceinline__ void turn_segment(
    const cuda_job &j, const nct_frame &f, int32_t n, int32_t unit, int32_t p0) {
    constexpr int EACH = unit_channels<PREC>();
    const int32_t lane = threadIdx.x & 31, rows = frame_rows(j.g, f.t_out), all = rows * j.g.stride,
                  chunk_units = j.m.chunks * 8, group = unit / chunk_units;
    const int32_t channel = group * j.g.cig + (unit - group * chunk_units) * EACH, last = (group + 1) * j.g.cig;
    const int32_t first = p0 - f.pad_left;
    const int64_t at = f.x_off + channel * f.x_pitch;
    const bool inside = first >= 0 && first + 32 * DEEP <= f.t_in && channel + EACH <= last;
    uint32_t raw[DEEP][EACH];
    auto bring = [&](const auto *x) {
        if (inside)
#pragma unroll
            for (int e = 0; e < EACH; e++)
#pragma unroll
                for (int k = 0; k < DEEP; k++) raw[k][e] = __ldg(x + at + e * f.x_pitch + first + lane + 32 * k);
        else
#pragma unroll
            for (int k = 0; k < DEEP; k++) {
                const int32_t p = p0 + 32 * k + lane;
                const int64_t from = source_step(j.g.pad_mode, (int64_t)p - f.pad_left, f.t_in);
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    raw[k][e] = from >= 0 && p < all && channel + e < last ? __ldg(x + at + e * f.x_pitch + from) : 0;
            }
    };
    if (j.x_dtype == NCT_F32)
        bring((const uint32_t *)j.x);
    else
        bring((const unsigned short *)j.x);
    uint8_t *to = turned_frame(j, n) + (int64_t)unit * all * 16;
#pragma unroll
    for (int k = 0; k < DEEP; k++) {
        const int32_t p = p0 + 32 * k + lane, row = j.g.stride == 1 ? p : p / j.g.stride;
        float v[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            v[e] = j.x_dtype == NCT_F32 ? __uint_as_float(raw[k][e]) : half_value(raw[k][e], j.x_dtype);
        if (p < all) *(uint4 *)(to + ((int64_t)(p - row * j.g.stride) * rows + row) * 16) = unit_of<PREC>(v);
    }
}
/* Warp `warp` of `warps` takes its share of a round's frames. Ends with its writes open to bulk copies of whoever learns
 * of them. */
template <int PREC>
__device__ __forceinline__ void turn_share(
    const cuda_job &j, const resident_shape &sh, int32_t round, int32_t warp, int32_t warps) {
    const int32_t n0 = round * sh.frames, units = units_of_job(j),
                  count = min(sh.frames, j.n_frames - n0) * units * sh.segments;
    for (int32_t i = warp; i < count; i += warps) {
        const int32_t rest = i / sh.segments, at = rest / units, unit = rest - at * units, n = n0 + at;
        const nct_frame f = frame_at(j, n);
        const int32_t p0 = (i - rest * sh.segments) * 32 * sh.deep;
        if (p0 >= frame_rows(j.g, f.t_out) * j.g.stride) continue;
        if (sh.deep == 1)
            turn_segment<PREC, 1>(j, f, n, unit, p0);
        else
            turn_segment<PREC, segment_deep<PREC>()>(j, f, n, unit, p0);
    }
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
/* All later rounds, by THREADS threads of a CTA that share barrier 3. */
template <int PREC, int THREADS>
__device__ __forceinline__ void turn_rounds(const cuda_job &j, const resident_shape &sh, int32_t thread) {
    for (int32_t round = 1; round < sh.rounds; round++) {
        turn_share<PREC>(j, sh, round, blockIdx.x * (THREADS / 32) + (thread >> 5), gridDim.x * (THREADS / 32));
        asm volatile("bar.sync 3, %0;" ::"n"(THREADS) : "memory");
        if (thread == 0) {
            __threadfence();
            atomicAdd(round_counter(j, round), 1);
        }
    }
}
/* Zeroes for this launch: all sets' and rounds' counters, by the whole grid. */
__device__ __forceinline__ void clear_counters(const cuda_job &j, const resident_shape &sh) {
    const int32_t count = j.n_frames * job_counters(j) + sh.rounds;
    for (int32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) j.counters[i] = 0;
}

/* ---- bringing ---- */

/* One warp, once: a chunk's taps, two blocks of 4 KB each. */
__device__ __forceinline__ void bring_weights(
    const cuda_job &j, int32_t group, int32_t block, resident_ring *ring, uint8_t *ws) {
    const int32_t lane = threadIdx.x & 31, two = min(2, j.m.blocks - 2 * block), steps = j.m.chunks * j.g.k;
    const char *from = (const char *)j.weight + (((int64_t)group * j.m.blocks + 2 * block) * steps << 12);
    for (int32_t chunk = 0; chunk < j.m.chunks; chunk++) {
        if (lane == 0) barrier_expect(&ring->full_w[chunk], j.g.k * two * 4096);
        __syncwarp();
        for (int32_t i = lane; i < j.g.k * two; i += 32) {
            const int32_t half = i / j.g.k, step = chunk * j.g.k + i - half * j.g.k;
            bulk_copy(ws + step * 8192 + half * 4096, from + (((int64_t)half * steps + step) << 12), 4096,
                &ring->full_w[chunk]);
        }
    }
}
/* A CTA must not end before its copies. */
__device__ __forceinline__ void weights_there(const cuda_job &j, resident_ring *ring) {
    for (int32_t chunk = 0; chunk < j.m.chunks; chunk++) barrier_wait(&ring->full_w[chunk], 0);
}
/* One warp: the chunks of all tiles of the CTA in their order, a copy a (unit, phase of the stride). */
__device__ __forceinline__ void bring_x(const cuda_job &j, const resident_shape &sh, int32_t steps, int32_t cta,
    int32_t group, resident_ring *ring, uint8_t *xs) {
    const int32_t lane = threadIdx.x & 31, stride = j.g.stride;
    for (int32_t phase = 0, b = 0, turn = 1, seen = 0; phase < sh.rounds * sh.span; phase++) {
        const resident_place p = place_in(j, sh, steps, phase, cta);
        if (p.empty) continue;
        const int32_t round = phase / sh.span;
        if (round > seen) {
            int32_t done;
            do
                asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                             : "=r"(done)
                             : "l"(round_counter(j, round))
                             : "memory");
            while (done < (int32_t)gridDim.x);
            asm volatile("fence.proxy.async.global;" ::: "memory");
            seen = round;
        }
        const int32_t all = frame_rows(j.g, frame_at(j, p.n).t_out), rows = min(sh.phase_rows, all - p.t0);
        const uint8_t *from = turned_frame(j, p.n) + ((int64_t)group * j.m.chunks * 8 * stride * all + p.t0) * 16;
        for (int32_t chunk = 0; chunk < j.m.chunks; chunk++) {
            barrier_wait(&ring->empty_x[b], turn);
            if (lane == 0) barrier_expect(&ring->full_x[b], rows * stride * 8 * 16);
            __syncwarp();
            for (int32_t i = lane; i < 8 * stride; i += 32) {
                const int32_t unit = i / stride, ph = i - unit * stride;
                bulk_copy(xs + ((b * 8 + unit) * sh.rows + ph * sh.phase_rows) * 16, from + (int64_t)i * all * 16,
                    rows * 16, &ring->full_x[b]);
            }
            from += (int64_t)8 * stride * all * 16;
            if (++b == sh.buffers) b = 0, turn ^= 1;
        }
    }
}
#endif
