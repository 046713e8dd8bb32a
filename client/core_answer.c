/* core_answer.c: what a message of the daemon means, and the two lists: frames in flight, answers not taken.
 *
 * Called by core.c's turn for each message; fills the lists that nct_recv() and nct_call() take from. It never touches
 * the connection: what must change there is left as a flag for the turn (gone, leaving, refusal). */
#include "core.h"
#include "error.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX         1024
#define DRAIN_DEFAULT_MS 10000
#define DRAIN_MAX_MS     600000

pending *core_find(nct *c, uint64_t id) {
    for (uint32_t i = 0; i < c->n_flight; i++)
        if (c->flight[i]->h.request_id == id) return c->flight[i];
    return NULL;
}

void core_remove(nct *c, pending *p) {
    uint32_t i = 0;
    while (c->flight[i] != p) i++;
    c->n_flight--;
    memmove(&c->flight[i], &c->flight[i + 1], (c->n_flight - i) * sizeof c->flight[0]);
    zlink_part_done(&p->payload);
    free(p);
}

/* A peer's sentence may end up on a terminal. */
static void copy_text(char *to, const char *from, size_t len) {
    for (size_t i = 0; i < len; i++) to[i] = (unsigned char)from[i] < 0x20 || from[i] == 0x7f ? '?' : from[i];
    to[len] = 0;
}

held *core_held(const nct_answer *a, zlink_part *payload, const char *topic, size_t topic_len, const char *text,
    size_t text_len) {
    if (text_len > TEXT_MAX) text_len = TEXT_MAX;
    held *h = calloc(1, sizeof *h + text_len + 1);
    if (!h) return NULL;
    copy_text(h->text, text, text_len);
    if (wire_topic_read(topic, topic_len, h->model, h->stream, NULL)) h->model[0] = h->stream[0] = 0;
    if (payload) zlink_part_move(&h->payload, payload);
    h->answer = *a;
    h->answer.payload_bytes = zlink_part_bytes(&h->payload);
    h->answer.payload = h->answer.payload_bytes ? zlink_part_data(&h->payload) : NULL;
    h->answer.text = h->text;
    h->answer.model = h->model;
    h->answer.stream = h->stream;
    h->answer.owner = h;
    return h;
}

int core_ready(nct *c, const nct_answer *a, zlink_part *payload, const char *topic, size_t topic_len,
    const char *text, size_t text_len) {
    if (c->n_ready >= CORE_READY_MAX) return -ENOBUFS;
    held *h = core_held(a, payload, topic, topic_len, text, text_len);
    if (!h) return -ENOMEM;
    *c->ready_end = h;
    c->ready_end = &h->next;
    c->n_ready++;
    return 0;
}

held *core_take(nct *c, uint64_t id) {
    for (held **at = &c->ready; *at; at = &(*at)->next) {
        held *h = *at;
        if (id && h->answer.request_id != id) continue;
        *at = h->next;
        if (!h->next) c->ready_end = at;
        h->next = NULL;
        c->n_ready--;
        return h;
    }
    return NULL;
}

void core_local_answer(nct *c, pending *p, int status, const char *text) {
    nct_answer a = {.kind = NCT_ERROR,
        .status = status,
        .request_id = p->h.request_id,
        .tag = p->tag,
        .seq = p->h.seq,
        .last_seq = p->state ? p->state->last_seq : 0,
        .t_capture_ns = p->h.t_capture_ns,
        .window = c->window};
    core_ready(c, &a, NULL, p->topic, p->topic_len, text, strlen(text));
}

nct_answer core_answer(const wire_header *h) {
    return (nct_answer){.kind = h->kind,
        .status = error_from_wire(h->status),
        .request_id = h->request_id,
        .dtype = h->dtype,
        .flags = h->flags,
        .channels = h->channels,
        .steps = h->steps,
        .seq = h->seq,
        .pos = h->pos,
        .t_capture_ns = h->t_capture_ns,
        .t_answer_ns = h->t_answer_ns,
        .epoch = h->epoch,
        .generation = h->generation,
        .queue_us = h->queue_us,
        .compute_us = h->compute_us,
        .window = h->window};
}

int core_payload_fits(const wire_header *h, uint64_t bytes) {
    uint64_t size = wire_dtype_bytes(h->dtype), samples = (uint64_t)h->channels * h->steps;
    if (!h->dtype) return bytes == 0;
    return size && (samples == 0 ? bytes == 0 : bytes % size == 0 && bytes / size == samples);
}

/* Refused unseen: the frame belongs into the next session. Answers the question "keep it?". A refusal of an earlier
 * session, for a frame that has gone on since, says nothing. */
static int kept_for_next(nct *c, pending *p, const wire_header *h, int status) {
    if (status != -ESHUTDOWN && status != -ESTALE) return 0;
    if (!p->sent || h->session != p->h.session) return 1;
    if (status == -ESHUTDOWN) core_leave(c, DRAIN_DEFAULT_MS);
    if (p->forgotten || p->state || c->o.on_cut == NCT_DROP || p->h.epoch) {
        /* A restart of the state cannot be stale: it is the session that is gone. */
        if (status == -ESTALE && (p->h.flags & WIRE_GAP)) c->gone = 1;
        return 0;
    }
    if (status == -ESTALE) {
        if (p->lost++) return 0; /* twice, in a fresh session too: it means this frame */
        c->gone = 1;
    }
    p->sent = 0;
    return 1;
}

static void take_error(nct *c, pending *p, const wire_header *h, zlink_message *m) {
    nct_answer a = core_answer(h);
    if (a.status == 0) a.status = -EPROTO;
    if (kept_for_next(c, p, h, a.status)) return;
    if (p->state && a.status == -ESTALE) p->state->stale = 1;
    a.last_seq = p->state ? p->state->last_seq : 0;
    a.tag = p->tag;
    a.dtype = NCT_DTYPE_NONE;
    if (!p->forgotten)
        core_ready(c, &a, NULL, p->topic, p->topic_len, zlink_part_data(&m->part[2]), zlink_part_bytes(&m->part[2]));
    core_remove(c, p);
}

static void take_result(nct *c, pending *p, const wire_header *h, zlink_message *m) {
    static const char misfit[] = "the daemon's result is not as long as its header says";
    nct_answer a = core_answer(h);
    a.tag = p->tag;
    a.status = 0;
    if (!core_payload_fits(h, zlink_part_bytes(&m->part[2]))) {
        a.kind = NCT_ERROR, a.status = -EPROTO, a.dtype = NCT_DTYPE_NONE;
        if (!p->forgotten) core_ready(c, &a, NULL, p->topic, p->topic_len, misfit, sizeof misfit - 1);
    } else {
        if (p->state && h->seq > p->state->last_seq) p->state->last_seq = h->seq;
        if (!p->forgotten) core_ready(c, &a, &m->part[2], p->topic, p->topic_len, "", 0);
    }
    core_remove(c, p);
}

/* The rest of a stream after CLOSE carries CLOSE's id, or none. */
static void take_last(nct *c, const wire_header *h, zlink_message *m) {
    nct_answer a = core_answer(h);
    if (!(h->flags & WIRE_LAST) || !c->waiting || c->waiting->kind != WIRE_CLOSE) return;
    if (core_payload_fits(h, zlink_part_bytes(&m->part[2])))
        core_ready(c, &a, &m->part[2], zlink_part_data(&m->part[0]), zlink_part_bytes(&m->part[0]), "", 0);
}

static void control_done(nct *c, const wire_header *h, zlink_message *m) {
    control *w = c->waiting;
    char text[TEXT_MAX + 1];
    size_t len = zlink_part_bytes(&m->part[2]);
    if (h->kind == WIRE_ERROR && error_from_wire(h->status) == -ESTALE && w->kind != WIRE_CLOSE && !w->done) {
        c->gone = 1; /* an OPEN or PING cannot be stale by itself */
        w->sent = 0;
        return;
    }
    w->done = 1;
    w->epoch = h->epoch;
    w->status = error_from_wire(h->status);
    if (h->kind == WIRE_ERROR && !w->status) w->status = -EPROTO;
    if (!w->status) return;
    copy_text(text, len ? zlink_part_data(&m->part[2]) : "", len > TEXT_MAX ? TEXT_MAX : len);
    core_reason(c, 0, "%s", text[0] ? text : error_text(w->status));
}

static void take_closed(nct *c, const wire_header *h, zlink_message *m) {
    nct_answer a = core_answer(h);
    char model[WIRE_NAME_MAX + 1], name[WIRE_NAME_MAX + 1];
    const char *topic = zlink_part_data(&m->part[0]);
    size_t len = zlink_part_bytes(&m->part[0]);
    if (wire_topic_read(topic, len, model, name, NULL)) return;
    stream *s = core_stream(c, model, name);
    if (s) s->stale |= s->stateful;
    a.kind = NCT_CLOSED;
    a.request_id = 0;
    a.dtype = NCT_DTYPE_NONE;
    a.last_seq = s ? s->last_seq : 0;
    core_ready(c, &a, NULL, topic, len, zlink_part_data(&m->part[2]), zlink_part_bytes(&m->part[2]));
}

static void take_goaway(nct *c, zlink_message *m) {
    json_t *root = json_loadb(zlink_part_data(&m->part[2]), zlink_part_bytes(&m->part[2]), 0, NULL);
    json_int_t ms = json_is_integer(json_object_get(root, "drain_ms"))
                        ? json_integer_value(json_object_get(root, "drain_ms"))
                        : DRAIN_DEFAULT_MS;
    json_decref(root);
    core_leave(c, ms < 0 ? 0 : ms > DRAIN_MAX_MS ? DRAIN_MAX_MS : ms);
}

static void take_welcome(nct *c, const wire_header *h, zlink_message *m) {
    if (c->phase != CORE_GREETING || h->request_id != c->hello_id) return;
    if (!h->session || core_welcome(c, zlink_part_data(&m->part[2]), zlink_part_bytes(&m->part[2]))) {
        c->refusal = core_reason(c, -EPROTO, "WELCOME has no session or its JSON cannot be read");
        return;
    }
    c->reconnects += c->session != 0;
    c->session = h->session;
    c->window = 1;
    c->phase = CORE_LIVE;
}

/* HELLO was refused: perhaps only for now (-EUSERS, -ESHUTDOWN), so a later turn says it again on the same socket. */
static void hello_refused(nct *c, const wire_header *h, zlink_message *m) {
    char text[TEXT_MAX + 1];
    size_t len = zlink_part_bytes(&m->part[2]);
    copy_text(text, len ? zlink_part_data(&m->part[2]) : "", len > TEXT_MAX ? TEXT_MAX : len);
    c->refusal = error_from_wire(h->status);
    if (!c->refusal) c->refusal = -EPROTO;
    core_reason(c, 0, "HELLO was refused: %s", text[0] ? text : error_text(c->refusal));
    c->phase = CORE_CONNECTING;
    c->hello_after_ns = core_now_ns() + 500 * INT64_C(1000000);
}

static void dispatch(nct *c, const wire_header *h, zlink_message *m) {
    pending *p = h->kind == WIRE_RESULT || h->kind == WIRE_ERROR ? core_find(c, h->request_id) : NULL;
    int controls = c->waiting && h->request_id == c->waiting->id;
    if (h->kind == WIRE_WELCOME)
        take_welcome(c, h, m);
    else if (h->kind == WIRE_GOAWAY)
        take_goaway(c, m);
    else if (h->kind == WIRE_RESULT && p)
        take_result(c, p, h, m);
    else if (h->kind == WIRE_RESULT)
        take_last(c, h, m);
    else if (h->kind == WIRE_ERROR && p)
        take_error(c, p, h, m);
    else if (h->kind == WIRE_ERROR && c->phase == CORE_GREETING && h->request_id == c->hello_id)
        hello_refused(c, h, m);
    else if (controls)
        control_done(c, h, m);
    else if (h->kind == WIRE_ERROR && h->request_id == c->ping_id && h->session == c->session)
        c->gone = c->phase == CORE_LIVE && error_from_wire(h->status) == -ESTALE;
    else if (h->kind == WIRE_CLOSED)
        take_closed(c, h, m);
    /* The rest is late or unasked: an answer handed out before, our own PONG, a stream opened again. */
}

void core_message(nct *c, zlink_message *m) {
    wire_header h;
    wire_why why = {"a message must have three parts"};
    if (m->parts != 3 || wire_read(&h, zlink_part_data(&m->part[1]), zlink_part_bytes(&m->part[1]), &why)) {
        core_reason(c, 0, "what came is not this protocol: %s", why.text);
        if (c->phase == CORE_GREETING) c->refusal = -EPROTO;
        return;
    }
    c->heard_ns = core_now_ns();
    c->pinged_ns = 0;
    dispatch(c, &h, m);
    if (h.session == c->session && h.window)
        c->window = h.window < CORE_IN_FLIGHT_MAX ? h.window : CORE_IN_FLIGHT_MAX;
}
