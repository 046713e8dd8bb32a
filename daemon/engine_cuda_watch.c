/* engine_cuda_watch.c: notices that a GPU failed. Every 100 ms the events of what runs are queried, because a host
 * function is not called after a context error; and each finished batch's event once more before its results count.
 * Loop thread. After a latch nothing here calls CUDA but cudaStreamQuery. */
#include "engine_cuda.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { WATCH_MS = 100 };

static void end_running(engine *e) {
    for (int32_t i = 0; i < e->n_slots; i++) {
        gpu_slot *g = e->slots[i].backend;
        if (g && atomic_exchange(&g->running, false)) engine_done(&e->slots[i], -EIO);
    }
}

int cuda_latch(engine *e, const char *call, cudaError_t err) {
    nct_why why;
    cuda_say(&why, e->setup.device, call, err);
    engine_latch(e, why.text);
    end_running(e);
    return -EIO;
}

int cuda_verify(engine *e, slot *s) {
    gpu_slot *g = s->backend;
    if (e->latched) return -EIO;
    cudaError_t err = CU(cudaEventQuery, g->at[AT_OUT]);
    return err ? cuda_latch(e, "a batch's event", err) : 0;
}

bool cuda_busy(const slot *s) {
    const gpu_slot *g = s->backend;
    return g && g->stream && cudaStreamQuery(g->stream) == cudaErrorNotReady;
}

static void stuck(engine *e, uint64_t ms) {
    char text[160];
    snprintf(text, sizeof text, "GPU %d did not finish a batch in %llu ms (engine.stuck_ms = %u)", e->setup.device,
        (unsigned long long)ms, e->setup.cfg->engine.stuck_ms);
    engine_latch(e, text);
    end_running(e);
}

static void watch_slot(engine *e, slot *s, uint64_t now_ns) {
    gpu_slot *g = s->backend;
    if (s->state != SLOT_RUNNING || !atomic_load(&g->running)) return;
    cudaError_t err = CU(cudaEventQuery, g->at[AT_DONE]);
    uint64_t ms = now_ns > s->t_launch_ns ? (now_ns - s->t_launch_ns) / 1000000u : 0;
    if (err && err != cudaErrorNotReady)
        cuda_latch(e, "a batch's event", err);
    else if (err && ms > e->setup.cfg->engine.stuck_ms)
        stuck(e, ms);
}

static void on_timer(uv_timer_t *timer) {
    cuda *c = timer->data;
    engine *e = c->e;
    if (e->latched || e->failed_ops) {
        engine_lost_turn(e);
        return;
    }
    uint64_t now_ns = uv_hrtime();
    for (int32_t i = 0; i < e->n_slots && !e->latched; i++) watch_slot(e, &e->slots[i], now_ns);
}

int cuda_watch_open(cuda *c) {
    c->timer = calloc(1, sizeof *c->timer);
    if (!c->timer) return -ENOMEM;
    int error = uv_timer_init(c->e->setup.loop, c->timer);
    if (!error) error = uv_timer_start(c->timer, on_timer, WATCH_MS, WATCH_MS);
    if (error) {
        free(c->timer);
        return error;
    }
    c->timer->data = c;
    uv_unref((uv_handle_t *)c->timer);
    return 0;
}

static void on_closed(uv_handle_t *h) {
    free(h);
}
void cuda_watch_close(cuda *c) {
    uv_close((uv_handle_t *)c->timer, on_closed);
    c->timer = NULL;
}
