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

enum { TURN_THREADS = 128 };

struct units_shape {
    mma_shape m;                  /* one slot of the tile's steps */
    int32_t rows;                 /* of a piece: one phase of a chunk, in shared memory */
    int32_t together;             /* taps of a stage of weights */
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

/* Positions of a lane, 32 apart: 16 loads in flight. */
template <int PREC> __host__ __device__ constexpr int turn_each() {
    return 16 / unit_channels<PREC>();
}
/* grid: pieces of the longest frame's positions, units, frames. Few instructions: they run once, at the pace of their fetching
 * (unrolled over dtypes and edges: 7 us on matcha's 8 MB). SIZE: bytes of an element of x. */
template <int PREC, int SIZE>
__global__ void __launch_bounds__(TURN_THREADS) turn_kernel(const __grid_constant__ cuda_job j) {
    constexpr int EACH = unit_channels<PREC>(), DEEP = turn_each<PREC>(), PIECE = 32 * DEEP;
    launch_next();
    const int32_t unit = blockIdx.y, n = blockIdx.z, stride = j.g.stride, chunk_units = j.m.chunks * 8;
    const int32_t first = (blockIdx.x * (TURN_THREADS / 32) + threadIdx.x / 32) * PIECE, lane = threadIdx.x & 31,
                  p0 = first + lane;
    const int32_t group = j.g.groups == 1 ? 0 : unit / chunk_units,
                  channel = group * j.g.cig + (unit - group * chunk_units) * EACH,
                  channels = (group + 1) * j.g.cig - channel;
    if (j.uniform) { /* x may still be written, but it may come near: 128 bytes a lane */
        constexpr int LINES = PIECE * SIZE / 128;
        const nct_frame f = j.row0;
        const int32_t from = first - f.pad_left, e = lane / LINES;
        if (lane < EACH * LINES && from >= 0 && from + PIECE <= f.t_in && channels >= EACH)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(
                (const char *)j.x + (f.x_off + n * j.x_step + (channel + e) * f.x_pitch + from) * SIZE +
                (lane - e * LINES) * 128));
    }
    launches_before();
    if (blockIdx.x + blockIdx.y == 0) /* for tiles_meet.cuh */
#pragma unroll 1
        for (int32_t each = job_counters(j), i = threadIdx.x; i < each; i += TURN_THREADS)
            j.counters[n * each + i] = 0;
    const nct_frame f = frame_at(j, n);
    const int32_t rows = frame_rows(j.g, f.t_out), at = first - f.pad_left;
    if (first >= rows * stride) return;
    const int64_t pitch = f.x_pitch * SIZE;
    const char *x = (const char *)j.x + (f.x_off + channel * f.x_pitch + at + lane) * SIZE;
    auto element = [](const char *from) {
        return SIZE == 4 ? __ldg((const uint32_t *)from) : (uint32_t)__ldg((const unsigned short *)from);
    };
    uint32_t raw[DEEP][EACH];
    if (at >= 0 && at + PIECE <= f.t_in && channels >= EACH) {
#pragma unroll
        for (int e = 0; e < EACH; e++, x += pitch)
#pragma unroll
            for (int i = 0; i < DEEP; i++) raw[i][e] = element(x + 32 * SIZE * i);
    } else
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            const int64_t p = at + lane + 32 * i;
            int64_t from = p;
            if (j.g.pad_mode != NCT_ZEROS) from = source_step(j.g.pad_mode, p, f.t_in);
            const int32_t have = from >= 0 && from < f.t_in ? channels : 0;
            const char *here = x + (from - p + 32 * i) * SIZE;
#pragma unroll
            for (int e = 0; e < EACH; e++, here += pitch) {
                raw[i][e] = 0;
                if (e < have) raw[i][e] = element(here);
            }
        }
    uint8_t *to = turned_frame(j, n) + (int64_t)unit * stride * rows * 16;
    int32_t row = p0, phase = 0, rows_on = 32, phases_on = 0;
    if (stride > 1) {
        row = p0 / stride, phase = p0 - row * stride;
        rows_on = 32 / stride, phases_on = 32 - rows_on * stride;
    }
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
        uint4 u;
        if (PREC == NCT_PREC_BF16 && SIZE == 2 && j.x_dtype == NCT_BF16) {
            auto pair = [&](int e) { return raw[i][e % EACH] | raw[i][(e + 1) % EACH] << 16; };
            u = make_uint4(pair(0), pair(2), pair(4), pair(6));
        } else {
            float v[EACH];
#pragma unroll
            for (int e = 0; e < EACH; e++)
                v[e] = SIZE == 4 ? __uint_as_float(raw[i][e]) : half_value(raw[i][e], j.x_dtype);
            u = unit_of<PREC>(v);
        }
        if (row < rows) *(uint4 *)(to + ((int64_t)phase * rows + row) * 16) = u;
        row += rows_on;
        phase += phases_on;
        if (phase >= stride) phase -= stride, row++;
    }
}
template <int PREC> static cudaError_t turn_start(const cuda_job *job, cudaStream_t s) {
    cudaLaunchConfig_t config = {};
    const int64_t positions = (int64_t)frame_rows(job->g, job->max_t_out) * job->g.stride;
    const int32_t each = TURN_THREADS * turn_each<PREC>();
    config.gridDim =
        dim3((uint32_t)((positions + each - 1) / each), (uint32_t)units_of_job(*job), (uint32_t)job->n_frames);
    config.blockDim = dim3(TURN_THREADS);
    config.stream = s;
    cudaLaunchAttribute behind = {};
    behind.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    behind.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &behind;
    config.numAttrs = 1;
    return job->x_dtype == NCT_F32 ? cudaLaunchKernelEx(&config, turn_kernel<PREC, 4>, *job)
                                   : cudaLaunchKernelEx(&config, turn_kernel<PREC, 2>, *job);
}
#endif
