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

enum { TURN_THREADS = 256, TURN_EACH = 4 };

struct units_shape {
    mma_shape m;                  /* one slot of the tile's steps */
    int32_t rows;                 /* of a piece: one phase of a chunk, in shared memory */
    int32_t period, pieces;       /* taps until a phase comes again; pieces of a chunk */
    int32_t cluster;              /* CTAs that share weights, consecutive tiles of one block of channels */
    int32_t tap_rows, tap_phases; /* from a tap to the next */
    int32_t blocks, set_blocks;   /* of 64 channels in a conv group; consecutive ones that share norm groups */
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
/* Counters that a frame has: two for every 64 channels of a conv group. */
__host__ __device__ __forceinline__ int32_t job_counters(const cuda_job &j) {
    return j.g.groups * ((j.m.blocks + 1) / 2 * 2);
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

/* Pieces of 32 TURN_EACH positions of a (frame, unit), one a warp: a lane every 32nd position. */
template <int PREC, bool INSIDE>
__device__ __forceinline__ void turn_piece(
    const cuda_job &j, const nct_frame &f, int64_t at, int32_t channels, int32_t p0, int32_t rows, uint8_t *to) {
    constexpr int EACH = unit_channels<PREC>();
    const int32_t stride = j.g.stride, wide = j.x_dtype == NCT_F32;
    uint32_t raw[TURN_EACH][EACH];
#pragma unroll
    for (int i = 0; i < TURN_EACH; i++) {
        const int32_t p = p0 + 32 * i - f.pad_left;
        int64_t from = INSIDE || (p >= 0 && p < f.t_in) ? p : source_step(j.g.pad_mode, p, f.t_in);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            raw[i][e] = 0;
            if (!INSIDE && (from < 0 || e >= channels)) continue;
            const int64_t x = at + e * f.x_pitch + from;
            raw[i][e] = wide ? __ldg((const uint32_t *)j.x + x) : __ldg((const unsigned short *)j.x + x);
        }
    }
    int32_t row = p0 / stride, phase = p0 - row * stride;
    const int32_t rows_on = 32 / stride, phases_on = 32 - rows_on * stride;
#pragma unroll
    for (int i = 0; i < TURN_EACH; i++) {
        float v[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) v[e] = wide ? __uint_as_float(raw[i][e]) : half_value(raw[i][e], j.x_dtype);
        if (row < rows) *(uint4 *)(to + ((int64_t)phase * rows + row) * 16) = unit_of<PREC>(v);
        row += rows_on;
        phase += phases_on;
        if (phase >= stride) phase -= stride, row++;
    }
}
template <int PREC>
__global__ void __launch_bounds__(TURN_THREADS) turn_kernel(const __grid_constant__ cuda_job j, int32_t pieces) {
    constexpr int EACH = unit_channels<PREC>();
    launch_next();
    launches_before();
    const int32_t units = units_of_job(j), n = blockIdx.y, at = blockIdx.x * (TURN_THREADS / 32) + threadIdx.x / 32;
    const int32_t unit = at / pieces, p0 = (at - unit * pieces) * 32 * TURN_EACH;
    if (blockIdx.x == 0) /* for tiles_meet.cuh */
        for (int32_t each = job_counters(j), i = threadIdx.x; i < each; i += TURN_THREADS)
            j.counters[n * each + i] = 0;
    if (unit >= units) return;
    const nct_frame f = frame_at(j, n);
    const int32_t rows = frame_rows(j.g, f.t_out);
    if (p0 >= rows * j.g.stride) return;
    const int32_t chunk_units = j.m.chunks * 8, group = unit / chunk_units,
                  channel = group * j.g.cig + (unit - group * chunk_units) * EACH,
                  channels = (group + 1) * j.g.cig - channel;
    const int64_t from = f.x_off + channel * f.x_pitch;
    uint8_t *to = turned_frame(j, n) + (int64_t)unit * j.g.stride * rows * 16;
    const int32_t mine = p0 + (threadIdx.x & 31);
    if (p0 >= f.pad_left && p0 + 32 * TURN_EACH <= f.pad_left + f.t_in && channels >= EACH)
        turn_piece<PREC, true>(j, f, from, channels, mine, rows, to);
    else
        turn_piece<PREC, false>(j, f, from, channels, mine, rows, to);
}
template <int PREC> static cudaError_t turn_start(const cuda_job *job, cudaStream_t s) {
    cudaLaunchConfig_t config = {};
    const int64_t positions = (int64_t)frame_rows(job->g, job->max_t_out) * job->g.stride;
    const int32_t pieces = (int32_t)((positions + 32 * TURN_EACH - 1) / (32 * TURN_EACH));
    config.gridDim =
        dim3((uint32_t)(((int64_t)units_of_job(*job) * pieces + TURN_THREADS / 32 - 1) / (TURN_THREADS / 32)),
            (uint32_t)job->n_frames);
    config.blockDim = dim3(TURN_THREADS);
    config.stream = s;
    cudaLaunchAttribute behind = {};
    behind.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    behind.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &behind;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, turn_kernel<PREC>, *job, pieces);
}
#endif
