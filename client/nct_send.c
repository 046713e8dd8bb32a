/* nct_send.c: from a request to a frame in flight.
 *
 * Public: nct_send(). nct_call() (nct_recv.c) uses core_send() too. Checks, waits for a place in the window, sends, and
 * keeps a copy for the case of a cut. It reads answers only through core_turn(). */
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int request_check(nct *c, const nct_request *q, const void *payload, wire_header *ret, uint64_t *ret_bytes) {
    wire_why why;
    if (!q->model || !q->stream || !wire_name_ok(q->model, strlen(q->model)) ||
        !wire_name_ok(q->stream, strlen(q->stream)))
        return core_reason(c, -EINVAL,
            "model \"%.64s\" and stream \"%.64s\" must be 1..%d of A-Z a-z 0-9 . _ - beginning with a letter or "
            "digit",
            q->model ? q->model : "", q->stream ? q->stream : "", WIRE_NAME_MAX);
    if (!payload) return core_reason(c, -EINVAL, "the payload is NULL");
    if (!q->given != !q->n_groups)
        return core_reason(c, -EINVAL, "given is %s but n_groups is %u", q->given ? "there" : "NULL", q->n_groups);
    *ret = (wire_header){.kind = WIRE_FRAME,
        .dtype = q->dtype,
        .want = q->want,
        .flags = (q->flags & ~WIRE_GIVEN) | (q->given ? WIRE_GIVEN : 0),
        .seq = q->seq,
        .pos = q->pos,
        .t_capture_ns = q->t_capture_ns,
        .channels = q->channels,
        .steps = q->steps,
        .ttl_us = q->ttl_us,
        .epoch = q->epoch};
    uint64_t size = wire_dtype_bytes(q->dtype), samples = (uint64_t)q->channels * q->steps;
    uint64_t stats = q->given ? (uint64_t)q->n_groups * WIRE_STAT_BYTES : 0;
    *ret_bytes = size && samples < (UINT64_MAX - stats) / size ? samples * size + stats : UINT64_MAX;
    int error = wire_frame_check(ret, *ret_bytes, q->n_groups, c->max_frame_bytes, &why);
    return error ? core_reason(c, error, "%s", why.text) : 0;
}

static int wait_for_place(nct *c, int64_t deadline_ns) {
    for (;;) {
        int error = core_turn(c);
        if (error) return error;
        if (c->n_ready >= NCT_READY_MAX)
            return core_reason(c, -EAGAIN, "%u answers wait to be taken: call nct_recv()", c->n_ready);
        uint32_t room =
            c->o.max_in_flight && (uint32_t)c->o.max_in_flight < c->window ? (uint32_t)c->o.max_in_flight : c->window;
        int live = c->phase == CORE_LIVE && !c->leaving && !c->blocked;
        if (live && c->n_flight < room) return 0;
        if (c->o.nonblock)
            return live ? core_reason(c, -EAGAIN, "%u frames are in flight, the window is %u", c->n_flight, room)
                        : core_reason(c, -EAGAIN, "there is no session with %s at the moment", c->endpoint);
        error = core_wait(c, deadline_ns);
        if (error == -ETIMEDOUT)
            return live
                       ? core_reason(c, error, "no place in the window: %u frames in flight of %u", c->n_flight, room)
                       : core_reason(c, error, "there is no session with %s at the moment", c->endpoint);
        if (error) return error;
    }
}

static pending *pending_new(const nct_request *q, const wire_header *h, const void *payload, uint64_t bytes) {
    pending *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    if (zlink_part_init(&p->payload, bytes)) {
        free(p);
        return NULL;
    }
    uint64_t stats = q->given ? (uint64_t)q->n_groups * WIRE_STAT_BYTES : 0;
    uint8_t *to = zlink_part_data(&p->payload);
    memcpy(to, payload, bytes - stats);
    if (stats) memcpy(to + (bytes - stats), q->given, stats);
    p->h = *h;
    p->tag = q->tag;
    p->topic_len = wire_topic_write(p->topic, q->model, q->stream);
    return p;
}

int core_send(nct *c, const nct_request *q, const void *payload, int64_t deadline_ns, uint64_t *ret_id) {
    wire_header h;
    uint64_t bytes = 0;
    int error = request_check(c, q, payload, &h, &bytes);
    if (error) return error;
    pending *p = pending_new(q, &h, payload, bytes);
    if (!p) return core_reason(c, -ENOMEM, "no memory for a frame of %llu bytes", (unsigned long long)bytes);
    do { /* the connection may go between the wait and the send */
        error = wait_for_place(c, deadline_ns);
        if (!error && core_stateful(c, q->model)) error = core_stream_add(c, q->model, q->stream, &p->state);
        if (!error && p->state && p->state->stale && !(q->flags & NCT_FLAG_GAP))
            error =
                core_reason(c, -ESTALE, "stream %s/%s lost its state after seq %llu: open it again or send with GAP",
                    q->model, q->stream, (unsigned long long)p->state->last_seq);
        if (error) goto fail_send;
        p->h.request_id = c->next_id;
        error = core_send_frame(c, p);
    } while (error == -EAGAIN && !c->o.nonblock);
    if (error) {
        core_reason(c, error, "there is no connection to %s at the moment", c->endpoint);
        goto fail_send;
    }
    if (p->state) p->state->stale = 0;
    if (!c->n_flight) c->heard_ns = core_now_ns(); /* silence counts from here */
    if (p->state || c->o.on_cut == NCT_DROP) zlink_part_done(&p->payload);
    *ret_id = c->next_id++;
    c->flight[c->n_flight++] = p;
    return 0;
fail_send:
    zlink_part_done(&p->payload);
    free(p);
    return error;
}

int nct_send(nct *c, const nct_request *q, const void *payload, uint64_t *ret_request_id) {
    uint64_t id = 0;
    int error = core_owned(c);
    if (error) return error;
    error = core_send(c, q, payload, core_deadline(c->o.timeout_ms), &id);
    core_sync(c);
    if (!error && ret_request_id) *ret_request_id = id;
    return error;
}
