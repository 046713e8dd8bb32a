/* act.inc.h: the activations of activation.h on vectors. Pure functions; every comparison keeps NaN. */
#include "activation.h"

INLINE vf act_exp(vf x) {
    x = pick(x < splat(ACT_EXP_MIN), splat(ACT_EXP_MIN), x);
    x = pick(x > splat(ACT_EXP_MAX), splat(ACT_EXP_MAX), x);
    vf t = FMA(x, splat(ACT_LOG2E), splat(ACT_MAGIC)), n = t - splat(ACT_MAGIC);
    vf r = FMA(n, splat(-ACT_LN2_LO), FMA(n, splat(-ACT_LN2_HI), x));
    vf p = splat(0);
#define STEP(c) p = FMA(p, r, splat(c));
    ACT_EXP_POLY(STEP)
#undef STEP
    p = FMA(p, r * r, r) + splat(1);
    vi scale = ((vi)t << 23) + 0x3f800000; /* the low bits of t are n */
    return p * (vf)scale;
}

INLINE vf act_gelu(vf z) {
    vf c = pick(z < splat(-ACT_GELU_MAX), splat(-ACT_GELU_MAX), z);
    c = pick(z > splat(ACT_GELU_MAX), splat(ACT_GELU_MAX), c);
    vf s = FMA(c * c, splat(ACT_GELU_SCALE), splat(-1)), p = splat(0);
#define STEP(k) p = FMA(p, s, splat(k));
    ACT_GELU_POLY(STEP)
#undef STEP
    return z * FMA(c, p, splat(0.5f));
}

INLINE vf act_gelu_tanh(vf z) {
    vf u = z * FMA(z * z, splat(ACT_TANH_A2 * ACT_TANH_B), splat(ACT_TANH_A2));
    return z / (act_exp(-u) + splat(1));
}

INLINE vf act_silu(vf z) {
    return z / (act_exp(-z) + splat(1));
}

INLINE vf act_mish(vf z) {
    vf e = act_exp(pick(z > splat(ACT_MISH_MAX), splat(ACT_MISH_MAX), z)), n = e * (e + splat(2));
    return z * (n / (n + splat(2)));
}

INLINE vf act_elu(vf z) {
    return pick(z < splat(0), act_exp(z) - splat(1), z);
}

INLINE vf activate(const int activation, vf z) {
    switch (activation) {
    case NCT_RELU: return pick(z < splat(0), splat(0), z);
    case NCT_GELU: return act_gelu(z);
    case NCT_GELU_TANH: return act_gelu_tanh(z);
    case NCT_SILU: return act_silu(z);
    case NCT_MISH: return act_mish(z);
    case NCT_ELU: return act_elu(z);
    default: return z;
    }
}
