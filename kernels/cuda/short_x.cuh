/* short_x.cuh: what the parts of conv_short_sm90.cu share: the shape of a launch, the frames of a tile, the buffers of x. */
#ifndef NCT_CUDA_SHORT_X_CUH
#define NCT_CUDA_SHORT_X_CUH
#include "mma_units.cuh"
#include "wgmma.cuh"

enum { SHORT_SLOTS = 16 }; /* frames of a tile at most */

struct short_shape {
    unit_shape x;
    int32_t co_tiles;
    int32_t steps, slots;    /* of a slot; slots (frames) of a tile */
    int32_t flat;            /* rows of an m64 tile: 64 steps of one frame; else 8 steps of 8 frames */
    int32_t start[4], rows8; /* units: of each m64 tile; between its groups of 8 rows */
    int32_t stages, buffers; /* of weights, of x */
    int32_t cluster;         /* CTAs that share a norm group */
    uint32_t group_magic;    /* of a norm group's channels */
};
struct short_slot { /* a frame, as the epilogue needs it */
    int64_t y_off, y_pitch;
    int32_t t_out, wide; /* wide: rows of y begin at 16-byte (8-byte) boundaries */
};

/* The buffers of x as their writers see them. */
struct short_buffers {
    uint64_t *full, *empty;
    uint8_t *xs;
    int32_t buffers, bytes;
    __device__ __forceinline__ uint8_t *open(int32_t chunk) const {
        int32_t turn = chunk / buffers, b = chunk - turn * buffers;
        barrier_wait(&empty[b], (turn & 1) ^ 1);
        return xs + b * bytes;
    }
    __device__ __forceinline__ void close(int32_t chunk) const {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(&full[chunk % buffers]);
    }
};
#endif
