/* nct_recv.c: answers on their way out: nct_recv(), nct_call(), nct_forget(), nct_release().
 *
 * On the caller's thread; nct_release() on any. An answer is taken from the list that core_answer.c fills, and from then
 * on has nothing to do with the handle. */
#include "core.h"

#include <errno.h>
#include <stdlib.h>

static int take_next(nct *c, int timeout_ms, held **ret) {
    int64_t deadline_ns = core_deadline(timeout_ms);
    for (;;) {
        if ((*ret = core_take(c, 0))) return 0;
        int error = core_turn(c);
        if (error) return error;
        if ((*ret = core_take(c, 0))) return 0;
        if (timeout_ms == 0) return core_reason(c, -EAGAIN, "no answer is there");
        if (!core_wanted(c)) return core_reason(c, -ENOENT, "nothing is in flight: no answer would come");
        error = core_wait(c, deadline_ns);
        if (error == -ETIMEDOUT)
            return core_reason(c, error, "no answer within %d ms; %u frames in flight%s", timeout_ms, c->n_flight,
                c->phase == CORE_LIVE ? "" : ", no session at the moment");
        if (error) return error;
    }
}

int nct_recv(nct *c, int timeout_ms, nct_answer *ret) {
    held *h;
    int error = core_owned(c);
    if (error) return error;
    error = take_next(c, timeout_ms, &h);
    core_sync(c);
    if (!error) *ret = h->answer;
    return error;
}

/* Nobody wants p's answer. What the daemon does not have is no longer in flight either. */
static void forget(nct *c, pending *p) {
    zlink_part_done(&p->payload);
    p->forgotten = 1;
    if (!p->sent) core_remove(c, p);
}

static int call(nct *c, const nct_request *q, const void *payload, int timeout_ms, held **ret) {
    int64_t deadline_ns = core_deadline(timeout_ms);
    uint64_t id;
    int error = core_send(c, q, payload, deadline_ns, &id);
    while (!error && !(*ret = core_take(c, id))) {
        error = core_turn(c);
        if (!error && (*ret = core_take(c, id))) break;
        if (!error && !core_find(c, id)) return core_reason(c, -ENOMEM, "no memory for the answer");
        if (!error) error = core_wait(c, deadline_ns);
        if (!error) continue;
        pending *p = core_find(c, id);
        if (p) forget(c, p);
        if (error == -ETIMEDOUT)
            core_reason(c, error, "no answer within %d ms%s", timeout_ms,
                c->phase == CORE_LIVE ? "" : ", no session at the moment");
    }
    return error;
}

int nct_call(nct *c, const nct_request *q, const void *payload, int timeout_ms, nct_answer *ret) {
    held *h;
    int error = core_owned(c);
    if (error) return error;
    if (timeout_ms < 1) return core_reason(c, -EINVAL, "timeout_ms is %d, nct_call() needs 1 or more", timeout_ms);
    error = call(c, q, payload, timeout_ms, &h);
    core_sync(c);
    if (!error) *ret = h->answer;
    return error;
}

int nct_forget(nct *c, uint64_t request_id) {
    int error = core_owned(c);
    if (error) return error;
    pending *p = core_find(c, request_id);
    held *h = p || !request_id ? NULL : core_take(c, request_id);
    if (p && !p->forgotten)
        forget(c, p);
    else if (h)
        nct_release(&h->answer);
    else
        return core_reason(c, -ENOENT, "request %llu is not in flight", (unsigned long long)request_id);
    core_sync(c);
    return 0;
}

void nct_release(nct_answer *a) {
    held *h = a ? a->owner : NULL;
    if (!h) return;
    a->owner = NULL;
    a->payload = NULL;
    a->text = a->model = a->stream = "";
    zlink_part_done(&h->payload);
    free(h);
}
