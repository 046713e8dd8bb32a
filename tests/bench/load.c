/* load.c: see load.h. A client never has more than its window in flight; it reads all answers that are there before
 * it sends again. */
#include "load.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>
#include "wire.h"

enum { ANSWER_MS = 20000 };
typedef struct {
    load_client *c;
    void *socket;
    uint64_t session, next, in_flight;
    uint64_t t_sent_ns[LOAD_WINDOW_MAX]; /* by request id: the window is no larger */
    uint32_t steps[LOAD_WINDOW_MAX];
} run;

uint64_t load_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void keep(void *data, void *hint) {
    (void)data, (void)hint;
}

static int fail(run *r, const char *what) {
    snprintf(r->c->failure, sizeof r->c->failure, "client %s: %.150s: %s", r->c->stream, what, zmq_strerror(errno));
    return -1;
}

static int send_parts(run *r, const char *topic, const wire_header *h, const void *payload, size_t bytes) {
    unsigned char header[WIRE_HEADER_BYTES];
    zmq_msg_t m;
    wire_write(header, h);
    if (zmq_send(r->socket, topic, strlen(topic), ZMQ_SNDMORE) < 0) return fail(r, "send");
    if (zmq_send(r->socket, header, sizeof header, ZMQ_SNDMORE) < 0) return fail(r, "send");
    zmq_msg_init_data(&m, (void *)(uintptr_t)payload, bytes, keep, NULL);
    if (zmq_msg_send(&m, r->socket, 0) < 0) return fail(r, "send");
    return 0;
}

static int send_frame(run *r) {
    load_client *c = r->c;
    char topic[WIRE_TOPIC_MAX + 1];
    size_t slot = r->next % LOAD_WINDOW_MAX;
    uint32_t steps = c->spread ? c->steps - (uint32_t)(r->next % (c->spread + 1)) : c->steps;
    wire_header h = {.kind = WIRE_FRAME,
        .dtype = 1,
        .session = r->session,
        .request_id = r->next,
        .seq = r->next,
        .channels = c->channels,
        .steps = steps};
    wire_topic_write(topic, c->model, c->stream);
    r->steps[slot] = steps;
    r->t_sent_ns[slot] = load_now_ns();
    if (send_parts(r, topic, &h, c->payload, (size_t)c->channels * steps * 4)) return -1;
    r->next++;
    r->in_flight++;
    c->sent++;
    return 0;
}

/* Reads one answer; the payload is looked at by its size alone. */
static int recv_answer(run *r, int flags, wire_header *ret, size_t *ret_bytes) {
    char topic[256];
    unsigned char header[WIRE_HEADER_BYTES];
    zmq_msg_t m;
    if (zmq_recv(r->socket, topic, sizeof topic, flags) < 0) return errno == EAGAIN ? 0 : fail(r, "recv");
    if (zmq_recv(r->socket, header, sizeof header, 0) != sizeof header) return fail(r, "header");
    zmq_msg_init(&m);
    if (zmq_msg_recv(&m, r->socket, 0) < 0) return fail(r, "payload");
    *ret_bytes = zmq_msg_size(&m);
    if (wire_read(ret, header, sizeof header, NULL)) return fail(r, "header");
    if (ret->kind == WIRE_ERROR && !r->c->failure[0])
        snprintf(r->c->failure, sizeof r->c->failure, "client %s: %.*s", r->c->stream, (int)*ret_bytes,
            (const char *)zmq_msg_data(&m));
    zmq_msg_close(&m);
    return 1;
}

static int on_answer(run *r, const wire_header *h, size_t bytes) {
    load_client *c = r->c;
    size_t slot = h->request_id % LOAD_WINDOW_MAX;
    r->in_flight--;
    c->answered++;
    if (h->kind == WIRE_ERROR) {
        c->errors++;
        return 0;
    }
    if (bytes != (size_t)c->channels * r->steps[slot] * 4) return fail(r, "a result of the wrong size");
    c->results++;
    if (atomic_load_explicit(c->phase, memory_order_relaxed) != 1) return 0;
    c->measured++;
    if (c->latency) hist_add(c->latency, load_now_ns() - r->t_sent_ns[slot]);
    return 0;
}

static int say_hello(run *r) {
    wire_header hello = {.kind = WIRE_HELLO}, h;
    size_t bytes;
    if (send_parts(r, "", &hello, "{}", 2)) return -1;
    if (recv_answer(r, 0, &h, &bytes) <= 0) return fail(r, "no WELCOME");
    if (h.kind != WIRE_WELCOME) return -1;
    r->session = h.session;
    if (h.window && h.window < (uint32_t)r->c->window) r->c->window = (int)h.window;
    return 0;
}

static int loop(run *r) {
    wire_header h;
    size_t bytes;
    for (;;) {
        bool finish = atomic_load_explicit(r->c->phase, memory_order_relaxed) == 2;
        while (!finish && r->in_flight < (uint64_t)r->c->window)
            if (send_frame(r)) return -1;
        if (r->in_flight == 0) return 0;
        int got = recv_answer(r, 0, &h, &bytes);
        if (got == 0) return fail(r, "no answer");
        for (; got > 0; got = recv_answer(r, ZMQ_DONTWAIT, &h, &bytes))
            if (on_answer(r, &h, bytes)) return -1;
        if (got < 0) return -1;
    }
}

void *load_run(void *client) {
    load_client *c = client;
    run r = {.c = c, .next = 1};
    int linger = 0, hwm = 4 * LOAD_WINDOW_MAX, wait_ms = ANSWER_MS;
    r.socket = zmq_socket(c->zmq, ZMQ_DEALER);
    if (!r.socket) {
        fail(&r, "socket");
        return NULL;
    }
    zmq_setsockopt(r.socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(r.socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(r.socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(r.socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    if (zmq_connect(r.socket, c->endpoint))
        fail(&r, "connect");
    else if (!c->nctd || !say_hello(&r))
        loop(&r);
    zmq_close(r.socket);
    return NULL;
}

int load_spawn(char *const argv[], const char *log) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    int fd = log ? open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    if (fd >= 0) dup2(fd, 2);
    execv(argv[0], argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

int load_usage(int pid, double *ret_cpu_s, uint64_t *ret_rss_bytes) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *after = strrchr(text, ')');
    unsigned long user, system;
    long rss_pages;
    if (!after || sscanf(after + 1,
                      " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d "
                      "%*u %*u %ld",
                      &user, &system, &rss_pages) != 3)
        return -1;
    *ret_cpu_s = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
    *ret_rss_bytes = (uint64_t)rss_pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return 0;
}

static void processor(char *ret, size_t size) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(ret, size, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!value) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(ret, size, "%.*s", (int)size - 1, value + 2);
        break;
    }
    if (f) fclose(f);
}

const char *load_origin(int argc, char **argv) {
    static char text[1024];
    char date[16], cpu[128], command[512] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (text[0]) return text;
    strftime(date, sizeof date, "%F", localtime_r(&now, &tm));
    processor(cpu, sizeof cpu);
    for (int i = 0; i < argc; i++) {
        const char *slash = strrchr(argv[i], '/');
        size_t n = strlen(command);
        snprintf(command + n, sizeof command - n, "%s%s", i ? " " : "", slash ? slash + 1 : argv[i]);
    }
    snprintf(text, sizeof text, "\"date\":\"%s\",\"hardware\":\"%s\",\"cores\":%ld,\"command\":\"%s\"", date, cpu,
        sysconf(_SC_NPROCESSORS_ONLN), command);
    return text;
}
