/* layer.c: the functions of nct_layer.h: check what the caller hands in, then call the backend of the layer's
 * device.
 *
 * Called from any thread; holds no state of its own. Params, weights and placement are checked here, jobs in
 * layer_job.c; arithmetic lives in the backends (cpu/, cuda/) and in reference.c. */
#include "layer.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int why_set(nct_why *why, int error, const char *format, ...) {
    if (why) {
        va_list args;
        va_start(args, format);
        vsnprintf(why->text, sizeof why->text, format, args);
        va_end(args);
    }
    return error;
}

size_t dtype_size(int32_t dtype) {
    switch (dtype) {
    case NCT_F16:
    case NCT_BF16:
    case NCT_I16: return 2;
    case NCT_F32:
    case NCT_I32: return 4;
    case NCT_F64: return 8;
    default: return 0;
    }
}

int nct_layer_abi(void) {
    return NCT_LAYER_ABI;
}

/* ---- params ---- */

/* The rules that the geometry of a frame stands on: nct_padding and nct_out_steps divide by what is checked
 * here. */
static int geometry_check(const nct_params *p, nct_why *why) {
    if (!p) return why_set(why, -EINVAL, "no layer parameters were given (NULL)");
    if (p->kernel_size < 1) return why_set(why, -EINVAL, "kernel_size is %d, it must be 1 or more", p->kernel_size);
    if (p->stride < 1) return why_set(why, -EINVAL, "stride is %d, it must be 1 or more", p->stride);
    if (p->dilation < 1) return why_set(why, -EINVAL, "dilation is %d, it must be 1 or more", p->dilation);
    if ((int64_t)p->dilation * (p->kernel_size - 1) >= INT32_MAX)
        return why_set(why, -EINVAL, "dilation %d x (kernel_size %d - 1) is too far to reach, it must stay below %d",
            p->dilation, p->kernel_size, INT32_MAX);
    return 0;
}

static int channels_check(const nct_params *p, nct_why *why) {
    if (p->in_channels < 1) return why_set(why, -EINVAL, "in_channels is %d, it must be 1 or more", p->in_channels);
    if (p->out_channels < 1)
        return why_set(why, -EINVAL, "out_channels is %d, it must be 1 or more", p->out_channels);
    if (p->groups < 1) return why_set(why, -EINVAL, "groups is %d, it must be 1 or more", p->groups);
    if (p->in_channels % p->groups)
        return why_set(why, -EINVAL, "in_channels %d cannot be divided into %d groups", p->in_channels, p->groups);
    if (p->out_channels % p->groups)
        return why_set(why, -EINVAL, "out_channels %d cannot be divided into %d groups", p->out_channels, p->groups);
    if (p->num_groups < 1) return why_set(why, -EINVAL, "num_groups is %d, it must be 1 or more", p->num_groups);
    if (p->out_channels % p->num_groups)
        return why_set(
            why, -EINVAL, "out_channels %d cannot be divided into num_groups %d", p->out_channels, p->num_groups);
    int64_t taps = (int64_t)(p->in_channels / p->groups) * p->kernel_size, weights;
    if (__builtin_mul_overflow(taps, p->out_channels, &weights) || weights > INT64_MAX / 64)
        return why_set(why, -EINVAL, "a weight of (%d, %d, %d) has more elements than memory can hold",
            p->out_channels, p->in_channels / p->groups, p->kernel_size);
    return 0;
}

int params_check(const nct_params *p, nct_why *why) {
    int err = geometry_check(p, why);
    if (!err) err = channels_check(p, why);
    if (err) return err;
    if (p->pad_left < 0 || p->pad_right < 0)
        return why_set(why, -EINVAL, "padding is %d on the left and %d on the right, neither may be negative",
            p->pad_left, p->pad_right);
    if ((int64_t)p->pad_left + p->pad_right > INT32_MAX)
        return why_set(why, -EINVAL, "padding %d + %d is too long, the sum must not pass %d", p->pad_left,
            p->pad_right, INT32_MAX);
    if (p->padding_mode < NCT_ZEROS || p->padding_mode > NCT_CIRCULAR)
        return why_set(
            why, -EINVAL, "padding_mode %d is unknown: 0 zeros, 1 reflect, 2 replicate, 3 circular", p->padding_mode);
    if (p->activation < NCT_NONE || p->activation > NCT_ELU)
        return why_set(why, -EINVAL,
            "activation %d is unknown: 0 none, 1 relu, 2 gelu, 3 gelu_tanh, 4 silu, 5 mish, 6 elu", p->activation);
    if (p->pre_activation != NCT_NONE)
        return why_set(why, -ENOTSUP, "pre_activation is %d: an activation between conv and norm is not built",
            p->pre_activation);
    if (!(p->eps >= FLT_MIN && isfinite(p->eps)))
        return why_set(why, -EINVAL, "eps is %g, it must be finite and at least %g", p->eps, (double)FLT_MIN);
    for (int i = 0; i < 8; i++)
        if (p->reserved[i])
            return why_set(
                why, -EINVAL, "reserved[%d] of the layer parameters is %d, it must be 0", i, p->reserved[i]);
    return 0;
}

int nct_padding(const nct_params *p, int same, int32_t *ret_left, int32_t *ret_right, nct_why *why) {
    int err = geometry_check(p, why);
    if (err) return err;
    if (!ret_left || !ret_right) return why_set(why, -EINVAL, "no place for the two pads was given (NULL)");
    if (!same) {
        if (p->pad_left < 0) return why_set(why, -EINVAL, "padding is %d, it must not be negative", p->pad_left);
        *ret_left = *ret_right = p->pad_left;
        return 0;
    }
    if (p->stride != 1)
        return why_set(why, -EINVAL, "padding 'same' needs stride 1, the layer has stride %d", p->stride);
    int32_t total = p->dilation * (p->kernel_size - 1);
    *ret_left = total / 2;
    *ret_right = total - total / 2;
    return 0;
}

int nct_out_steps(
    const nct_params *p, int64_t t_in, int32_t pad_left, int32_t pad_right, int64_t *ret_t_out, nct_why *why) {
    int err = geometry_check(p, why);
    if (err) return err;
    if (!ret_t_out) return why_set(why, -EINVAL, "no place for the number of steps was given (NULL)");
    if (pad_left < 0 || pad_right < 0)
        return why_set(why, -EINVAL, "padding is %d on the left and %d on the right, neither may be negative",
            pad_left, pad_right);
    if (t_in < 1)
        return why_set(why, -ERANGE, "T is %lld steps, a frame needs at least 1 (kernel_size K is %d)",
            (long long)t_in, p->kernel_size);
    int32_t pad = pad_left > pad_right ? pad_left : pad_right;
    if (p->padding_mode == NCT_REFLECT && pad >= t_in)
        return why_set(why, -EINVAL, "reflect padding of %d needs more than %d steps, the frame has T = %lld", pad,
            pad, (long long)t_in);
    if (p->padding_mode == NCT_CIRCULAR && pad > t_in)
        return why_set(why, -EINVAL, "circular padding of %d needs at least %d steps, the frame has T = %lld", pad,
            pad, (long long)t_in);
    int64_t reach = (int64_t)p->dilation * (p->kernel_size - 1) + 1, pads = (int64_t)pad_left + pad_right;
    if (t_in > INT64_MAX - pads)
        return why_set(why, -EINVAL, "T of %lld steps is more than memory can hold", (long long)t_in);
    if (t_in + pads < reach)
        return why_set(why, -ERANGE,
            "T = %lld steps and padding %d + %d are shorter than the kernel: K = %d with dilation %d reaches "
            "over "
            "%lld steps",
            (long long)t_in, pad_left, pad_right, p->kernel_size, p->dilation, (long long)reach);
    *ret_t_out = (t_in + pads - reach) / p->stride + 1;
    return 0;
}

/* ---- weights and placement ---- */

static int tensor_check(const nct_tensor *t, const char *name, int32_t device, nct_why *why) {
    if (!t->data) return 0;
    if (t->dtype != NCT_F64 && t->dtype != NCT_F32 && t->dtype != NCT_F16 && t->dtype != NCT_BF16)
        return why_set(why, -EINVAL, "%s has dtype %d, it must be one of F32 %d, F16 %d, BF16 %d, F64 %d", name,
            t->dtype, NCT_F32, NCT_F16, NCT_BF16, NCT_F64);
    if (t->on_device != 0 && t->on_device != 1)
        return why_set(why, -EINVAL, "on_device of %s is %d, it must be 0 or 1", name, t->on_device);
    if (t->on_device && device < 0)
        return why_set(why, -EINVAL, "%s lies on a device, a layer on the CPU takes host tensors only", name);
    if ((uintptr_t)t->data % dtype_size(t->dtype))
        return why_set(why, -EINVAL, "%s at %p is not aligned to its elements of %zu bytes", name, t->data,
            dtype_size(t->dtype));
    return 0;
}

int weights_check(const nct_weights *w, int32_t device, nct_why *why) {
    if (!w) return why_set(why, -EINVAL, "no weights were given (NULL)");
    if (!w->weight.data) return why_set(why, -EINVAL, "the conv weight is absent (NULL): every layer needs one");
    int err = tensor_check(&w->weight, "the conv weight", device, why);
    if (!err) err = tensor_check(&w->bias, "the conv bias", device, why);
    if (!err) err = tensor_check(&w->gamma, "the norm weight (gamma)", device, why);
    if (!err) err = tensor_check(&w->beta, "the norm bias (beta)", device, why);
    return err;
}

static int where_check(const nct_where *at, nct_why *why) {
    if (!at) return why_set(why, -EINVAL, "no device was named (nct_where is NULL)");
    if (at->device < -1)
        return why_set(why, -EINVAL, "device is %d: -1 is the CPU, 0 and up are CUDA ordinals", at->device);
    if (at->precision < NCT_PREC_F32 || at->precision > NCT_PREC_BF16)
        return why_set(why, -EINVAL, "precision %d is unknown: 0 f32, 1 tf32, 2 bf16", at->precision);
    if (at->device < 0 && at->precision != NCT_PREC_F32)
        return why_set(why, -ENOTSUP, "precision is %s, the CPU computes in f32 only",
            at->precision == NCT_PREC_TF32 ? "tf32" : "bf16");
    if (at->flags & ~NCT_CUTTABLE)
        return why_set(
            why, -EINVAL, "flags 0x%x of the layer holds unknown bits, known are 0x%x", at->flags, NCT_CUTTABLE);
    if (!at->alloc != !at->release)
        return why_set(why, -EINVAL, "alloc and release of the layer's memory go together: one of them is NULL");
    size_t room = sizeof((nct_layer *)0)->force;
    if (at->force && strnlen(at->force, room) == room)
        return why_set(why, -EINVAL, "the forced variant's name is longer than %zu letters", room - 1);
    return 0;
}

static const backend *backend_of(int32_t device) {
    if (device < 0) return &cpu_backend;
#ifdef NCT_CUDA
    return &cuda_backend;
#else
    return NULL;
#endif
}

const char *nct_variant(int32_t device, int32_t i) {
    const backend *be = device < -1 ? NULL : backend_of(device);
    return be && be->variant && i >= 0 ? be->variant(i) : NULL;
}

int nct_layer_new(
    nct_layer **ret, const nct_params *p, const nct_weights *w, const nct_where *at, void *stream, nct_why *why) {
    if (!ret) return why_set(why, -EINVAL, "no place for the layer was given (NULL)");
    int err = params_check(p, why);
    if (!err) err = where_check(at, why);
    if (!err) err = weights_check(w, at->device, why);
    if (err) return err;
    const backend *be = backend_of(at->device);
    if (!be) return why_set(why, -ENOSYS, "device %d was asked for, this library was built without CUDA", at->device);
    nct_layer *l = calloc(1, sizeof *l);
    if (!l) return why_set(why, -ENOMEM, "no memory for a layer of %zu bytes", sizeof *l);
    l->p = *p;
    l->at = *at;
    l->be = be;
    if (at->force) {
        memcpy(l->force, at->force, strlen(at->force));
        l->at.force = l->force;
    }
    err = be->layer_new(l, w, stream, why);
    if (err) {
        free(l);
        return err;
    }
    *ret = l;
    return 0;
}

int nct_layer_repack(nct_layer *l, const nct_weights *w, void *stream, nct_why *why) {
    if (!l) return why_set(why, -EINVAL, "no layer was given (NULL)");
    int err = weights_check(w, l->at.device, why);
    return err ? err : l->be->repack(l, w, stream, why);
}

void nct_layer_free(nct_layer *l) {
    if (!l) return;
    l->be->layer_free(l);
    free(l);
}

/* ---- the work ---- */

static int chain_check(nct_layer *const *chain, int32_t n, nct_why *why) {
    if (n < 1) return why_set(why, -EINVAL, "a chain of %d layers was given, it needs 1", n);
    if (n > 1) return why_set(why, -ENOTSUP, "a chain of %d layers was given, only 1 is built", n);
    if (!chain || !chain[0]) return why_set(why, -EINVAL, "no layer was given (NULL)");
    return 0;
}

static int limits_check(const nct_limits *lim, nct_why *why) {
    if (!lim) return why_set(why, -EINVAL, "no limits were given (NULL)");
    if (lim->max_frames < 0 || lim->n_workers < 0 || lim->max_t_out < 0 || lim->sum_t_out < 0)
        return why_set(why, -EINVAL,
            "limits of %d frames, %d workers, %lld steps a frame, %lld steps in all: none may be negative",
            lim->max_frames, lim->n_workers, (long long)lim->max_t_out, (long long)lim->sum_t_out);
    return 0;
}

static int workspace_check(const void *workspace, nct_why *why) {
    if ((uintptr_t)workspace % 256)
        return why_set(why, -EINVAL, "the workspace at %p is not aligned to 256 bytes", workspace);
    return 0;
}

int nct_workspace(nct_layer *const *chain, int32_t n, const nct_limits *lim, size_t *ret_bytes, nct_why *why) {
    int err = chain_check(chain, n, why);
    if (!err) err = limits_check(lim, why);
    if (err) return err;
    if (!ret_bytes) return why_set(why, -EINVAL, "no place for the workspace's size was given (NULL)");
    return chain[0]->be->workspace(chain[0], lim, ret_bytes, why);
}

int nct_warm(nct_layer *const *chain, int32_t n, const nct_limits *lim, void *workspace, size_t bytes, void *stream,
    nct_why *why) {
    int err = chain_check(chain, n, why);
    if (!err) err = limits_check(lim, why);
    if (!err) err = workspace_check(workspace, why);
    if (err) return err;
    const nct_layer *l = chain[0];
    return l->be->warm ? l->be->warm(l, lim, workspace, bytes, stream, why) : 0;
}

int nct_launch(nct_layer *const *chain, int32_t n, const nct_job *job, nct_why *why) {
    int err = chain_check(chain, n, why);
    if (err) return err;
    const nct_layer *l = chain[0];
    if (!l->be->launch)
        return why_set(why, -ENOTSUP, "nct_launch is for CUDA layers, this one is on the CPU: use nct_phases");
    err = job_check(&l->p, l->at.device, job, why);
    if (err || job->n_frames == 0) return err;
    return l->be->launch(l, job, why);
}

int nct_phases(nct_layer *const *chain, int32_t n, const nct_job *job, int32_t n_workers, nct_why *why) {
    int err = chain_check(chain, n, why);
    if (err) return err;
    const nct_layer *l = chain[0];
    if (!l->be->phases)
        return why_set(
            why, -ENOTSUP, "nct_phases is for CPU layers, this one is on device %d: use nct_launch", l->at.device);
    if (n_workers < 1) return why_set(why, -EINVAL, "%d workers were given, it takes 1 or more", n_workers);
    err = job_check(&l->p, l->at.device, job, why);
    if (err || job->n_frames == 0) return err;
    return l->be->phases(l, job, n_workers, why);
}

/* No checks: nct_phases() has made them, and this runs once for every worker and phase of every batch. */
int nct_phase(
    nct_layer *const *chain, int32_t n, const nct_job *job, int32_t phase, int32_t worker, int32_t n_workers) {
    (void)n;
    return chain[0]->be->phase(chain[0], job, phase, worker, n_workers);
}

int nct_explain(
    nct_layer *const *chain, int32_t n, const nct_job *job, int32_t frame, nct_report *ret, nct_why *why) {
    int err = chain_check(chain, n, why);
    if (err) return err;
    const nct_layer *l = chain[0];
    err = job_check(&l->p, l->at.device, job, why);
    if (err) return err;
    if (frame < 0 || frame >= job->n_frames)
        return why_set(why, -EINVAL, "frame %d was asked for, the job has %d (counted from 0)", frame, job->n_frames);
    if (!ret) return why_set(why, -EINVAL, "no place for the report was given (NULL)");
    return l->be->explain(l, job, frame, ret, why);
}
