/* session.c: who is connected and what they may still send. Owns the sessions. Called by ingest (open, end, admit),
 * the answers (charges, failures) and the engine's copied-in sink; loop thread. */
#include "session.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "arena.h"
#include "zsock.h"

static const void *id_key(uint64_t id) {
    return (const void *)(uintptr_t)id;
}

int sessions_init(sessions *ss, const session_limits *limits, session_sink gone) {
    *ss = (sessions){.limits = *limits, .gone = gone};
    return map_init(&ss->by_id, 256);
}

void sessions_done(sessions *ss) {
    assert(!ss->n);
    map_done(&ss->by_id);
}

/* 64 random bits: a session's id is also what another connection would have to guess. */
static int fresh_id(const sessions *ss, uint64_t *ret) {
    uint64_t id;
    do
        if (getrandom(&id, sizeof id, 0) != sizeof id) return -EIO;
    while (!id || sessions_find(ss, id));
    *ret = id;
    return 0;
}

int sessions_open(sessions *ss, session **ret, struct zpeer *peer, const char *client, session_why *why) {
    uint64_t id;
    if (ss->n >= ss->limits.max_clients) {
        snprintf(why->text, sizeof why->text, "%u clients are connected, and limits.max_clients is %u", ss->n,
            ss->limits.max_clients);
        return -EUSERS;
    }
    int error = fresh_id(ss, &id);
    if (error) return error;
    session *s = calloc(1, sizeof *s);
    if (!s) return -ENOMEM;
    s->id = id;
    s->refs = 1;
    s->peer = peer;
    s->next = ss->first;
    snprintf(s->client, sizeof s->client, "%s", client);
    if (ss->first) ss->first->prev = s;
    ss->first = s;
    ss->n++;
    map_add(&ss->by_id, &s->by_id, id_key(id), NULL);
    if (peer) peer->session = s;
    *ret = s;
    return 0;
}

session *sessions_find(const sessions *ss, uint64_t id) {
    map_link *l = map_find(&ss->by_id, id_key(id), NULL);
    return l ? (session *)((char *)l - offsetof(session, by_id)) : NULL;
}

void sessions_end(sessions *ss, session *s) {
    if (s->gone) return;
    s->gone = true;
    map_remove(&ss->by_id, &s->by_id);
    if (s->prev) s->prev->next = s->next;
    if (s->next) s->next->prev = s->prev;
    if (ss->first == s) ss->first = s->next;
    s->next = s->prev = NULL;
    ss->n--;
    if (s->peer) s->peer->session = NULL;
    s->peer = NULL;
    ss->gone.fn(ss->gone.ctx, s);
    session_unref(s);
}

void sessions_fail(sessions *ss, session *s) {
    if (session_gone(s)) return;
    s->failed = true;
    s->next_failed = ss->failed;
    ss->failed = session_ref(s);
}

void sessions_reap(sessions *ss) {
    while (ss->failed) {
        session *s = ss->failed;
        ss->failed = s->next_failed;
        sessions_end(ss, s);
        session_unref(s);
    }
}

session *session_ref(session *s) {
    s->refs++;
    return s;
}

void session_unref(session *s) {
    if (--s->refs) return;
    assert(s->gone && !s->in_flight && !s->in_bytes && !s->out_bytes && !s->held_first);
    free(s);
}

/* ---- admission ------------------------------------------------------------------------------------------------- */

static uint64_t free_in(const sessions *ss) {
    return ss->limits.queue_bytes - ss->in_used;
}
static uint64_t free_out(const sessions *ss) {
    return ss->limits.arena_bytes - ss->out_used;
}

size_t session_out_charge(size_t result_bytes) {
    return result_bytes < ARENA_PAGE ? result_bytes : (result_bytes + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
}

static void learn(double *mean, size_t charge, bool first) {
    *mean = first ? (double)charge : *mean + ((double)charge - *mean) / 16;
}

int session_admit(sessions *ss, session *s, size_t in_bytes, size_t out_bytes, session_why *why) {
    uint32_t most = ss->limits.window + SESSION_SLACK;
    if (s->in_flight >= most) {
        snprintf(why->text, sizeof why->text,
            "%u frames are in flight; the window is %u now, and %u is the most it ever takes", s->in_flight,
            session_window(ss, s), most);
        return -EAGAIN;
    }
    if (s->in_bytes + in_bytes > free_in(ss)) {
        snprintf(why->text, sizeof why->text,
            "%zu bytes of input are too many: %zu of this session wait, and %llu of %llu are free", in_bytes,
            s->in_bytes, (unsigned long long)free_in(ss), (unsigned long long)ss->limits.queue_bytes);
        return -ENOBUFS;
    }
    if (s->out_bytes + out_bytes > free_out(ss)) {
        snprintf(why->text, sizeof why->text,
            "%zu bytes of result are too many: this session has %zu, and %llu of %llu are free", out_bytes,
            s->out_bytes, (unsigned long long)free_out(ss), (unsigned long long)ss->limits.arena_bytes);
        return -ENOBUFS;
    }
    learn(&s->mean_in, in_bytes, s->mean_in == 0);
    learn(&s->mean_out, out_bytes, s->mean_out == 0);
    s->in_bytes += in_bytes;
    s->out_bytes += out_bytes;
    s->in_flight++;
    ss->in_used += in_bytes;
    ss->out_used += out_bytes;
    return 0;
}

void session_give_in(sessions *ss, session *s, size_t bytes) {
    assert(bytes <= s->in_bytes && bytes <= ss->in_used);
    s->in_bytes -= bytes;
    ss->in_used -= bytes;
}

void session_give_out(sessions *ss, session *s, size_t bytes) {
    assert(bytes <= s->out_bytes && bytes <= ss->out_used);
    s->out_bytes -= bytes;
    ss->out_used -= bytes;
}

void session_give_place(session *s) {
    assert(s->in_flight);
    s->in_flight--;
}

/* How many frames of this size the free room would take. */
static double frames_in(uint64_t room, double mean) {
    return mean > 0 ? (double)room / mean : 1e9;
}

uint32_t session_window(const sessions *ss, const session *s) {
    double in = frames_in(free_in(ss), s->mean_in), out = frames_in(free_out(ss), s->mean_out);
    double n = in < out ? in : out;
    return n < 1 ? 1 : n > ss->limits.window ? ss->limits.window : (uint32_t)n;
}
