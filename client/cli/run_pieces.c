/* run_pieces.c: an input's frames on their way to the daemon and back. Called by run_file.c.
 *
 * Three roads: the whole input as one frame; pieces in two passes (OBSERVE gathers the statistics of the whole, merged in the
 * order of the pieces; GIVEN applies them); windows, each normalised by itself. Frames are kept in flight up to a depth; results
 * are taken in order. A frame that the daemon had no room for is sent again after a pause. */
#include "run.h"
#include "run_source.h"
#include "cli.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    float *payload;
    nct_request request;
    uint64_t k;                     /* frame number of this pass */
    int answered, attempts, unsent; /* unsent: there was no place in the window */
    double retry_s;                 /* > 0: to be sent again then */
    nct_answer answer;
} slot;

typedef struct {
    run *r;
    run_result *f;
    source src;
    output *out;
    plot *plot;
    slot slots[RUN_DEPTH_MAX];
    uint64_t depth, sent, taken;
    double heard_s;
    double *stats; /* G x {count, mean, M2} of the whole */
    int observe, given, plain;
} traffic;

static int refuse(run_result *f, int error, int fatal, const char *text) {
    if (text) snprintf(f->why.text, sizeof f->why.text, "%s", text);
    if (fatal) f->fatal = fatal;
    return error;
}

static void pause_s(double s) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)}, NULL);
}

/* ---- sending ----------------------------------------------------------------------------------------------- */
static int call_failed(traffic *t, int error) {
    if (error == -EINTR && cli_stopped) return refuse(t->f, -EINTR, CLI_FAILED, "stopped");
    if (t->r->own.pid && !private_alive(&t->r->own)) {
        private_ended(&t->r->own, "while it worked", &t->f->why);
        return refuse(t->f, -EIO, CLI_NO_DAEMON, NULL);
    }
    char text[512];
    if (error == -ETIMEDOUT)
        snprintf(text, sizeof text, "the daemon does not answer for %g s", t->r->o.timeout_s);
    else
        snprintf(text, sizeof text, "the daemon: %s", nct_reason(t->r->client));
    return refuse(t->f, error, cli_exit_of(error) == CLI_FAILED ? 0 : cli_exit_of(error), text);
}

/* Send the slot's frame, or mark it as unsent when there is no place (or no session) for it now. */
static int post(traffic *t, slot *s) {
    int e = nct_send(t->r->client, &s->request, s->payload, NULL);
    s->retry_s = 0;
    s->unsent = e == -EAGAIN;
    if (!e || (e == -EINTR && cli_stopped)) return e ? call_failed(t, e) : 0;
    if (e == -EINTR) s->unsent = 1;
    if (!s->unsent) return call_failed(t, e);
    int dead = t->r->own.pid && !private_alive(&t->r->own);
    return dead || cli_now_s() - t->heard_s > t->r->o.timeout_s ? call_failed(t, -ETIMEDOUT) : 0;
}

static int is_busy(int status) {
    return status == -EAGAIN || status == -ENOBUFS || status == -ETIME;
}

/* An answer: kept for its turn; "no room" is a reason to send again, for as long as --timeout says. */
static int got(traffic *t, nct_answer *a) {
    slot *s = NULL;
    for (uint64_t i = 0; i < t->depth && !s; i++)
        if (!t->slots[i].answered && t->slots[i].k == a->tag && a->tag >= t->taken && a->tag < t->sent)
            s = &t->slots[i];
    t->heard_s = cli_now_s();
    if (!s || a->kind == NCT_CLOSED) {
        nct_release(a);
        return 0;
    }
    if (is_busy(a->status) && ++s->attempts * 0.05 < t->r->o.timeout_s) {
        s->retry_s = cli_now_s() + 0.05;
        nct_release(a);
        return 0;
    }
    if (a->status) {
        char text[512];
        int status = a->status;
        snprintf(text, sizeof text, "%s", *a->text ? a->text : nct_strerror(status));
        nct_release(a);
        return refuse(t->f, status, cli_exit_of(status) == CLI_TRY_AGAIN ? CLI_TRY_AGAIN : 0, text);
    }
    s->answer = *a;
    s->answered = 1;
    return 0;
}

/* Nothing came for a while: does anybody live there? */
static int silence(traffic *t) {
    if (t->r->own.pid && !private_alive(&t->r->own)) return call_failed(t, -ETIMEDOUT);
    if (cli_now_s() - t->heard_s < t->r->o.timeout_s) return 0;
    int e = nct_ping(t->r->client, 2000, NULL);
    if (e == -EINTR && !cli_stopped) return 0;
    if (e) return call_failed(t, e);
    t->heard_s = cli_now_s();
    return 0;
}

/* Send what has to be sent again; *wait_s shrinks to when the next one is due. */
static int post_again(traffic *t, double *wait_s) {
    double now = cli_now_s();
    int e = 0;
    for (uint64_t k = t->taken; k < t->sent && !e; k++) {
        slot *s = &t->slots[k % t->depth];
        if (s->unsent || (s->retry_s > 0 && s->retry_s <= now)) e = post(t, s);
        double due = s->unsent ? 0.01 : s->retry_s > 0 ? s->retry_s - now : *wait_s;
        if (due < *wait_s) *wait_s = due;
    }
    return e;
}

/* Wait until frame t->taken is answered. */
static int await(traffic *t) {
    slot *next = &t->slots[t->taken % t->depth];
    while (!next->answered) {
        nct_answer a;
        double wait_s = 0.5;
        int e = post_again(t, &wait_s);
        if (e) return e;
        e = nct_recv(t->r->client, (int)(wait_s * 1000) + 1, &a);
        if (!e)
            e = got(t, &a);
        else if (e == -ETIMEDOUT)
            e = silence(t);
        else if (e == -ENOENT)
            pause_s(wait_s < 0.01 ? wait_s : 0.01), e = 0; /* all of them wait to be sent again */
        else if (e == -EINTR && !cli_stopped)
            e = 0;
        else
            e = call_failed(t, e);
        if (e) return e;
    }
    return 0;
}

/* ---- one frame there and back ------------------------------------------------------------------------------ */
/* Fill the slot with frame k. 0; 1: there is no frame k; -ENODATA: the input is shorter than it said; or an error. */
static int make(traffic *t, slot *s, uint64_t k) {
    pieces *g = &t->f->plan;
    piece p;
    int64_t lo, hi;
    if ((t->plain && k) || (!t->plain && g->n >= 0 && (int64_t)k >= g->n)) return 1;
    pieces_at(g, (int64_t)k, &p);
    pieces_range(g, &p, &lo, &hi);
    int e = source_want(&t->src, t->plain ? 0 : lo, t->plain ? g->t_in : hi, &t->f->why);
    if (e) return e;
    if (t->src.end >= 0 && g->t_in < 0) {
        t->f->t_in = t->src.end;
        if (t->src.end == 0) return 1;
        e = pieces_end(g, &t->r->model.params, t->src.end, &t->f->why);
        return e ? e : make(t, s, k);
    }
    if (t->src.end >= 0 && t->src.end < g->t_in) {
        t->f->t_in = t->src.end;
        return -ENODATA;
    }
    s->request = (nct_request){.model = t->r->model.name,
        .stream = t->r->stream,
        .dtype = NCT_DTYPE_F32,
        .flags = NCT_FLAG_NO_PUBLISH,
        .channels = (uint32_t)t->src.channels,
        .tag = k,
        .seq = k,
        .steps = (uint32_t)(t->plain ? g->t_in : p.n_in),
        .pos = (uint64_t)(t->plain ? 0 : p.in0)};
    if (!t->plain) s->request.flags |= NCT_FLAG_INNER_LEFT | NCT_FLAG_INNER_RIGHT;
    if (t->observe) s->request.flags |= NCT_FLAG_OBSERVE;
    if (t->given) {
        s->request.given = t->stats;
        s->request.n_groups = (uint32_t)t->r->model.params.num_groups;
    }
    if (t->plain)
        source_plain(&t->src, 0, g->t_in, s->payload);
    else
        source_gather(&t->src, g, &p, s->payload);
    return 0;
}

static int take(traffic *t, const nct_answer *a) {
    const pieces *g = &t->f->plan;
    uint32_t groups = (uint32_t)t->r->model.params.num_groups;
    piece p = {.out0 = 0, .n_out = g->t_out};
    if (!t->plain) pieces_at(g, (int64_t)t->taken, &p);
    if (t->observe) {
        if (a->payload_bytes != 24ull * groups)
            return refuse(t->f, -EPROTO, CLI_CONFIG, "the daemon's statistics have the wrong size");
        double *part = malloc(a->payload_bytes);
        if (!part) return refuse(t->f, -ENOMEM, 0, "no memory for statistics");
        memcpy(part, a->payload, a->payload_bytes);
        pieces_merge(t->stats, part, groups);
        free(part);
        return 0;
    }
    if (a->steps != p.n_out || a->channels != (uint32_t)t->r->model.params.out_channels || a->dtype != NCT_DTYPE_F32)
        return refuse(t->f, -EPROTO, CLI_CONFIG, "the daemon's result has another shape than the layer makes");
    if (a->flags & NCT_FLAG_CPU_FALLBACK) run_warn(t->r, t->f, "computed on the CPU after a GPU fault");
    int e = output_write(t->out, a->payload, p.out0, p.n_out, &t->f->why);
    if (!e && t->plot) plot_add(t->plot, a->payload, p.out0, p.n_out);
    return e;
}

/* One pass over all frames: up to `depth` in flight, taken in order. */
static int pass(traffic *t) {
    int e = 0, over = 0;
    t->sent = t->taken = 0;
    t->heard_s = cli_now_s();
    for (;;) {
        while (!over && t->sent - t->taken < t->depth) {
            slot *s = &t->slots[t->sent % t->depth];
            s->answered = s->attempts = 0;
            s->k = t->sent;
            e = make(t, s, t->sent);
            if (e == 1) {
                over = 1;
                break;
            }
            if (t->sent == t->taken) t->heard_s = cli_now_s(); /* a pipe may have been silent for long */
            if (!e) e = post(t, s);
            if (e) return e;
            t->sent++;
        }
        if (t->taken == t->sent) return 0;
        slot *s = &t->slots[t->taken % t->depth];
        e = await(t);
        if (e) return e;
        e = take(t, &s->answer);
        progress_add(&t->r->bar, s->request.steps);
        t->f->frames++;
        nct_release(&s->answer);
        if (e) return e;
        t->taken++;
        if (cli_stopped) return refuse(t->f, -EINTR, CLI_FAILED, "stopped");
    }
}

/* ---- the roads --------------------------------------------------------------------------------------------- */
/* Answers of frames in flight are of no use any more: they must not meet the next input. */
static void forget(traffic *t) {
    for (uint64_t i = 0; i < t->depth; i++)
        if (t->slots[i].answered) nct_release(&t->slots[i].answer);
    while (t->sent > t->taken && nct_in_flight(t->r->client) > 0 && !t->f->fatal && !cli_stopped) {
        nct_answer a;
        int e = nct_recv(t->r->client, 1000, &a);
        if (e) break;
        nct_release(&a);
    }
}

static int check_count(traffic *t) {
    const nct_params *p = &t->r->model.params;
    double want = (double)t->f->plan.t_out * p->out_channels / p->num_groups;
    for (int g = 0; g < p->num_groups; g++)
        if (t->stats[3 * g] != want) {
            snprintf(t->f->why.text, sizeof t->f->why.text, "group %d was counted over %.0f values instead of %.0f",
                g, t->stats[3 * g], want);
            return -EPROTO;
        }
    return 0;
}

static int two_passes(traffic *t) {
    t->stats = calloc((size_t)t->r->model.params.num_groups * 3, sizeof *t->stats);
    if (!t->stats) return refuse(t->f, -ENOMEM, 0, "no memory for statistics");
    t->observe = 1;
    int e = pass(t);
    t->observe = 0;
    t->given = 1;
    if (!e) e = check_count(t);
    if (!e) e = pass(t);
    return e;
}

int run_frames(run *r, run_result *f, audio *a, output *o, plot *p) {
    const pieces *g = &f->plan;
    traffic t = {.r = r, .f = f, .out = o, .plot = p, .plain = !f->n_pieces && !r->o.windowed};
    int live = g->t_in < 0;
    t.depth = t.plain || live ? 1 : RUN_DEPTH_MAX;
    if (t.depth > r->daemon.window) t.depth = r->daemon.window;
    int64_t steps = t.plain ? g->t_in : (g->outs - 1) * g->stride + g->span, total = 0;
    int e = source_init(&t.src, a, g, &f->why);
    for (uint64_t i = 0; i < t.depth && !e; i++) {
        t.slots[i].payload = malloc((size_t)steps * (size_t)t.src.channels * sizeof(float));
        if (!t.slots[i].payload) e = refuse(f, -ENOMEM, 0, "no memory for frames");
    }
    if (!live) total = t.plain ? g->t_in : g->n * (g->span - g->stride) + g->t_out * g->stride;
    progress_of(&r->bar, live ? -1 : (double)total * (f->n_pieces ? 2 : 1));
    if (!e) e = f->n_pieces ? two_passes(&t) : pass(&t);
    if (r->client) forget(&t);
    for (uint64_t i = 0; i < t.depth; i++) free(t.slots[i].payload);
    free(t.stats);
    source_done(&t.src);
    return e == -ENODATA ? RUN_SHORT : e;
}
