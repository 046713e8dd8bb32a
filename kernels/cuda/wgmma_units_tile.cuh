/* wgmma_units_tile.cuh: a warpgroup's tile of conv_wgmma_ss_sm90.cu after its products, out of its registers: leaves, the
 * meeting of the tiles that share its norm groups, normalising and storing. */
#ifndef NCT_CUDA_WGMMA_UNITS_TILE_CUH
#define NCT_CUDA_WGMMA_UNITS_TILE_CUH
#include "regs_finish.cuh"
#include "wgmma_units.cuh"

template <int N>
__device__ __forceinline__ void units_finish(const cuda_job &j, const units_shape &sh, const regs_tile &t,
    int32_t group, float (&acc)[N / 2], meet_memory *m, int32_t id) {
    regs_finish<N>(j, sh.blocks, sh.set_blocks, group, t, acc, m, id);
}
#endif
