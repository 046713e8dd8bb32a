/* bench_layer.h: what bench_layer.py times, each as new / run / free behind one shape; one call at a time.
 *
 * Buffers belong to the caller: x (N, Ci, T), w, bias (NULL: absent), gamma, beta, y (N, Co, T_out), all f32. run()
 * computes the whole fused layer once and returns its seconds, negative when it failed. Everything is packed and
 * touched before the first run; nothing is allocated in run(). */
#ifndef BENCH_LAYER_H
#define BENCH_LAYER_H
#include <stdint.h>
#pragma GCC visibility push(default)

typedef struct {
    int32_t n, ci, co, k, stride, pad, dilation, groups, num_groups, activation, t, t_out;
    double eps;
    const float *x, *w, *bias, *gamma, *beta;
    float *y;
} bench_shape;

typedef struct ours ours;
ours *ours_new(const bench_shape *s, const char *variant, int32_t threads);
double ours_run(ours *o);
const char *ours_plan(const ours *o); /* plan and schedule by nct_explain */
void ours_free(ours *o);

/* oneDNN convolution, weights pre-packed, then our own vectorised norm and activation in place (the cheapest honest
 * pass: a worse one would flatter us). nwc: channels last with reorders of x and y inside, as a peer that takes and
 * returns (N, C, T) needs them; bare: the convolution alone in its own layout, for orientation. */
typedef struct dnnl_peer dnnl_peer;
dnnl_peer *dnnl_peer_new(const bench_shape *s, int nwc, int32_t threads);
double dnnl_peer_run(dnnl_peer *d);
double dnnl_peer_bare(dnnl_peer *d);
void dnnl_peer_free(dnnl_peer *d);

/* The clock of every contestant: one thread is timed by the time it ran, so that other work on the machine disturbs
 * it little; several by the wall. */
double bench_seconds(int32_t threads);

/* Seconds that `flop` take as independent FMAs in registers, spread over the threads, in the widest vectors here. */
double fma_run(double flop, int32_t threads);
#pragma GCC visibility pop
#endif
