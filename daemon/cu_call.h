/* cu_call.h: every call that the daemon makes into CUDA goes through CU(), which gives its cudaError_t. Builds with
 * FAULTS=1 (tests alone) can make any of them fail: gpu_fault.h. Any thread. */
#ifndef NCTD_CU_CALL_H
#define NCTD_CU_CALL_H
#include <cuda_runtime_api.h>

#ifdef NCT_FAULTS
    #include "gpu_fault.h"
    #define CU(call, ...)                                                                                            \
        ({                                                                                                           \
            cudaError_t cu_error_ = gpu_fault_next(#call);                                                           \
            cu_error_ ? cu_error_ : call(__VA_ARGS__);                                                               \
        })
#else
    #define CU(call, ...) call(__VA_ARGS__)
#endif
#endif
