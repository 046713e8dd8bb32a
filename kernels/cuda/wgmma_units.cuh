/* wgmma_units.cuh: x for conv_wgmma_ss_sm90.cu: K-major, in memory, made by a kernel of its own before the conv.
 *
 * A unit is 16 bytes: 4 channels of one step in tf32 (rounded here, once), 8 in bf16. Memory: frame by frame as
 * [conv group, chunk, unit of 8][phase of the stride][row of 16 bytes], row r of phase p being position r * stride + p of the
 * padded frame; positions outside it are what the padding mode shows. A tile's window is then a run of rows a (unit,
 * phase): one bulk copy, any dtype, pitch and alignment of x, and a tap is a shift by rows.
 * Tried on the way, default batch, tf32 / bf16, where the tensor cores' loop alone takes 10.6 / 7.3 us: three producer warps
 * gather through registers 31 / 24 us, seven 18 / 12 (latency of 16 to 32 loads a thread); bulk copies of rows, turned in
 * shared memory by three warps 48 / 41 with the apply pass (they issue an instruction in 5 to 7 cycles: 5000 a warp). */
#ifndef NCT_CUDA_WGMMA_UNITS_CUH
#define NCT_CUDA_WGMMA_UNITS_CUH
#include "mma_stage.cuh"
#include "wgmma_ss.cuh"
#include "wgmma_x.cuh"

enum { TURN_THREADS = 256 };

struct units_shape {
    mma_shape m;                  /* one slot of the tile's steps */
    int32_t phase_rows, rows;     /* of one phase, of a unit, in shared memory */
    int32_t cluster;              /* CTAs that share weights, consecutive tiles of one block of channels */
    int32_t fused;                /* a cluster is one frame */
    int32_t meet;                 /* all CTAs of the launch meet */
    int32_t tap_rows, tap_phases; /* from a tap to the next */
    int32_t leaf_bytes;           /* fused: of the frame's leaves in shared memory */
};

template <int PREC> __host__ __device__ constexpr int unit_channels() {
    return PREC == NCT_PREC_BF16 ? 8 : 4;
}
/* Rows of a frame's phase: what its outputs read. */
__host__ __device__ __forceinline__ int32_t frame_rows(const geometry &g, int32_t t_out) {
    return t_out + (g.k - 1) * g.dil / g.stride;
}
/* 16-byte units of all channels of one position. */
__host__ __device__ __forceinline__ int32_t units_of_job(const cuda_job &j) {
    return j.g.groups * j.m.chunks * 8;
}
/* Of frame n: its first unit's first row. */
__device__ __forceinline__ uint8_t *turned_frame(const cuda_job &j, int32_t n) {
    int64_t rows = leaf_start(j, n) * MMA_LEAF + (int64_t)n * frame_rows(j.g, 0);
    return j.turned + rows * j.g.stride * units_of_job(j) * 16;
}

/* One unit from its channels' values. */
template <int PREC> __device__ __forceinline__ uint4 unit_of(const float (&v)[unit_channels<PREC>()]) {
    if constexpr (PREC == NCT_PREC_BF16)
        return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    else
        return make_uint4(round_tf32(v[0]), round_tf32(v[1]), round_tf32(v[2]), round_tf32(v[3]));
}

/* grid: positions of the longest frame, units, frames; a thread a unit. */
template <int PREC> __global__ void __launch_bounds__(TURN_THREADS) turn_kernel(const __grid_constant__ cuda_job j) {
    constexpr int EACH = unit_channels<PREC>();
    launch_next();
    launches_before();
    const int32_t n = blockIdx.z, unit = blockIdx.y, p = blockIdx.x * TURN_THREADS + threadIdx.x;
    const nct_frame f = frame_at(j, n);
    const int32_t rows = frame_rows(j.g, f.t_out), row = p / j.g.stride, phase = p - row * j.g.stride;
    if (row >= rows) return;
    const int32_t chunk_units = j.m.chunks * 8, group = unit / chunk_units,
                  channel = group * j.g.cig + (unit - group * chunk_units) * EACH, last = (group + 1) * j.g.cig;
    const int64_t from = source_step(j.g.pad_mode, (int64_t)p - f.pad_left, f.t_in);
    float v[EACH];
    uint32_t raw[EACH];
    const int64_t at = f.x_off + channel * f.x_pitch + from;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        raw[e] = 0;
        if (from < 0 || channel + e >= last) continue;
        raw[e] = j.x_dtype == NCT_F32 ? __ldg((const uint32_t *)j.x + at + e * f.x_pitch)
                                      : __ldg((const unsigned short *)j.x + at + e * f.x_pitch);
    }
#pragma unroll
    for (int e = 0; e < EACH; e++)
        v[e] = j.x_dtype == NCT_F32 ? __uint_as_float(raw[e]) : half_value(raw[e], j.x_dtype);
    *(uint4 *)(turned_frame(j, n) + (((int64_t)unit * j.g.stride + phase) * rows + row) * 16) = unit_of<PREC>(v);
}
template <int PREC> static cudaError_t turn_start(const cuda_job *job, cudaStream_t s) {
    cudaLaunchConfig_t config = {};
    const int64_t positions = (int64_t)frame_rows(job->g, job->max_t_out) * job->g.stride;
    config.gridDim = dim3((uint32_t)((positions + TURN_THREADS - 1) / TURN_THREADS), (uint32_t)units_of_job(*job),
        (uint32_t)job->n_frames);
    config.blockDim = dim3(TURN_THREADS);
    config.stream = s;
    cudaLaunchAttribute behind = {};
    behind.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    behind.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &behind;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, turn_kernel<PREC>, *job);
}
#endif
