/* engine_fault.c: what happens to an engine whose device failed. Called by engine.c each turn while it is latched, and
 * by backends (engine_latch) and the daemon (engine_take_over), all on the loop thread.
 *
 *     engine_latch -> what ran, was filled or queued fails with -EIO -> setup.failed -> engine_take_over, or the end
 *
 * A device that hangs may write to its batches' memory at any later time: those arena pages are kept out of use until
 * the backend says that it is over, and such a slot's own memory is left to it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "engine_own.h"

void engine_latch(engine *e, const char *why) {
    if (e->latched) return;
    e->latched = true;
    e->told = false;
    snprintf(e->latch_why, sizeof e->latch_why, "%s", why);
    uv_async_send(e->async);
}
bool engine_latched(const engine *e) {
    return e->latched;
}
const char *engine_fault(const engine *e) {
    return e->latched ? e->latch_why : NULL;
}

/* ---- memory that the device may still touch ---- */
static bool lose(engine *e, slot *s, uint32_t *first, uint32_t *pages) {
    lost_run *r = *pages ? malloc(sizeof *r) : NULL;
    if (*pages && !r) return false; /* then the pages stay taken until the process ends */
    if (r) {
        *r = (lost_run){.next = e->lost, .s = s, .first = *first, .pages = *pages};
        e->lost = r;
    }
    *first = *pages = 0;
    return true;
}

void fault_keep(engine *e, slot *s) {
    batch *b = s->b;
    if (!e->ops->busy || !e->ops->busy(s)) return;
    s->state = SLOT_LOST;
    for (int32_t n = 0; n < b->n_frames; n++) lose(e, s, &b->frames[n]->arena_first, &b->frames[n]->arena_pages);
    lose(e, s, &b->tail_first, &b->tail_pages);
}

static void lost_give(engine *e, bool all) {
    bool (*busy)(const slot *s) = e->failed_ops ? e->failed_ops->busy : e->ops->busy;
    for (lost_run **at = &e->lost; *at;) {
        lost_run *r = *at;
        if (!all && busy(r->s)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        arena_give(e->setup.out, r->first, r->pages);
        free(r);
    }
}

void engine_lost_turn(engine *e) {
    lost_give(e, false);
}

void fault_done(engine *e) {
    lost_give(e, true);
    if (!e->failed_ops) return;
    e->backend = e->failed_backend;
    e->failed_ops->close(e);
}

/* ---- after the latch ---- */
/* All that is queued for this engine, batch by batch. */
static void refuse_queued(engine *e, uint64_t now_ns) {
    batch *b;
    while ((b = batch_next(e, false, now_ns, NULL)) != NULL) batch_abandon(e, b, 0, e->latch_why);
}

static bool running(const engine *e) {
    for (int32_t i = 0; i < e->n_slots; i++)
        if (e->slots[i].state == SLOT_RUNNING) return true;
    return false;
}

void fault_turn(engine *e, uint64_t now_ns) {
    batches_hand_over(e);
    if (!e->told && !running(e)) {
        e->told = true;
        if (e->setup.failed) e->setup.failed(e->setup.failed_ctx, e, e->latch_why);
    }
    if (e->latched && e->told) refuse_queued(e, now_ns);
}

int engine_take_over(engine *e, nct_why *why) {
    const engine_ops *from = e->ops;
    void *backend = e->backend;
    e->ops = &engine_cpu_ops;
    int error = e->ops->open(e, why);
    if (error) goto fail_open;
    for (int32_t i = 0; i < e->n_slots; i++) {
        slot *s = &e->slots[i];
        s->workspace = NULL; /* the device's, with all it holds */
        s->workspace_bytes = 0;
        if (s->state != SLOT_LOST) continue;
        s->in = e->ops->alloc(e, slot_in_bytes(e));
        s->out = e->ops->alloc(e, slot_out_bytes(e));
        if (!s->in || !s->out) goto fail_memory;
        slot_memory(s);
        s->state = SLOT_FREE;
    }
    e->failed_ops = from;
    e->failed_backend = backend;
    e->setup.device = -1;
    e->fallback = true;
    e->latched = false;
    return 0;
fail_memory:
    error = -ENOMEM;
    snprintf(why->text, sizeof why->text, "no memory for slots beside those that the device may still use");
    e->ops->close(e);
fail_open:
    e->ops = from;
    e->backend = backend;
    return error;
}
