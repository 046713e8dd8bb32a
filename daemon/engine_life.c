/* engine_life.c: an engine's memory: slots, workspaces, and how it opens and ends; and what others ask of it. Called by
 * spine.c (new, reserve, free) on the loop thread and by --check (workspace). What happens in between is engine.c's. */
#include "engine_own.h"
#include "rows.h"
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

uint32_t engine_in_flight(const engine *e) {
    return e->in_flight;
}
uint64_t engine_finished(const engine *e) {
    return e->n_finished;
}
int32_t engine_index(const engine *e) {
    return e->setup.index;
}
const char *engine_name(const engine *e) {
    return e->ops->name;
}
int32_t engine_workers(const engine *e) {
    return e->n_workers;
}
const engine_facts *engine_about(const engine *e) {
    return &e->facts;
}
int32_t engine_device(const engine *e) {
    return e->setup.device;
}

static int fail(nct_why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(nct_why *why, int error, const char *format, ...) {
    if (!why) return error;
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return error;
}

/* ---- workspaces ---- */
static void workspace_release(engine *e, slot *s) {
    if (!s->workspace) return;
    if (e->ops->work_release)
        e->ops->work_release(e, s->workspace, s->workspace_bytes);
    else
        e->ops->release(e, s->workspace, s->workspace_bytes);
}

int workspace_ensure(engine *e, slot *s, size_t bytes, nct_why *why) {
    if (bytes <= s->workspace_bytes) return 0;
    void *p = e->ops->work_alloc ? e->ops->work_alloc(e, bytes, why) : e->ops->alloc(e, bytes);
    if (!p && e->ops->work_alloc) return -ENOMEM;
    if (!p)
        return fail(why, -ENOMEM, "no memory for a workspace of %zu bytes in each of %d slots", bytes, e->n_slots);
    workspace_release(e, s);
    s->workspace = p;
    s->workspace_bytes = bytes;
    return 0;
}

int engine_workspace(
    const struct config *c, nct_layer *l, const nct_params *p, int32_t n_workers, size_t *ret_bytes, nct_why *why) {
    int64_t max_bytes = (int64_t)c->limits.max_frame_bytes, t_out;
    int64_t t_in = max_bytes / (p->in_channels * INT64_C(2)); /* of the smallest dtypes */
    int64_t t_max = max_bytes / (p->out_channels * INT64_C(2));
    if (t_in > INT32_MAX) t_in = INT32_MAX;
    int error = nct_out_steps(p, t_in, p->pad_left, p->pad_right, &t_out, why);
    if (error) return error;
    nct_limits lim = {.max_frames = (int32_t)c->batch.max_frames,
        .n_workers = n_workers,
        .max_t_out = t_out < t_max ? t_out : t_max,
        .sum_t_out = (int64_t)c->engine.slot_bytes / (p->out_channels * INT64_C(2))};
    if (lim.sum_t_out / lim.max_frames > lim.max_t_out) lim.sum_t_out = lim.max_t_out * lim.max_frames;
    return nct_workspace(&l, 1, &lim, ret_bytes, why);
}

int engine_reserve(engine *e, nct_layer *l, const nct_params *p, nct_why *why) {
    size_t need;
    int error = engine_workspace(e->setup.cfg, l, p, e->n_workers, &need, why);
    for (int32_t i = 0; i < e->n_slots && !error; i++)
        if (e->slots[i].state == SLOT_FREE) error = workspace_ensure(e, &e->slots[i], need, why);
    return error;
}

static int settings_check(const struct config *c, nct_why *why) {
    size_t need = rows_slot_bytes_min(c->limits.max_frame_bytes);
    if (c->engine.slot_bytes >= need) return 0;
    return fail(why, -EINVAL,
        "engine.slot_bytes = %llu cannot hold one frame of limits.max_frame_bytes = %llu with its row's padding: set "
        "engine.slot_bytes to %zu or more, or limits.max_frame_bytes lower",
        (unsigned long long)c->engine.slot_bytes, (unsigned long long)c->limits.max_frame_bytes, need);
}

static void on_async(uv_async_t *async) {
    engine *e = async->data;
    if (e->setup.wake) e->setup.wake(e->setup.wake_ctx);
}
static void on_async_closed(uv_handle_t *handle) {
    free(handle);
}

static void slots_free(engine *e) {
    for (int32_t i = 0; i < e->n_slots; i++) {
        slot *s = &e->slots[i];
        if (s->state == SLOT_LOST) continue;
        workspace_release(e, s);
        if (e->ops->slot_close && s->backend) e->ops->slot_close(e, s);
        if (s->out) e->ops->release(e, s->out, slot_out_bytes(e));
        if (s->in) e->ops->release(e, s->in, slot_in_bytes(e));
    }
    free(e->slots);
}

void slot_memory(slot *s) {
    s->x = s->in + TABLE_BYTES;
    s->flags = (uint32_t *)(void *)s->out;
    s->y = s->out + FLAGS_BYTES;
}

static int slots_new(engine *e, nct_why *why) {
    int error = 0;
    e->slots = calloc((size_t)e->n_slots, sizeof *e->slots);
    if (!e->slots) return fail(why, -ENOMEM, "no memory");
    for (int32_t i = 0; i < e->n_slots; i++) {
        slot *s = &e->slots[i];
        s->e = e;
        s->in = e->ops->alloc(e, slot_in_bytes(e));
        s->out = e->ops->alloc(e, slot_out_bytes(e));
        if (!s->in || !s->out) {
            error = fail(why, -ENOMEM, "no memory for engine.slots = %d of 2 x engine.slot_bytes = %zu bytes",
                e->n_slots, e->slot_bytes);
            goto fail_slot;
        }
        slot_memory(s);
        if (e->ops->slot_open) error = e->ops->slot_open(e, s, why);
        if (error) goto fail_slot;
    }
    return 0;
fail_slot:
    slots_free(e);
    return error;
}

int engine_new(engine **ret, const engine_ops *ops, const engine_setup *setup, nct_why *why) {
    int error = settings_check(setup->cfg, why);
    if (error) return error;
    engine *e = calloc(1, sizeof *e);
    if (!e) return fail(why, -ENOMEM, "no memory");
    e->ops = ops;
    e->setup = *setup;
    e->slot_bytes = setup->cfg->engine.slot_bytes;
    e->max_frame_bytes = setup->cfg->limits.max_frame_bytes;
    e->n_slots = (int32_t)setup->cfg->engine.slots;
    e->launched_end = &e->launched;
    e->async = calloc(1, sizeof *e->async);
    if (!e->async) {
        error = fail(why, -ENOMEM, "no memory");
        goto fail_async;
    }
    error = uv_async_init(setup->loop, e->async, on_async);
    if (error) {
        fail(why, error, "the loop takes no async handle: %s", uv_strerror(error));
        free(e->async);
        goto fail_async;
    }
    e->async->data = e;
    error = ops->open(e, why);
    if (error) goto fail_open;
    error = slots_new(e, why);
    if (error) goto fail_slots;
    *ret = e;
    return 0;
fail_slots:
    ops->close(e);
fail_open:
    uv_close((uv_handle_t *)e->async, on_async_closed);
fail_async:
    free(e);
    return error;
}

void engine_free(engine *e) {
    if (!e) return;
    assert(e->in_flight == 0 && !e->launched);
    slots_free(e);
    e->ops->close(e);
    fault_done(e);
    while (e->spare) {
        batch *b = e->spare;
        e->spare = b->next;
        free(b->frames);
        free(b);
    }
    uv_close((uv_handle_t *)e->async, on_async_closed);
    free(e);
}
