/* ops_portable.c: the kernels in vectors of 4, for every machine: SSE2 on x86-64, NEON with FMA on ARM. */
#include "cpu.h"
#if defined(__ARM_FEATURE_FMA) && defined(__ARM_NEON)
    #include <arm_neon.h>
    #define FMA(a, b, c) ((vf)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#else
    #define FMA(a, b, c) ((a) * (b) + (c))
#endif
#define LANES         4
#define COLS          2
#define SHORT_COLS    6
#define SHORT_VECTORS 2
#define STREAM(p, v)  store(p, v)
#define STREAM_END()  (void)0
#define OPS           cpu_ops_portable
#define OPS_NAME      "portable"
#define OPS_SUPPORTED 1
#include "ops.inc.h"
