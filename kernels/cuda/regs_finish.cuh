/* regs_finish.cuh: a warpgroup's tile of PLAN_WGMMA from its products to y, out of its registers: bias, leaves, the meeting of
 * the tiles that share its norm groups, normalising and storing; whatever of these job.what asks for. */
#ifndef NCT_CUDA_REGS_FINISH_CUH
#define NCT_CUDA_REGS_FINISH_CUH
#include "regs_tile.cuh"
#include "tiles_meet.cuh"

/* Tile t of conv group `group`, which has `blocks` blocks of 64 channels, set_blocks consecutive ones sharing norm groups.
 * m, id: the warpgroup's own memory and barrier. */
template <int N>
__device__ __forceinline__ void regs_finish(const cuda_job &j, int32_t blocks, int32_t set_blocks, int32_t group,
    const regs_tile &t, float (&acc)[N / 2], meet_memory *m, int32_t id) {
    const nct_frame f = frame_at(j, t.n);
    const float2 bias = regs_constants(t, j.bias), gamma = regs_constants(t, j.gamma),
                 beta = regs_constants(t, j.beta);
    regs_bias(acc, bias);
    if (j.what & DO_LEAVES) regs_leaves<N>(j, f, t, acc);
    float4 coef[2] = {};
    if (j.what & DO_MEET) {
        const int32_t block = (t.channel0 - group * j.g.cog) / 64;
        const meet_place set = meet_place_of(j, f, t.n, t.t0, N, group, block, blocks, set_blocks);
        const int32_t first = t.channel0 / j.g.cg, last = (t.channel0 + t.channels - 1) / j.g.cg;
        meet_values(j, f, t.n, set, first, last - first + 1, t.t0 ? INT32_MAX : t.channel0, m, id);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (regs_row(h) >= t.channels) continue;
            const norm_value v = m->values[(t.channel0 + regs_row(h)) / j.g.cg - first];
            coef[h] =
                make_float4(v.mean_hi, v.mean_lo, __fmul_rn(v.rstd, h ? gamma.y : gamma.x), h ? beta.y : beta.x);
        }
    } else if (j.what & DO_APPLY)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (regs_row(h) < t.channels) coef[h] = __ldcg(&j.coef[(int64_t)t.n * j.g.co + t.channel0 + regs_row(h)]);
    if (j.what & (DO_RAW | DO_APPLY)) regs_store<N>(j, f, t, acc, coef);
}
#endif
