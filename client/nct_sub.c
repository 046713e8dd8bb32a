/* nct_sub.c: a subscriber: topics, exact matching, gaps by seq.
 *
 * On the caller's thread. A subscriber has no session: it shares zsock_link.c, wake.c and the form of answers with
 * one, and nothing else. */
#include "core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRACKED_MAX 4096 /* streams whose seqs are followed: the daemon's own bound */

typedef struct track {
    struct track *next;
    char model[WIRE_NAME_MAX + 1], stream[WIRE_NAME_MAX + 1];
    uint32_t epoch;
    uint64_t seq;
} track;

struct nct_sub {
    pid_t pid;
    zlink *link;
    track *tracks; /* the last one seen first */
    uint32_t n_tracks;
    int linger_ms;
    wake *wake;
    char reason[256];
};

static int sub_reason(nct_sub *s, int error, const char *text) {
    snprintf(s->reason, sizeof s->reason, "%s", text);
    return error;
}

static int sub_owned(nct_sub *s) {
    if (getpid() == s->pid) return 0;
    return sub_reason(
        s, -EINVAL, "this subscription was opened by another process; in a forked child open a new one");
}

static void sub_sync(nct_sub *s) {
    if (s->wake) wake_set(s->wake, zlink_events(s->link) & ZLINK_IN, INT64_MAX);
}

/* "m/s", "m/s/", "m/" or "" into the prefix to subscribe to. It ends with a slash, as a topic's names do: what begins
 * with it and is a topic at all (take() looks) is exactly what was meant. */
static int prefix_of(const char *topic, char ret[WIRE_TOPIC_MAX + 1]) {
    const char *slash = strchr(topic, '/');
    size_t model_len = slash ? (size_t)(slash - topic) : 0, len = slash ? strlen(slash + 1) : 0;
    if (!*topic) return ret[0] = 0;
    if (len && slash[len] == '/') len--;
    if (!slash || !wire_name_ok(topic, model_len) || (slash[1] && !wire_name_ok(slash + 1, len))) return -EINVAL;
    snprintf(ret, WIRE_TOPIC_MAX + 1, "%.*s/%.*s%s", (int)model_len, topic, (int)len, slash + 1, len ? "/" : "");
    return 0;
}

int nct_sub_add(nct_sub *s, const char *topic) {
    char prefix[WIRE_TOPIC_MAX + 1];
    int error = sub_owned(s);
    if (error) return error;
    if (!topic || prefix_of(topic, prefix))
        return sub_reason(s, -EINVAL, "a topic is \"model/stream\", \"model/\" or \"\" (names: A-Z a-z 0-9 . _ -)");
    error = zlink_subscribe(s->link, prefix, strlen(prefix));
    if (error) return sub_reason(s, error, "the subscription was not taken");
    sub_sync(s);
    return 0;
}

int nct_sub_open(nct_sub **ret, const char *endpoint, const char *topic, const nct_options *options) {
    nct_options o;
    nct_options_init(&o);
    if (options) o = *options;
    const char *keys[3] = {o.server_key, o.public_key, o.secret_key};
    if (!endpoint || o.linger_ms < 0 || o.linger_ms > 60000) return -EINVAL;
    nct_sub *s = calloc(1, sizeof *s);
    if (!s) return -ENOMEM;
    s->pid = getpid();
    s->linger_ms = o.linger_ms;
    int error = zlink_new(&s->link, ZLINK_SUB, endpoint, keys);
    if (!error) error = zlink_renew(s->link);
    if (!error) error = nct_sub_add(s, topic);
    if (error) {
        nct_sub_close(s);
        return error;
    }
    *ret = s;
    return 0;
}

/* Move-to-front: streams come in runs. When the list is full the one unseen for longest makes room. */
static track *track_of(nct_sub *s, const char *model, const char *stream_name) {
    track **at = &s->tracks, *t;
    while ((t = *at) && (strcmp(t->stream, stream_name) || strcmp(t->model, model)) &&
           !(s->n_tracks >= TRACKED_MAX && !t->next))
        at = &t->next;
    int found = t && !strcmp(t->stream, stream_name) && !strcmp(t->model, model);
    if (!t && !(t = malloc(sizeof *t))) return NULL;
    if (*at)
        *at = t->next;
    else
        s->n_tracks++;
    if (!found) {
        *t = (track){.epoch = 0};
        memcpy(t->model, model, strlen(model) + 1);
        memcpy(t->stream, stream_name, strlen(stream_name) + 1);
    }
    t->next = s->tracks;
    s->tracks = t;
    return t;
}

/* Epochs begin at 1, so a fresh entry (0) reports nothing. A seq that does not rise is a new beginning. */
static uint64_t missed(nct_sub *s, const char *model, const char *stream_name, const wire_header *h) {
    track *t = track_of(s, model, stream_name);
    if (!t) return 0;
    uint64_t gap = t->epoch && t->epoch == h->epoch && h->seq > t->seq ? h->seq - t->seq - 1 : 0;
    t->epoch = h->epoch;
    t->seq = h->seq;
    return gap;
}

/* One message: 0 and an answer, 1 nothing to hand out, -EPROTO, -ENOMEM. */
static int take(nct_sub *s, zlink_message *m, nct_answer *ret) {
    wire_header h;
    wire_why why = {"a message must have three parts"};
    char model[WIRE_NAME_MAX + 1], name[WIRE_NAME_MAX + 1];
    if (m->parts != 3 || wire_read(&h, zlink_part_data(&m->part[1]), zlink_part_bytes(&m->part[1]), &why) ||
        wire_topic_read(zlink_part_data(&m->part[0]), zlink_part_bytes(&m->part[0]), model, name, &why))
        return sub_reason(s, -EPROTO, why.text);
    if (h.kind != WIRE_RESULT) return 1;
    if (!core_payload_fits(&h, zlink_part_bytes(&m->part[2])))
        return sub_reason(s, -EPROTO, "a result is not as long as its header says");
    nct_answer a = core_answer(&h);
    a.request_id = 0;
    a.missed = missed(s, model, name, &h);
    held *made = core_held(&a, &m->part[2], zlink_part_data(&m->part[0]), zlink_part_bytes(&m->part[0]), "", 0);
    if (!made) return sub_reason(s, -ENOMEM, "no memory for a result");
    *ret = made->answer;
    return 0;
}

static int next(nct_sub *s, int timeout_ms, nct_answer *ret) {
    int64_t deadline_ns = core_deadline(timeout_ms);
    for (;;) {
        zlink_message m;
        zlink_news news = zlink_ask(s->link);
        int error = zlink_recv(s->link, &m);
        if (!error) {
            error = take(s, &m, ret);
            zlink_message_done(&m);
            if (error <= 0) return error;
            continue;
        }
        if (news.refused == -EACCES) {
            zlink_refusal(s->link, s->reason, sizeof s->reason);
            return news.refused;
        }
        if (timeout_ms == 0) return sub_reason(s, -EAGAIN, "no result is there");
        int64_t now = core_now_ns(), ms = deadline_ns == INT64_MAX ? -1 : (deadline_ns - now + 999999) / 1000000;
        if (now >= deadline_ns) return sub_reason(s, -ETIMEDOUT, "no result in time");
        if ((error = zlink_wait(s->link, (int)ms, 0))) return sub_reason(s, error, "a signal interrupted the wait");
    }
}

int nct_sub_recv(nct_sub *s, int timeout_ms, nct_answer *ret) {
    int error = sub_owned(s);
    if (error) return error;
    error = next(s, timeout_ms, ret);
    sub_sync(s);
    return error;
}

int nct_sub_fd(nct_sub *s) {
    int error = sub_owned(s);
    if (error) return error;
    if (!s->wake) {
        int fds[2];
        if ((error = wake_new(&s->wake))) return sub_reason(s, error, "no file descriptor for nct_sub_fd()");
        zlink_fds(s->link, fds);
        wake_watch(s->wake, fds);
    }
    sub_sync(s);
    return wake_fd(s->wake);
}

const char *nct_sub_reason(const nct_sub *s) {
    return s->reason;
}

void nct_sub_close(nct_sub *s) {
    if (!s) return;
    wake_free(s->wake);
    if (sub_owned(s))
        zlink_abandon(s->link);
    else
        zlink_free(s->link, s->linger_ms);
    for (track *t; (t = s->tracks);) {
        s->tracks = t->next;
        free(t);
    }
    free(s);
}
