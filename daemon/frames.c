/* frames.c: see frames.h. Owns frame structs; freed ones are kept for the next. Called by ingest (add), the engine
 * (copied_in) and the publisher (end); loop thread. */
#include "frames.h"
#include <assert.h>
#include <stdlib.h>
#include "models.h"
#include "zsock.h"

int frames_init(frames *t, ledger *counts, sessions *ss, streams *streams_of) {
    *t = (frames){.counts = counts, .ss = ss, .streams = streams_of};
    return map_init(&t->by_request, 1024);
}

void frames_done(frames *t) {
    assert(!t->n);
    for (frame *f = t->spare, *after; f; f = after) {
        after = f->next;
        free(f);
    }
    map_done(&t->by_request);
}

static const void *request_key(uint64_t id) {
    return (const void *)(uintptr_t)id;
}

bool frames_have(const frames *t, const session *s, uint64_t request_id) {
    return map_find(&t->by_request, s, request_key(request_id)) != NULL;
}

frame *frames_add(frames *t, session *s, generation *g, uint64_t request_id, size_t in_bytes, size_t out_bytes) {
    frame *f = t->spare;
    if (f)
        t->spare = f->next;
    else
        f = malloc(sizeof *f);
    if (!f) return NULL;
    *f = (frame){.session = session_ref(s),
        .model = generation_ref(g),
        .in_bytes = in_bytes,
        .out_bytes = out_bytes,
        .placed = true,
        .order = ++t->order};
    map_add(&t->by_request, &f->by_request, s, request_key(request_id));
    t->n++;
    g->of->in_flight++;
    return f;
}

void frames_copied_in(void *ctx, frame *f) {
    frames *t = ctx;
    zbuf_done(&f->payload);
    session_give_in(t->ss, f->session, f->in_bytes);
    f->in_bytes = 0;
}

void frames_end(frames *t, frame *f, outcome o) {
    assert(f->place != ROW_CELL && !f->arena_pages);
    frames_copied_in(t, f);
    session_give_out(t->ss, f->session, f->out_bytes);
    if (f->placed) session_give_place(f->session);
    ledger_outcome(t->counts, &f->model->of->counts, o);
    f->model->of->in_flight--;
    map_remove(&t->by_request, &f->by_request);
    t->n--;
    stream_frame_ended(t->streams, f->stream);
    generation_unref(f->model);
    session_unref(f->session);
    f->next = t->spare;
    t->spare = f;
}
