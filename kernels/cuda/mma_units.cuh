/* mma_units.cuh: x as words for the tensor cores, for conv_mma.cuh and conv_short_sm90.cu: a chunk of word rows in shared memory
 * as [unit of 4 words along the channels][slot][position]. 16 bytes are 4 channels (tf32: rounded here, once; f32: as they are)
 * or 8 (bf16) of one position; positions follow each other, so a tap is an address, 8 positions are a row block of ldmatrix
 * and a core matrix of wgmma without swizzle. Stride s: [p mod s][p / s].
 *
 * Any dtype, pitch, alignment and padding mode: one thread gathers the channels of one position; lanes take consecutive
 * positions, so that reads coalesce and 16-byte stores meet no bank conflict. What the padding shows is selected as it
 * is read. Called by producer warps; teams of them take chunks in turn and keep the next two batches in flight.
 * BUFFERS: open(chunk) waits until its buffer is free and returns it, close(chunk) says that this thread has filled it. */
#ifndef NCT_CUDA_MMA_UNITS_CUH
#define NCT_CUDA_MMA_UNITS_CUH
#include "mma_stage.cuh"

struct unit_slot { /* a frame, or the piece of one */
    int64_t x_off, x_pitch;
    int32_t t_in, before; /* position of step 0 */
};
/* U positions of E channels each, as they lie in memory. */
enum { UNIT_BATCH = 3 };

/* ---- host ---- */

static inline unit_shape unit_shape_of(const geometry *g, int32_t rows, int32_t steps, int32_t room, int32_t warps) {
    unit_shape s = {};
    s.units = rows / 4;
    s.room = room;
    s.stride = g->stride;
    s.window = (int32_t)window_of(g, steps);
    s.phase = (s.window + s.stride - 1) / s.stride;
    s.pitch = (s.phase * s.stride) | 1;
    s.deep = s.room * s.pitch;
    s.tap_rest = g->dil % g->stride;
    s.tap_whole = g->dil / g->stride;
    s.row_magic = magic_of((int64_t)s.room * s.window);
    s.slot_magic = magic_of(s.window);
    s.stride_magic = magic_of(s.stride > 1 ? s.stride : 2);
    for (s.team = 1; s.team < warps && s.team * 32 * UNIT_BATCH < s.units * s.room * s.window;) s.team *= 2;
    return s;
}
static inline int64_t unit_bytes(const unit_shape *s) { /* of one buffer */
    return (int64_t)s->units * s->deep * 16;
}

/* ---- device ---- */

__device__ __forceinline__ unit_slot unit_slot_of(const cuda_job &j, const mma_slots &s, int32_t slot) {
    if (s.n0 + slot >= j.n_frames) return {};
    nct_frame f = frame_at(j, s.n0 + slot);
    return {f.x_off, f.x_pitch, f.t_in, f.pad_left - s.t0 * j.g.stride};
}

template <int PREC> struct unit_batch {
    static constexpr int E = PREC == NCT_PREC_BF16 ? 8 : 4, U = UNIT_BATCH;
    uint32_t v[U][E];
};
struct unit_place {
    int32_t unit, slot, position;
};
__device__ __forceinline__ unit_place unit_place_of(const unit_shape &sh, int32_t i) {
    int32_t unit = __umulhi(i, sh.row_magic), rest = i - unit * sh.room * sh.window;
    int32_t slot = __umulhi(rest, sh.slot_magic);
    return {unit, slot, rest - slot * sh.window};
}

/* The 16 bytes of batch place u, as words, to their place. */
template <int PREC>
__device__ __forceinline__ uint4 unit_words(const cuda_job &j, const uint32_t (&v)[unit_batch<PREC>::E]) {
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
__device__ __forceinline__ int32_t unit_to(const unit_shape &sh, const unit_place &at) {
    int32_t p = at.position;
    if (sh.stride > 1) {
        int32_t q = __umulhi(p, sh.stride_magic);
        p = (p - q * sh.stride) * sh.phase + q;
    }
    return (at.unit * sh.deep + at.slot * sh.pitch + p) * 16;
}

/* Who fills which chunks: first, first + step ... below end; tid counts within the team of warps. */
struct unit_crew {
    int32_t first, step, end, tid;
};

/* Any job: places are found anew for every batch. */
template <int PREC> struct unit_anywhere {
    using batch = unit_batch<PREC>;
    const cuda_job &j;
    const unit_shape &sh;
    const unit_slot *slots;
    int32_t channel0, last_channel, tid;

    __device__ __forceinline__ void load(batch &b, int32_t chunk, int32_t index) {
        const int32_t step = sh.team * 32;
#pragma unroll
        for (int u = 0; u < batch::U; u++) {
            int32_t i = (index * batch::U + u) * step + tid;
#pragma unroll
            for (int e = 0; e < batch::E; e++) b.v[u][e] = 0;
            if (i >= sh.units * sh.room * sh.window) continue;
            unit_place at = unit_place_of(sh, i);
            const unit_slot &f = slots[at.slot];
            int64_t t = (int64_t)at.position - f.before;
            if ((uint64_t)t >= (uint64_t)f.t_in) t = source_step(j.g.pad_mode, t, f.t_in);
            int32_t c = channel0 + (chunk * sh.units + at.unit) * batch::E;
            if (t < 0 || c >= last_channel) continue;
            int64_t from = f.x_off + c * f.x_pitch + t;
#pragma unroll
            for (int e = 0; e < batch::E; e++, from += f.x_pitch)
                if (c + e < last_channel)
                    b.v[u][e] = j.x_dtype == NCT_F32 ? __ldg((const uint32_t *)j.x + from)
                                                     : __ldg((const unsigned short *)j.x + from);
        }
    }
    __device__ __forceinline__ void store(const batch &b, int32_t index, uint8_t *to) {
        const int32_t step = sh.team * 32;
#pragma unroll
        for (int u = 0; u < batch::U; u++) {
            int32_t i = (index * batch::U + u) * step + tid;
            if (i >= sh.units * sh.room * sh.window) continue;
            *(uint4 *)(to + unit_to(sh, unit_place_of(sh, i))) = unit_words<PREC>(j, b.v[u]);
        }
    }
};
/* Frames alike, whole chunks of channels, at most two batches a chunk: a thread's places are found once. */
template <int PREC> struct unit_fixed {
    using batch = unit_batch<PREC>;
    const cuda_job &j;
    const char *from[2][batch::U];
    int32_t to[2][batch::U];
    int64_t pitch, chunk_bytes; /* bytes from channel to channel; from one chunk of the team to its next */

    __device__ __forceinline__ unit_fixed(const unit_anywhere<PREC> &any, const unit_crew &crew) : j(any.j) {
        const unit_shape &sh = any.sh;
        const int64_t size = j.x_dtype == NCT_F32 ? 4 : 2;
        pitch = j.row0.x_pitch * size;
        chunk_bytes = pitch * batch::E * sh.units * crew.step;
#pragma unroll
        for (int index = 0; index < 2; index++)
#pragma unroll
            for (int u = 0; u < batch::U; u++) {
                int32_t i = (index * batch::U + u) * sh.team * 32 + any.tid;
                unit_place at = unit_place_of(sh, i);
                from[index][u] = NULL;
                to[index][u] = -1;
                if (i >= sh.units * sh.room * sh.window) continue;
                to[index][u] = unit_to(sh, at);
                const unit_slot &f = any.slots[at.slot];
                int64_t t = source_step(j.g.pad_mode, (int64_t)at.position - f.before, f.t_in);
                int64_t c = any.channel0 + (crew.first * sh.units + at.unit) * batch::E;
                if (t >= 0) from[index][u] = (const char *)j.x + (f.x_off + c * f.x_pitch + t) * size;
            }
    }
    template <int INDEX> __device__ __forceinline__ void load(batch &b) {
#pragma unroll
        for (int u = 0; u < batch::U; u++) {
            const char *p = from[INDEX][u];
#pragma unroll
            for (int e = 0; e < batch::E; e++) b.v[u][e] = 0;
            if (!p) continue;
#pragma unroll
            for (int e = 0; e < batch::E; e++, p += pitch)
                b.v[u][e] = j.x_dtype == NCT_F32 ? __ldg((const uint32_t *)p) : __ldg((const unsigned short *)p);
            from[INDEX][u] += chunk_bytes;
        }
    }
    template <int INDEX> __device__ __forceinline__ void store(const batch &b, uint8_t *xs) const {
#pragma unroll
        for (int u = 0; u < batch::U; u++)
            if (to[INDEX][u] >= 0) *(uint4 *)(xs + to[INDEX][u]) = unit_words<PREC>(j, b.v[u]);
    }
};

/* BATCHES 1 or 2 a chunk; the next two are in flight while one is stored. */
template <int PREC, int BATCHES, class BUFFERS>
__device__ __forceinline__ void unit_bring_fixed(unit_fixed<PREC> &x, const unit_crew &crew, const BUFFERS &to) {
    constexpr int LAST = BATCHES - 1;
    unit_batch<PREC> a, b;
    const int32_t end = crew.end, ahead = BATCHES == 1 ? crew.step : 0;
    int32_t chunk = crew.first;
    if (chunk < end) x.template load<0>(a);
    if (chunk + ahead < end) x.template load<LAST>(b);
    for (; chunk < end; chunk += crew.step + ahead) {
        uint8_t *xs = to.open(chunk);
        x.template store<0>(a, xs);
        if (BATCHES == 1) to.close(chunk);
        if (chunk + ahead + crew.step < end) x.template load<0>(a);
        if (chunk + ahead >= end) break;
        if (BATCHES == 1) xs = to.open(chunk + ahead);
        x.template store<LAST>(b, xs);
        to.close(chunk + ahead);
        if (chunk + 2 * ahead + crew.step < end) x.template load<LAST>(b);
    }
}
template <int PREC, class BUFFERS>
__device__ __forceinline__ void unit_bring_any(
    unit_anywhere<PREC> &x, int32_t batches, const unit_crew &crew, const BUFFERS &to) {
    unit_batch<PREC> a, b;
    int32_t load_chunk = crew.first, load_index = 0, chunk = crew.first, index = 0;
    uint8_t *xs = NULL;
    auto next = [&](int32_t &c, int32_t &i) {
        if (++i < batches) return;
        i = 0;
        c += crew.step;
    };
    auto load = [&](unit_batch<PREC> &v) {
        if (load_chunk < crew.end) x.load(v, load_chunk, load_index);
        next(load_chunk, load_index);
    };
    auto store = [&](const unit_batch<PREC> &v) {
        if (chunk >= crew.end) return;
        if (index == 0) xs = to.open(chunk);
        x.store(v, index, xs);
        if (index == batches - 1) to.close(chunk);
        next(chunk, index);
    };
    load(a);
    while (chunk < crew.end) {
        load(b);
        store(a);
        load(a);
        store(b);
    }
}

/* The crew's chunks. */
template <int PREC, class BUFFERS>
__device__ __forceinline__ void unit_bring(const cuda_job &j, const unit_shape &sh, const unit_slot *slots,
    int32_t group, const unit_crew &crew, const BUFFERS &to) {
    const int32_t batch = unit_batch<PREC>::U * sh.team * 32;
    const int32_t batches = (sh.units * sh.room * sh.window + batch - 1) / batch;
    unit_anywhere<PREC> any = {j, sh, slots, group * j.g.cig, (group + 1) * j.g.cig, crew.tid};
    if (!j.uniform || batches > 2 || j.g.cig % (sh.units * unit_batch<PREC>::E)) {
        unit_bring_any<PREC>(any, batches, crew, to);
        return;
    }
    unit_fixed<PREC> fixed(any, crew);
    if (batches == 1)
        unit_bring_fixed<PREC, 1>(fixed, crew, to);
    else
        unit_bring_fixed<PREC, 2>(fixed, crew, to);
}
#endif
