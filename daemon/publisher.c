/* publisher.c: see publisher.h. Owns frames between their batch's end and their outcome, and their rows until an
 * answer takes them over. Sends through answer.c; copies to PUB. */
#include "publisher.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>
#include "meters.h"
#include "models.h"

#define HWM_MIN 4
#define HWM_MAX 4096

void publisher_init(publisher *p, answers *a, frames *f, zxpub *pub, uint64_t publish_bytes,
    void (*batch_end)(struct engine *e, batch *b)) {
    *p = (publisher){.answers = a,
        .frames = f,
        .pub = pub,
        .pool = a->pool,
        .counts = a->counts,
        .batch_end = batch_end,
        .publish_bytes = publish_bytes};
}

/* ---- a batch arrives ------------------------------------------------------------------------------------------- */

static void count_batch(publisher *p, const batch *b) {
    static const counter causes[CLOSE_CAUSES] = {[CLOSE_FULL] = COUNT_batch_full,
        [CLOSE_DEADLINE] = COUNT_batch_deadline,
        [CLOSE_IDLE] = COUNT_batch_idle,
        [CLOSE_FLUSH] = COUNT_batch_flush};
    ledger_count(p->counts, COUNT_batches);
    ledger_count(p->counts, causes[b->cause]);
    p->counts->counts[COUNT_batch_frames] += (uint64_t)b->n_frames;
}

static void give_row(publisher *p, frame *f) {
    if (f->place == ROW_CELL) cells_give(p->pool, f->y, f->y_bytes);
    if (f->arena_pages) arena_give(p->answers->out, f->arena_first, f->arena_pages);
    f->place = ROW_NONE;
    f->arena_pages = 0;
    f->y = NULL;
}

/* After this the row depends on neither slot nor batch. */
static void take_row(publisher *p, frame *f) {
    if (f->error || f->place == ROW_NONE || f->arena_pages) return;
    void *cell = cells_take(p->pool, f->y_bytes);
    if (!cell) {
        f->error = -ENOBUFS;
        snprintf(f->why, sizeof f->why, "no memory for a result of %zu bytes", f->y_bytes);
        f->place = ROW_NONE;
        return;
    }
    if (f->y_bytes) memcpy(cell, f->y, f->y_bytes);
    f->y = cell;
    f->place = ROW_CELL;
}

void publisher_push(void *ctx, batch *b) {
    publisher *p = ctx;
    count_batch(p, b);
    if (p->meters) meters_batch(p->meters, b);
    for (int32_t i = 0; i < b->n_frames; i++) {
        frame *f = b->frames[i];
        take_row(p, f);
        f->next = NULL;
        if (p->last)
            p->last->next = f;
        else
            p->first = f;
        p->last = f;
    }
    p->batch_end(b->engine, b);
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

static uint32_t us(uint64_t from_ns, uint64_t to_ns) {
    uint64_t n = to_ns > from_ns ? (to_ns - from_ns) / 1000 : 0;
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

/* First output step on the axis of the whole sequence's outputs: output j reads from input j * stride - pad_left on. */
static uint64_t out_pos(const frame *f, const nct_params *p) {
    return (f->h.pos + (uint64_t)(p->pad_left - f->pad_left)) / (uint64_t)p->stride;
}

static wire_header header_of(const frame *f) {
    const nct_params *p = generation_params(f->model);
    wire_header h = {.kind = WIRE_RESULT,
        .dtype = (uint8_t)(f->observe ? NCT_F64 : f->y_dtype),
        .flags = f->result_flags,
        .request_id = f->h.request_id,
        .seq = f->h.seq,
        .pos = out_pos(f, p),
        .t_capture_ns = f->h.t_capture_ns,
        .channels = (uint32_t)(f->observe ? f->n_groups : f->c_out),
        .steps = f->observe ? 3 : (uint32_t)f->t_out,
        .epoch = f->stream->epoch,
        .generation = f->model->number,
        .queue_us = us(f->t_read_ns, f->t_launch_ns),
        .compute_us = us(f->t_launch_ns, f->t_done_ns)};
    return h;
}

static wire_header error_header(const frame *f) {
    return (wire_header){
        .request_id = f->h.request_id, .seq = f->h.seq, .t_capture_ns = f->h.t_capture_ns, .epoch = f->stream->epoch};
}

/* The charge and the place go over to the answer, sent or not. */
static int hand_over(publisher *p, frame *f, wire_header *h, const answer_row *row, uint64_t now_ns) {
    size_t charge = f->out_bytes;
    bool placed = f->placed;
    f->out_bytes = 0;
    f->placed = false;
    return answer_send(
        p->answers, f->session, h, f->stream->topic, f->stream->topic_bytes, row, charge, placed, now_ns);
}

int publisher_hwm(uint64_t publish_bytes, size_t largest) {
    uint64_t n = largest ? publish_bytes / largest : HWM_MAX;
    return (int)(n < HWM_MIN ? HWM_MIN : n > HWM_MAX ? HWM_MAX : n);
}

static bool wanted(publisher *p, frame *f) {
    stream *s = f->stream;
    if (!p->pub || !f->model->publish || (f->h.flags & WIRE_NO_PUBLISH)) return false;
    if (!zxpub_wanted(p->pub, s->topic, s->topic_bytes)) return false;
    if (!s->published || f->h.seq > s->published_seq) return true;
    ledger_count(p->counts, COUNT_publish_stale);
    return false;
}

/* One copy, while the row is still ours to read. The session stays out of it: who knows it could end it with a HELLO
 * that names it as its previous one. */
static void publish(publisher *p, frame *f, wire_header h) {
    stream *s = f->stream;
    unsigned char header[WIRE_HEADER_BYTES];
    if (f->y_bytes > p->largest) {
        p->largest = f->y_bytes;
        zxpub_set_hwm(p->pub, publisher_hwm(p->publish_bytes, p->largest));
    }
    h.window = 0;
    h.session = 0;
    wire_write(header, &h);
    zout m = {.topic = s->topic,
        .topic_bytes = s->topic_bytes,
        .header = header,
        .header_bytes = sizeof header,
        .payload = f->y,
        .payload_bytes = f->y_bytes};
    if (zxpub_send(p->pub, &m)) return;
    s->published = true;
    s->published_seq = f->h.seq;
    ledger_count(p->counts, COUNT_published);
}

static void send_result(publisher *p, frame *f, uint64_t now_ns) {
    bool reply = !(f->h.flags & WIRE_NO_REPLY), cell = f->place == ROW_CELL;
    wire_header h = header_of(f), short_h = h;
    answer_row row = {.data = f->y,
                   .bytes = f->y_bytes,
                   .cell = cell ? f->y : NULL,
                   .cell_bytes = f->y_bytes,
                   .arena_first = f->arena_first,
                   .arena_pages = f->arena_pages},
               none = {.data = NULL};
    if (!reply) short_h.dtype = 0;
    /* Handed over, the row goes back in a later turn at the earliest: PUB may still copy from it. */
    int error = hand_over(p, f, reply ? &h : &short_h, reply ? &row : &none, now_ns);
    h.t_answer_ns = short_h.t_answer_ns > h.t_answer_ns ? short_h.t_answer_ns : h.t_answer_ns;
    if (!error && wanted(p, f)) publish(p, f, h);
    if (!error) ledger_count(p->counts, cell ? COUNT_copied : COUNT_in_place);
    if (!error && p->meters) meters_result(p->meters, f, uv_hrtime());
    if (!reply)
        give_row(p, f);
    else
        f->place = ROW_NONE, f->arena_pages = 0;
    frames_end(p->frames, f, error ? OUTCOME_orphaned : OUTCOME_ok);
}

static void send_error(publisher *p, frame *f, outcome o, uint64_t now_ns) {
    wire_header h = error_header(f);
    size_t charge = f->out_bytes;
    bool placed = f->placed;
    give_row(p, f);
    f->out_bytes = 0;
    f->placed = false;
    int error = answer_error(p->answers, f->session, &h, f->stream->topic, f->stream->topic_bytes, f->error, f->why,
        charge, placed, now_ns);
    frames_end(p->frames, f, error ? OUTCOME_orphaned : o);
}

void publisher_orphan(publisher *p, frame *f) {
    give_row(p, f);
    frames_end(p->frames, f, OUTCOME_orphaned);
}

void publisher_refuse(publisher *p, frame *f, int error, const char *sentence, uint64_t now_ns) {
    if (session_gone(f->session)) {
        publisher_orphan(p, f);
        return;
    }
    f->error = error;
    snprintf(f->why, sizeof f->why, "%s", sentence);
    send_error(p, f, error == -ETIME ? OUTCOME_expired : OUTCOME_failed, now_ns);
}

void publisher_turn(publisher *p, uint64_t now_ns) {
    while (p->first) {
        frame *f = p->first;
        p->first = f->next;
        if (!p->first) p->last = NULL;
        if (f->saw & NCT_SAW_NONFINITE) ledger_count(p->counts, COUNT_nonfinite);
        if (f->saw & NCT_SAW_OFFSET) ledger_count(p->counts, COUNT_offset);
        if (session_gone(f->session))
            publisher_orphan(p, f);
        else if (f->error)
            send_error(p, f, OUTCOME_failed, now_ns);
        else
            send_result(p, f, now_ns);
    }
}

bool publisher_pending(const publisher *p) {
    return p->first != NULL;
}
