/* short_tile.cuh: a tile of short frames after its products, for conv_short_sm90.cu: bias, leaves, statistics of whole norm
 * groups, normalising, y. Everything stays in shared memory: a tile holds whole frames and whole groups, or the CTAs of a
 * cluster hold a group together and read each other's leaves. Consumers write the tile; the rest is done by
 * producers as well. */
#ifndef NCT_CUDA_SHORT_TILE_CUH
#define NCT_CUDA_SHORT_TILE_CUH
#include "group.cuh"
#include "short_x.cuh"

template <int WARPS> __device__ __forceinline__ void short_sync(int32_t id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(32 * WARPS) : "memory");
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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

/* What lies behind the barriers once the products are done. */
template <int NB, int BM> struct short_memory {
    float tile[NB][BM + 4];
    float4 leaves[SHORT_SLOTS][NB];
    norm_value values[SHORT_SLOTS][NB / 8]; /* of a tile's groups; narrower ones (cg < 8) take the general passes */
    moments sums[SHORT_SLOTS][NB / 8];
    double shifts[SHORT_SLOTS][NB / 8];
};
/* Per channel of the tile, read before the products begin. */
template <int NB> struct short_channels { float bias[NB], gamma[NB], beta[NB]; };

/* Column of row r of m64 tile mi: slot * steps + step. */
__device__ __forceinline__ int32_t short_column(const short_shape &sh, int32_t mi, int32_t r) {
    int32_t per = sh.steps / 8;
    return sh.flat ? mi * 64 + r : (mi / per * 8 + r / 8) * sh.steps + mi % per * 8 + r % 8;
}

template <int MT, int NB, int BM>
__device__ __forceinline__ void short_write(
    const short_shape &sh, float (&acc)[MT][NB / 2], const float *bias, short_memory<NB, BM> *m) {
    int32_t warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float *to = &m->tile[0][short_column(sh, (threadIdx.x >> 7) * MT + i, 16 * warp + g + 8 * h)];
#pragma unroll
            for (int c = 0; c < NB / 8; c++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int32_t channel = 8 * c + 2 * q + e;
                    to[channel * (BM + 4)] = __fadd_rn(acc[i][4 * c + 2 * h + e], bias[channel]);
                }
        }
}

/* Leaves: lanes of 8 consecutive steps, in-lane ascending, then lanes xor 1, 2, 4: the arithmetic of rows_leaves. */
template <int WARPS, int NB, int BM>
__device__ __forceinline__ void short_leaves(
    const short_shape &sh, const short_slot *slots, short_memory<NB, BM> *m) {
    constexpr int LANES = BM / 8, ROWS = 32 / LANES;
    static_assert(LANES <= 32 && NB % ROWS == 0, "a warp holds whole rows");
    const int32_t lane = threadIdx.x & 31, column = lane % LANES * 8, slot = column / sh.steps,
                  t = column - slot * sh.steps;
    const int32_t n_valid = slots[slot].t_out, valid = min(8, n_valid - t), lanes = sh.steps / 8;
    auto all = [&](float u) {
        for (int mask = 1; mask < lanes; mask <<= 1) u = __fadd_rn(u, __shfl_xor_sync(~0u, u, mask));
        return u;
    };
    for (int32_t row0 = (threadIdx.x >> 5) * ROWS; row0 < NB; row0 += WARPS * ROWS) {
        const int32_t row = row0 + lane / LANES;
        float v[8], sum = 0, sd = 0, sq = 0;
        *(float4 *)v = *(const float4 *)&m->tile[row][column];
        *(float4 *)(v + 4) = *(const float4 *)&m->tile[row][column + 4];
        float p = __shfl_sync(~0u, v[0], lane & ~(lanes - 1));
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < valid) sum = __fadd_rn(sum, __fadd_rn(v[i], -p));
        p = leaf_mean(p, all(sum), n_valid);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < valid) {
                float d = __fadd_rn(v[i], -p);
                sd = __fadd_rn(sd, d);
                sq = __fmaf_rn(d, d, sq);
            }
        sd = all(sd);
        sq = all(sq);
        if (t == 0) m->leaves[slot][row] = leaf_make(p, sd, sq, n_valid);
    }
}
/* The merge of moments_merge_few, over leaves anywhere. */
template <class LEAF> __device__ __forceinline__ moments short_merge(LEAF leaf, int32_t count, double shift) {
    moments w[FEW / 32] = {};
#pragma unroll
    for (int i = 0; i < FEW / 32; i++)
        if ((int32_t)(threadIdx.x & 31) + 32 * i < count) moments_add(w[i], leaf((threadIdx.x & 31) + 32 * i), shift);
#pragma unroll
    for (int half = FEW / 64; half; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++) w[i] = moments_sum(w[i], w[i + half]);
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) w[0] = moments_shuffle(w[0], mask);
    return w[0];
}
/* Sums of the tile's (slot, norm group)s by a warp each, then their values by a thread each: the arithmetic of
 * group_finish under NCT_NORM_OWN. */
template <int WARPS, int NB, int BM>
__device__ __forceinline__ void short_values(const cuda_job &j, const short_shape &sh, const short_slot *slots,
    int32_t n0, int32_t count, int32_t channel0, int32_t channels, short_memory<NB, BM> *m) {
    const int32_t mine = min(j.g.cg, channels), groups = channels / mine;
    for (int32_t at = threadIdx.x >> 5; at < count * groups; at += WARPS) {
        int32_t slot = at / groups, k = at - slot * groups;
        const float4 *own = &m->leaves[slot][k * mine];
        auto leaf = [&](int32_t i) {
            return sh.cluster > 1 ? cluster_read(&m->leaves[slot][i % NB], i / NB) : own[i];
        };
        double shift = leaf_center(leaf(0));
        moments sums = short_merge(leaf, j.g.cg, shift);
        if ((threadIdx.x & 31) == 0) m->sums[slot][k] = sums, m->shifts[slot][k] = shift;
    }
    if (sh.cluster > 1) cluster_arrive(); /* others may still read leaves here */
    short_sync<WARPS>(2);
    for (int32_t at = threadIdx.x; at < count * groups; at += WARPS * 32) {
        int32_t slot = at / groups, k = at - slot * groups, n = n0 + slot, group = (channel0 + k * mine) / j.g.cg;
        nct_stat s = stat_of(m->sums[slot][k], m->shifts[slot][k], (double)j.g.cg * slots[slot].t_out);
        if (!stat_finite(s)) s.mean = s.m2 = NAN;
        norm_value v = norm_of(s, j.g.eps);
        m->values[slot][k] = v;
        if (sh.cluster > 1 && channel0 % j.g.cg) continue;
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
/* The tile to memory: four steps a thread where rows of y lie so, else one, consecutive lanes on consecutive steps. */
template <int THREADS, int NB, int BM>
__device__ __forceinline__ void short_out(const cuda_job &j, const short_shape &sh, const short_slot *slots,
    int32_t n0, int32_t count, int32_t channel0, int32_t channels, const short_channels<NB> *per,
    const short_memory<NB, BM> *m) {
    const bool scratch = j.what & DO_RAW && !j.raw_in_y;
    const int32_t shift = __ffs(sh.steps) - 1, mine = min(j.g.cg, channels);
    const uint32_t group_magic = sh.group_magic;
    int32_t all_wide = 1;
    for (int32_t slot = 0; slot < count; slot++) all_wide &= slots[slot].wide;
    const int32_t each = all_wide || scratch ? 2 : 0, row = shift - each;
    for (int32_t i = threadIdx.x; i < count * NB << row; i += THREADS) {
        const int32_t t = (i & ((1 << row) - 1)) << each, c = (i >> row) % NB, slot = (i >> row) / NB, n = n0 + slot;
        if (c >= channels) continue;
        const short_slot &f = slots[slot];
        const int64_t at = (channel0 + c) * (scratch ? MMA_LEAF : f.y_pitch) + t;
        const float *from = &m->tile[c][slot * sh.steps + t];
        float *raw = scratch ? j.scratch + leaf_start(j, n) * j.leaf_t * j.g.co : (float *)j.y + f.y_off;
        float4 coef = {};
        if (j.what & DO_MEET) {
            norm_value v = m->values[slot][mine == NB ? 0 : __umulhi(c, group_magic)];
            coef = make_float4(v.mean_hi, v.mean_lo, __fmul_rn(v.rstd, per->gamma[c]), per->beta[c]);
        } else if (j.what & DO_APPLY)
            coef = j.coef[(int64_t)n * j.g.co + channel0 + c];
        if (each && t + 4 <= f.t_out) {
            float z[4];
            *(float4 *)z = *(const float4 *)from;
            short_put<4>(j, n, z, coef, raw + at, f.y_off + at);
        } else
            for (int32_t e = 0; e < 1 << each && t + e < f.t_out; e++) {
                float z[1] = {from[e]};
                short_put<1>(j, n, z, coef, raw + at + e, f.y_off + at + e);
            }
    }
}

/* Everything after the tile is written, by consumers and producers. */
template <int WARPS, int NB, int BM>
__device__ __forceinline__ void short_finish(const cuda_job &j, const short_shape &sh, const short_slot *slots,
    int32_t n0, int32_t channel0, int32_t channels, const short_channels<NB> *per, short_memory<NB, BM> *m) {
    const int32_t count = min(sh.slots, j.n_frames - n0);
    short_sync<WARPS>(2);
    if (j.what & DO_LEAVES) short_leaves<WARPS, NB, BM>(sh, slots, m);
    if (j.what & DO_MEET) {
        if (sh.cluster > 1) {
            cluster_arrive();
            cluster_wait();
        } else
            short_sync<WARPS>(2);
        short_values<WARPS, NB, BM>(j, sh, slots, n0, count, channel0, channels, m);
    } else if (j.what & DO_LEAVES) {
        short_sync<WARPS>(2);
        for (int32_t i = threadIdx.x; i < count * NB; i += WARPS * 32)
            if (i % NB < channels)
                j.leaves[leaf_start(j, n0 + i / NB) * j.g.co + channel0 + i % NB] = m->leaves[i / NB][i % NB];
    }
    if (j.what & (DO_RAW | DO_APPLY))
        short_out<WARPS * 32, NB, BM>(j, sh, slots, n0, count, channel0, channels, per, m);
    if (j.what & DO_MEET && sh.cluster > 1) cluster_wait();
}
#endif
