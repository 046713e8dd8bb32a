/* engine.c: batches through a backend. Called by the loop once a turn, by the publisher when a batch ends, and by
 * backend threads through engine_done() alone. Owns the batches and their way from take to hand-over; knows no
 * device (engine_ops) and no socket. Slots and their memory are engine_life.c's.
 *
 * One slot is filled at a time: a batch that is not begun yet goes on growing in the batcher. */
#include "engine_own.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
