/* soak.c: the daemon at saturation for minutes: every client keeps its window full, frames of two models and every
 * length, clients come and go, a subscriber reads. Then: memory flat, ledger exact, every frame answered once.
 *
 *     soak NCTD [--seconds 600] [--clients 6] [--json FILE]
 *
 * Resident memory is sampled each second after a warm-up of 10 % (at most 60 s); each tenth of the run gets its mean,
 * and no mean may leave +-1 % of their median. A line a sample goes to FILE, the summary last, and to stdout. Exit 0
 * when all holds, 1 when not. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>
#include "load.h"

enum { CLIENTS_MAX = 16, PARTS = 10, VISIT_S = 15 };
typedef struct {
    const char *nctd, *json, *origin;
    int seconds, clients;
    char folder[64], endpoint[128], publish[128], log[128];
} options;

typedef struct {
    options *o;
    int index;
    void *zmq;
    const void *payload;
    atomic_int *stop;
    uint64_t sent, answered, results, errors, visits;
    char failure[256];
} visitor;

/* ---- clients that come and go ---- */
static void visit(visitor *v, int seconds) {
    atomic_int phase = 1;
    bool large = v->index % 2;
    pthread_t thread;
    load_client c = {.zmq = v->zmq,
        .nctd = true,
        .channels = large ? 128 : 2,
        .steps = large ? 1024 : 480,
        .spread = large ? 700 : 400,
        .window = 32,
        .payload = v->payload,
        .phase = &phase};
    snprintf(c.endpoint, sizeof c.endpoint, "%s", v->o->endpoint);
    snprintf(c.model, sizeof c.model, large ? "large" : "small");
    snprintf(c.stream, sizeof c.stream, "c%d-%llu", v->index, (unsigned long long)v->visits % 7);
    pthread_create(&thread, NULL, load_run, &c);
    for (int i = 0; i < seconds * 10 && !atomic_load(v->stop); i++) usleep(100000);
    phase = 2;
    pthread_join(thread, NULL);
    v->sent += c.sent;
    v->answered += c.answered;
    v->results += c.results;
    v->errors += c.errors;
    v->visits++;
    if (c.failure[0]) snprintf(v->failure, sizeof v->failure, "%s", c.failure);
}

static void *visitor_run(void *ctx) {
    visitor *v = ctx;
    while (!atomic_load(v->stop) && !v->failure[0]) visit(v, VISIT_S + v->index);
    return NULL;
}

typedef struct {
    options *o;
    void *zmq;
    atomic_int *stop;
    uint64_t messages;
} subscriber;

static void *subscriber_run(void *ctx) {
    subscriber *s = ctx;
    void *socket = zmq_socket(s->zmq, ZMQ_SUB);
    int wait_ms = 200, linger = 0;
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "small/", 6);
    zmq_connect(socket, s->o->publish);
    while (!atomic_load(s->stop)) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, socket, 0) >= 0 && !zmq_msg_more(&m)) s->messages++;
        zmq_msg_close(&m);
    }
    zmq_close(socket);
    return NULL;
}

/* ---- the daemon ---- */
static int start(options *o) {
    char path[128];
    snprintf(path, sizeof path, "%s/nctd.conf", o->folder);
    snprintf(o->endpoint, sizeof o->endpoint, "ipc://%s/in", o->folder);
    snprintf(o->publish, sizeof o->publish, "ipc://%s/pub", o->folder);
    snprintf(o->log, sizeof o->log, "%s/log", o->folder);
    FILE *f = fopen(path, "we");
    if (!f) return -1;
    fprintf(f, "[ingest]\nendpoint = %s\n[publish]\nendpoint = %s\n[http]\nenabled = no\n[engine]\nengine = cpu\n",
        o->endpoint, o->publish);
    fprintf(f, "[model small]\nin_channels = 2\nout_channels = 2\nkernel_size = 3\npadding = 1\nnum_groups = 1\n");
    fprintf(f, "[model large]\nin_channels = 128\nout_channels = 128\nkernel_size = 3\npadding = 1\ngroups = 128\n"
               "num_groups = 32\n");
    if (fclose(f)) return -1;
    return load_spawn((char *[]){(char *)(uintptr_t)o->nctd, "-c", path, NULL}, o->log);
}

/* The number behind " name=" in the last line with "ledger". */
static int64_t ledger_of(const char *log, const char *name) {
    char line[4096], last[4096] = "", key[64];
    FILE *f = fopen(log, "re");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, "ledger ")) memcpy(last, line, sizeof last);
    if (f) fclose(f);
    snprintf(key, sizeof key, " %s=", name);
    const char *at = strstr(last, key);
    return at ? strtoll(at + strlen(key), NULL, 10) : -1;
}

/* ---- the run ---- */
typedef struct {
    double sum[PARTS];
    int n[PARTS];
} memory;

static void sample(const options *o, int pid, int warm_up_s, FILE *json, memory *m) {
    double cpu_s;
    uint64_t rss, t0_ns = load_now_ns();
    for (int s = 1; s <= o->seconds; s++) {
        uint64_t due_ns = t0_ns + (uint64_t)s * 1000000000u, now_ns = load_now_ns();
        if (due_ns > now_ns) usleep((useconds_t)((due_ns - now_ns) / 1000));
        if (load_usage(pid, &cpu_s, &rss)) return;
        if (json && s % 5 == 0)
            fprintf(json, "{\"bench\":\"soak\",\"t_s\":%d,\"rss_mb\":%.2f,\"cpu_s\":%.1f}\n", s, (double)rss / 1e6,
                cpu_s);
        if (s <= warm_up_s) continue;
        int part = (s - warm_up_s - 1) * PARTS / (o->seconds - warm_up_s);
        m->sum[part] += (double)rss / 1e6;
        m->n[part]++;
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* How far the parts' means lie from their median, in per cent. The median, and not the first one: what is resident
 * beside the fixed arenas is messages on their way, tens of megabytes that swing with who is visiting. */
static double spread_of(const memory *m, double ret_mean_mb[PARTS], double *ret_median_mb) {
    double sorted[PARTS], most = 0;
    for (int i = 0; i < PARTS; i++) sorted[i] = ret_mean_mb[i] = m->n[i] ? m->sum[i] / m->n[i] : 0;
    qsort(sorted, PARTS, sizeof *sorted, by_value);
    double median = (sorted[PARTS / 2 - 1] + sorted[PARTS / 2]) / 2;
    for (int i = 0; i < PARTS; i++) {
        double off = (ret_mean_mb[i] - median) / median * 100;
        if (off < 0) off = -off;
        if (!(off <= most)) most = off;
    }
    *ret_median_mb = median;
    return most;
}

typedef struct {
    uint64_t sent, answered, results, errors, visits;
} sums;

static int judge(const options *o, const sums *c, const memory *m, uint64_t published, int exit_code, FILE *json) {
    int64_t received = ledger_of(o->log, "received"), ok = ledger_of(o->log, "ok"), held = ledger_of(o->log, "held");
    int64_t handed = ledger_of(o->log, "handed"), let_go = ledger_of(o->log, "let_go"),
            cut = ledger_of(o->log, "cut");
    int64_t others = ledger_of(o->log, "failed") + ledger_of(o->log, "refused") + ledger_of(o->log, "expired") +
                     ledger_of(o->log, "orphaned") + ledger_of(o->log, "in_flight");
    double mean_mb[PARTS], median_mb, spread = spread_of(m, mean_mb, &median_mb);
    bool exact = received == (int64_t)c->sent && ok == (int64_t)c->results && c->answered == c->sent &&
                 c->errors == 0 && received == ok + others && handed == let_go + cut + held && held == 0;
    bool flat = spread <= 1.0;
    char line[2048];
    snprintf(line, sizeof line,
        "{\"bench\":\"soak\",%s,\"seconds\":%d,\"clients\":%d,\"visits\":%llu,\"sent\":%llu,\"results\":%llu,"
        "\"frames_s\":%.0f,\"sub_messages\":%llu,\"ledger_received\":%lld,\"ledger_ok\":%lld,\"ledger_others\":%lld,"
        "\"handed\":%lld,\"let_go\":%lld,\"rss_first_mb\":%.2f,\"rss_median_mb\":%.2f,\"rss_last_mb\":%.2f,\"rss_"
        "spread_percent\":%.3f,"
        "\"ledger_exact\":%s,\"rss_flat\":%s,\"exit\":%d}",
        o->origin, o->seconds, o->clients, (unsigned long long)c->visits, (unsigned long long)c->sent,
        (unsigned long long)c->results, (double)c->results / o->seconds, (unsigned long long)published,
        (long long)received, (long long)ok, (long long)others, (long long)handed, (long long)let_go, mean_mb[0],
        median_mb, mean_mb[PARTS - 1], spread, exact ? "true" : "false", flat ? "true" : "false", exit_code);
    puts(line);
    if (json) fprintf(json, "%s\n", line);
    return exact && flat && exit_code == 0 ? 0 : 1;
}

static int run(options *o, FILE *json) {
    static visitor v[CLIENTS_MAX];
    pthread_t thread[CLIENTS_MAX], listener;
    atomic_int stop = 0, stop_listening = 0;
    int status = 0, failed = 0, warm_up_s = o->seconds / 10 < 60 ? o->seconds / 10 : 60;
    void *zmq = zmq_ctx_new();
    float *payload = malloc(128 * 1024 * sizeof *payload);
    memory m = {0};
    sums c = {0};
    for (int i = 0; i < 128 * 1024; i++) payload[i] = (float)(i % 997) / 997;
    int pid = start(o);
    if (pid < 0) return 1;
    subscriber s = {.o = o, .zmq = zmq, .stop = &stop_listening};
    pthread_create(&listener, NULL, subscriber_run, &s);
    for (int i = 0; i < o->clients; i++) {
        v[i] = (visitor){.o = o, .index = i, .zmq = zmq, .payload = payload, .stop = &stop};
        pthread_create(&thread[i], NULL, visitor_run, &v[i]);
    }
    sample(o, pid, warm_up_s, json, &m);
    stop = 1;
    for (int i = 0; i < o->clients; i++) {
        pthread_join(thread[i], NULL);
        c.sent += v[i].sent, c.answered += v[i].answered, c.results += v[i].results, c.errors += v[i].errors;
        c.visits += v[i].visits;
        if (v[i].failure[0]) fprintf(stderr, "soak: %s\n", v[i].failure), failed = 1;
    }
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    stop_listening = 1;
    pthread_join(listener, NULL);
    zmq_ctx_term(zmq);
    free(payload);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return judge(o, &c, &m, s.messages, code, json) | failed;
}

static void clean(const options *o) {
    char path[128];
    snprintf(path, sizeof path, "%s/nctd.conf", o->folder);
    unlink(path);
    unlink(o->log);
    rmdir(o->folder);
}

int main(int argc, char **argv) {
    static const struct option names[] = {
        {"seconds", 1, NULL, 's'}, {"clients", 1, NULL, 'c'}, {"json", 1, NULL, 'j'}, {0}};
    options o = {.origin = load_origin(argc, argv), .seconds = 600, .clients = 6};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (c == 's') o.seconds = atoi(optarg);
        if (c == 'c') o.clients = atoi(optarg);
        if (c == 'j') o.json = optarg;
        if (c == '?') optind = argc;
    }
    strcpy(o.folder, "/tmp/nct-soak-XXXXXX");
    if (optind + 1 != argc || o.seconds < 20 || o.clients < 1 || o.clients > CLIENTS_MAX || !mkdtemp(o.folder)) {
        fprintf(stderr, "usage: soak NCTD [--seconds 20..] [--clients 1..%d] [--json FILE]\n", CLIENTS_MAX);
        return 2;
    }
    o.nctd = argv[optind];
    FILE *json = o.json ? fopen(o.json, "we") : NULL;
    if (json) setvbuf(json, NULL, _IOLBF, 0);
    int failed = run(&o, json);
    if (json) fclose(json);
    if (!failed) clean(&o);
    if (failed) fprintf(stderr, "soak: failed; the daemon's log is %s\n", o.log);
    return failed;
}
