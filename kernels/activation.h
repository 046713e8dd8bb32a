/* activation.h: the one table of activation polynomials, for every backend (C and CUDA).
 *
 * Coefficients only: each backend writes the few lines of evaluation in its own vector type, with explicit
 * roundings (an FMA a step where it has one). Bound of the whole activation: 3e-7 * max(1, |z|) in f32, NaN
 * kept. Fitted by iteratively reweighted least squares in float64; errors are those of the exact polynomial.
 *
 *   exp(x):  n = round(x * log2 e), r = (x - n*LN2_HI) - n*LN2_LO, e^r = 1 + r + r^2 * P(r), scaled by 2^n.
 *            x is held inside [ACT_EXP_MIN, ACT_EXP_MAX], so 2^n is a normal number.       relative 3.1e-9
 *   gelu(z): z * (0.5 + c * Q(s)), c = z held inside [-ACT_GELU_MAX, ACT_GELU_MAX],
 *            s = c^2 * ACT_GELU_SCALE - 1 in [-1, 1] (a polynomial in c^2 itself loses 3 digits to
 *            cancellation).                                                1.4e-7 * max(1, |z|), 2.9e-7 in f32
 *   gelu_tanh(z) = z / (1 + exp(-2u)), u = sqrt(2/pi) * (z + 0.044715 z^3)
 *   silu(z) = z / (1 + exp(-z))
 *   mish(z) = z * n / (n + 2), n = e * (e + 2), e = exp(min(z, ACT_MISH_MAX)); above it n / (n + 2) is 1 in f32
 *   elu(z)  = z < 0 ? exp(z) - 1 : z */
#ifndef NCT_ACTIVATION_H
#define NCT_ACTIVATION_H

#define ACT_LOG2E       1.442695041f
#define ACT_LN2_HI      0.693359375f
#define ACT_LN2_LO      -2.12194440e-4f
#define ACT_MAGIC       12582912.0f /* 1.5 * 2^23: added and taken away, it rounds to a whole number */
#define ACT_EXP_MIN     -87.0f
#define ACT_EXP_MAX     88.0f
#define ACT_EXP_POLY(X) /* highest power first */                                                                    \
    X(1.381456153e-03f) X(8.368709125e-03f) X(4.166838899e-02f) X(1.666652113e-01f) X(4.999999404e-01f)

#define ACT_GELU_MAX     5.0f
#define ACT_GELU_SCALE   0.08f /* 2 / ACT_GELU_MAX^2 */
#define ACT_GELU_POLY(X)       /* highest power first */                                                             \
    X(5.826211418e-04f)                                                                                              \
    X(-1.589167281e-03f)                                                                                             \
    X(1.783482963e-03f)                                                                                              \
    X(-2.740275813e-03f)                                                                                             \
    X(6.359383930e-03f)                                                                                              \
    X(-1.111992821e-02f)                                                                                             \
    X(1.642112806e-02f)                                                                                              \
    X(-2.328411490e-02f)                                                                                             \
    X(3.143920377e-02f) X(-4.044046253e-02f) X(5.152067542e-02f) X(-7.029636204e-02f) X(1.413637847e-01f)

#define ACT_TANH_A2  1.595769122f /* 2 * sqrt(2/pi) */
#define ACT_TANH_B   0.044715f
#define ACT_MISH_MAX 20.0f
#endif
