/* resident_x.cuh: what conv_resident_sm90.cu brings into shared memory: weights once, and x, turned beforehand (wgmma_units.cuh),
 * chunk by chunk; and which tile is whose. */
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
struct
    resident_ring { /* barriers of one arrival each; seen[r]: chunks that each of warpgroup r's warps saw come, summed */
    uint64_t full_w[RESIDENT_CHUNKS], full_x[RESIDENT_BUFFERS], empty_x[RESIDENT_BUFFERS];
    int32_t seen[2];
};
enum { RESIDENT_BARRIERS = RESIDENT_CHUNKS + 2 * RESIDENT_BUFFERS };

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
    for (int32_t phase = 0, b = 0, turn = 1; phase < sh.rounds * sh.span; phase++) {
        const resident_place p = place_in(j, sh, steps, phase, cta);
        if (p.empty) continue;
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
