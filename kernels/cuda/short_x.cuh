/* short_x.cuh: what the parts of conv_short_sm90.cu share: the shape of a launch, the frames of a tile, and x.
 *
 * A frame is blocks of 8 steps, and each block has a window of its own in shared memory: [16 bytes of channels][block]
 * [position], positions of a stride phase by phase. So blocks are evenly spaced whatever the frames' length, a tap is 16 bytes
 * further, and wgmma takes any blocks of any frames together. What two windows show of one step is read twice.
 * Where a place of x lies is found once a tile (short_place); then a thread takes 16 to 32 channels of a place, loads
 * of the next such part in flight while it rounds and stores one. Any dtype, pitch, alignment and padding mode. */
#ifndef NCT_CUDA_SHORT_X_CUH
#define NCT_CUDA_SHORT_X_CUH
#include "mma_stage.cuh"
#include "wgmma.cuh"

enum { SHORT_SLOTS = 32, SHORT_STAGES = 40, SHORT_BUFFERS = 32, SHORT_PLACES = 1024 };

struct short_shape {
    int32_t co_tiles;
    int32_t blocks, slots; /* blocks of 8 steps of a frame; frames of a tile */
    int32_t stride, phase; /* rows of a stride phase of a block's window */
    int32_t pitch, deep;   /* rows of 16 bytes: of a block's window, of all blocks */
    int32_t steps_each; /* of x that a place holds: 4, 1; 0: a place is a row of a window, wherever it comes from */
    int32_t places, per_slot;    /* places of the tile, of a frame */
    uint32_t slot_magic;         /* of per_slot */
    int32_t tap_rest, tap_whole; /* a tap further: phases, rows */
    int32_t stages, buffers;     /* of weights, of x */
    int32_t along_c, along_t;    /* CTAs of a cluster: that share a norm group; that share weights */
    int32_t meet;                /* norm groups wider than a tile meet in memory */
    int32_t team;                /* warps that bring a chunk of x together */
    int32_t span;                /* steps (chunk, tap) of a stage of weights */
    uint32_t pitch_magic, step_magic, group_magic; /* of a slot's columns; of a norm group's channels */
};
struct short_slot { /* a frame, as the epilogue needs it */
    int64_t y_off, y_pitch;
    int32_t t_out, wide; /* wide: rows of y begin at 16-byte (8-byte) boundaries */
};
struct short_place { /* channel 0 of a place of x, in elements; at < 0: nothing there */
    int64_t at, pitch;
    int32_t row, position; /* first row of the frame's windows and position there; or the row itself */
    int32_t spare[2];
};
struct short_ring {
    uint64_t full_w[SHORT_STAGES], empty_w[SHORT_STAGES], full_x[SHORT_BUFFERS], empty_x[SHORT_BUFFERS];
};

__device__ __forceinline__ short_slot short_slot_of(const cuda_job &j, int32_t n) {
    if (n >= j.n_frames) return {};
    nct_frame f = frame_at(j, n);
    int64_t size = j.y_dtype == NCT_F32 || j.what & DO_RAW ? 4 : 2;
    int32_t wide = (((uintptr_t)j.y + f.y_off * size) & (4 * size - 1)) == 0 && (f.y_pitch & 3) == 0;
    return {f.y_off, f.y_pitch, f.t_out, wide};
}

/* Place i of the tile whose first frame is n0. */
__device__ __forceinline__ short_place short_place_of(
    const cuda_job &j, const short_shape &sh, int32_t n0, int32_t i) {
    if (sh.steps_each) {
        const int32_t slot = sh.per_slot == 1 ? i : __umulhi(i, sh.slot_magic),
                      t = (i - slot * sh.per_slot) * sh.steps_each, n = n0 + slot;
        if (n >= j.n_frames) return {-1, 0};
        const nct_frame f = frame_at(j, n);
        return {t < f.t_in ? f.x_off + t : -1, f.x_pitch, slot * sh.blocks * sh.pitch, t + f.pad_left};
    }
    const int32_t window = __umulhi(i, sh.pitch_magic), in = i - window * sh.pitch;
    const int32_t slot = window / sh.blocks, block = window - slot * sh.blocks, n = n0 + slot;
    if (n >= j.n_frames) return {-1, 0, i};
    const nct_frame f = frame_at(j, n);
    const int32_t phase = in / sh.phase, p = (in - phase * sh.phase) * sh.stride + phase;
    const int64_t from = source_step(j.g.pad_mode, (int64_t)block * 8 * sh.stride + p - f.pad_left, f.t_in);
    return {from < 0 ? -1 : f.x_off + from, f.x_pitch, i};
}
/* 16 bytes of the step at `position` to every window that shows it. */
__device__ __forceinline__ void short_spread(const short_shape &sh, uint8_t *unit, int32_t position, uint4 w) {
    int32_t block = position >> 3, in = position & 7;
    uint8_t *to = unit + (block * sh.pitch + in) * 16;
    const int32_t back = (sh.pitch - 8) * 16;
    if (block < sh.blocks) *(uint4 *)to = w;
    for (in += 8, block--; in < sh.pitch && block >= 0; in += 8, block--)
        if (to -= back; block < sh.blocks) *(uint4 *)to = w;
}

/* What a thread takes of a place at once: UNITS units of 16 bytes of V steps, as they lie in memory. SIZE: bytes of x's
 * elements where V is 4. */
template <int PREC, int V, int SIZE> struct short_part {
    static constexpr int E = PREC == NCT_PREC_BF16 ? 8 : 4, UNITS = V == 4 ? 1 : 16 / E, PARTS = 8 / UNITS,
                         COUNT = UNITS * E, WORDS = V == 4 ? SIZE : 1;
    uint32_t v[COUNT * WORDS];
};
struct short_cursor { /* a thread's way through chunks, parts and rows */
    int32_t chunk, part, row;
    int32_t buffer, turn; /* of the chunk */
    bool first;           /* nothing of the chunk has been stored yet */
};
/* Teams of warps take chunks in turn. */
template <int PREC, int V, int SIZE> struct short_bringer {
    using part = short_part<PREC, V, SIZE>;
    const cuda_job &j;
    const short_shape &sh;
    const short_place *places;
    short_ring *ring;
    uint8_t *xs;
    int32_t group, tid, first, teams; /* conv group; thread of the team, the team, how many */

    __device__ __forceinline__ short_bringer(const cuda_job &job, const short_shape &shape, const short_place *at,
        short_ring *r, uint8_t *to, int32_t conv_group, int32_t warp, int32_t warps)
        : j(job), sh(shape), places(at), ring(r), xs(to), group(conv_group) {
        first = warp / sh.team;
        tid = (warp - first * sh.team) * 32 + (threadIdx.x & 31);
        teams = warps / sh.team;
    }
    __device__ __forceinline__ void settle(short_cursor &c) const { /* rows beyond the last are the next part's */
        while (c.row >= sh.places && c.part < part::PARTS) c.row -= sh.places, c.part++;
    }
    /* The warp's next part, chunk by chunk. */
    __device__ __forceinline__ void next(short_cursor &c) const {
        c.row += sh.team * 32;
        c.first = false;
        settle(c);
        if (__any_sync(~0u, c.part < part::PARTS)) return;
        c.chunk += teams, c.part = 0, c.row = tid, c.first = true;
        for (c.buffer += teams; c.buffer >= sh.buffers; c.buffer -= sh.buffers) c.turn ^= 1;
        settle(c);
    }
    __device__ __forceinline__ void load(const short_cursor &c, part &to) const {
        const int32_t size = V == 4                 ? SIZE
                             : j.x_dtype == NCT_F32 ? 4
                                                    : 2,
                      in = (c.chunk * 8 + c.part * part::UNITS) * part::E;
        short_place at = {-1, 0};
        if (c.part < part::PARTS) at = places[c.row];
        const char *p = (const char *)j.x + (at.at + (group * j.g.cig + in) * at.pitch) * size;
        const int64_t pitch = at.pitch * size;
        int32_t left = at.at < 0 ? 0 : j.g.cig - in;
        auto get = [&](int e) {
            if constexpr (V == 4 && SIZE == 4)
                *(uint4 *)&to.v[4 * e] = __ldg((const uint4 *)p);
            else if constexpr (V == 4)
                *(uint2 *)&to.v[2 * e] = __ldg((const uint2 *)p);
            else if (size == 4)
                to.v[e] = __ldg((const uint32_t *)p);
            else
                to.v[e] = __ldg((const unsigned short *)p);
        };
        if (left < part::COUNT)
#pragma unroll
            for (int i = 0; i < part::COUNT * part::WORDS; i++) to.v[i] = 0;
        if (left >= part::COUNT) {
#pragma unroll
            for (int e = 0; e < part::COUNT; e++, p += pitch) get(e);
        } else if (left > 0)
#pragma unroll
            for (int e = 0; e < part::COUNT; e++, p += pitch)
                if (e < left) get(e);
    }
    /* Channel c of step s as f32. */
    __device__ __forceinline__ void widen(const part &from, float (&f)[part::COUNT * V]) const {
#pragma unroll
        for (int i = 0; i < part::COUNT * V; i++)
            f[i] = __uint_as_float(
                V == 4 && SIZE == 2 ? (i & 1 ? from.v[i / 2] >> 16 : from.v[i / 2] & 0xffff) : from.v[i]);
        if (V == 4 ? SIZE == 4 : j.x_dtype == NCT_F32) return;
        if (j.x_dtype == NCT_BF16)
#pragma unroll
            for (int i = 0; i < part::COUNT * V; i++) f[i] = __uint_as_float(__float_as_uint(f[i]) << 16);
        else if (j.x_dtype == NCT_F16)
#pragma unroll
            for (int i = 0; i < part::COUNT * V; i++) f[i] = half_value(__float_as_uint(f[i]), NCT_F16);
        else
#pragma unroll
            for (int i = 0; i < part::COUNT * V; i++) f[i] = half_value(__float_as_uint(f[i]), NCT_I16);
    }
    /* word(c, s): of channel c (bf16: and the next) of step s. */
    template <class WORD>
    __device__ __forceinline__ void put_units(const short_cursor &c, uint8_t *buffer, WORD word) const {
        const int32_t row = places[c.row].row, position = places[c.row].position, step = sh.deep * 16;
        uint8_t *to = buffer + (c.part * part::UNITS * sh.deep + row) * 16;
#pragma unroll
        for (int u = 0; u < part::UNITS; u++, to += step)
#pragma unroll
            for (int s = 0; s < V; s++) {
                uint32_t w[4];
#pragma unroll
                for (int e = 0; e < 4; e++) w[e] = word(u * part::E + e * (part::E / 4), s);
                const uint4 all = make_uint4(w[0], w[1], w[2], w[3]);
                if (V == 1 && !sh.steps_each)
                    *(uint4 *)to = all;
                else
                    short_spread(sh, to, position + s, all);
            }
    }
    __device__ __forceinline__ void store(const short_cursor &c, const part &from, uint8_t *buffer) const {
        if (c.part >= part::PARTS || (sh.steps_each && places[c.row].at < 0)) return;
        if (PREC == NCT_PREC_BF16 && (V == 1 || SIZE == 2) && j.x_dtype == NCT_BF16) {
            put_units(c, buffer, [&](int c, int s) {
                if constexpr (V == 1) return from.v[c] | from.v[c + 1] << 16;
                return __byte_perm(from.v[(2 * c + s / 2) % (part::COUNT * part::WORDS)],
                    from.v[(2 * c + 2 + s / 2) % (part::COUNT * part::WORDS)], s & 1 ? 0x7632 : 0x5410);
            });
            return;
        }
        float f[part::COUNT * V];
        widen(from, f);
        put_units(c, buffer, [&](int c, int s) {
            if constexpr (PREC == NCT_PREC_BF16) return pack_bf16(f[c * V + s], f[(c + 1) * V + s]);
            return word_of<PREC>(f[c * V + s]);
        });
    }
    /* Store a part; with a chunk's last one (the next one is of another) the chunk is said to be there. */
    __device__ __forceinline__ void put(const short_cursor &c, const part &from, const short_cursor &after) const {
        if (c.first) barrier_wait(&ring->empty_x[c.buffer], c.turn);
        __syncwarp();
        store(c, from, xs + c.buffer * 8 * sh.deep * 16);
        if (!after.first) return;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(&ring->full_x[c.buffer]);
    }
    __device__ __forceinline__ void all(int32_t chunks) const {
        if (first >= teams || first >= chunks) return;
        part a, b;
        short_cursor at_a = {first, 0, tid, first, 1, true}, at_b;
        settle(at_a);
        for (; at_a.buffer >= sh.buffers; at_a.buffer -= sh.buffers) at_a.turn ^= 1;
        load(at_a, a);
        while (true) {
            at_b = at_a;
            next(at_b);
            if (at_b.chunk < chunks) load(at_b, b);
            put(at_a, a, at_b);
            if (at_b.chunk >= chunks) return;
            at_a = at_b;
            next(at_a);
            if (at_a.chunk < chunks) load(at_a, a);
            put(at_b, b, at_a);
            if (at_a.chunk >= chunks) return;
        }
    }
};
/* One of the warps that bring x. */
template <int PREC>
__device__ __forceinline__ void short_bring(const cuda_job &j, const short_shape &sh, const short_place *places,
    short_ring *ring, uint8_t *xs, int32_t group, int32_t warp, int32_t warps) {
    if (sh.steps_each == 4 && j.x_dtype == NCT_F32)
        short_bringer<PREC, 4, 4>(j, sh, places, ring, xs, group, warp, warps).all(j.m.chunks);
    else if (sh.steps_each == 4)
        short_bringer<PREC, 4, 2>(j, sh, places, ring, xs, group, warp, warps).all(j.m.chunks);
    else
        short_bringer<PREC, 1, 4>(j, sh, places, ring, xs, group, warp, warps).all(j.m.chunks);
}
/* Before that, by all threads that then meet: the places, and zeros where no step of x will lie. */
template <int THREADS>
__device__ __forceinline__ void short_prepare(
    const cuda_job &j, const short_shape &sh, int32_t n0, short_place *places, uint8_t *xs) {
    for (int32_t i = threadIdx.x; i < sh.places; i += THREADS) places[i] = short_place_of(j, sh, n0, i);
    if (!sh.steps_each) return;
    for (int32_t i = threadIdx.x; i < sh.slots * sh.blocks * sh.pitch; i += THREADS) {
        const int32_t window = __umulhi(i, sh.pitch_magic), in = i - window * sh.pitch;
        const int32_t slot = window / sh.blocks, block = window - slot * sh.blocks;
        const nct_frame f = n0 + slot < j.n_frames ? frame_at(j, n0 + slot) : nct_frame{};
        const int32_t t = block * 8 + in - f.pad_left;
        if (t >= 0 && t < f.t_in) continue;
        for (int32_t u = 0; u < sh.buffers * 8; u++) ((uint4 *)xs)[u * sh.deep + i] = make_uint4(0, 0, 0, 0);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- host ---- */

/* The windows of `windows` blocks of 8 steps for the frames of a tile; 0: too many. */
static inline int short_windows(const cuda_job *job, int32_t windows, short_shape *s) {
    const geometry *g = &job->g;
    const int64_t window = 7ll * g->stride + (int64_t)(g->k - 1) * g->dil + 1,
                  phase = (window + g->stride - 1) / g->stride;
    if (phase * g->stride * windows > SHORT_PLACES) return 0;
    s->stride = g->stride;
    s->phase = (int32_t)phase;
    s->pitch = s->phase * s->stride;
    s->deep = s->pitch * windows;
    s->tap_rest = g->dil % g->stride;
    s->tap_whole = g->dil / g->stride;
    s->pitch_magic = magic_of(s->pitch > 1 ? s->pitch : 2);
    /* Steps of x as they come; rows of windows one by one where strides or padding pick them. */
    const int64_t size = dtype_size(job->x_dtype), t_in = job->max_t_out + (int64_t)(g->k - 1) * g->dil;
    const nct_frame *f = &job->row0;
    const int aligned = job->uniform && f->t_in % 4 == 0 && f->x_pitch % 4 == 0 && job->x_step % 4 == 0 &&
                        ((uintptr_t)job->x + f->x_off * size) % (4 * size) == 0;
    s->steps_each = g->stride > 1 || g->pad_mode != NCT_ZEROS ? 0 : aligned ? 4 : 1;
    s->per_slot = s->blocks * s->pitch;
    if (s->steps_each) s->per_slot = (int32_t)((job->uniform ? f->t_in : t_in) + s->steps_each - 1) / s->steps_each;
    if (s->slots * (int64_t)s->per_slot > SHORT_PLACES) s->steps_each = 0, s->per_slot = s->blocks * s->pitch;
    s->slot_magic = magic_of(s->per_slot > 1 ? s->per_slot : 2);
    s->places = s->slots * s->per_slot;
    return 1;
}
/* What the epilogue divides by; frames of up to `steps` steps. */
static inline void short_rows(const geometry *g, int32_t steps, short_shape *s) {
    s->blocks = (steps + 7) / 8;
    s->step_magic = magic_of(s->blocks * 8);
    s->group_magic = magic_of(g->cg > 1 ? g->cg : 2);
}
/* Warps of a team: as many as a chunk gives work to. */
static inline int32_t short_team(const short_shape *s, int32_t precision, int32_t warps) {
    const int32_t parts = s->steps_each == 4 ? 8 : precision == NCT_PREC_BF16 ? 4 : 2;
    int32_t team = (s->places * parts + 31) / 32;
    return team < warps ? team : warps;
}
/* Teams that use a buffer again may not be two uses ahead of it: a barrier tells a phase from the next alone. */
static inline void short_few_teams(int32_t chunks, int32_t warps, short_shape *s) {
    while (s->buffers < chunks && warps / s->team > s->buffers) s->team++;
}
#endif
