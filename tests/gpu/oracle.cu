/* oracle.cu: the float64 oracle on the device: one thread per conv output, plain loops, no code shared with the
 * kernels (own geometry, own dtype conversions). tests/gpu builds it as a library of its own; the norm and the
 * activation of the oracle are PyTorch's in float64. Checked against nct_reference on small layers. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

struct oracle_frame { /* as the test sees it */
    int64_t x_off, y_off, x_pitch, y_pitch;
    int32_t t_in, t_out, pad_left, pad_right, unused[4];
};

__device__ double value(const void *x, int dtype, int64_t i) {
    if (dtype == 1) return ((const float *)x)[i];
    if (dtype == 2) return (double)__half2float(((const __half *)x)[i]);
    if (dtype == 3) return (double)__bfloat162float(((const __nv_bfloat16 *)x)[i]);
    return ((const int16_t *)x)[i] / 32768.0;
}

/* out: (C_out, t_out) of the frame, contiguous, float64 */
__global__ void conv_kernel(double *out, const void *x, int dtype, oracle_frame f, const float *w, const float *bias,
    int ci, int co, int k, int stride, int dil, int groups, int mode) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= (int64_t)co * f.t_out) return;
    int c = (int)(i / f.t_out), t = (int)(i % f.t_out), per = ci / groups, first = c / (co / groups) * per;
    double sum = 0;
    for (int a = 0; a < per; a++)
        for (int b = 0; b < k; b++) {
            int64_t p = (int64_t)t * stride + (int64_t)b * dil - f.pad_left;
            if (p < 0 || p >= f.t_in) {
                if (mode == 0) continue;
                if (mode == 1) p = p < 0 ? -p : 2ll * f.t_in - 2 - p;
                if (mode == 2) p = p < 0 ? 0 : f.t_in - 1;
                if (mode == 3) p = (p + f.t_in) % f.t_in;
            }
            sum += (double)w[((int64_t)c * per + a) * k + b] * value(x, dtype, f.x_off + (first + a) * f.x_pitch + p);
        }
    out[i] = bias ? sum + (double)bias[c] : sum;
}

extern "C" int gpu_oracle_conv(double *out, const void *x, int dtype, const oracle_frame *f, const float *w,
    const float *bias, int ci, int co, int k, int stride, int dil, int groups, int mode) {
    int64_t count = (int64_t)co * f->t_out;
    conv_kernel<<<(unsigned)((count + 255) / 256), 256>>>(
        out, x, dtype, *f, w, bias, ci, co, k, stride, dil, groups, mode);
    return (int)cudaDeviceSynchronize();
}
