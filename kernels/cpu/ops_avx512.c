/* ops_avx512.c: the kernels in vectors of 16 (AVX-512 F, BW, DQ, VL), 6 channels x 4 vectors. */
#if defined(__x86_64__)
    #include "cpu.h"
    #include <immintrin.h>
    #define LANES         16
    #define COLS          4
    #define SHORT_COLS    8
    #define SHORT_VECTORS 3
    #define FMA(a, b, c)  _mm512_fmadd_ps(a, b, c)
    #define HALF(h)       _cvtsh_ss(h)
    #define TO_HALF(f)    _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT)
    #define STREAM(p, v)  _mm512_stream_ps(p, v)
    #define STREAM_END()  _mm_sfence()
    #define OPS           cpu_ops_avx512
    #define OPS_NAME      "avx512"
    #define OPS_SUPPORTED                                                                                            \
        (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&                                  \
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&                              \
            __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    #include "ops.inc.h"
#endif
