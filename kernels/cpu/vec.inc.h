/* vec.inc.h: vectors of LANES floats in the compiler's vector types. Included by ops.inc.h, which an ops_*.c
 * includes once with LANES and FMA(a, b, c) = a * b + c defined. */
#include <stdint.h>
#include <string.h>

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef float vf_any __attribute__((vector_size(LANES * 4), aligned(4), may_alias)); /* at any element */

#define INLINE static inline __attribute__((always_inline))

INLINE vf load(const float *p) {
    return *(const vf_any *)p;
}
INLINE void store(float *p, vf v) {
    *(vf_any *)p = v;
}
INLINE vf splat(float f) {
    return f - (vf){0}; /* f - 0 is f, of every f */
}
/* mask ? a : b, lanes of mask all ones or zero */
INLINE vf pick(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* Of two vectors in a row: every other lane from the first, from the second; their lanes in turn, first and second half. */
#if LANES == 16
    #define EVEN(a, b) __builtin_shuffle(a, b, (vi){0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30})
    #define ODD(a, b)  __builtin_shuffle(a, b, (vi){1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31})
    #define LOW(a, b)  __builtin_shuffle(a, b, (vi){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23})
    #define HIGH(a, b) __builtin_shuffle(a, b, (vi){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31})
#elif LANES == 8
    #define EVEN(a, b) __builtin_shuffle(a, b, (vi){0, 2, 4, 6, 8, 10, 12, 14})
    #define ODD(a, b)  __builtin_shuffle(a, b, (vi){1, 3, 5, 7, 9, 11, 13, 15})
    #define LOW(a, b)  __builtin_shuffle(a, b, (vi){0, 8, 1, 9, 2, 10, 3, 11})
    #define HIGH(a, b) __builtin_shuffle(a, b, (vi){4, 12, 5, 13, 6, 14, 7, 15})
#else
    #define EVEN(a, b) __builtin_shuffle(a, b, (vi){0, 2, 4, 6})
    #define ODD(a, b)  __builtin_shuffle(a, b, (vi){1, 3, 5, 7})
    #define LOW(a, b)  __builtin_shuffle(a, b, (vi){0, 4, 1, 5})
    #define HIGH(a, b) __builtin_shuffle(a, b, (vi){2, 6, 3, 7})
#endif
