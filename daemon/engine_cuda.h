/* engine_cuda.h: what the CUDA backend's files share, and what its bench reads. Only in builds with CUDA. */
#ifndef NCTD_ENGINE_CUDA_H
#define NCTD_ENGINE_CUDA_H
#include "cu_call.h"
#include "engine_own.h"

enum { AT_IN, AT_KERNEL, AT_OUT, AT_DONE, AT_EVENTS }; /* in the order of the stream */

/* A slot's other half. `in` and `out` have the host arenas' sizes and offsets. */
typedef struct gpu_slot {
    unsigned char *in, *out;
    cudaStream_t stream;
    cudaEvent_t at[AT_EVENTS]; /* DONE is behind the host function */
    atomic_bool running;       /* who sets it to false calls engine_done: the host function, or a latch */
} gpu_slot;

typedef struct cuda {
    engine *e;
    uv_timer_t *timer; /* freed by its close callback */
    gpu_slot *slots;   /* [n_slots] */
    int32_t n_open;
    bool arena_registered;
} cuda;

/* "cudaMemcpyAsync on GPU 0: error 719, unspecified launch failure". Returns -ENOMEM for that one, else -EIO. */
int cuda_say(nct_why *why, int32_t device, const char *call, cudaError_t err);
/* engine_cuda_watch.c. The engine fails, and whatever runs on it; any call's error leads here. Returns -EIO. */
int cuda_latch(engine *e, const char *call, cudaError_t err);
int cuda_watch_open(cuda *c); /* 0, or uv's error */
void cuda_watch_close(cuda *c);
int cuda_verify(engine *e, slot *s);
bool cuda_busy(const slot *s);
#endif
