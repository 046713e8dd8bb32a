/* engine_cuda_fault.c: see gpu_fault.h; empty in builds without FAULTS=1. Called through CU() on any thread, and by
 * engine_cuda.c's launch on the loop thread. Owns the counters and two small kernels as PTX. */
#ifdef NCT_FAULTS
    #include "gpu_fault.h"
    #include <stdatomic.h>
    #include <stdbool.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>

enum { HOUR_MS = 3600000 };
typedef enum { NOTHING, CALL, FROM, REGISTER, TRAP, HANG } fault_kind;
static struct {
    fault_kind kind;
    long at;
    cudaError_t code;
    unsigned long long ns;
} wanted;
static atomic_long calls, launches;
static atomic_bool armed, sticky;

/* The clock is read again and again, so that no compiler can drop the loop. */
static const char kernels[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                              ".visible .entry nct_trap() { trap; }\n"
                              ".visible .entry nct_hang(.param .u64 ns) {\n"
                              "  .reg .u64 %t<4>; .reg .pred %p;\n"
                              "  ld.param.u64 %t1, [ns]; mov.u64 %t2, %globaltimer;\n"
                              "more: mov.u64 %t3, %globaltimer; sub.u64 %t3, %t3, %t2;\n"
                              "  setp.lt.u64 %p, %t3, %t1; @%p bra more; ret; }\n";

static long number(const char *text, const char *key, long other) {
    const char *at = strstr(text, key);
    return at ? strtol(at + strlen(key), NULL, 10) : other;
}

__attribute__((constructor)) static void read_wanted(void) {
    static const struct {
        const char *key;
        fault_kind kind;
    } rows[] = {{"call=", CALL}, {"from=", FROM}, {"register=", REGISTER}, {"trap=", TRAP}, {"hang=", HANG}};
    const char *text = getenv("NCTD_GPU_FAULT");
    for (size_t i = 0; text && i < sizeof rows / sizeof *rows; i++) {
        if (strncmp(text, rows[i].key, strlen(rows[i].key))) continue;
        wanted.kind = rows[i].kind;
        wanted.at = number(text, rows[i].key, 1);
        wanted.code = (cudaError_t)number(text, "code=", cudaErrorLaunchFailure);
        atomic_store(&armed, strstr(text, ",start") != NULL);
        wanted.ns = 1000000ull * (unsigned long long)number(text, "ms=", HOUR_MS);
    }
}

void gpu_fault_arm(void) {
    atomic_store(&armed, true);
}

cudaError_t gpu_fault_next(const char *call) {
    if (wanted.kind == REGISTER && !strcmp(call, "cudaHostRegister")) return (cudaError_t)wanted.at;
    if ((wanted.kind != CALL && wanted.kind != FROM) || !atomic_load(&armed)) return cudaSuccess;
    long n = atomic_fetch_add(&calls, 1) + 1;
    if (wanted.kind == CALL || n < wanted.at) return n == wanted.at ? wanted.code : cudaSuccess;
    if (!atomic_exchange(&sticky, true)) cudaDeviceSynchronize();
    return wanted.code;
}

cudaError_t gpu_fault_kernel(cudaStream_t s) {
    static cudaLibrary_t library;
    cudaKernel_t kernel;
    if ((wanted.kind != TRAP && wanted.kind != HANG) || atomic_fetch_add(&launches, 1) + 1 != wanted.at)
        return cudaSuccess;
    const char *name = wanted.kind == TRAP ? "nct_trap" : "nct_hang";
    cudaError_t err = library ? cudaSuccess : cudaLibraryLoadData(&library, kernels, NULL, NULL, 0, NULL, NULL, 0);
    if (!err) err = cudaLibraryGetKernel(&kernel, library, name);
    if (err) {
        fprintf(stderr, "NCTD_GPU_FAULT: %s cannot be loaded: %s\n", name, cudaGetErrorString(err));
        return err;
    }
    cudaLaunchConfig_t grid = {.gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}, .stream = s};
    void *args[] = {&wanted.ns};
    return cudaLaunchKernelExC(&grid, (const void *)kernel, wanted.kind == TRAP ? NULL : args);
}
#else
typedef int engine_cuda_fault_is_for_tests;
#endif
