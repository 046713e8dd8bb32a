/* core.c: one turn of a session: news of the connection, messages, HELLO, sending again, PING.
 *
 * Called by every public call, on the caller's thread; there is no other. The phases:
 *
 *     CONNECTING --connected, HELLO--> GREETING --WELCOME--> LIVE
 *         ^------- cut, silence, session unknown, GOAWAY ran out ----'
 *
 * A lost session always gets a new socket: what the old one still held cannot mix with the new one. */
#include "core.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MS              INT64_C(1000000)
#define MESSAGES_A_TURN 64
#define HELLO_AGAIN_MS  200  /* after a HELLO that led to nothing */
#define LEAVE_MARGIN_MS 1000 /* beyond GOAWAY's drain_ms */
#define REFUSED_AGAIN_MS                                                                                             \
    1000 /* libzmq gives a connection up whose handshake was refused: the key may be back by then */

int64_t core_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t core_deadline(int timeout_ms) {
    return timeout_ms < 0 ? INT64_MAX : core_now_ns() + timeout_ms * MS;
}

int core_reason(nct *c, int error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->reason, sizeof c->reason, format, args);
    va_end(args);
    return error;
}

int core_owned(nct *c) {
    pid_t now = getpid();
    if (now == c->pid) return 0;
    return core_reason(c, -EINVAL, "this handle was opened by process %ld; in a forked child (%ld) open a new one",
        (long)c->pid, (long)now);
}

int core_send_header(nct *c, uint8_t kind, uint64_t id, const char *topic, const char *json) {
    wire_header h = {.kind = kind, .session = kind == WIRE_HELLO ? 0 : c->session, .request_id = id};
    uint8_t bytes[WIRE_HEADER_BYTES];
    zlink_part payload = {.held = 0};
    if (json && *json) {
        int error = zlink_part_init(&payload, strlen(json));
        if (error) return error;
        memcpy(zlink_part_data(&payload), json, strlen(json));
    }
    wire_write(bytes, &h);
    int error = zlink_send(c->link, topic, strlen(topic), bytes, sizeof bytes, &payload);
    zlink_part_done(&payload);
    c->blocked = error == -EAGAIN;
    return error;
}

void core_leave(nct *c, int64_t drain_ms) {
    if (c->leaving) return;
    c->leaving = 1;
    c->leave_ns = core_now_ns() + (drain_ms + LEAVE_MARGIN_MS) * MS;
}

/* What a cut does to one frame: nobody waits for it; it must not be sent again; or it goes into the next session. */
static int keep_after_cut(nct *c, pending *p, const char *why) {
    if (p->forgotten) return 0;
    if (!p->state && c->o.on_cut == NCT_RESEND && !p->h.epoch) {
        p->sent = 0;
        return 1;
    }
    char text[320];
    snprintf(text, sizeof text, "%s before the answer; %s", why,
        p->state                  ? "stream mode sends nothing again, the stream's state is gone"
        : c->o.on_cut == NCT_DROP ? "nothing is sent again, as asked"
                                  : "the epoch that the frame names has ended");
    core_local_answer(c, p, -ESTALE, text);
    return 0;
}

int core_lost(nct *c, const char *why) {
    core_reason(c, 0, "%s", why);
    c->hello_after_ns = core_now_ns() + (c->phase == CORE_LIVE ? 0 : HELLO_AGAIN_MS * MS);
    c->phase = CORE_CONNECTING;
    c->leaving = c->blocked = c->gone = 0;
    c->pinged_ns = c->retry_ns = 0;
    for (stream *s = c->streams; s; s = s->next) {
        s->open_sent = 0;
        s->stale |= s->stateful;
    }
    for (uint32_t i = 0; i < c->n_flight;)
        if (keep_after_cut(c, c->flight[i], why))
            i++;
        else
            core_remove(c, c->flight[i]);
    if (c->waiting) {
        c->waiting->sent = 0;
        if (c->waiting->kind == WIRE_CLOSE) c->waiting->done = 1, c->waiting->status = -ESTALE;
    }
    int error = zlink_renew(c->link);
    if (!error && c->wake) {
        int fds[2];
        zlink_fds(c->link, fds);
        wake_watch(c->wake, fds);
    }
    return error ? core_reason(c, error, "no new connection to %s: %s", c->endpoint, nct_strerror(error)) : 0;
}

static int read_messages(nct *c) {
    zlink_message m;
    for (int n = 0; n < MESSAGES_A_TURN; n++) {
        if (zlink_recv(c->link, &m)) return 0;
        core_message(c, &m);
        zlink_message_done(&m);
    }
    return 1; /* more may be there */
}

static int greet(nct *c, int64_t now) {
    char json[256], previous[48] = "";
    if (now < c->hello_after_ns) return 0;
    if (c->session)
        snprintf(previous, sizeof previous, ", \"previous\": \"%016llx\"", (unsigned long long)c->session);
    snprintf(json, sizeof json, "{\"client\": \"%s%slibnct %s\"%s}", c->name, c->name[0] ? ", " : "", nct_version(),
        previous);
    c->hello_id = c->next_id++;
    int error = core_send_header(c, WIRE_HELLO, c->hello_id, "", json);
    if (error) return error == -EAGAIN ? 0 : error;
    c->phase = CORE_GREETING;
    c->heard_ns = now;
    c->pinged_ns = 0;
    return 0;
}

static int keep_alive(nct *c, int64_t now) {
    if (c->leaving && now >= c->leave_ns) return core_lost(c, "the daemon said goodbye and did not go");
    int waits =
        c->phase == CORE_GREETING || (c->phase == CORE_LIVE && (c->n_flight || (c->waiting && c->waiting->sent)));
    if (!waits) {
        c->pinged_ns = 0;
        return 0;
    }
    int64_t silence = c->o.ping_ms * MS;
    if (c->pinged_ns && now - c->pinged_ns >= silence) return core_lost(c, "the daemon fell silent (no PONG)");
    if (!c->pinged_ns && now - c->heard_ns >= silence) {
        c->ping_id = c->next_id++;
        int error = core_send_header(c, WIRE_PING, c->ping_id, "", NULL);
        if (error && error != -EAGAIN) return error;
        c->pinged_ns = now;
    }
    return 0;
}

int core_send_frame(nct *c, pending *p) {
    uint8_t bytes[WIRE_HEADER_BYTES];
    p->h.session = c->session;
    wire_write(bytes, &p->h);
    int error = zlink_send(c->link, p->topic, p->topic_len, bytes, sizeof bytes, &p->payload);
    c->blocked = error == -EAGAIN;
    p->sent = !error;
    return error;
}

static int send_opens(nct *c) {
    char topic[WIRE_TOPIC_MAX + 1];
    for (stream *s = c->streams; s; s = s->next) {
        if (!s->facts || s->open_sent) continue;
        wire_topic_write(topic, s->model, s->name);
        int error = core_send_header(c, WIRE_OPEN, c->next_id++, topic, s->facts);
        if (error) return error;
        s->open_sent = 1;
    }
    return 0;
}

/* In a live session: streams' facts first, then what waits to be sent again, oldest first, inside the window. */
static int go_on(nct *c) {
    int error = send_opens(c);
    uint32_t out = 0;
    for (uint32_t i = 0; i < c->n_flight; i++) out += c->flight[i]->sent != 0;
    for (uint32_t i = 0; !error && i < c->n_flight && out < c->window; i++) {
        pending *p = c->flight[i];
        if (p->sent) continue;
        p->h.flags |= WIRE_RESENT;
        error = core_send_frame(c, p);
        out++;
    }
    return error == -EAGAIN ? 0 : error;
}

/* The handshake was refused. nct_open() ends with it; a session that was there tries again. */
static void refused(nct *c, int error) {
    c->refusal = error;
    if (c->session && !c->retry_ns) c->retry_ns = core_now_ns() + REFUSED_AGAIN_MS * MS;
}

static int refused_again(nct *c) {
    char why[256];
    zlink_refusal(c->link, why, sizeof why);
    return core_lost(c, why);
}

int core_turn(nct *c) {
    zlink_news news = zlink_ask(c->link);
    if (news.refused && c->phase == CORE_CONNECTING) refused(c, news.refused);
    if (read_messages(c)) return 0;
    if (c->blocked && (zlink_events(c->link) & ZLINK_OUT)) c->blocked = 0;
    int64_t now = core_now_ns();
    int error = 0;
    if (news.cut)
        error = core_lost(c, "the connection was cut");
    else if (c->gone)
        error = core_lost(c, "the daemon does not know the session any more");
    else if (c->retry_ns && now >= c->retry_ns)
        error = refused_again(c);
    if (!error) error = keep_alive(c, now);
    if (!error && c->phase == CORE_CONNECTING) error = greet(c, core_now_ns());
    if (!error && c->phase == CORE_LIVE && !c->leaving) error = go_on(c);
    return error;
}

int64_t core_due_ns(const nct *c) {
    if (c->phase == CORE_CONNECTING && c->retry_ns) return c->retry_ns;
    if (c->phase == CORE_CONNECTING) return c->blocked ? INT64_MAX : c->hello_after_ns;
    int64_t due = c->leaving ? c->leave_ns : INT64_MAX;
    if (c->phase == CORE_GREETING || c->n_flight || (c->waiting && c->waiting->sent)) {
        int64_t ping_ns = (c->pinged_ns ? c->pinged_ns : c->heard_ns) + c->o.ping_ms * MS;
        if (ping_ns < due) due = ping_ns;
    }
    return due;
}

int core_wait(nct *c, int64_t deadline_ns) {
    int64_t now = core_now_ns(), until = core_due_ns(c);
    if (now >= deadline_ns) return -ETIMEDOUT;
    if (deadline_ns < until) until = deadline_ns;
    int64_t ms = until == INT64_MAX ? -1 : until <= now ? 0 : (until - now + MS - 1) / MS;
    int error = zlink_wait(c->link, ms > 3600000 ? 3600000 : (int)ms, c->blocked);
    return error == -EINTR ? core_reason(c, -EINTR, "a signal interrupted the wait") : error;
}

int core_wanted(const nct *c) {
    int wanted = 0;
    for (uint32_t i = 0; i < c->n_flight; i++) wanted += !c->flight[i]->forgotten;
    return wanted;
}

void core_sync(nct *c) {
    if (!c->wake) return;
    int events = zlink_events(c->link);
    int left = c->ready || (events & ZLINK_IN) || (c->blocked && (events & ZLINK_OUT));
    wake_set(c->wake, left, core_due_ns(c));
}
