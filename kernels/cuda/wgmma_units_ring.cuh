/* wgmma_units_ring.cuh: the rings of conv_wgmma_ss_sm90.cu and who fills and empties them: weights in stages of some taps of a
 * chunk, x in pieces of one phase of a chunk; one warp each brings them, warpgroups multiply. */
#ifndef NCT_CUDA_WGMMA_UNITS_RING_CUH
#define NCT_CUDA_WGMMA_UNITS_RING_CUH
#include "wgmma_units.cuh"

enum { SS_STAGES = 8, SS_BUFFERS = 8 };

struct units_ring {
    uint64_t full_w[SS_STAGES], empty_w[SS_STAGES], full_x[SS_BUFFERS], empty_x[SS_BUFFERS];
};
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

/* What a loop needs of the parameters, as a register: ptxas would load it again in every round. */
__device__ __forceinline__ int32_t kept(int32_t v) {
    return __shfl_sync(~0u, v, 0);
}
/* Weights: a stage is some taps of a chunk, for each tap two blocks of 4 KB for 64 channels; every CTA of the cluster brings
 * a share of every block to all. One warp, a lane a block. */
template <int BLOCKS>
__device__ __forceinline__ void share_weights(
    const cuda_job &j, const units_shape &sh, int32_t group, int32_t block0, units_ring *ring, uint8_t *ws) {
    const int32_t lane = threadIdx.x & 31, blocks = kept(min(BLOCKS, j.m.blocks - block0)),
                  cluster = kept(sh.cluster);
    const int32_t taps = kept(j.g.k), together = kept(sh.together), stages = kept(sh.m.stages),
                  share = 4096 / cluster;
    const int32_t tap = lane / blocks, block = lane - tap * blocks, rank = (int32_t)cluster_rank();
    const char *from = (const char *)j.weight + rank * share +
                       ((((int64_t)group * j.m.blocks + block0 + block) * j.m.chunks * taps + tap) << 12);
    const uint16_t all = (uint16_t)((1 << cluster) - 1);
    const uint32_t full_w = kept(shared_address(ring->full_w)), step = together * BLOCKS * 4096,
                   start = kept(shared_address(ws)) + (tap * BLOCKS + block) * 4096 + rank * share;
    uint32_t to = start;
    int32_t stage = 0, turn = 1, left = taps;
    for (int32_t chunk = kept(j.m.chunks); chunk;) {
        const int32_t now = min(together, left);
        const uint32_t full = full_w + stage * 8;
        barrier_wait(full + SS_STAGES * 8, turn);
        if (lane == 0) barrier_expect(full, now * blocks * 4096);
        __syncwarp();
        if (tap < now) {
            if (cluster == 1)
                bulk_copy(to, from, share, full);
            else
                bulk_copy_all(to, from, share, full, all);
        }
        from += now << 12;
        to += step;
        if (++stage == stages) stage = 0, turn ^= 1, to = start;
        left -= now;
        if (left == 0) left = taps, chunk--;
    }
}
/* x: a piece is one phase of a chunk, a copy a unit. One warp. */
__device__ __forceinline__ void bring_units(
    const cuda_job &j, const units_shape &sh, const units_place &p, int32_t group, units_ring *ring, uint8_t *xs) {
    const int32_t buffers = kept(sh.m.buffers), pieces = kept(sh.pieces), on = kept(sh.tap_phases);
    const int32_t lane = threadIdx.x & 31, stride = j.g.stride, all = frame_rows(j.g, p.t0 + p.left);
    const int32_t rows = p.left > 0 ? min(sh.rows, all - p.t0) : 0;
    const uint8_t *from =
        turned_frame(j, p.n) + (((int64_t)group * j.m.chunks * 8 + (lane & 7)) * stride * all + p.t0) * 16;
    const int64_t phase_bytes = (int64_t)all * 16, chunk_bytes = 8 * stride * phase_bytes;
    uint8_t *to = xs + (lane & 7) * sh.rows * 16;
    launches_before();
    for (int32_t chunk = kept(j.m.chunks), b = 0, turn = 1; chunk; chunk--) {
        for (int32_t piece = 0, phase = 0; piece < pieces; piece++) {
            barrier_wait(&ring->empty_x[b], turn);
            if (lane == 0) barrier_expect(&ring->full_x[b], rows * 8 * 16);
            __syncwarp();
            if (rows && lane < 8)
                bulk_copy(to + b * sh.rows * 128, from + phase * phase_bytes, rows * 16, &ring->full_x[b]);
            if (++b == buffers) b = 0, turn ^= 1;
            phase += on;
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
/* What a warpgroup gives back when a stage's products are done: the stage
 * itself to all CTAs of the cluster (warp 0, a lane a CTA) and the pieces of x
 * whose last tap it had (warp 1, a lane a tap). */
struct units_done {
    int32_t lane, warp, buffers, taps, together, period, pieces, on;
    uint32_t empty_w, empty_x, cluster, stages;
    int32_t stage, tap, in, first; /* of the stage that is done next */

    __device__ __forceinline__ void give_back() {
        if (warp == 0) {
            if (lane < cluster) barrier_arrive_at(empty_w + stage * 8);
            if (++stage == stages) stage = 0;
        } else if (warp == 1) {
            int32_t slot = first + in;
            if (slot >= buffers) slot -= buffers;
            if (lane < together && tap < taps && tap >= taps - period) barrier_arrive(empty_x + slot * 8);
            tap += together;
            in += on;
            if (in >= period) in -= period;
            if (tap - lane >= taps) {
                tap = lane;
                in = lane % period;
                first += pieces;
                if (first >= buffers) first -= buffers;
            }
        }
    }
};
/* a: my channels of stage 0; b: my steps of buffer 0. One tap is with the
 * tensor cores while the next is prepared, by few instructions: a scheduler has
 * one or two warps here, and each instruction takes them 3 to 4 cycles. */
template <int PREC, int N, int BLOCKS>
__device__ __forceinline__ void multiply_all(
    const cuda_job &j, const units_shape &sh, units_ring *ring, uint64_t a, uint64_t b, float (&acc)[N / 2]) {
    const int32_t lane = threadIdx.x & 31, stages = kept(sh.m.stages), buffers = kept(sh.m.buffers),
                  taps = kept(j.g.k), together = kept(sh.together), period = kept(sh.period),
                  pieces = kept(sh.pieces);
    const int32_t piece_rows = kept(sh.rows * 8), k_rows = kept(sh.rows * 2), stage_rows = together * BLOCKS * 256;
    const int32_t tap_rows = kept(sh.tap_rows), tap_phases = kept(sh.tap_phases), stride = kept(sh.m.stride);
    const uint32_t full_w = kept(shared_address(ring->full_w)), full_x = full_w + 2 * SS_STAGES * 8,
                   cluster = kept(sh.cluster), a0 = kept((uint32_t)a), b0 = kept((uint32_t)b);
    units_done done = {lane, (int32_t)(threadIdx.x >> 5 & 3), buffers, taps, together, period, pieces,
        together % period, address_in(full_w + SS_STAGES * 8, lane < cluster ? lane : 0), full_x + SS_BUFFERS * 8,
        cluster, (uint32_t)stages, 0, lane, lane % period, 0};
    int32_t stage = 0, turn = 0, piece = 0, piece_turn = 0, begun = 0, chunk = kept(j.m.chunks);
    do { /* no loop here is ever empty, and ptxas has to see that: else it waits
          after every product */
        const int32_t first = piece;
        int32_t at = first, in = 0, phase = 0, row = 0, tap = 0;
        do {
            uint32_t at_a = a0 + stage * stage_rows;
            barrier_wait(full_w + stage * 8, turn);
            const int32_t end = min(tap + together, taps);
#pragma unroll 1
            do {
                if (tap < pieces) {
                    barrier_wait(full_x + piece * 8, piece_turn);
                    if (++piece == buffers) piece = 0, piece_turn ^= 1;
                }
                const uint32_t at_b = b0 + at * piece_rows + row;
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    multiply_ss<PREC>(acc, SWIZZLED_HIGH | (at_a + k * 2), PLAIN_HIGH | (at_b + k * k_rows));
                wgmma_commit(); /* behind the loop it would be an empty product of its
                           own, and all others waited for */
                wgmma_wait<1>();
                at_a += BLOCKS * 256;
                row += tap_rows;
                phase += tap_phases;
                if (phase >= stride) phase -= stride, row++;
                if (++at == buffers) at = 0;
                if (++in == period) in = 0, at = first;
            } while (++tap < end);
            if (begun) done.give_back();
            begun = 1;
            if (++stage == stages) stage = 0, turn ^= 1;
        } while (tap < taps);
    } while (--chunk);
    wgmma_wait<0>();
}
#endif
