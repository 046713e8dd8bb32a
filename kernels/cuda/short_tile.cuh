/* short_tile.cuh: a tile of short frames after its products, for conv_short_sm90.cu: bias, leaves, statistics of whole norm
 * groups, normalising, y. Everything stays in shared memory: a tile holds whole frames and whole groups, or the CTAs of a
 * cluster hold a group together and read each other's leaves. Loops are rolled, so that their code stays small. */
#ifndef NCT_CUDA_SHORT_TILE_CUH
#define NCT_CUDA_SHORT_TILE_CUH
#include "group.cuh"
#include "leaf_quad.cuh"
#include "short_x.cuh"
#include <cooperative_groups.h>

template <int WARPS> __device__ __forceinline__ void short_sync(int32_t id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(32 * WARPS) : "memory");
}
__device__ __forceinline__ float4 cluster_read(const float4 *p, int32_t rank) {
    uint32_t at;
    float4 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* What lies behind the barriers once the products are done: BM channels, BN steps. */
template <int BM, int BN> struct short_memory {
    static constexpr int SLOTS = BN / 8, PITCH = BN + 8;
    float tile[BM][PITCH];
    float4 leaves[SLOTS][BM];
    moments sums[SLOTS][BM / 8];
    double shifts[SLOTS][BM / 8];
    norm_value values[SLOTS][BM / 8]; /* of a tile's groups; narrower ones (cg < 8) take the general passes */
};
/* Per channel of the tile, read before the products begin. */
struct short_channels {
    float bias[128], gamma[128], beta[128];
};
struct short_tile_at { /* where a tile lies */
    int32_t n0, count; /* frames */
    int32_t channel0, channels;
    int32_t rank0; /* of the cluster's CTA that holds its norm group's first channels */
};

/* acc[4 c + 2 h + e] of a lane (g, q): channel row0 + g + 8 h, column 8 c + 2 q + e. */
template <int BM, int BN>
__device__ __forceinline__ void short_write(
    float (&acc)[BN / 2], int32_t row0, const float *bias, short_memory<BM, BN> *m) {
    const int32_t lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t row = row0 + g + 8 * h;
        const float b = bias[row];
#pragma unroll
        for (int c = 0; c < BN / 8; c++)
            *(float2 *)&m->tile[row][8 * c + 2 * q] =
                make_float2(__fadd_rn(acc[4 * c + 2 * h], b), __fadd_rn(acc[4 * c + 2 * h + 1], b));
    }
}

/* A warp takes 8 channels of L frames at once. */
template <int BLOCKS, int WARPS, int BM, int BN>
__device__ __forceinline__ void short_leaves_of(
    const short_tile_at &at, const short_slot *slots, short_memory<BM, BN> *m) {
    constexpr int L = BLOCKS < 3 ? 4 : BLOCKS < 5 ? 2 : 1, OCTETS = BM / 8;
    const int32_t lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, most = max(at.count - 1, 0);
    for (int32_t i = threadIdx.x >> 5; i < OCTETS * ((at.count + L - 1) / L); i += WARPS) {
        const int32_t row = i % OCTETS * 8 + g, slot0 = i / OCTETS * L;
        float v[L][2 * BLOCKS];
        int32_t valid[L];
#pragma unroll
        for (int l = 0; l < L; l++) {
            const int32_t slot = min(slot0 + l, most);
            valid[l] = slots[slot].t_out;
#pragma unroll
            for (int c = 0; c < BLOCKS; c++)
                *(float2 *)&v[l][2 * c] = *(const float2 *)&m->tile[row][(slot * BLOCKS + c) * 8 + 2 * q];
        }
        float4 leaf[L];
        quad_leaves<L, BLOCKS, false>(
            [&](int l, int c, int e) { return v[l][2 * c + e]; }, [&](int l) { return valid[l]; }, leaf);
#pragma unroll
        for (int l = 0; l < L; l++)
            if (q == 0 && slot0 + l < at.count) m->leaves[slot0 + l][row] = leaf[l];
    }
}
template <int WARPS, int BM, int BN>
__device__ __forceinline__ void short_leaves(
    const short_shape &sh, const short_tile_at &at, const short_slot *slots, short_memory<BM, BN> *m) {
    switch (sh.blocks) {
    case 1: return short_leaves_of<1, WARPS>(at, slots, m);
    case 2: return short_leaves_of<2, WARPS>(at, slots, m);
    case 3: return short_leaves_of<3, WARPS>(at, slots, m);
    case 4: return short_leaves_of<4, WARPS>(at, slots, m);
    case 5: return short_leaves_of<5, WARPS>(at, slots, m);
    case 6: return short_leaves_of<6, WARPS>(at, slots, m);
    case 7: return short_leaves_of<7, WARPS>(at, slots, m);
    default: return short_leaves_of<8, WARPS>(at, slots, m);
    }
}

/* Sums of the tile's (slot, norm group)s. Groups of 2^k <= 32 channels, all in the tile: several a warp, the tree of
 * moments_merge without the levels that add zeros. */
template <int WARPS, int BM, int BN>
__device__ __forceinline__ void short_sums_packed(
    const cuda_job &j, const short_tile_at &at, int32_t groups, short_memory<BM, BN> *m) {
    const int32_t lane = threadIdx.x & 31, cg = j.g.cg, shift_cg = __ffs(cg) - 1, each = 32 >> shift_cg;
    const int32_t pairs = at.count * groups, i = lane & (cg - 1);
    for (int32_t pack = (threadIdx.x >> 5) * 2; pack * each < pairs; pack += WARPS * 2) {
        moments w[2] = {};
        double shift[2];
        int32_t slot[2], k[2];
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const int32_t pair = (pack + u) * each + (lane >> shift_cg);
            slot[u] = pair / groups, k[u] = pair - slot[u] * groups;
            if (pair >= pairs) slot[u] = -1;
            const float4 *own = &m->leaves[max(slot[u], 0)][k[u] * cg];
            shift[u] = leaf_center(own[0]);
            if (slot[u] >= 0) moments_add(w[u], own[i], shift[u]);
        }
        for (int32_t mask = cg >> 1; mask; mask >>= 1)
#pragma unroll
            for (int u = 0; u < 2; u++) w[u] = moments_shuffle(w[u], mask);
#pragma unroll
        for (int u = 0; u < 2; u++)
            if (i == 0 && slot[u] >= 0) m->sums[slot[u]][k[u]] = w[u], m->shifts[slot[u]][k[u]] = shift[u];
    }
}
/* Any group: a warp each. */
template <int WARPS, int BM, int BN>
__device__ __forceinline__ void short_sums_any(
    const cuda_job &j, const short_shape &sh, const short_tile_at &at, int32_t groups, short_memory<BM, BN> *m) {
    for (int32_t pair = threadIdx.x >> 5; pair < at.count * groups; pair += WARPS) {
        int32_t slot = pair / groups, k = pair - slot * groups;
        auto leaf = [&](int32_t i) {
            if (sh.meet)
                return __ldcg(j.leaves + leaf_start(j, at.n0 + slot) * j.g.co + at.channel0 / j.g.cg * j.g.cg + i);
            return sh.along_c > 1 ? cluster_read(&m->leaves[slot][i % BM], at.rank0 + i / BM)
                                  : m->leaves[slot][k * j.g.cg + i];
        };
        double shift = leaf_center(leaf(0));
        moments sums = moments_merge_of(leaf, j.g.cg, shift);
        if ((threadIdx.x & 31) == 0) m->sums[slot][k] = sums, m->shifts[slot][k] = shift;
    }
}
/* Then their values by a thread each: the arithmetic of group_finish under NCT_NORM_OWN. */
template <int WARPS, int BM, int BN>
__device__ __forceinline__ void short_values(const cuda_job &j, const short_shape &sh, const short_tile_at &at,
    const short_slot *slots, short_memory<BM, BN> *m) {
    const int32_t mine = min(j.g.cg, at.channels), groups = at.channels / mine;
    if (sh.along_c == 1 && !sh.meet && j.g.cg <= 32 && (j.g.cg & (j.g.cg - 1)) == 0)
        short_sums_packed<WARPS>(j, at, groups, m);
    else
        short_sums_any<WARPS>(j, sh, at, groups, m);
    if (sh.along_c > 1) cluster_arrive(); /* others may still read leaves here */
    short_sync<WARPS>(2);
    for (int32_t pair = threadIdx.x; pair < at.count * groups; pair += WARPS * 32) {
        int32_t slot = pair / groups, k = pair - slot * groups, n = at.n0 + slot,
                group = (at.channel0 + k * mine) / j.g.cg;
        nct_stat s = stat_of(m->sums[slot][k], m->shifts[slot][k], (double)j.g.cg * slots[slot].t_out);
        if (!stat_finite(s)) s.mean = s.m2 = NAN;
        norm_value v = norm_of(s, j.g.eps);
        m->values[slot][k] = v;
        if ((at.channel0 + k * mine) % j.g.cg) continue; /* another tile reports it */
        uint32_t saw = norm_flags(j, s, v);
        if (saw && j.flags) atomicOr(&j.flags[n], saw);
        int32_t to = j.frames ? j.frames[n].stat_out : j.row0.stat_out;
        if (to >= 0) j.stats[(int64_t)to * j.g.norm_groups + group] = s;
    }
    short_sync<WARPS>(2);
}

/* V steps of a row to y or to where the raw f32 lies. */
template <int V>
__device__ __forceinline__ void short_put(
    const cuda_job &j, int32_t n, float (&z)[V], const float4 &c, float *raw, int64_t y_at) {
    if (j.what & DO_RAW) {
        if constexpr (V == 4)
            *(float4 *)raw = *(float4 *)z;
        else
            raw[0] = z[0];
    }
    if (!(j.what & DO_APPLY)) return;
    row_values(j, n, z, c);
    if constexpr (V == 1)
        store_element(j.y, j.y_dtype, y_at, z[0]);
    else if (j.y_dtype == NCT_F32)
        *(float4 *)((float *)j.y + y_at) = *(float4 *)z;
    else {
        uint2 out;
        out.x = j.y_dtype == NCT_BF16 ? pack_bf16(z[0], z[1]) : pack_f16(z[0], z[1]);
        out.y = j.y_dtype == NCT_BF16 ? pack_bf16(z[2], z[3]) : pack_f16(z[2], z[3]);
        *(uint2 *)((unsigned short *)j.y + y_at) = out;
    }
}
/* The tile to memory: V steps a thread, 4 where rows of y lie so. A lane stays with its columns, so with its frame. */
template <int V, int WARPS, int BM, int BN>
__device__ __forceinline__ void short_out_by(const cuda_job &j, const short_shape &sh, const short_tile_at &at,
    const short_slot *slots, const short_channels *per, const short_memory<BM, BN> *m) {
    constexpr int EACH = BN / V < 32 ? BN / V : 32, ROWS = 32 / EACH; /* lanes of a row; rows of a warp */
    const bool scratch = j.what & DO_RAW && !j.raw_in_y, meet = j.what & DO_MEET;
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, mine = min(j.g.cg, at.channels);
#pragma unroll 1
    for (int32_t column = lane % EACH * V; column < BN; column += EACH * V) {
        const int32_t slot = __umulhi(column, sh.step_magic), t = column - slot * sh.blocks * 8, n = at.n0 + slot;
        if (slot >= at.count) continue;
        const short_slot f = slots[slot];
        const int32_t left = f.t_out - t;
        if (left <= 0) continue;
        const float *from = &m->tile[0][column];
        float *raw = scratch ? j.scratch + leaf_start(j, n) * j.leaf_t * j.g.co : (float *)j.y + f.y_off;
        const int64_t raw_pitch = scratch ? MMA_LEAF : f.y_pitch;
        int64_t to = f.y_off + at.channel0 * f.y_pitch + t;
        raw += at.channel0 * raw_pitch + t;
        const float4 *coefs = j.coef + (int64_t)n * j.g.co + at.channel0;
#pragma unroll 1
        for (int32_t c = warp * ROWS + lane / EACH; c < at.channels; c += WARPS * ROWS) {
            float4 coef = {};
            if (meet) {
                norm_value v = m->values[slot][mine == BM ? 0 : __umulhi(c, sh.group_magic)];
                coef = make_float4(v.mean_hi, v.mean_lo, __fmul_rn(v.rstd, per->gamma[c]), per->beta[c]);
            } else if (j.what & DO_APPLY)
                coef = coefs[c];
            if (V == 4 && left >= 4) {
                float z[4];
                *(float4 *)z = *(const float4 *)(from + c * (BN + 8));
                short_put<4>(j, n, z, coef, raw + c * raw_pitch, to + c * f.y_pitch);
            } else
                for (int32_t e = 0; e < V && e < left; e++) {
                    float z[1] = {from[c * (BN + 8) + e]};
                    short_put<1>(j, n, z, coef, raw + c * raw_pitch + e, to + c * f.y_pitch + e);
                }
        }
    }
}
template <int WARPS, int BM, int BN>
__device__ __forceinline__ void short_out(const cuda_job &j, const short_shape &sh, const short_tile_at &at,
    const short_slot *slots, const short_channels *per, const short_memory<BM, BN> *m) {
    int32_t wide = 1;
    for (int32_t slot = 0; slot < at.count; slot++) wide &= slots[slot].wide;
    if (wide || (j.what & DO_RAW && !j.raw_in_y && !(j.what & DO_APPLY)))
        short_out_by<4, WARPS>(j, sh, at, slots, per, m);
    else
        short_out_by<1, WARPS>(j, sh, at, slots, per, m);
}

template <int WARPS, int BM, int BN>
__device__ __forceinline__ void short_leaves_out(
    const cuda_job &j, const short_tile_at &at, const short_memory<BM, BN> *m) {
    for (int32_t i = threadIdx.x; i < at.count * BM; i += WARPS * 32)
        if (i % BM < at.channels)
            j.leaves[leaf_start(j, at.n0 + i / BM) * j.g.co + at.channel0 + i % BM] = m->leaves[i / BM][i % BM];
}
/* Everything after the tile is written, by WARPS warps (meet: by the whole launch). */
template <int WARPS, int BM, int BN>
__device__ __forceinline__ void short_finish(const cuda_job &j, const short_shape &sh, const short_tile_at &at,
    const short_slot *slots, const short_channels *per, short_memory<BM, BN> *m) {
    short_sync<WARPS>(2);
    if (j.what & DO_LEAVES) short_leaves<WARPS>(sh, at, slots, m);
    if (j.what & DO_MEET && sh.along_c > 1) {
        cluster_arrive();
        cluster_wait();
    } else
        short_sync<WARPS>(2);
    if ((j.what & DO_LEAVES && !(j.what & DO_MEET)) || sh.meet) short_leaves_out<WARPS>(j, at, m);
    if (sh.meet) {
        __threadfence();
        cooperative_groups::this_grid().sync();
    }
    if (j.what & DO_MEET) short_values<WARPS>(j, sh, at, slots, m);
    if (j.what & (DO_RAW | DO_APPLY)) short_out<WARPS>(j, sh, at, slots, per, m);
    if (j.what & DO_MEET && sh.along_c > 1) cluster_wait();
}
#endif
