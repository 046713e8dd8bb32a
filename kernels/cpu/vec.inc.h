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
