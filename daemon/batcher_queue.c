/* batcher_queue.c: the structure of batcher_queue.h: streams, their runs, lanes and turns. Owns the nodes, not the
 * frames. Called by batcher.c on the loop thread; decides nothing about time. Each operation costs O(1), but for one
 * heap step; a frame enters a run once. */
#include "batcher_queue.h"
#include "rows.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { CHUNK_NODES = 256 };
typedef struct chunk {
    struct chunk *next;
    node nodes[CHUNK_NODES];
} chunk;

/* ---- rings and nodes ---- */
static void ring_init(ring *r) {
    r->next = r->prev = r;
}
static bool ring_empty(const ring *r) {
    return r->next == r;
}
static void ring_remove(ring *r) {
    r->prev->next = r->next;
    r->next->prev = r->prev;
}
static void ring_append(ring *head, ring *r) {
    r->prev = head->prev;
    r->next = head;
    head->prev->next = r;
    head->prev = r;
}

/* A stream needs itself, its session, one member and one lane; two more lanes may live while a stream is moved. */
static int reserve(batcher *b) {
    size_t want = 4 * (b->n_streams + 1) + b->n_queues + 1 + 2;
    while (b->n_nodes < want) {
        chunk *c = malloc(sizeof *c);
        if (!c) return -ENOMEM;
        c->next = b->chunks;
        b->chunks = c;
        for (int i = 0; i < CHUNK_NODES; i++) {
            c->nodes[i].free_next = b->free;
            b->free = &c->nodes[i];
        }
        b->n_nodes += CHUNK_NODES;
    }
    return 0;
}
static node *node_new(batcher *b) {
    node *n = b->free;
    assert(n);
    b->free = n->free_next;
    return n;
}
static void node_free(batcher *b, void *p) {
    node *n = p;
    n->free_next = b->free;
    b->free = n;
}

int bq_init(batcher *b) {
    ring_init(&b->queues);
    if (map_init(&b->queues_of, 64)) goto fail_queues;
    if (map_init(&b->sessions_of, 256)) goto fail_sessions;
    if (map_init(&b->members_of, 256)) goto fail_members;
    if (map_init(&b->streams_of, 1024)) goto fail_streams;
    return 0;
fail_streams:
    map_done(&b->members_of);
fail_members:
    map_done(&b->sessions_of);
fail_sessions:
    map_done(&b->queues_of);
fail_queues:
    return -ENOMEM;
}

void bq_done(batcher *b) {
    while (b->chunks) {
        chunk *c = b->chunks;
        b->chunks = c->next;
        free(c);
    }
    map_done(&b->streams_of);
    map_done(&b->members_of);
    map_done(&b->sessions_of);
    map_done(&b->queues_of);
}

/* ---- queues and lanes ---- */
queue *bq_queue(const batcher *b, const struct generation *model) {
    map_link *l = map_find(&b->queues_of, model, NULL);
    return l ? heap_item(l, queue, link) : NULL;
}

static queue *queue_new(batcher *b, const struct generation *model) {
    queue *q = &node_new(b)->q;
    *q = (queue){.model = model};
    map_add(&b->queues_of, &q->link, model, NULL);
    ring_append(&b->queues, &q->all);
    b->n_queues++;
    return q;
}

void bq_sweep(batcher *b, queue *q) {
    if (q->n_frames > 0) return;
    assert(!q->lanes);
    map_remove(&b->queues_of, &q->link);
    ring_remove(&q->all);
    b->n_queues--;
    node_free(b, q);
}

lane *bq_lane(queue *q, const lane *kind, const struct engine *e) {
    lane *l = q->lanes;
    while (l && (l->engine != e || l->x_dtype != kind->x_dtype || l->y_dtype != kind->y_dtype ||
                    l->norm != kind->norm || l->observe != kind->observe))
        l = l->next;
    return l;
}

static lane *lane_for(batcher *b, queue *q, const frame *f, struct engine *e) {
    lane want = {
        .q = q, .x_dtype = f->x_dtype, .y_dtype = f->y_dtype, .norm = f->norm, .observe = f->observe, .engine = e};
    lane *l = bq_lane(q, &want, e);
    if (l) return l;
    l = &node_new(b)->l;
    *l = want;
    ring_init(&l->members);
    l->next = q->lanes;
    q->lanes = l;
    return l;
}

static void lane_free(batcher *b, lane *l) {
    lane **at = &l->q->lanes;
    assert(l->n_frames == 0 && l->in == 0 && l->out == 0);
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    node_free(b, l);
}

static member *member_for(batcher *b, lane *l, const struct session *s) {
    map_link *found = map_find(&b->members_of, l, s);
    if (found) return heap_item(found, member, link);
    member *m = &node_new(b)->m;
    map_add(&b->members_of, &m->link, l, s);
    ring_init(&m->streams);
    ring_append(&l->members, &m->turn);
    m->stamp = ++b->turn;
    return m;
}

/* ---- streams and their runs ---- */
bsession *bq_session(const batcher *b, const struct session *s) {
    map_link *l = map_find(&b->sessions_of, s, NULL);
    return l ? heap_item(l, bsession, link) : NULL;
}

static bstream *stream_new(batcher *b, const frame *f) {
    bstream *st = &node_new(b)->st;
    bsession *s = bq_session(b, f->session);
    if (!s) {
        s = &node_new(b)->s;
        ring_init(&s->streams);
        map_add(&b->sessions_of, &s->link, f->session, NULL);
    }
    *st = (bstream){.session = f->session, .owner = s, .engine = f->engine};
    ring_append(&s->streams, &st->owned);
    map_add(&b->streams_of, &st->link, f->stream, NULL);
    b->n_streams++;
    return st;
}

static void stream_free(batcher *b, bstream *st) {
    map_remove(&b->streams_of, &st->link);
    ring_remove(&st->owned);
    if (ring_empty(&st->owner->streams)) {
        map_remove(&b->sessions_of, &st->owner->link);
        node_free(b, st->owner);
    }
    b->n_streams--;
    node_free(b, st);
}

static void count(bstream *st, const frame *f, bool in) {
    size_t in_room = rows_in_room(f), out_room = rows_out_room(f);
    st->run_n = in ? st->run_n + 1 : st->run_n - 1;
    st->run_in = in ? st->run_in + in_room : st->run_in - in_room;
    st->run_out = in ? st->run_out + out_room : st->run_out - out_room;
    lane *l = st->lane;
    l->n_frames = in ? l->n_frames + 1 : l->n_frames - 1;
    l->in = in ? l->in + in_room : l->in - in_room;
    l->out = in ? l->out + out_room : l->out - out_room;
}

static void detach(batcher *b, bstream *st) {
    lane *l = st->lane;
    member *m = st->member;
    l->n_frames -= st->run_n;
    l->in -= st->run_in;
    l->out -= st->run_out;
    heap_remove(&l->streams, &st->oldest);
    ring_remove(&st->turn);
    st->lane = NULL;
    st->member = NULL;
    if (ring_empty(&m->streams)) {
        ring_remove(&m->turn);
        map_remove(&b->members_of, &m->link);
        node_free(b, m);
    }
    if (!l->streams.top) lane_free(b, l);
}

/* Into the lane of its first frame; its run, if it has one already, moves along. */
static void attach(batcher *b, bstream *st) {
    lane *l = lane_for(b, bq_queue(b, st->first->model), st->first, st->engine);
    st->lane = l;
    st->member = member_for(b, l, st->session);
    ring_append(&st->member->streams, &st->turn);
    heap_push(&l->streams, &st->oldest, st->first->order);
    l->n_frames += st->run_n;
    l->in += st->run_in;
    l->out += st->run_out;
}

static bool of_lane(const frame *f, const lane *l) {
    return f->model == l->q->model && f->x_dtype == l->x_dtype && f->y_dtype == l->y_dtype && f->norm == l->norm &&
           f->observe == l->observe;
}

/* After its frames changed: in the lane of its first frame, at that frame's place, its run as long as can be. */
static void settle(batcher *b, bstream *st) {
    if (st->lane && st->run_n == 0) detach(b, st);
    if (!st->first) {
        stream_free(b, st);
        return;
    }
    if (!st->lane) attach(b, st);
    if (st->oldest.key != st->first->order) {
        heap_remove(&st->lane->streams, &st->oldest);
        heap_push(&st->lane->streams, &st->oldest, st->first->order);
    }
    frame *f = st->run_last ? st->run_last->next : st->first;
    for (; f && of_lane(f, st->lane); f = f->next) {
        st->run_last = f;
        count(st, f, true);
    }
}

static bstream *stream_of(const batcher *b, const frame *f) {
    map_link *l = map_find(&b->streams_of, f->stream, NULL);
    return l ? heap_item(l, bstream, link) : NULL;
}

int bq_push(batcher *b, frame *f) {
    if (reserve(b)) return -ENOMEM;
    queue *q = bq_queue(b, f->model);
    bstream *st = stream_of(b, f);
    if (!q) q = queue_new(b, f->model);
    if (!st) st = stream_new(b, f);
    assert(st->session == f->session && (!st->last || st->last->order < f->order));
    f->next = NULL;
    f->prev = st->last;
    *(st->last ? &st->last->next : &st->first) = f;
    st->last = f;
    q->n_frames++;
    b->n_frames++;
    if (f->t_expire_ns) heap_push(&b->ttl, &f->ttl, f->t_expire_ns);
    settle(b, st);
    return 0;
}

static void remove_from(batcher *b, bstream *st, queue *q, frame *f) {
    if (st->run_last && f->order <= st->run_last->order) {
        count(st, f, false);
        if (f == st->run_last) st->run_last = st->run_n > 0 ? f->prev : NULL;
    }
    *(f->prev ? &f->prev->next : &st->first) = f->next;
    *(f->next ? &f->next->prev : &st->last) = f->prev;
    f->next = f->prev = NULL;
    q->n_frames--;
    b->n_frames--;
    if (f->t_expire_ns) heap_remove(&b->ttl, &f->ttl);
    settle(b, st);
}

void bq_remove(batcher *b, frame *f) {
    remove_from(b, stream_of(b, f), bq_queue(b, f->model), f);
}

/* ---- turns ---- */
static void session_served(batcher *b, lane *l, const struct session *s) {
    map_link *found = l ? map_find(&b->members_of, l, s) : NULL;
    if (!found) return;
    member *m = heap_item(found, member, link);
    ring_remove(&m->turn);
    ring_append(&l->members, &m->turn);
    m->stamp = ++b->turn;
}

frame *bq_pop(batcher *b, bstream *st, struct engine *e) {
    frame *f = st->first;
    queue *q = st->lane->q;
    lane kind = *st->lane;
    if (st->engine != e) {
        detach(b, st);
        st->engine = e;
        attach(b, st);
    }
    bool lives = st->first != st->last;
    remove_from(b, st, q, f);
    if (lives) {
        ring_remove(&st->turn);
        ring_append(&st->member->streams, &st->turn);
    }
    session_served(b, bq_lane(q, &kind, NULL), f->session);
    session_served(b, bq_lane(q, &kind, e), f->session);
    f->engine = e;
    return f;
}
