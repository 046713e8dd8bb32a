/* bench_engine.c: the CUDA engine without ZeroMQ: does copying in, computing and copying out overlap?
 *
 *     bench_engine [--seconds 1] [--threads N] [--json FILE]
 *
 * The default batch (16 frames of (128, 1024) f32 -> (256, 1024)) through engine.slots = 1, 2 and 3: slots that were
 * filled once are launched again and again (what the device does), and the whole engine with frames of one payload
 * (what the loop thread's copies leave of it). Beside it, in the same run, the rate of plain copies of these sizes in
 * both directions at once, each on a stream of its own. One JSON object a line; "timeline" holds the events of some
 * batches in us. The first answers of every number of slots must have the same bits. Exit 0, 1 when something failed, 77
 * without a GPU. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "choose.h"
#include "engine_cuda.h"
#include "rows.h"

enum { N = 16, C_IN = 128, C_OUT = 256, T = 1024, LINES = 24, SLOTS = 3, CHECKED = 16 /* batches a bench */ };
#define IN_BYTES  ((size_t)N * C_IN * T * 4)
#define OUT_BYTES ((size_t)N * C_OUT * T * 4)

struct generation {
    nct_layer *layer;
};
static struct generation made;
static float payload[C_IN * T];
static double seconds = 1;
static int threads; /* that copy in; 0: as nctd chooses */
static long n_checked;
static FILE *json;
static char origin[600];

static nct_layer *layer_of(const struct generation *g, int32_t device) {
    (void)device;
    return g->layer;
}
static void copied_in(void *ctx, frame *f) {
    (void)ctx, (void)f;
}
static void bind_stream(struct stream *s, engine *e) {
    (void)s, (void)e;
}
static void die(const char *what) {
    fprintf(stderr, "bench_engine: %s\n", what);
    exit(1);
}
static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
/* A JSON object; the results also say when, on what and by which command. */
static void line(const char *text) {
    puts(text);
    if (json) fprintf(json, "{%s,%s\n", origin, text + 1);
}
static void say_origin(int argc, char **argv) {
    char date[16];
    time_t now = time(NULL);
    struct tm day;
    struct cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, 0)) die("cudaGetDeviceProperties");
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &day));
    int n = snprintf(origin, sizeof origin,
        "\"date\":\"%s\",\"hardware\":\"%s\",\"cores\":%ld,\"command\":\"bench_engine", date, prop.name,
        sysconf(_SC_NPROCESSORS_ONLN));
    for (int i = 1; i < argc && n < (int)sizeof origin - 64; i++) {
        const char *base = strrchr(argv[i], '/');
        n += snprintf(origin + n, sizeof origin - (size_t)n - 2, " %.60s", base ? base + 1 : argv[i]);
    }
    strcpy(origin + n, "\"");
}

/* ---- the rate of copies alone ---- */
static double duplex_s(void) {
    void *in, *out, *in_dev, *out_dev;
    cudaStream_t s[2];
    if (cudaHostAlloc(&in, IN_BYTES, 0) || cudaHostAlloc(&out, OUT_BYTES, 0) || cudaMalloc(&in_dev, IN_BYTES) ||
        cudaMalloc(&out_dev, OUT_BYTES) || cudaStreamCreate(&s[0]) || cudaStreamCreate(&s[1]))
        die("no memory for the plain copies");
    double begin = now_s();
    int n = 0;
    for (int i = -20; i < 0 || now_s() - begin < seconds / 2 || i % 20; i++) {
        if (i == 0) cudaDeviceSynchronize(), begin = now_s();
        cudaMemcpyAsync(in_dev, in, IN_BYTES, cudaMemcpyHostToDevice, s[0]);
        cudaMemcpyAsync(out, out_dev, OUT_BYTES, cudaMemcpyDeviceToHost, s[1]);
        if (i % 20 == 19) cudaDeviceSynchronize();
        n = i + 1;
    }
    if (cudaDeviceSynchronize()) die("the plain copies failed");
    double took = (now_s() - begin) / n;
    cudaFreeHost(in), cudaFreeHost(out), cudaFree(in_dev), cudaFree(out_dev);
    return took;
}

/* ---- the engine ---- */
typedef struct {
    uv_loop_t loop;
    config *cfg;
    arena *a;
    batcher *b;
    engine *e;
    uint64_t order;
    int done;   /* batches */
    bool again; /* push a new frame for each that is done */
} bench;
static frame *spare;

static void push_frame(bench *b, int i) {
    static char streams[N * SLOTS * 4], session;
    frame *f = spare;
    if (f)
        spare = f->next;
    else
        f = malloc(sizeof *f);
    *f = (frame){.session = (struct session *)(void *)&session,
        .stream = (struct stream *)(void *)&streams[i % (int)sizeof streams],
        .model = &made,
        .x_dtype = NCT_F32,
        .y_dtype = NCT_F32,
        .t_in = T,
        .t_out = T,
        .pad_left = 1,
        .pad_right = 1,
        .c_in = C_IN,
        .c_out = C_OUT,
        .n_groups = 32,
        .t_read_ns = uv_hrtime(),
        .order = ++b->order};
    f->h.dtype = NCT_F32;
    f->payload.data = payload;
    f->payload.bytes = sizeof payload;
    if (batcher_push(b->b, f)) die("no memory for a frame");
}

/* Every frame has the same payload: the first answer's bits, whatever the slot and however many there are. */
static void check_bits(const frame *f) {
    static float *first;
    size_t bytes = sizeof(float) * C_OUT * T;
    if (!first && !(first = calloc(1, bytes))) die("out of memory");
    if (!n_checked++)
        memcpy(first, f->y, bytes);
    else if (memcmp(first, f->y, bytes))
        die("an answer differs in its bits from the first one");
}

static void on_batch(void *ctx, batch *over) {
    bench *b = ctx;
    b->done++;
    for (int32_t n = 0; n < over->n_frames; n++) {
        frame *f = over->frames[n];
        if (f->error) die(f->why);
        if (b->done <= CHECKED) check_bits(f);
        if (f->arena_pages) arena_give(b->a, f->arena_first, f->arena_pages);
        f->next = spare;
        spare = f;
        if (b->again) push_frame(b, (int)b->order);
    }
    engine_batch_end(over->engine, over);
}

static void open_bench(bench *b, int slots) {
    char many[32], copiers[32];
    nct_why why = {""};
    config_why cwhy;
    snprintf(many, sizeof many, "engine.slots=%d", slots);
    snprintf(copiers, sizeof copiers, "engine.threads=%d", threads);
    const char *const conf[] = {many, copiers, "engine.slot_bytes=32M", "batch.max_frames=16"};
    memset(b, 0, sizeof *b);
    uv_loop_init(&b->loop);
    if (config_load(&b->cfg, NULL, conf, 4, &cwhy)) die(cwhy.text);
    batcher_limits limits = {.max_frames = N, .max_delay_us = 1000000, .slot_bytes = b->cfg->engine.slot_bytes};
    if (arena_new(&b->a, 128 << 20) || batcher_new(&b->b, &limits)) die("no memory");
    engine_setup setup = {.loop = &b->loop,
        .cfg = b->cfg,
        .out = b->a,
        .batcher = b->b,
        .done = {on_batch, b},
        .copied_in = {copied_in, b},
        .layer_of = layer_of,
        .bind = bind_stream,
        .device = 0};
    if (engine_new(&b->e, &engine_cuda_ops, &setup, &why)) die(why.text);
    nct_params p = {.in_channels = C_IN,
        .out_channels = C_OUT,
        .kernel_size = 3,
        .stride = 1,
        .dilation = 1,
        .groups = 1,
        .num_groups = 32,
        .pad_left = 1,
        .pad_right = 1,
        .eps = 1e-5};
    if (engine_reserve(b->e, made.layer, &p, &why)) die(why.text);
}

static void close_bench(bench *b) {
    b->again = false;
    while (engine_in_flight(b->e) || batcher_queued(b->b)) engine_turn(b->e, uv_hrtime());
    engine_free(b->e);
    uv_run(&b->loop, UV_RUN_DEFAULT);
    uv_loop_close(&b->loop);
    batcher_free(b->b);
    arena_free(b->a);
    config_free(b->cfg);
}

/* Fills every slot by the ordinary way, but keeps its batch: launched again as it is. */
static void fill_slots(bench *b, batch *kept[]) {
    nct_why why;
    for (int i = 0; i < N * b->e->n_slots; i++) push_frame(b, i);
    for (int i = 0; i < b->e->n_slots; i++) {
        slot *s = &b->e->slots[i];
        size_t budget = 1 << 30;
        s->b = kept[i] = batch_next(b->e, false, uv_hrtime(), s);
        if (!s->b || s->b->n_frames != N || fill_begin(s, &why) || !fill_step(s, &budget)) die("filling a slot");
        fill_place(s);
    }
}

/* Its event stands behind the host function, which has told the engine; nobody collects here. */
static void wait_slot(slot *s) {
    gpu_slot *g = s->backend;
    if (cudaEventSynchronize(g->at[AT_DONE])) die("a batch failed");
    atomic_store(&s->e->done, NULL);
}

static float at_us(cudaEvent_t base, cudaEvent_t event) {
    float ms = -1;
    cudaEventElapsedTime(&ms, base, event);
    return ms * 1000;
}

/* The order in which slots are waited for is the order of their launch. */
static double device_only(bench *b, bool timeline) {
    batch *kept[SLOTS];
    nct_why why;
    cudaEvent_t base;
    char text[LINES * 96 + 256];
    int n_slots = b->e->n_slots, n = 0, at = 0;
    fill_slots(b, kept);
    cudaEventCreate(&base);
    double begin = now_s(), took;
    for (int i = -4 * n_slots; i < 0 || now_s() - begin < seconds / 2; i++) {
        slot *s = &b->e->slots[(i + 4 * n_slots) % n_slots];
        wait_slot(s);
        if (i == 0) begin = now_s();
        if (engine_cuda_ops.launch(b->e, s, &why)) die(b->e->latch_why);
        n = i + 1;
    }
    for (int i = 0; i < n_slots; i++) wait_slot(&b->e->slots[i]);
    took = (now_s() - begin) / n;
    at = snprintf(text, sizeof text,
        "{\"bench\":\"timeline\",\"slots\":%d,\"columns\":\"slot, copied in, computed, copied out "
        "(us)\",\"batches\":[",
        n_slots);
    cudaEventRecord(base, ((gpu_slot *)b->e->slots[0].backend)->stream);
    for (int i = 0; timeline && i < LINES; i++) {
        slot *s = &b->e->slots[i % n_slots];
        gpu_slot *g = s->backend;
        wait_slot(s);
        if (i >= n_slots) {
            cudaEventSynchronize(g->at[AT_OUT]);
            at += snprintf(text + at, sizeof text - (size_t)at, "%s[%d,%.0f,%.0f,%.0f]", i > n_slots ? "," : "",
                i % n_slots, (double)at_us(base, g->at[AT_IN]), (double)at_us(base, g->at[AT_KERNEL]),
                (double)at_us(base, g->at[AT_OUT]));
        }
        if (engine_cuda_ops.launch(b->e, s, &why)) die(b->e->latch_why);
    }
    for (int i = 0; i < n_slots; i++) wait_slot(&b->e->slots[i]);
    snprintf(text + at, sizeof text - (size_t)at, "]}");
    if (timeline) line(text);
    cudaEventDestroy(base);
    for (int i = 0; i < n_slots; i++) b->e->slots[i].state = SLOT_RUNNING;
    return took;
}

static double whole(bench *b) {
    b->again = true;
    for (int i = 0; i < N * SLOTS * 4; i++) push_frame(b, i);
    double begin = 0;
    int first = 0;
    for (int turns = 0; !begin || now_s() - begin < seconds / 2; turns++) {
        engine_turn(b->e, uv_hrtime());
        uv_run(&b->loop, UV_RUN_NOWAIT);
        if (!begin && b->done >= 20) begin = now_s(), first = b->done;
        if (turns > 100000000) die("no batch is ever done");
    }
    return (now_s() - begin) / (b->done - first);
}

static void report(const char *what, int slots, double batch_s, double copies_s) {
    char text[400];
    snprintf(text, sizeof text,
        "{\"bench\":\"engine\",\"what\":\"%s\",\"slots\":%d,\"precision\":\"tf32\",\"batch_us\":%.1f,\"frames_s\":%."
        "0f,"
        "\"in_gb_s\":%.1f,\"out_gb_s\":%.1f,\"of_duplex\":%.3f}",
        what, slots, batch_s * 1e6, N / batch_s, (double)IN_BYTES / batch_s / 1e9, (double)OUT_BYTES / batch_s / 1e9,
        copies_s / batch_s);
    line(text);
}

static void make_layer(void) {
    static float weight[C_OUT * C_IN * 3];
    nct_why why;
    for (size_t i = 0; i < sizeof weight / sizeof *weight; i++)
        weight[i] = (float)((int)(i * 7919 % 2001) - 1000) / 20000;
    for (size_t i = 0; i < C_IN * T; i++) payload[i] = (float)((int)(i * 104729 % 2001) - 1000) / 1000;
    nct_params p = {.in_channels = C_IN,
        .out_channels = C_OUT,
        .kernel_size = 3,
        .stride = 1,
        .dilation = 1,
        .groups = 1,
        .num_groups = 32,
        .pad_left = 1,
        .pad_right = 1,
        .eps = 1e-5};
    nct_weights w = {.weight = {weight, NCT_F32, 0}};
    nct_where on = {.device = 0, .precision = NCT_PREC_TF32};
    if (nct_layer_new(&made.layer, &p, &w, &on, NULL, &why)) die(why.text);
}

int main(int argc, char **argv) {
    static const struct option names[] = {
        {"seconds", 1, NULL, 's'}, {"json", 1, NULL, 'j'}, {"threads", 1, NULL, 't'}, {0}};
    int devices = 0;
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (c == 's') seconds = atof(optarg);
        if (c == 't') threads = atoi(optarg);
        if (c == 'j') json = fopen(optarg, "we");
        if (c == '?') return 2;
    }
    if (cudaGetDeviceCount(&devices) || !devices) {
        fprintf(stderr, "bench_engine: no GPU\n");
        return 77;
    }
    say_origin(argc, argv);
    make_layer();
    double copies = duplex_s();
    report("plain copies both ways", 0, copies, copies);
    for (int slots = 1; slots <= SLOTS; slots++) {
        static bench b;
        open_bench(&b, slots);
        report("filled once", slots, device_only(&b, slots != 2), copies);
        engine_lost_turn(b.e);
        for (int i = 0; i < slots; i++) engine_done(&b.e->slots[i], 0); /* hands the kept batches over */
        while (engine_in_flight(b.e)) engine_turn(b.e, uv_hrtime());
        report("whole engine", slots, whole(&b), copies);
        close_bench(&b);
    }
    report("plain copies both ways", 0, duplex_s(), copies);
    char text[96];
    snprintf(text, sizeof text, "{\"bench\":\"bits\",\"slots\":\"1, 2, 3\",\"answers_alike\":%ld}", n_checked);
    line(text);
    nct_layer_free(made.layer);
    return 0;
}
