/* asker.c: a client of libnct for the stories of tests/e2e, driven a line at a time on stdin, one line a reply on stdout.
 * Uses the public header alone. Every frame is (2, steps) f32 of stream m/<name>; steps tell the answers apart.
 *
 *     asker ENDPOINT TIMEOUT_MS         connects; "open SESSION", or "error ERRNO NAME" and exit 1
 *     call STEPS MS                     one frame and its answer: "STATUS STEPS" or "error NAME"
 *     send STEPS TAG                    "sent" or "error NAME"
 *     recv MS                           "TAG STATUS STEPS" or "error NAME"
 *     flood N                           N frames as the window allows, tags and steps 3.. in turn; a line an answer as
 *                                       recv's, then "flood SENT ANSWERED"
 *     state                             "RECONNECTS IN_FLIGHT" */
#include <errno.h>
#include <nct.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX   4096
#define CYCLE       97
#define PATIENCE_MS 120000

static float x[2 * STEPS_MAX];

static nct_request request(const char *stream, unsigned steps, unsigned long tag) {
    return (nct_request){.model = "m",
        .stream = stream,
        .dtype = NCT_DTYPE_F32,
        .channels = 2,
        .steps = steps,
        .tag = tag,
        .seq = tag};
}

static void say_answer(nct_answer *a) {
    printf("%llu %d %u\n", (unsigned long long)a->tag, a->status, a->steps);
    nct_release(a);
}

static void say_error(int error) {
    printf("error %s\n", nct_errname(error));
}

static void flood(nct *c, const char *stream, unsigned long n) {
    unsigned long sent = 0, answered = 0;
    int error = 0;
    while (answered < n && !error) {
        nct_answer a;
        nct_request q = request(stream, 3 + sent % CYCLE, sent);
        error = sent < n ? nct_send(c, &q, x, NULL) : -EAGAIN;
        if (!error) sent++;
        if (error == -EAGAIN || error == -ETIMEDOUT) error = 0;
        int got = nct_recv(c, sent < n ? 0 : PATIENCE_MS, &a);
        if (!got) answered++, say_answer(&a);
        if (got && got != -EAGAIN && got != -ENOENT) error = got;
    }
    if (error) say_error(error);
    printf("flood %lu %lu\n", sent, answered);
}

static void command(nct *c, const char *stream, const char *line) {
    unsigned steps;
    int ms, error;
    unsigned long tag;
    nct_answer a;
    if (sscanf(line, "call %u %d", &steps, &ms) == 2 && steps <= STEPS_MAX) {
        nct_request q = request(stream, steps, 0);
        error = nct_call(c, &q, x, ms, &a);
        if (error) {
            say_error(error);
            return;
        }
        printf("%d %u\n", a.status, a.steps);
        nct_release(&a);
    } else if (sscanf(line, "send %u %lu", &steps, &tag) == 2 && steps <= STEPS_MAX) {
        nct_request q = request(stream, steps, tag);
        error = nct_send(c, &q, x, NULL);
        error ? say_error(error) : (void)printf("sent\n");
    } else if (sscanf(line, "recv %d", &ms) == 1) {
        error = nct_recv(c, ms, &a);
        error ? say_error(error) : say_answer(&a);
    } else if (sscanf(line, "flood %lu", &tag) == 1) {
        flood(c, stream, tag);
    } else if (!strcmp(line, "state\n")) {
        printf("%llu %u\n", (unsigned long long)nct_reconnects(c), nct_in_flight(c));
    } else {
        printf("what?\n");
    }
}

int main(int argc, char **argv) {
    char line[128], reason[256] = "", stream[32];
    nct *c = NULL;
    if (argc != 3) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < 2 * STEPS_MAX; i++) x[i] = (float)(i % 11) - 5;
    nct_options options;
    nct_options_init(&options);
    options.timeout_ms = atoi(argv[2]);
    options.ping_ms = 500;
    int error = nct_open_why(&c, argv[1], &options, reason);
    if (error) {
        printf("error %s %s\n", nct_errname(error), reason);
        return 1;
    }
    printf("open %016llx\n", (unsigned long long)nct_session(c));
    snprintf(stream, sizeof stream, "s%08llx", (unsigned long long)nct_session(c) & 0xffffffff);
    while (fgets(line, sizeof line, stdin)) command(c, stream, line);
    nct_close(c);
    return 0;
}
