/* long_x.cuh: x of PLAN_LONG: nodes of frames, their windows by bulk copies, and fragments from there.
 *
 * A node is `leaf` consecutive steps of a frame. A chunk of its x is `rows` channels, one row of shared memory each, that lie
 * as far from a 16-byte boundary as they do in global memory: whole 16-byte units come by one bulk copy a row, whatever
 * pitch and alignment; what a window shows beyond its frame is put in afterwards by the CTA (long_patch). */
#ifndef NCT_CUDA_LONG_X_CUH
#define NCT_CUDA_LONG_X_CUH
#include "conv_narrow.cuh"
#include "group.cuh"
#include "wgmma.cuh"

enum { LONG_STAGES_MAX = 3, LONG_SKEW = 31, LONG_RUN = 128, LONG_TILES = LONG_RUN / 8, LONG_AHEAD = 4 };

struct long_shape {
    int32_t rows;   /* channels of a chunk */
    int32_t chunks; /* that cover C_in */
    int32_t pitch;  /* bytes of a channel's window in a stage */
    int32_t slots;  /* fused: frames at once; a frame has `nodes` CTAs */
    int32_t nodes;
    int32_t leaf;   /* steps of a node */
    int32_t stage;  /* bytes of a stage */
    int32_t stages; /* in flight */
};

struct long_item { /* a node of a frame; left <= 0: nothing */
    nct_frame f;
    int32_t n, t0, left;
};
__device__ __forceinline__ long_item long_item_at(const cuda_job &j, const long_shape &sh, int32_t turn) {
    long_item t;
    t.left = 0;
    if (j.what & DO_MEET) {
        t.n = turn * sh.slots + blockIdx.x / sh.nodes;
        if (t.n >= j.n_frames) return t;
        t.t0 = blockIdx.x % sh.nodes * sh.leaf;
    } else {
        if (turn) return t;
        place at = place_of(j, blockIdx.x);
        t.n = at.n;
        t.t0 = at.t0;
    }
    t.f = frame_at(j, t.n);
    t.left = min(sh.leaf, t.f.t_out - t.t0);
    return t;
}

/* The windows of an item's channels: position 0 of channel 0's at `window`; positions [lo, hi) are the frame's. */
struct long_rows {
    const char *window;
    int64_t step; /* bytes from channel to channel */
    int32_t lo, hi, count;
};
template <int SIZE> __device__ __forceinline__ long_rows long_rows_of(const cuda_job &j, const long_item &t) {
    int32_t pos0 = t.t0 - t.f.pad_left;
    long_rows r;
    r.count = t.left + (j.g.k - 1) * j.g.dil;
    r.window = (const char *)j.x + (t.f.x_off + pos0) * SIZE;
    r.step = t.f.x_pitch * SIZE;
    r.lo = max(0, -pos0);
    r.hi = max(r.lo, min(r.count, t.f.t_in - pos0));
    return r;
}
/* What a bulk copy brings of channel c: whole 16-byte units around [lo, hi), but none beyond x's allocation. */
struct long_copy {
    const char *from;
    int32_t bytes, to; /* byte of the row in shared memory */
};
template <int SIZE>
__device__ __forceinline__ long_copy long_copy_of(const cuda_job &j, const long_rows &r, int32_t c) {
    const char *window = r.window + c * r.step;
    uintptr_t x = (uintptr_t)j.x, first = ((uintptr_t)window + r.lo * SIZE) & ~(uintptr_t)15;
    uintptr_t last = ((uintptr_t)window + r.hi * SIZE + 15) & ~(uintptr_t)15,
              end = (x + j.x_count * SIZE) & ~(uintptr_t)15;
    first = max(first, (x + 15) & ~(uintptr_t)15);
    last = min(last, end);
    int32_t bytes = r.hi > r.lo && last > first ? (int32_t)(last - first) : 0;
    return {(const char *)first, bytes, (int32_t)(((uintptr_t)window & LONG_SKEW) + first - (uintptr_t)window)};
}

/* What the copies left out: padding, and elements at the ends of x's allocation. By the CTA; rare. */
template <int SIZE>
__device__ __forceinline__ void long_patch(
    const cuda_job &j, const long_shape &sh, const long_item &t, int32_t chunk, char *stage) {
    long_rows all = long_rows_of<SIZE>(j, t);
    int32_t rows = min(sh.rows, j.g.cig - chunk * sh.rows);
    for (int32_t r = threadIdx.x >> 5; r < rows; r += blockDim.x >> 5) {
        int32_t c = chunk * sh.rows + r, skew = (int32_t)((uintptr_t)(all.window + c * all.step) & LONG_SKEW);
        long_copy copy = long_copy_of<SIZE>(j, all, c);
        int32_t lo = max(all.lo, (copy.to - skew) / SIZE), hi = min(all.hi, (copy.to - skew + copy.bytes) / SIZE);
        if (!copy.bytes) lo = hi = all.lo;
        char *to = stage + r * sh.pitch + skew;
        for (int32_t e = threadIdx.x & 31; e < lo + all.count - hi; e += 32) {
            int32_t p = e < lo ? e : e - lo + hi;
            int64_t at = source_step(j.g.pad_mode, (int64_t)t.t0 - t.f.pad_left + p, t.f.t_in);
            int64_t element = t.f.x_off + c * t.f.x_pitch + at;
            if constexpr (SIZE == 4)
                ((uint32_t *)to)[p] = at < 0 ? 0 : ((const uint32_t *)j.x)[element];
            else
                ((uint16_t *)to)[p] = at < 0 ? 0 : ((const uint16_t *)j.x)[element];
        }
    }
}
/* Byte of its stage's row at which position 0 of channel c's window lies. */
template <int SIZE> __device__ __forceinline__ int32_t long_skew(const cuda_job &j, const long_item &t, int32_t c) {
    uint32_t base = (uint32_t)(uintptr_t)j.x + (uint32_t)(t.f.x_off + t.t0 - t.f.pad_left) * SIZE;
    return (int32_t)((base + (uint32_t)c * (uint32_t)t.f.x_pitch * SIZE) & LONG_SKEW);
}
/* Does any row of the node need long_patch? The ends of a frame, and of the allocation if it begins or ends oddly. */
__device__ __forceinline__ bool long_ragged(const cuda_job &j, const long_item &t) {
    int32_t pos0 = t.t0 - t.f.pad_left, count = t.left + (j.g.k - 1) * j.g.dil;
    return pos0 < 8 || pos0 + count + 8 > t.f.t_in;
}

/* ---- products ---- */

enum { LONG_F32, LONG_HALF, LONG_BF16 }; /* x: f32 (tf32), 16 bits as tf32, bf16 */

template <int KIND> __device__ __forceinline__ uint32_t long_tf32(int32_t dtype, uint32_t bits) {
    if constexpr (KIND == LONG_F32)
        return round_tf32(__uint_as_float(bits));
    else
        return dtype == NCT_BF16  ? bits << 16
               : dtype == NCT_F16 ? __float_as_uint(__half2float(__ushort_as_half((unsigned short)bits)))
                                  : round_tf32(__fmul_rn((float)(short)bits, 1.0f / 32768.0f));
}

__device__ __forceinline__ uint32_t long_load4(const char *from) {
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(shared_address(from))); /* where it is written: early */
    return v;
}
__device__ __forceinline__ uint32_t long_load2(const char *from) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(shared_address(from)));
    return v;
}
/* Of columns `step` and `step` + 1, as they lie in memory; long_make makes fragment words of them. PAIR (bf16): they begin at
 * an even element. f32: singly, as MMAs want the other row's word beside each. */
template <int KIND, bool PAIR>
__device__ __forceinline__ void long_fetch(uint32_t (&v)[2], const char *row0, const char *row1, int32_t step) {
    if constexpr (KIND == LONG_F32)
        v[0] = long_load4(row0 + 4 * step), v[1] = long_load4(row0 + 4 * step + 4);
    else if constexpr (KIND == LONG_HALF)
        v[0] = long_load2(row0 + 2 * step), v[1] = long_load2(row0 + 2 * step + 2);
    else if constexpr (PAIR)
        v[0] = long_load4(row0 + 2 * step), v[1] = long_load4(row1 + 2 * step);
    else {
        v[0] = long_load2(row0 + 2 * step) | long_load2(row0 + 2 * step + 2) << 16;
        v[1] = long_load2(row1 + 2 * step) | long_load2(row1 + 2 * step + 2) << 16;
    }
}
template <int KIND> __device__ __forceinline__ void long_make(uint32_t (&v)[2], int32_t dtype) {
    if constexpr (KIND == LONG_BF16) {
        const uint32_t a = v[0], b = v[1];
        v[0] = __byte_perm(a, b, 0x5410);
        v[1] = __byte_perm(a, b, 0x7632);
    } else
        v[0] = long_tf32<KIND>(dtype, v[0]), v[1] = long_tf32<KIND>(dtype, v[1]);
}

__device__ __forceinline__ void long_mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* ---- host ---- */

/* Every fragment pair begins at an even element? */
static inline int long_even(const cuda_job *job) {
    int32_t size = job->x_dtype == NCT_F32 ? 4 : 2;
    int64_t first = (int64_t)((uintptr_t)job->x / size) + job->row0.x_off - job->row0.pad_left;
    return job->uniform && job->x_dtype != NCT_F16 && job->x_dtype != NCT_I16 && (uintptr_t)job->x % size == 0 &&
           first % 2 == 0 && job->row0.x_pitch % 2 == 0 && job->x_step % 2 == 0 &&
           (job->g.k == 1 || job->g.dil % 2 == 0);
}
#endif
