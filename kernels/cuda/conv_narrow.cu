/* conv_narrow.cu: the kernel and rows of PLAN_NARROW; see conv_narrow.cuh.
 *
 * One kernel, three schedules. A CTA has `items` tiles (32 channels x one leaf) and their windows of x in
 * shared memory (24 warps an SM: 2 CTAs of 12 or 3 of 8); it makes their leaves, meets, and makes y from the same windows:
 *   local: all leaves of (frame, 32 channels), where a norm group is one channel (wav2vec2-l0): it meets itself alone;
 *   grid:  all CTAs meet once under a cooperative launch, where one block holds all channels (encodec48-l0);
 *   again: no meeting: a launch for the leaves, norm_finish, a launch for y. Everything else.
 * Limits: C_in*K <= 32, 16 or more channels out, windows within 84 KB (again), 200 KB (local, grid). */
#include "conv_narrow.cuh"
#include "group.cuh"
#include <cooperative_groups.h>

enum { NARROW_CTA = 32 * NARROW_WARPS, NARROW_ITEMS = 8, NARROW_AGAIN = 84 * 1024, NARROW_FUSED = 200 * 1024 };

struct narrow_item {
    nct_frame f;
    int32_t n, t0, left, block; /* left <= 0: nothing */
    int64_t pos0;
};
__device__ __forceinline__ narrow_item narrow_item_at(const cuda_job &j, const narrow_shape &sh, int32_t i) {
    narrow_item t;
    t.left = 0;
    if (sh.local) {
        t.n = blockIdx.x / sh.blocks;
        t.block = blockIdx.x - t.n * sh.blocks;
        t.t0 = i * NARROW_LEAF;
    } else {
        int32_t flat = blockIdx.x * sh.items + i, tile = flat / sh.blocks;
        if (tile >= j.tiles) return t;
        place at = place_of(j, tile);
        t.block = flat - tile * sh.blocks;
        t.n = at.n;
        t.t0 = at.t0;
    }
    t.f = frame_at(j, t.n);
    t.left = min(NARROW_LEAF, t.f.t_out - t.t0);
    t.pos0 = ((int64_t)t.t0 - NARROW_LEAD) * j.g.stride - t.f.pad_left;
    return t;
}
__device__ __forceinline__ int32_t narrow_window(const geometry &g, int32_t steps) {
    return (steps + NARROW_OVER + NARROW_LEAD) * g.stride + (g.k - 1) * g.dil + 1;
}

struct narrow_room { /* after the windows */
    narrow_item item[NARROW_ITEMS];
    float4 row[NARROW_ITEMS][32];
    float first[NARROW_ITEMS][32];
    char stage[NARROW_WARPS][16 * NARROW_STAGE];
    float sums[2]; /* [dev, sq][item][chain][row]: items of them */
};

/* Leaves of the CTA's tiles, to memory. */
template <int KS>
__device__ __forceinline__ void narrow_leaves(
    const cuda_job &j, const narrow_shape &sh, const float *xs, const narrow_block<KS> &b, narrow_room &room) {
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    float *dev = room.sums, *sq = room.sums + sh.items * NARROW_CHAINS * 32;
    narrow_pair_of<KS> w;
    w.load(b);
    for (int32_t at = warp; at < sh.items * NARROW_CHAINS; at += sh.warps) {
        int32_t i = at / NARROW_CHAINS, chain = at % NARROW_CHAINS;
        const narrow_item &t = room.item[i];
        if (t.left <= 0) continue;
        const float *x[KS][2];
        narrow_columns<KS, 8>(x, j, t.f, t.pos0, b.product, xs + i * j.g.ci * sh.pitch);
        narrow_sums s;
        narrow_chain<KS>(w, s, x, j.g.stride, t.left, chain);
        if (q == 0)
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int32_t row = 16 * m + 8 * h + g;
                    dev[at * 32 + row] = s.dev[m][h];
                    sq[at * 32 + row] = s.sq[m][h];
                    if (chain == 0) room.first[i][row] = s.first[m][h];
                }
        __syncwarp();
    }
    __syncthreads();
    for (int32_t at = threadIdx.x; at < sh.items * 32; at += blockDim.x) {
        int32_t i = at / 32, row = at % 32, from = i * NARROW_CHAINS * 32 + row;
        const narrow_item &t = room.item[i];
        int32_t channel = t.block * sh.base + sh.step * row;
        if (t.left <= 0 || channel >= j.g.co) continue;
        int32_t columns = leaf_columns(j, t.f.t_out);
        j.leaves[leaf_start(j, t.n) * j.g.co + (int64_t)channel * columns + t.t0 / NARROW_LEAF] =
            leaf_make(room.first[i][row], narrow_sixteen(dev + from, 32), narrow_sixteen(sq + from, 32), t.left);
    }
}

/* Local: a thread or a warp a channel, which is a norm group. */
__device__ __forceinline__ void narrow_meet_local(const cuda_job &j, const narrow_shape &sh, narrow_room &room) {
    const narrow_item &t = room.item[0];
    int32_t columns = leaf_columns(j, t.f.t_out), warp = threadIdx.x >> 5;
    __syncthreads();
    if (columns <= 2) {
        int32_t channel = t.block * sh.base + sh.step * (int32_t)threadIdx.x;
        if (threadIdx.x < 32 && channel < j.g.co) {
            const float4 *leaves = j.leaves + leaf_start(j, t.n) * j.g.co + (int64_t)channel * columns;
            room.row[0][threadIdx.x] = coef_of(j, group_value_lane(j, t.f, t.n, channel, leaves, columns), channel);
        }
    } else
        for (int32_t row = warp; row < 32; row += sh.warps) {
            int32_t channel = t.block * sh.base + sh.step * row;
            if (channel >= j.g.co) continue;
            norm_value v = group_value_few(j, t.f, t.n, channel, true);
            if ((threadIdx.x & 31) == 0) room.row[0][row] = coef_of(j, v, channel);
        }
    __syncthreads();
}
/* Grid: the groups of each frame that the CTA's tiles belong to. The CTA of a frame's first tile reports. */
__device__ __forceinline__ void narrow_meet_grid(const cuda_job &j, const narrow_shape &sh, narrow_room &room) {
    __shared__ moments sums[MERGE_THREADS];
    __shared__ norm_value value;
    cooperative_groups::this_grid().sync();
    int32_t before = -1;
    for (int32_t i = 0; i < sh.items; i++) {
        const narrow_item &t = room.item[i];
        if (t.left <= 0) continue;
        if (t.n == before) {
            if (threadIdx.x < 32) room.row[i][threadIdx.x] = room.row[i - 1][threadIdx.x];
            continue;
        }
        before = t.n;
        for (int32_t group = 0; group < j.g.norm_groups; group++) {
            int64_t count = (int64_t)j.g.cg * leaf_columns(j, t.f.t_out);
            const float4 *leaves = j.leaves + leaf_start(j, t.n) * j.g.co + group * count;
            double shift = leaf_center(__ldcg(leaves));
            moments m = moments_merge(leaves, count, shift, sums);
            if (threadIdx.x < 32) {
                norm_value v = group_finish(j, t.f, t.n, group, t.t0 == 0, m, shift);
                if (threadIdx.x == 0) value = v;
            }
            __syncthreads();
            if ((int32_t)threadIdx.x < j.g.cg)
                room.row[i][group * j.g.cg + threadIdx.x] = coef_of(j, value, group * j.g.cg + threadIdx.x);
            __syncthreads();
        }
    }
    __syncthreads();
}

template <int KS, int ACT, bool Y16>
__device__ __forceinline__ void narrow_write(
    const cuda_job &j, const narrow_shape &sh, const float *xs, const narrow_block<KS> &b, narrow_room &room) {
    constexpr int V = Y16 ? 8 : 4;
    int32_t turn = threadIdx.x >> 5;
    char *stage = room.stage[turn];
    for (int32_t i = 0; i < sh.items; i++) {
        const narrow_item &t = room.item[i];
        if (t.left <= 0) continue;
        const float *x[KS][2];
        narrow_columns<KS, V>(x, j, t.f, t.pos0, b.product, xs + i * j.g.ci * sh.pitch);
        int32_t first = narrow_first<V>(j, t.f, sh, t.block, t.t0), left = t.left;
        bool aligned = first <= 0 && t.block * sh.base + sh.step * 31 < j.g.co;
        if (!aligned) first = 0;
        int32_t at = first + turn * 32;
        const float4 *row = room.row[sh.local ? 0 : i];
        for (; at < left; at += sh.warps * 32) {
            if (aligned && at >= 0 && at + 32 <= left)
                narrow_apply<KS, ACT, Y16, true>(j, t.f, t.n, t.t0, x, b, row, sh, t.block, at, left, stage);
            else
                narrow_apply<KS, ACT, Y16, false>(j, t.f, t.n, t.t0, x, b, row, sh, t.block, at, left, stage);
        }
        turn = (at - left) >> 5; /* the next tile's first blocks go to the warps that are done first */
    }
}

template <int KS, int ACT, bool Y16>
__global__ void __launch_bounds__(NARROW_CTA, 2)
    narrow_kernel(const __grid_constant__ cuda_job j, const __grid_constant__ narrow_shape sh) {
    extern __shared__ float4 shared[];
    __shared__ narrow_block<KS> b;
    float *xs = (float *)shared;
    narrow_room &room = *(narrow_room *)(xs + sh.floats);
    if ((int32_t)threadIdx.x < sh.items) room.item[threadIdx.x] = narrow_item_at(j, sh, threadIdx.x);
    __syncthreads();
    if (room.item[0].left > 0) narrow_block_fill(b, j, sh, room.item[0].block);
    for (int32_t i = 0; i < sh.items; i++) {
        const narrow_item &t = room.item[i];
        if (t.left <= 0) continue;
        narrow_fill(j, t.f, t.pos0, narrow_window(j.g, t.left), sh.pitch, xs + i * j.g.ci * sh.pitch);
        int32_t channel = t.block * sh.base + sh.step * (int32_t)threadIdx.x;
        if (threadIdx.x < 32 && channel < j.g.co && !(j.what & (DO_LEAVES | DO_RAW)))
            room.row[i][threadIdx.x] = j.coef[(int64_t)t.n * j.g.co + channel];
    }
    __syncthreads();
    if (j.what & DO_LEAVES) narrow_leaves<KS>(j, sh, xs, b, room);
    if (j.what & DO_MEET) {
        if (sh.local)
            narrow_meet_local(j, sh, room);
        else
            narrow_meet_grid(j, sh, room);
    }
    if (j.what & (DO_APPLY | DO_RAW)) narrow_write<KS, ACT, Y16>(j, sh, xs, b, room);
}

/* ---- host ---- */

static int64_t narrow_pitch(const geometry *g, int64_t steps) {
    int64_t window = (steps + NARROW_OVER + NARROW_LEAD) * g->stride + (int64_t)(g->k - 1) * g->dil + 1;
    return (window + 8 + 8 + 7) / 8 * 8;
}
static size_t narrow_bytes(const narrow_shape *sh) {
    return (size_t)sh->floats * 4 + (size_t)sh->items * NARROW_CHAINS * 32 * 8 + sizeof(narrow_room);
}
int narrow_holds(const geometry *g) {
    narrow_shape one = {};
    one.items = 1;
    if (g->groups != 1 || (int64_t)g->ci * g->k > NARROW_PRODUCTS || g->co < 16) return 0;
    int64_t pitch = narrow_pitch(g, NARROW_LEAF);
    one.floats = (int32_t)(g->ci * pitch);
    return g->ci * pitch * 4 < NARROW_AGAIN && narrow_bytes(&one) <= NARROW_AGAIN;
}

/* fused: 0 items where it cannot run. */
static narrow_shape narrow_shape_of(const cuda_layer *l, const cuda_job *job, int fused) {
    int32_t steps = job->max_t_out < NARROW_LEAF ? job->max_t_out : NARROW_LEAF;
    narrow_shape sh = {};
    sh.blocks = sh.step = (job->g.co + 31) / 32;
    sh.pitch = (int32_t)narrow_pitch(&job->g, steps);
    sh.base = sh.items = 1;
    sh.floats = job->g.ci * sh.pitch;
    sh.warps = steps <= 512 ? 4 : 8;
    if (!fused) return sh;
    sh.local = job->g.cg == 1;
    int64_t items = (job->max_t_out + NARROW_LEAF - 1) / NARROW_LEAF, each;
    if (sh.local) {
        if (items > 1) sh.warps = NARROW_WARPS;
    } else {
        /* co-resident: 3 CTAs an SM if their windows are small, else 1 */
        sh.warps = 8;
        each = (int64_t)narrow_bytes(&sh) + 8192;
        int64_t room = each * 3 <= NARROW_FUSED ? 3 * l->sms : l->sms;
        items = (job->tiles + room - 1) / room;
        if (items > 1) {
            sh.warps = NARROW_WARPS;
            items = (job->tiles + l->sms - 1) / l->sms;
        }
    }
    sh.items = (int32_t)(items <= NARROW_ITEMS && (sh.local || sh.blocks == 1) ? items : 0);
    if (!sh.items) return sh;
    sh.floats = sh.items * job->g.ci * sh.pitch;
    if (sh.local) sh.floats += (int32_t)narrow_pitch(&job->g, job->max_t_out - (items - 1) * NARROW_LEAF) - sh.pitch;
    if (narrow_bytes(&sh) > NARROW_FUSED) sh.items = 0;
    return sh;
}

template <int KS, int ACT, bool Y16>
static cudaError_t run_kernel(const cuda_job *job, narrow_shape sh, cudaStream_t s) {
    auto kernel = narrow_kernel<KS, ACT, Y16>;
    int32_t fused = job->what & DO_MEET;
    cudaError_t err = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, fused ? NARROW_FUSED : NARROW_AGAIN);
    if (err) return err;
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    int64_t ctas = sh.local ? job->n_frames * sh.blocks : ((int64_t)job->tiles * sh.blocks + sh.items - 1) / sh.items;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)ctas);
    config.blockDim = dim3(32 * sh.warps);
    config.dynamicSmemBytes = narrow_bytes(&sh);
    config.stream = s;
    config.attrs = &together;
    config.numAttrs = fused && !sh.local;
    return cudaLaunchKernelEx(&config, kernel, *job, sh);
}
template <int KS> static cudaError_t run(const cuda_job *job, narrow_shape sh, cudaStream_t s) {
    bool raw = job->what & DO_RAW, y16 = job->y_dtype != NCT_F32 && !raw, plain = job->norm != NCT_NORM_GIVEN && !raw;
    if (job->g.act == NCT_GELU && plain && job->y_dtype != NCT_F16) {
        if (!y16) return run_kernel<KS, NARROW_GELU, false>(job, sh, s);
        return job->precision == NCT_PREC_BF16 ? run_kernel<KS, NARROW_GELU_16, true>(job, sh, s)
                                               : run_kernel<KS, NARROW_GELU, true>(job, sh, s);
    }
    if (job->g.act == NCT_NONE && plain && job->y_dtype == NCT_BF16)
        return run_kernel<KS, NARROW_NONE, true>(job, sh, s);
    return y16 ? run_kernel<KS, NARROW_ANY, true>(job, sh, s) : run_kernel<KS, NARROW_ANY, false>(job, sh, s);
}

int narrow_fits(const row *row, const cuda_layer *l, const cuda_job *job) {
    return l->precision != NCT_PREC_F32 && (row->pass != PASS_FUSED || narrow_shape_of(l, job, 1).items > 0);
}
cudaError_t narrow_launch(const cuda_layer *l, const cuda_job *job, const row *row, cudaStream_t s) {
    (void)row;
    narrow_shape sh = narrow_shape_of(l, job, job->what & DO_MEET);
    return job->g.ci * job->g.k <= 16 ? run<2>(job, sh, s) : run<4>(job, sh, s);
}

template <int KS> static cudaError_t load(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, narrow_kernel<KS, NARROW_ANY, false>);
    if (!err) err = cudaFuncGetAttributes(&a, narrow_kernel<KS, NARROW_ANY, true>);
    if (!err) err = cudaFuncGetAttributes(&a, narrow_kernel<KS, NARROW_NONE, true>);
    if (!err) err = cudaFuncGetAttributes(&a, narrow_kernel<KS, NARROW_GELU, false>);
    if (!err) err = cudaFuncGetAttributes(&a, narrow_kernel<KS, NARROW_GELU, true>);
    return err ? err : cudaFuncGetAttributes(&a, narrow_kernel<KS, NARROW_GELU_16, true>);
}
cudaError_t narrow_load(void) {
    cudaError_t err = load<2>();
    return err ? err : load<4>();
}
