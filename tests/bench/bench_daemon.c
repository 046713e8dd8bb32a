/* bench_daemon.c: the whole pipeline against the least a ZeroMQ server can do: a ROUTER that gives every message back.
 * Same messages, window, I/O threads and client code; the two take turns in one run. Each result has the size of its
 * frame (layers C -> C with a kernel of 1, one channel a group), so both move the same bytes.
 *
 *     bench_daemon NCTD [--seconds 1] [--rounds 5] [--window 32] [--transport ipc|tcp] [--clients 1,4] [--engine cpu]
 *                  [--json FILE]
 *
 * `layer us` is the layer alone, one frame on one thread: where it is not small beside the echo's own time, it is the
 * limit and not the pipeline. Prints one JSON object a line (to FILE too), then a table. Exit 0, or 1 when a client failed. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>
#include "load.h"
#include "nct_layer.h"

enum { CLIENTS_MAX = 8, COUNTS_MAX = 8, ROUNDS_MAX = 99, TEXT = 256 };
typedef struct {
    const char *name;
    uint32_t channels, steps;
} shape;
static const shape shapes[] = {{"2x480", 2, 480}, {"128x1024", 128, 1024}};

typedef struct {
    const char *nctd, *json, *engine, *origin;
    int client_counts[COUNTS_MAX], n_counts;
    double seconds;
    int rounds, window;
    bool tcp;
    char folder[64];
} options;

typedef struct {
    const char *impl;
    char endpoint[128];
    int pid;
    double frames_s[ROUNDS_MAX], cpu_us[ROUNDS_MAX];
    hist latency;
    int window;
} peer;

/* ---- the two servers ---- */
static void echo(const char *endpoint) {
    void *zmq = zmq_ctx_new(), *s = zmq_socket(zmq, ZMQ_ROUTER);
    zmq_ctx_set(zmq, ZMQ_IO_THREADS, 1);
    if (zmq_bind(s, endpoint)) _exit(1);
    for (;;) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, s, 0) < 0) _exit(0);
        zmq_msg_send(&m, s, zmq_msg_more(&m) ? ZMQ_SNDMORE : 0);
    }
}

static int write_conf(const options *o, const peer *p, const char *path) {
    FILE *f = fopen(path, "we");
    if (!f) return -1;
    fprintf(f, "[daemon]\nlog_level = warning\n[ingest]\nendpoint = %s\nio_threads = 1\n", p->endpoint);
    fprintf(
        f, "[publish]\nendpoint = ipc://%s/pub\n[http]\nenabled = no\n[engine]\nengine = %s\n", o->folder, o->engine);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        fprintf(f,
            "[model m%s]\nin_channels = %u\nout_channels = %u\nkernel_size = 1\ngroups = %u\nnum_groups = %u\n",
            shapes[i].name, shapes[i].channels, shapes[i].channels, shapes[i].channels, shapes[i].channels);
    return fclose(f);
}

static int start(const options *o, peer *p) {
    static int port;
    char path[TEXT];
    if (o->tcp)
        snprintf(p->endpoint, sizeof p->endpoint, "tcp://127.0.0.1:%d", 20000 + (int)(getpid() % 20000) + port++);
    else
        snprintf(p->endpoint, sizeof p->endpoint, "ipc://%s/%s", o->folder, p->impl);
    if (strcmp(p->impl, "echo") == 0) {
        p->pid = fork();
        if (p->pid == 0) echo(p->endpoint);
    } else {
        snprintf(path, sizeof path, "%s/nctd.conf", o->folder);
        if (write_conf(o, p, path)) return -1;
        p->pid = load_spawn((char *[]){(char *)(uintptr_t)o->nctd, "-c", path, NULL}, NULL);
    }
    return p->pid > 0 ? 0 : -1;
}

static void stop(const options *o, peer *p) {
    static const char *const left[] = {"nctd.conf", "echo"}; /* nctd takes its own sockets away */
    char path[TEXT];
    kill(p->pid, SIGTERM);
    waitpid(p->pid, NULL, 0);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        snprintf(path, sizeof path, "%s/%s", o->folder, left[i]);
        unlink(path);
    }
    rmdir(o->folder);
}

/* ---- one round ---- */
static void sleep_s(double s) {
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static int round_of(const options *o, peer *p, const shape *sh, int clients, int round, const void *payload) {
    static hist latency[CLIENTS_MAX];
    load_client c[CLIENTS_MAX];
    pthread_t thread[CLIENTS_MAX];
    atomic_int phase = 0;
    double cpu[2], wall_s;
    uint64_t rss, measured = 0, t_ns;
    void *zmq = zmq_ctx_new();
    int failed = 0;
    for (int i = 0; i < clients; i++) {
        memset(&latency[i], 0, sizeof latency[i]);
        c[i] = (load_client){.zmq = zmq,
            .nctd = strcmp(p->impl, "nctd") == 0,
            .channels = sh->channels,
            .steps = sh->steps,
            .window = o->window,
            .payload = payload,
            .phase = &phase,
            .latency = &latency[i]};
        snprintf(c[i].endpoint, sizeof c[i].endpoint, "%s", p->endpoint);
        snprintf(c[i].model, sizeof c[i].model, "m%s", sh->name);
        snprintf(c[i].stream, sizeof c[i].stream, "c%d", i);
        pthread_create(&thread[i], NULL, load_run, &c[i]);
    }
    sleep_s(0.3);
    load_usage(p->pid, &cpu[0], &rss);
    t_ns = load_now_ns();
    phase = 1;
    sleep_s(o->seconds);
    phase = 2;
    wall_s = (double)(load_now_ns() - t_ns) / 1e9;
    load_usage(p->pid, &cpu[1], &rss);
    for (int i = 0; i < clients; i++) {
        pthread_join(thread[i], NULL);
        measured += c[i].measured;
        p->window = c[i].window;
        for (int b = 0; b < HIST_BUCKETS; b++) p->latency.counts[b] += latency[i].counts[b];
        p->latency.n += latency[i].n;
        if (latency[i].most > p->latency.most) p->latency.most = latency[i].most;
        if (c[i].failure[0]) fprintf(stderr, "%s: %s\n", p->impl, c[i].failure), failed = 1;
    }
    zmq_ctx_term(zmq);
    p->frames_s[round] = (double)measured / wall_s;
    p->cpu_us[round] = (cpu[1] - cpu[0]) * 1e6 / (double)(measured ? measured : 1);
    return failed;
}

/* ---- the layer alone ---- */
static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* CPU time of one frame's layer on one thread, us: what the daemon cannot do without. Median of 200, memory warm. */
static double layer_us(const shape *sh, const float *payload) {
    enum { RUNS = 200 };
    static double took[RUNS];
    int32_t c = (int32_t)sh->channels, t = (int32_t)sh->steps;
    nct_params p = {.in_channels = c,
        .out_channels = c,
        .kernel_size = 1,
        .stride = 1,
        .dilation = 1,
        .groups = c,
        .num_groups = c,
        .eps = 1e-5};
    nct_where at = {.device = -1};
    nct_limits lim = {1, 1, t, t};
    nct_layer *l;
    size_t need;
    nct_weights w = {.weight = {payload, NCT_F32, 0}};
    if (nct_layer_new(&l, &p, &w, &at, NULL, NULL) || nct_workspace(&l, 1, &lim, &need, NULL)) return 0;
    size_t bytes = (size_t)c * (size_t)t * 4;
    void *work = aligned_alloc(256, (need + 255) / 256 * 256), *y = aligned_alloc(256, (bytes + 255) / 256 * 256);
    nct_frame row = {.x_pitch = t, .y_pitch = t, .t_in = t, .t_out = t, .stat_in = -1, .stat_out = -1};
    nct_job job = {.n_frames = 1,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F32,
        .frames = &row,
        .x = payload,
        .x_count = c * (int64_t)t,
        .y = y,
        .y_count = c * (int64_t)t,
        .workspace = work,
        .workspace_bytes = need};
    int phases = nct_phases(&l, 1, &job, 1, NULL);
    for (int i = 0; i < RUNS; i++) {
        uint64_t t_ns = load_now_ns();
        for (int k = 0; k < phases; k++) nct_phase(&l, 1, &job, k, 0, 1);
        took[i] = (double)(load_now_ns() - t_ns) / 1e3;
    }
    qsort(took, RUNS, sizeof *took, by_value);
    free(work);
    free(y);
    nct_layer_free(l);
    return took[RUNS / 2];
}

/* ---- what is said ---- */
static double median(const double *v, int n) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void say(
    const options *o, FILE *json, const shape *sh, int clients, const peer *p, double ratio, double layer) {
    char line[2048];
    double frames_s = median(p->frames_s, o->rounds);
    int n = snprintf(line, sizeof line,
        "{\"bench\":\"daemon\",%s,\"frame\":\"%s\",\"clients\":%d,\"transport\":\"%s\",\"window\":%d,\"io_threads\":"
        "1,"
        "\"rounds\":%d,\"engine\":\"%s\",\"impl\":\"%s\",\"frames_s\":%.0f,\"mb_s_each_way\":%.0f,\"p50_us\":%.0f,"
        "\"p99_us\":%.0f,"
        "\"server_cpu_us\":%.1f",
        o->origin, sh->name, clients, o->tcp ? "tcp" : "ipc", p->window, o->rounds, o->engine, p->impl, frames_s,
        frames_s * sh->channels * sh->steps * 4 / 1e6, (double)hist_quantile(&p->latency, 0.5) / 1e3,
        (double)hist_quantile(&p->latency, 0.99) / 1e3, median(p->cpu_us, o->rounds));
    if (ratio > 0)
        n += snprintf(line + n, sizeof line - (size_t)n, ",\"of_echo\":%.3f,\"layer_us\":%.1f", ratio, layer);
    snprintf(line + n, sizeof line - (size_t)n, "}");
    puts(line);
    if (json) fprintf(json, "%s\n", line);
}

static int compare(
    const options *o, FILE *json, peer *p, const shape *sh, int clients, const void *payload, FILE *table) {
    double ratios[ROUNDS_MAX];
    int failed = 0;
    for (int i = 0; i < 2; i++) memset(&p[i].latency, 0, sizeof p[i].latency);
    for (int round = 0; round < o->rounds && !failed; round++) {
        for (int i = 0; i < 2 && !failed; i++) failed |= round_of(o, &p[i], sh, clients, round, payload);
        ratios[round] = p[1].frames_s[round] / p[0].frames_s[round];
    }
    double ratio = median(ratios, o->rounds), layer = layer_us(sh, payload);
    say(o, json, sh, clients, &p[0], 0, 0);
    say(o, json, sh, clients, &p[1], ratio, layer);
    fprintf(table, "%-10s %7d %12.0f %12.0f %8.2f %12.1f %12.1f %9.1f\n", sh->name, clients,
        median(p[0].frames_s, o->rounds), median(p[1].frames_s, o->rounds), ratio, median(p[0].cpu_us, o->rounds),
        median(p[1].cpu_us, o->rounds), layer);
    return failed;
}

static int read_counts(options *o, const char *list) {
    o->n_counts = 0;
    for (char *end; *list && o->n_counts < COUNTS_MAX; list = *end == ',' ? end + 1 : end) {
        long n = strtol(list, &end, 10);
        if (end == list || n < 1 || n > CLIENTS_MAX) return -1;
        o->client_counts[o->n_counts++] = (int)n;
    }
    return o->n_counts ? 0 : -1;
}

static int options_read(options *o, int argc, char **argv) {
    static const struct option names[] = {{"seconds", 1, NULL, 's'}, {"rounds", 1, NULL, 'r'},
        {"window", 1, NULL, 'w'}, {"transport", 1, NULL, 't'}, {"json", 1, NULL, 'j'}, {"clients", 1, NULL, 'c'},
        {"engine", 1, NULL, 'e'}, {0}};
    *o = (options){.origin = load_origin(argc, argv),
        .seconds = 1,
        .rounds = 5,
        .window = 32,
        .engine = "cpu",
        .client_counts = {1, 4},
        .n_counts = 2};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (c == 's') o->seconds = atof(optarg);
        if (c == 'r') o->rounds = atoi(optarg);
        if (c == 'w') o->window = atoi(optarg);
        if (c == 't') o->tcp = strcmp(optarg, "tcp") == 0;
        if (c == 'j') o->json = optarg;
        if (c == 'e') o->engine = optarg;
        if (c == 'c' && read_counts(o, optarg)) return -1;
        if (c == '?') return -1;
    }
    if (optind + 1 != argc || !(o->seconds > 0) || o->rounds < 1 || o->rounds > ROUNDS_MAX || o->window < 1 ||
        o->window > LOAD_WINDOW_MAX)
        return -1;
    o->nctd = argv[optind];
    strcpy(o->folder, "/tmp/nct-bench-XXXXXX");
    return mkdtemp(o->folder) ? 0 : -1;
}

int main(int argc, char **argv) {
    options o;
    static peer peers[2] = {{.impl = "echo"}, {.impl = "nctd"}};
    int failed = 0;
    char *text = NULL;
    size_t bytes;
    if (options_read(&o, argc, argv)) {
        fprintf(stderr,
            "usage: bench_daemon NCTD [--seconds S] [--rounds N] [--window 1..%d] [--transport ipc|tcp] "
            "[--clients 1,4] [--engine cpu|cuda] [--json FILE]\n",
            LOAD_WINDOW_MAX);
        return 2;
    }
    FILE *json = o.json ? fopen(o.json, "we") : NULL, *table = open_memstream(&text, &bytes);
    if (json) setvbuf(json, NULL, _IOLBF, 0);
    float *payload = malloc(128 * 1024 * sizeof *payload);
    for (int i = 0; i < 128 * 1024; i++) payload[i] = (float)(i % 1000) / 1000;
    for (int i = 0; i < 2; i++)
        if (start(&o, &peers[i])) failed = 1;
    fprintf(table, "%-10s %7s %12s %12s %8s %12s %12s %9s\n", "frame", "clients", "echo /s", "nctd /s", "ratio",
        "echo cpu us", "nctd cpu us", "layer us");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes && !failed; s++)
        for (size_t n = 0; n < (size_t)o.n_counts && !failed; n++)
            failed |= compare(&o, json, peers, &shapes[s], o.client_counts[n], payload, table);
    for (int i = 0; i < 2; i++) stop(&o, &peers[i]);
    fclose(table);
    fputs(text, stdout);
    if (json) fclose(json);
    free(text);
    free(payload);
    return failed;
}
