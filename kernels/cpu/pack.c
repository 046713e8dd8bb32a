/* pack.c: a layer's tensors, brought to f32 to nearest even and put into the order that the kernels read.
 *
 * Called by nct_layer_new and nct_layer_repack on the caller's thread; writes only into the layer's memory. */
#include "cpu.h"
#include <string.h>

static float f16_value(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff, bits;
    float f;
    if (mag >= 0x7c00) {
        bits = sign | 0x7f800000 | (mag & 0x3ff) << 13;
    } else if (mag >= 0x400) {
        bits = sign | ((mag << 13) + 0x38000000);
    } else {
        f = (float)mag * 0x1p-24f;
        memcpy(&bits, &f, 4);
        bits |= sign;
    }
    memcpy(&f, &bits, 4);
    return f;
}

static float value_at(const nct_tensor *t, int64_t i, float absent) {
    if (!t->data) return absent;
    switch (t->dtype) {
    case NCT_F64: return (float)((const double *)t->data)[i];
    case NCT_F16: return f16_value(((const uint16_t *)t->data)[i]);
    case NCT_BF16: {
        uint32_t bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
        float f;
        memcpy(&f, &bits, 4);
        return f;
    }
    default: return ((const float *)t->data)[i];
    }
}

static void block_pack(const cpu_plan *plan, const nct_tensor *t, int32_t group, int32_t block, float *out) {
    for (int32_t i = 0; i < plan->n_slices; i++) {
        cpu_slice s = cpu_slice_at(plan, i);
        for (int32_t c = s.ci0; c < s.ci0 + s.n_ci; c++)
            for (int32_t k = s.k0; k < s.k0 + s.n_k; k++)
                for (int32_t r = 0; r < CPU_ROWS; r++) {
                    int32_t co = block * CPU_ROWS + r;
                    int64_t at = ((int64_t)group * plan->co + co) * plan->ci * plan->taps;
                    *out++ = co < plan->co ? value_at(t, at + (int64_t)c * plan->taps + k, 0) : 0;
                }
    }
}

void cpu_pack(cpu_layer *c, const nct_params *p, const nct_weights *w) {
    const cpu_plan *plan = &c->plan;
    int64_t block_floats = (int64_t)CPU_ROWS * plan->ci * plan->taps;
    for (int32_t g = 0; g < plan->groups; g++)
        for (int32_t b = 0; b < ceil_div(plan->co, CPU_ROWS); b++)
            block_pack(plan, &w->weight, g, b, c->weight + g * plan->group_floats + b * block_floats);
    for (int32_t i = 0; i < p->out_channels; i++) {
        c->bias[i] = value_at(&w->bias, i, 0);
        c->gamma[i] = value_at(&w->gamma, i, 1);
        c->beta[i] = value_at(&w->beta, i, 0);
    }
    for (int32_t k = 0; k < plan->slice_taps; k++) {
        int64_t at = (int64_t)k * plan->dilation;
        c->off_row[k] = (int32_t)at;
        c->off[k] = plan->seg_step == 1 && plan->segments == plan->stride
                        ? (int32_t)(at % plan->stride * plan->seg_len + at / plan->stride)
                        : k * plan->seg_len;
    }
}
