/* ops_avx2.c: the kernels in vectors of 8 (AVX2, FMA, F16C), 6 channels x 2 vectors. */
#if defined(__x86_64__)
    #include "cpu.h"
    #include <immintrin.h>
    #define LANES         8
    #define COLS          2
    #define SHORT_COLS    6
    #define SHORT_VECTORS 2
    #define FMA(a, b, c)  _mm256_fmadd_ps(a, b, c)
    #define HALF(h)       _cvtsh_ss(h)
    #define TO_HALF(f)    _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT)
    #define STREAM(p, v)  _mm256_stream_ps(p, v)
    #define STREAM_END()  _mm_sfence()
    #define OPS           cpu_ops_avx2
    #define OPS_NAME      "avx2"
    #define OPS_SUPPORTED                                                                                            \
        (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    #include "ops.inc.h"
#endif
