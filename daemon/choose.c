/* choose.c: see choose.h. Called by main at start. */
#include "choose.h"
#include <errno.h>
#include <stdio.h>
#include "log.h"
#ifdef NCT_CUDA
    #include "engine_cuda_find.h"
#endif

const char *precision_name(int32_t precision) {
    static const char *const names[] = {[NCT_PREC_F32] = "f32", [NCT_PREC_TF32] = "tf32", [NCT_PREC_BF16] = "bf16"};
    return names[precision];
}

static int say(nct_why *why, int error, const char *text) {
    snprintf(why->text, sizeof why->text, "%s", text);
    return error;
}

#ifdef NCT_CUDA
static int find(const config *c, int32_t *ret_n, nct_why *why) {
    gpu_list list;
    uint32_t wait_ms = c->engine.engine == ENGINE_CUDA ? c->engine.gpu_wait_ms : 0;
    int error = gpus_find(&list, wait_ms, why);
    if (error) return error;
    for (int32_t i = 0; i < list.n; i++)
        log_info("gpu device=%d name=\"%s\" sm=%d memory=%llu", i, list.at[i].name, list.at[i].cc,
            (unsigned long long)list.at[i].bytes);
    *ret_n = list.n;
    return 0;
}
#else
static int find(const config *c, int32_t *ret_n, nct_why *why) {
    (void)c, (void)ret_n;
    return say(why, -ENOSYS, "this nctd was built without a CUDA engine");
}
#endif

static int choose_cuda(chosen *ret, const config *c, nct_why *why) {
    static const int32_t precisions[] = {[PRECISION_AUTO] = NCT_PREC_TF32,
        [PRECISION_F32] = NCT_PREC_F32,
        [PRECISION_TF32] = NCT_PREC_TF32,
        [PRECISION_BF16] = NCT_PREC_BF16};
    if (c->engine.slots < 2)
        return say(why, -EINVAL, "engine.slots = 1: a GPU needs at least 2, one copies while the other computes");
    ret->cuda = true;
    ret->precision = precisions[c->engine.precision];
    return 0;
}

static int choose_cpu(chosen *ret, const config *c, nct_why *why) {
    if (c->engine.precision != PRECISION_AUTO && c->engine.precision != PRECISION_F32)
        return say(why, -EINVAL, "engine.precision: the CPU engine computes in f32 alone");
    *ret = (chosen){.precision = NCT_PREC_F32};
    return 0;
}

int choose(chosen *ret, const config *c, nct_why *why) {
    nct_why no = {""};
    chosen found = {.cuda = false};
    if (c->engine.engine == ENGINE_CPU) return choose_cpu(ret, c, why);
    int error = find(c, &found.n_devices, &no);
    if (error && c->engine.engine == ENGINE_CUDA) {
        snprintf(why->text, sizeof why->text, "engine.engine = cuda: %.480s", no.text);
        return error;
    }
    if (error) {
        log_warning("engine.engine = auto: computing on the CPU (%.300s)", no.text);
        return choose_cpu(ret, c, why);
    }
    error = choose_cuda(&found, c, why);
    if (error) return error;
    if (c->engine.engine == ENGINE_AUTO)
        log_info("engine.engine = auto: computing on %d GPU%s in %s", found.n_devices, found.n_devices > 1 ? "s" : "",
            precision_name(found.precision));
    *ret = found;
    return 0;
}
