/* safetensors_f32.c: stored values to f32, to nearest even.
 *
 * Called by model.c; any thread. Values are picked up by memcpy: a tensor may stand at any byte. */
#include "safetensors.h"
#include <string.h>

/* IEEE 754 binary16 -> binary32, exact: subnormals become normal numbers. */
static float half_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu, bits;
    float f;
    if (exp == 31) {
        bits = sign | 0x7f800000u | man << 13;
    } else if (exp) {
        bits = sign | (exp + 112) << 23 | man << 13;
    } else {
        f = (float)man * 0x1p-24f;
        memcpy(&bits, &f, sizeof bits);
        bits |= sign;
    }
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float bf16_to_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void st_to_f32(const st_tensor *t, float *dst) {
    const unsigned char *src = t->data;
    if (t->load == NCT_F32) {
        memcpy(dst, src, t->bytes);
        return;
    }
    for (int64_t i = 0; i < t->count; i++) {
        double d;
        uint16_t h;
        if (t->load == NCT_F64) {
            memcpy(&d, src + i * 8, sizeof d);
            dst[i] = (float)d;
        } else {
            memcpy(&h, src + i * 2, sizeof h);
            dst[i] = t->load == NCT_F16 ? half_to_f32(h) : bf16_to_f32(h);
        }
    }
}
