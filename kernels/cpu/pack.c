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

/* [slice][block of `rows` channels][ci][tap][row]: the order in which a tile reads them. The last block holds what
 * is left, rounded up to `least`. */
static void group_pack(
    const cpu_plan *plan, const nct_tensor *t, int32_t group, int32_t rows, int32_t least, float *out) {
    for (int32_t i = 0; i < plan->n_slices; i++) {
        cpu_slice s = cpu_slice_at(plan, i);
        for (int32_t co0 = 0, n; co0 < plan->co; co0 += n) {
            n = (int32_t)round_up(plan->co - co0, least);
            if (n > rows) n = rows;
            for (int32_t j = 0; j < s.n_ci * s.n_k * n; j++) {
                int32_t co = co0 + j % n, product = j / n;
                int64_t at = ((int64_t)group * plan->co + co) * plan->ci * plan->taps;
                at += (int64_t)(s.ci0 + product / s.n_k) * plan->taps + s.k0 + product % s.n_k;
                *out++ = co < plan->co ? value_at(t, at, 0) : 0;
            }
        }
    }
}

static float wino_weight(const nct_tensor *t, int64_t at, int32_t product) {
    double g0 = value_at(t, at, 0), g1 = value_at(t, at + 1, 0), g2 = value_at(t, at + 2, 0);
    if (product == 0) return (float)g0;
    if (product == 3) return (float)g2;
    return (float)((g0 + (product == 1 ? g1 : -g1) + g2) / 2);
}

/* [slice][product][block of CPU_ROWS channels][ci][row]. Products of F(2,3), Winograd 1980: of the taps g,
 * g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2. */
static void wino_pack(const cpu_layer *c, const nct_tensor *t, int32_t group, float *out) {
    const cpu_plan *plan = &c->wino;
    for (int32_t i = 0; i < plan->n_slices; i++) {
        cpu_slice s = cpu_slice_at(plan, i);
        for (int32_t product = 0; product < 4; product++)
            for (int32_t block = 0; block < ceil_div(plan->co, CPU_ROWS); block++)
                for (int32_t j = 0; j < s.n_ci * CPU_ROWS; j++) {
                    int32_t co = block * CPU_ROWS + j % CPU_ROWS;
                    int64_t at = (((int64_t)group * plan->co + co) * plan->ci + s.ci0 + j / CPU_ROWS) * 3;
                    *out++ = co < plan->co ? wino_weight(t, at, product) : 0;
                }
    }
}

/* Where tap k of the first output of a staged tile stands. */
static void offsets_fill(const cpu_plan *plan, int32_t *off) {
    for (int32_t k = 0; k < plan->slice_taps; k++) {
        int64_t at = (int64_t)k * plan->dilation;
        off[k] = plan->seg_step == 1 && plan->segments == plan->stride
                     ? (int32_t)(at % plan->stride * plan->seg_len + at / plan->stride)
                     : k * plan->seg_len;
    }
}

void cpu_pack(cpu_layer *c, const nct_params *p, const nct_weights *w) {
    const cpu_plan *plan = &c->plan;
    int32_t lanes = c->ops->lanes;
    int64_t wide_floats = round_up(plan->co, lanes) * plan->ci * plan->taps;
    for (int32_t g = 0; g < plan->groups; g++) {
        group_pack(plan, &w->weight, g, CPU_ROWS, CPU_ROWS, c->weight + g * plan->group_floats);
        if (c->weight_wino) wino_pack(c, &w->weight, g, c->weight_wino + g * c->wino.group_floats);
        if (c->weight_short) group_pack(plan, &w->weight, g, c->ops->wide, lanes, c->weight_short + g * wide_floats);
    }
    for (int32_t i = 0; i < p->out_channels; i++) {
        c->bias[i] = value_at(&w->bias, i, 0);
        c->gamma[i] = value_at(&w->gamma, i, 1);
        c->beta[i] = value_at(&w->beta, i, 0);
    }
    offsets_fill(plan, c->off);
    offsets_fill(&c->shorts, c->off_short);
    for (int32_t k = 0; k < plan->slice_taps; k++) {
        int32_t at = k * plan->dilation;
        c->off_row[k] = at;
        c->off_turned[k] = c->turned_pitch ? at % plan->stride * c->turned_seg + at / plan->stride * lanes : 0;
    }
}
