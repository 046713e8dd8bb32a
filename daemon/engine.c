/* engine.c: batches through a backend. Called by the loop once a turn, by the publisher when a batch ends, and by
 * backend threads through engine_done() alone. Owns the slots, the batches and their way from take to hand-over; knows
 * no device (engine_ops) and no socket.
 *
 * One slot is filled at a time: a batch that is not begun yet goes on growing in the batcher. */
#include "engine_own.h"
#include "rows.h"
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- batches ---- */
static batch *batch_new(engine *e) {
    batch *b = e->spare;
    if (b) {
        e->spare = b->next;
        return b;
    }
    b = malloc(sizeof *b);
    frame **frames = b ? malloc(BATCH_FRAMES_MAX * sizeof(frame *)) : NULL;
    if (!frames) {
        free(b);
        return NULL;
    }
    b->frames = frames;
    return b;
}

static void batch_free(engine *e, batch *b) {
    b->next = e->spare;
    e->spare = b;
}

void batch_fail(engine *e, batch *b, const char *text) {
    fill_unplace(b, e->setup.out);
    b->error = -EIO;
    for (int32_t n = 0; n < b->n_frames; n++) {
        frame *f = b->frames[n];
        f->error = -EIO;
        snprintf(f->why, sizeof f->why, "engine %d (%s) failed: %.80s", e->setup.index, e->ops->name, text);
    }
}

/* ---- completion ---- */
void engine_done(slot *s, int error) {
    engine *e = s->e;
    s->error = error;
    s->t_done_ns = uv_hrtime();
    slot *head = atomic_load_explicit(&e->done, memory_order_relaxed);
    do s->next_done = head;
    while (!atomic_compare_exchange_weak_explicit(&e->done, &head, s, memory_order_release, memory_order_relaxed));
    uv_async_send(e->async);
}

/* The slot is free at once, but for rows that stand in it; the batch waits for its turn. */
static void finish(engine *e, slot *s) {
    batch *b = s->b;
    if (!s->error && e->ops->verify) s->error = e->ops->verify(e, s);
    if (!s->error && e->latched) s->error = -EIO;
    s->state = SLOT_FREE;
    if (s->error) {
        fault_keep(e, s);
        batch_fail(e, b, e->latched ? e->latch_why : strerror(-s->error));
    }
    for (int32_t n = 0; n < b->n_frames; n++) {
        b->frames[n]->saw = s->error ? 0 : s->flags[n];
        b->frames[n]->t_done_ns = s->t_done_ns;
        if (e->fallback) b->frames[n]->result_flags |= WIRE_CPU_FALLBACK;
    }
    b->done = true;
    e->in_flight--;
    e->n_finished++;
    bool held = b->frames[0]->place == ROW_SLOT;
    if (held) s->state = SLOT_HELD;
    s->b = NULL;
    if (!held) b->slot = NULL;
}

static void collect(engine *e) {
    slot *s = atomic_exchange_explicit(&e->done, NULL, memory_order_acquire);
    while (s) {
        slot *next = s->next_done;
        finish(e, s);
        s = next;
    }
}

/* Whether an earlier batch of b's model is still computed. The list is no longer than there are slots, and the batches
 * that wait for these. */
static bool must_wait(const engine *e, const batch *b) {
    const void *(*model_of)(const struct generation *g) = e->setup.model_of;
    for (const batch *o = e->launched; o != b; o = o->next)
        if (!o->done && (o->model == b->model || (model_of && model_of(o->model) == model_of(b->model)))) return true;
    return false;
}

void batches_hand_over(engine *e) {
    for (batch **at = &e->launched; *at;) {
        batch *b = *at;
        if (!b->done || must_wait(e, b)) {
            at = &b->next;
            continue;
        }
        if (e->latched && !b->error) batch_fail(e, b, e->latch_why);
        *at = b->next;
        if (!b->next) e->launched_end = at;
        b->next = NULL;
        e->setup.done.fn(e->setup.done.ctx, b);
    }
}

void engine_batch_end(engine *e, batch *b) {
    if (b->tail_pages) arena_give(e->setup.out, b->tail_first, b->tail_pages);
    if (b->slot) {
        b->slot->state = SLOT_FREE;
        uv_async_send(e->async); /* what waits for a slot is due already: no timer will ask for it */
    }
    batch_free(e, b);
}

/* ---- filling and launching ---- */
static slot *free_slot(engine *e) {
    for (int32_t i = 0; i < e->n_slots; i++)
        if (e->slots[i].state == SLOT_FREE) return &e->slots[i];
    return NULL;
}

static void launched_append(engine *e, batch *b) {
    b->next = NULL;
    *e->launched_end = b;
    e->launched_end = &b->next;
}

/* Its frames are answered in its turn like any other's. */
void batch_abandon(engine *e, batch *b, int32_t row, const char *text) {
    uint64_t now_ns = uv_hrtime();
    batch_fail(e, b, text);
    for (int32_t n = 0; n < b->n_frames; n++) b->frames[n]->t_launch_ns = b->frames[n]->t_done_ns = now_ns;
    for (int32_t n = row; n < b->n_frames; n++) e->setup.copied_in.fn(e->setup.copied_in.ctx, b->frames[n]);
    b->done = true;
    b->slot = NULL;
    e->in_flight--;
    e->n_finished++;
}

/* The slot's batch did not begin. What a backend had enqueued before it failed may still be under way. */
static void abandon(engine *e, slot *s, const char *text) {
    s->state = SLOT_FREE;
    e->filling = NULL;
    if (e->latched) fault_keep(e, s);
    batch_abandon(e, s->b, s->row, e->latched ? e->latch_why : text);
    s->b = NULL;
}

batch *batch_next(engine *e, bool busy, uint64_t now_ns, slot *s) {
    batch *b = batch_new(e);
    if (!b) return NULL;
    frame **frames = b->frames;
    *b = (batch){.engine = e, .slot = s, .frames = frames, .t_take_ns = uv_hrtime()};
    b->n_frames = batcher_take(e->setup.batcher, e, busy, now_ns, frames, &b->cause);
    if (b->n_frames == 0) {
        batch_free(e, b);
        return NULL;
    }
    b->model = frames[0]->model;
    if (e->setup.bind)
        for (int32_t n = 0; n < b->n_frames; n++) e->setup.bind(frames[n]->stream, e);
    e->in_flight++;
    launched_append(e, b);
    return b;
}

/* True: a batch was taken into a free slot and can be filled. */
static bool take(engine *e, uint64_t now_ns) {
    slot *s = free_slot(e);
    batch *b = s ? batch_next(e, e->in_flight > 0, now_ns, s) : NULL;
    nct_why why = {""};
    if (!b) return false;
    s->b = b;
    s->state = SLOT_FILLING;
    e->filling = s;
    int error = fill_begin(s, &why);
    if (error) abandon(e, s, why.text[0] ? why.text : strerror(-error));
    return true;
}

static void launch(engine *e, slot *s) {
    nct_why why = {""};
    fill_place(s);
    e->filling = NULL;
    s->state = SLOT_RUNNING;
    s->t_launch_ns = uv_hrtime();
    for (int32_t n = 0; n < s->b->n_frames; n++) s->b->frames[n]->t_launch_ns = s->t_launch_ns;
    int error = e->ops->launch(e, s, &why);
    if (error == ENGINE_DONE_HERE)
        finish(e, s);
    else if (error)
        abandon(e, s, why.text[0] ? why.text : strerror(-error));
}

bool engine_turn(engine *e, uint64_t now_ns) {
    size_t budget = fill_budget(e);
    e->n_turns++;
    collect(e);
    while (!e->latched && (e->filling || take(e, now_ns))) {
        if (!e->filling) continue; /* abandoned */
        if (!fill_step(e->filling, &budget)) break;
        launch(e, e->filling);
    }
    if (e->latched) {
        if (e->filling) abandon(e, e->filling, "");
        fault_turn(e, now_ns);
    }
    batches_hand_over(e);
    return e->filling != NULL;
}

/* ---- life ---- */
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
