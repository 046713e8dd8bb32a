/* frame.cuh: from a CTA's number to a frame and its place in memory, and elements in and out.
 *
 * What lies outside [0, t_in) never reaches a product: it is replaced by selection (0, or the step that the
 * padding mode names), never by a factor of 0. Offsets are int64. */
#ifndef NCT_CUDA_FRAME_CUH
#define NCT_CUDA_FRAME_CUH
#include "cuda.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ nct_frame frame_at(const cuda_job &j, int32_t n) {
    if (!j.uniform) return j.frames[n];
    nct_frame f = j.row0;
    f.x_off += n * j.x_step;
    f.y_off += n * j.y_step;
    if (j.frames) {
        f.stat_in = j.frames[n].stat_in;
        f.stat_out = j.frames[n].stat_out;
    }
    return f;
}

/* Leaves lie per frame as [channel][column]; a column is leaf_t steps. */
__device__ __forceinline__ int64_t leaf_start(const cuda_job &j, int32_t n) {
    return j.leaf_start ? j.leaf_start[n] : (int64_t)n * j.leaf_cols;
}
__device__ __forceinline__ int32_t leaf_columns(const cuda_job &j, int32_t t_out) {
    return (t_out + j.leaf_t - 1) / j.leaf_t;
}

struct place { /* where a tile lies */
    int32_t n, t0;
};
/* Tile `tile` of all tiles along time. Ragged: the last frame whose start is not beyond the tile's column. */
__device__ __forceinline__ place place_of(const cuda_job &j, int32_t tile) {
    int32_t column = tile * j.tile_leaves;
    if (!j.leaf_start) {
        int32_t n = column / j.leaf_cols;
        return {n, (column - n * j.leaf_cols) * j.leaf_t};
    }
    int32_t low = 0, high = j.n_frames - 1;
    while (low < high) {
        int32_t mid = (low + high + 1) >> 1;
        if (j.leaf_start[mid] <= column)
            low = mid;
        else
            high = mid - 1;
    }
    return {low, (column - j.leaf_start[low]) * j.leaf_t};
}

/* ---- elements ---- */

__device__ __forceinline__ float load_element(const void *x, int32_t dtype, int64_t i) {
    switch (dtype) {
    case NCT_F32: return __ldg((const float *)x + i);
    case NCT_F16: return __half2float(__ushort_as_half(__ldg((const unsigned short *)x + i)));
    case NCT_BF16: return __uint_as_float((uint32_t)__ldg((const unsigned short *)x + i) << 16);
    default: return __fmul_rn((float)__ldg((const short *)x + i), 1.0f / 32768.0f);
    }
}

/* The step of x that position `at` of the padded sequence shows; -1: a zero. Positions beyond the right pad
 * (only outputs that are not stored ask for them) are zeros too. */
__device__ __forceinline__ int64_t source_step(int32_t mode, int64_t at, int32_t t_in) {
    if (at >= 0 && at < t_in) return at;
    if (mode == NCT_ZEROS) return -1;
    int64_t from = mode == NCT_REPLICATE ? (at < 0 ? 0 : t_in - 1)
                   : mode == NCT_REFLECT ? (at < 0 ? -at : 2 * ((int64_t)t_in - 1) - at)
                                         : (at < 0 ? at + t_in : at - t_in);
    return from >= 0 && from < t_in ? from : -1;
}
__device__ __forceinline__ float load_step(const cuda_job &j, const nct_frame &f, int32_t channel, int64_t at) {
    int64_t from = source_step(j.g.pad_mode, at, f.t_in);
    return from < 0 ? 0.0f : load_element(j.x, j.x_dtype, f.x_off + channel * f.x_pitch + from);
}

__device__ __forceinline__ void store_element(void *y, int32_t dtype, int64_t i, float v) {
    if (dtype == NCT_F32)
        ((float *)y)[i] = v;
    else if (dtype == NCT_F16)
        ((__half *)y)[i] = __float2half_rn(v);
    else
        ((__nv_bfloat16 *)y)[i] = __float2bfloat16_rn(v);
}

/* Where the unnormalised f32 of (frame, channel) lies, steps consecutive. */
__device__ __forceinline__ float *raw_row(const cuda_job &j, const nct_frame &f, int32_t n, int32_t channel) {
    if (j.raw_in_y) return (float *)j.y + f.y_off + channel * f.y_pitch;
    int64_t pitch = (int64_t)leaf_columns(j, f.t_out) * j.leaf_t;
    return j.scratch + leaf_start(j, n) * j.leaf_t * j.g.co + channel * pitch;
}
#endif
