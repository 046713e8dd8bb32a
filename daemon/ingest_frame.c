/* ingest_frame.c: a FRAME from its header to the batcher, in flow.md 4's order: session, rights, model, shape and sizes, owner
 * and epoch, seq, request id, then admission. The first failure is the answer. Called by ingest.c on the loop thread.
 * Nothing is allocated before the frame is admitted. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "error.h"
#include <stdarg.h>
#include "ingest_own.h"
#include "rows.h"

/* What is known of a frame before it is one. */
typedef struct {
    char topic[WIRE_TOPIC_MAX + 1], stream_name[WIRE_NAME_MAX + 1];
    size_t topic_bytes; /* 0: it could not be read */
    session *s;
    served *of;
    stream *st; /* NULL: to be opened */
    int32_t pad_left, pad_right, t_out, y_dtype;
    size_t y_bytes, in_bytes, out_bytes;
    session_why why;
} candidate;

__attribute__((format(printf, 3, 4))) static int no(candidate *c, int error, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(c->why.text, sizeof c->why.text, format, ap);
    va_end(ap);
    return error;
}

/* An open stream's topic has been read before: its names and model are known. */
static int find_model(ingest *in, candidate *c, const request *r) {
    char model_name[WIRE_NAME_MAX + 1];
    wire_why why;
    stream *open = streams_find(in->streams, r->topic->data, r->topic->bytes);
    if (open) {
        memcpy(c->topic, open->topic, sizeof c->topic);
        c->topic_bytes = open->topic_bytes;
        c->of = open->of;
        return 0;
    }
    if (wire_topic_read(r->topic->data, r->topic->bytes, model_name, c->stream_name, &why))
        return no(c, -EINVAL, "%s", why.text);
    c->topic_bytes = wire_topic_write(c->topic, model_name, c->stream_name);
    c->of = models_find(in->models, model_name);
    return c->of ? 0 : no(c, -ENOENT, "no model %s is served", model_name);
}

static int check_steps(candidate *c, const wire_header *h, const nct_params *p) {
    int64_t t_out;
    nct_why why;
    if (h->steps > INT32_MAX) return no(c, -EMSGSIZE, "%u steps are more than a frame may have", h->steps);
    c->pad_left = h->flags & WIRE_INNER_LEFT ? 0 : p->pad_left;
    c->pad_right = h->flags & WIRE_INNER_RIGHT ? 0 : p->pad_right;
    int error = nct_out_steps(p, h->steps, c->pad_left, c->pad_right, &t_out, &why);
    if (error) return no(c, -EINVAL, "%.250s", why.text);
    if (t_out > INT32_MAX) return no(c, -EMSGSIZE, "%" PRId64 " steps of result are too many", t_out);
    c->t_out = (int32_t)t_out;
    return 0;
}

/* GIVEN's tail, of any alignment. A group that is not finite has NaN for mean and M2 and still a count; an M2 below 0 by
 * more than merging in float64 loses never came from a sum of squares. */
static int check_given(candidate *c, const request *r, const nct_params *p) {
    const unsigned char *tail = (const unsigned char *)r->payload->data + r->payload->bytes;
    tail -= (size_t)p->num_groups * WIRE_STAT_BYTES;
    for (int32_t g = 0; g < p->num_groups; g++) {
        nct_stat s;
        memcpy(&s, tail + (size_t)g * WIRE_STAT_BYTES, sizeof s);
        if (!(s.count >= 0 && s.count <= 9007199254740992.0 && s.count == floor(s.count)))
            return no(
                c, -EINVAL, "GIVEN: the count of group %d is %g; it is a whole number from 0 to 2^53", g, s.count);
        if (s.m2 < -1e-9 * s.count * fmax(1, s.mean * s.mean))
            return no(c, -EINVAL, "GIVEN: M2 of group %d is %g; a sum of squares is not negative", g, s.m2);
    }
    return 0;
}

static int check_shape(ingest *in, candidate *c, const request *r) {
    const nct_params *p = generation_params(c->of->current);
    uint64_t max = in->cfg->limits.max_frame_bytes;
    wire_why why;
    int error = wire_frame_check(&r->h, r->payload->bytes, (uint32_t)p->num_groups, max, &why);
    if (error) return no(c, error, "%s", why.text);
    if (r->h.channels != (uint32_t)p->in_channels)
        return no(c, -EINVAL, "the frame has %u channels, and model %s takes %d", r->h.channels, c->of->name,
            p->in_channels);
    error = check_steps(c, &r->h, p);
    if (!error && r->h.flags & WIRE_GIVEN) error = check_given(c, r, p);
    if (error) return error;
    c->y_dtype = r->h.want ? r->h.want : NCT_F32;
    uint64_t y = r->h.flags & WIRE_OBSERVE
                     ? (uint64_t)p->num_groups * WIRE_STAT_BYTES
                     : (uint64_t)p->out_channels * (uint64_t)c->t_out * wire_dtype_bytes((uint8_t)c->y_dtype);
    if (y > max)
        return no(c, -EMSGSIZE,
            "the result would be %d channels x %d steps = %" PRIu64 " bytes; limits.max_frame_bytes is %" PRIu64,
            p->out_channels, c->t_out, y, max);
    c->y_bytes = (size_t)y;
    return 0;
}

static int check(ingest *in, candidate *c, const request *r) {
    int error = c->of && c->topic_bytes ? 0 : -ENOENT;
    if (in->draining) return no(c, -ESHUTDOWN, "the daemon is shutting down");
    if (error) return error; /* find_model said why */
    error = check_shape(in, c, r);
    if (!error) error = streams_check(in->streams, c->s, c->topic, c->topic_bytes, r->h.epoch, &c->st, &c->why);
    if (error) return error;
    if (frames_have(in->frames, c->s, r->h.request_id))
        return no(c, -EEXIST, "request id %" PRIu64 " is in flight already", r->h.request_id);
    c->in_bytes = r->payload->bytes;
    c->out_bytes = session_out_charge(c->y_bytes);
    error = session_admit(in->ss, c->s, c->in_bytes, c->out_bytes, &c->why);
    if (!error) return 0;
    /* A client that keeps its window answers within this turn what was let go of since it began (seen: 27 of 60,000
     * frames of 3,840 bytes were refused for a window that was free). */
    answers_turn(in->answers, in->now_ns);
    return session_admit(in->ss, c->s, c->in_bytes, c->out_bytes, &c->why);
}

/* Everything a frame carries on its way. */
static void fill(frame *f, const candidate *c, const request *r, uint64_t now_ns) {
    const nct_params *p = generation_params(f->model);
    uint32_t flags = r->h.flags;
    f->h = r->h;
    f->stream = c->st;
    f->x_dtype = rows_x_dtype(r->h.dtype);
    f->y_dtype = c->y_dtype;
    f->norm = flags & WIRE_GIVEN ? NCT_NORM_GIVEN : NCT_NORM_OWN;
    f->observe = flags & WIRE_OBSERVE;
    f->t_in = (int32_t)r->h.steps;
    f->t_out = c->t_out;
    f->pad_left = c->pad_left;
    f->pad_right = c->pad_right;
    f->c_in = p->in_channels;
    f->c_out = p->out_channels;
    f->n_groups = p->num_groups;
    f->y_bytes = c->y_bytes;
    f->t_read_ns = now_ns;
    f->t_expire_ns = r->h.ttl_us ? now_ns + r->h.ttl_us * 1000ull : 0;
}

/* Charges are taken: from here on only memory can fail. */
static int admit(ingest *in, candidate *c, request *r) {
    if (!c->st && streams_open(in->streams, c->s, c->of, c->stream_name, in->now_ns, &c->st)) return -ENOMEM;
    frame *f = frames_add(in->frames, c->s, c->of->current, r->h.request_id, c->in_bytes, c->out_bytes);
    if (!f) return -ENOMEM;
    fill(f, c, r, in->now_ns);
    if (zbuf_keep(&f->payload, r->payload, in->pool)) f->error = -ENOBUFS;
    r->peer->faults = 0;
    in->next.fn(in->next.ctx, f);
    return 0;
}

static void refuse(ingest *in, candidate *c, const request *r, int error) {
    wire_header a = {.request_id = r->h.request_id,
        .seq = r->h.seq,
        .t_capture_ns = r->h.t_capture_ns,
        .epoch = c->st ? c->st->epoch : 0};
    ledger_refused(in->counts, c->of ? &c->of->counts : NULL, error);
    answer_error(in->answers, c->s, &a, c->topic, c->topic_bytes, error, c->why.text, 0, false, in->now_ns);
    ingest_fault(in, r->peer, error);
}

void ingest_frame(ingest *in, request *r) {
    candidate c = {.s = ingest_session(in, r)};
    if (!c.s) return;
    int error = find_model(in, &c, r);
    ledger_received(in->counts, c.of ? &c.of->counts : NULL);
    if (c.topic_bytes && !guard_may_send(r->peer, c.topic))
        error = no(&c, -EACCES, "the key of this client may not send to %.130s", c.topic);
    if (!error || (in->draining && error != -EACCES)) error = check(in, &c, r);
    if (!error && admit(in, &c, r)) {
        session_give_in(in->ss, c.s, c.in_bytes);
        session_give_out(in->ss, c.s, c.out_bytes);
        session_give_place(c.s);
        error = no(&c, -ENOBUFS, "no memory for one more frame");
    }
    if (error) refuse(in, &c, r, error);
}
