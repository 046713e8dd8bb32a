/* batcher.c: which batch is due, and of what (flow.md 9-13). Called by the stream stage (push), the engines (take) and
 * the loop's one timer (expire, next) on the loop thread. Owns the queued frames. No socket, no clock, no slot.
 *
 * Finding the due queue looks at every queue's lanes: models x kinds in use, never streams or frames. */
#include "batcher_queue.h"
#include "rows.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int batcher_new(batcher **ret, const batcher_limits *limits) {
    batcher *b = calloc(1, sizeof *b);
    if (!b) return -ENOMEM;
    if (bq_init(b)) {
        free(b);
        return -ENOMEM;
    }
    batcher_set_limits(b, limits);
    *ret = b;
    return 0;
}

void batcher_free(batcher *b) {
    if (!b) return;
    assert(b->n_frames == 0);
    bq_done(b);
    free(b);
}

void batcher_set_limits(batcher *b, const batcher_limits *limits) {
    assert(limits->max_frames >= 1 && limits->max_frames <= BATCH_FRAMES_MAX);
    b->limits = *limits;
}

int batcher_push(batcher *b, frame *f) {
    return bq_push(b, f);
}
uint32_t batcher_queued(const batcher *b) {
    return b->n_frames;
}
uint64_t batcher_closed(const batcher *b, close_cause cause) {
    return b->closed[cause];
}

static void saw(batcher *b, uint64_t now_ns) {
    if (now_ns > b->now_ns) b->now_ns = now_ns;
}

static uint64_t deadline_ns(const batcher *b, const lane *l) {
    return bq_oldest(l)->first->t_read_ns + (uint64_t)b->limits.max_delay_us * 1000;
}

/* ---- what is due ---- */

/* The lane of the queue's oldest frame that engine e may take. */
static lane *oldest_lane(const queue *q, const struct engine *e) {
    lane *best = NULL;
    for (lane *l = q->lanes; l; l = l->next) {
        if (l->engine && l->engine != e) continue;
        if (!best || l->streams.top->key < best->streams.top->key) best = l;
    }
    return best;
}

/* Rule 11, for the kind of lane `l`: why it is due, or CLOSE_CAUSES when it is not. */
static close_cause due(const batcher *b, lane *l, const struct engine *e, bool busy, uint64_t now_ns) {
    const lane *other = bq_lane(l->q, l, l->engine ? NULL : e); /* e NULL: l itself */
    if (other == l) other = NULL;
    uint64_t n = l->n_frames + (other ? other->n_frames : 0);
    size_t in = l->in + (other ? other->in : 0), out = l->out + (other ? other->out : 0);
    if (n >= b->limits.max_frames || in >= b->limits.slot_bytes || out >= b->limits.slot_bytes) return CLOSE_FULL;
    if (l->q->flush) return CLOSE_FLUSH;
    if (now_ns >= deadline_ns(b, l)) return CLOSE_DEADLINE;
    return busy ? CLOSE_CAUSES : CLOSE_IDLE;
}

/* ---- what goes together ---- */

/* The next session in turn over the lanes of streams bound to e and of those bound to none; its next stream. */
static bstream *next_in_turn(queue *q, const lane *kind, const struct engine *e) {
    lane *bound = bq_lane(q, kind, e), *loose = bq_lane(q, kind, NULL);
    member *m = bound ? heap_item(bound->members.next, member, turn) : NULL;
    member *other = loose ? heap_item(loose->members.next, member, turn) : NULL;
    if (!m || (other && other->stamp < m->stamp)) m = other;
    return m ? heap_item(m->streams.next, bstream, turn) : NULL;
}

/* The oldest frame says what kind and when, the turns say who: were the oldest always taken along, a session with a
 * deep queue would have a place in every batch. It comes within one round of the sessions. */
static int32_t collect(batcher *b, lane *first, struct engine *e, frame **frames) {
    const lane kind = *first;
    size_t in = 0, out = 0;
    uint32_t n = 0;
    bstream *st = next_in_turn(kind.q, &kind, e);
    while (st && n < b->limits.max_frames) {
        in += rows_in_room(st->first);
        out += rows_out_room(st->first);
        /* One that does not fit closes the batch: its session is the first in turn in the next one. */
        if (n > 0 && (in > b->limits.slot_bytes || out > b->limits.slot_bytes)) break;
        frames[n++] = bq_pop(b, st, e);
        st = next_in_turn(kind.q, &kind, e);
    }
    bq_sweep(b, kind.q);
    return (int32_t)n;
}

int32_t batcher_take(
    batcher *b, struct engine *e, bool busy, uint64_t now_ns, frame **frames, close_cause *ret_cause) {
    lane *best = NULL;
    close_cause cause = CLOSE_CAUSES;
    saw(b, now_ns);
    for (ring *r = b->queues.next; r != &b->queues; r = r->next) {
        lane *l = oldest_lane(heap_item(r, queue, all), e);
        if (!l || (best && best->streams.top->key < l->streams.top->key)) continue;
        close_cause c = due(b, l, e, busy, now_ns);
        if (c == CLOSE_CAUSES) continue;
        best = l;
        cause = c;
    }
    if (!best) return 0;
    b->closed[cause]++;
    *ret_cause = cause;
    return collect(b, best, e, frames);
}

/* ---- leaving without a batch ---- */
static void leave(batcher *b, frame *f, frame_sink sink) {
    queue *q = bq_queue(b, f->model);
    bq_remove(b, f);
    bq_sweep(b, q);
    sink.fn(sink.ctx, f);
}

void batcher_expire(batcher *b, uint64_t now_ns, frame_sink sink) {
    saw(b, now_ns);
    while (b->ttl.top && b->ttl.top->key <= now_ns) leave(b, heap_item(b->ttl.top, frame, ttl), sink);
}

void batcher_drop_session(batcher *b, const struct session *s, frame_sink sink) {
    for (bsession *own = bq_session(b, s); own; own = bq_session(b, s))
        leave(b, heap_item(own->streams.next, bstream, owned)->first, sink);
}

void batcher_flush(batcher *b, const struct generation *model) {
    for (ring *r = b->queues.next; r != &b->queues; r = r->next) {
        queue *q = heap_item(r, queue, all);
        if (!model || q->model == model) q->flush = true;
    }
}

uint64_t batcher_next_ns(const batcher *b) {
    uint64_t next = UINT64_MAX;
    for (ring *r = b->queues.next; r != &b->queues; r = r->next) {
        for (const lane *l = heap_item(r, queue, all)->lanes; l; l = l->next) {
            uint64_t at = deadline_ns(b, l);
            if (at > b->now_ns && at < next) next = at;
        }
    }
    if (b->ttl.top && b->ttl.top->key > b->now_ns && b->ttl.top->key < next) next = b->ttl.top->key;
    return next;
}
