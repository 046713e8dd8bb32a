/* gpu_range.h: named stretches of the loop thread's time for Nsight Systems, where the toolkit has NVTX (headers alone).
 * Without a profiler each costs a few nanoseconds. Begin and end on one thread; they nest. */
#ifndef NCTD_GPU_RANGE_H
#define NCTD_GPU_RANGE_H
#if __has_include(<nvtx3/nvToolsExt.h>)
    #include <nvtx3/nvToolsExt.h>
static inline void gpu_range_begin(const char *name) {
    nvtxRangePushA(name);
}
static inline void gpu_range_end(void) {
    nvtxRangePop();
}
#else
static inline void gpu_range_begin(const char *name) {
    (void)name;
}
static inline void gpu_range_end(void) {}
#endif
#endif
