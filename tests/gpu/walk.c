/* walk.c: every kernel row over a few tiles, small enough for compute-sanitizer: ragged frames, T_out = 1, channels that
 * are no multiple of a tile, every dtype, statistics in and out, the conv alone. A program of its own, because a checker
 * needs minutes to start Python's libraries.
 *
 *     compute-sanitizer --tool memcheck walk [--seconds 60] [--rows a,b] [--part 0/4] [--list]
 *
 * Every allocation has exactly its bytes, the workspace has no initial value, and each result is compared with
 * nct_reference (wide bounds: the accuracy tests are elsewhere). The rows take turns: in a turn a row runs the next layer
 * that it takes, few weights first, in each precision, with one kind of job; after the last layer it begins again with
 * another kind. --part i/n: every n-th row. Ends when all kinds are done with all layers or the time is over, and says how
 * many jobs each row ran ("row NAME JOBS"). Exit 0; 1 a wrong result; 77 no GPU. */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "nct_layer.h"

enum { FRAMES_MAX = 3, ROWS_MAX = 256 };

/* The bench's layers with short frames, and odd ones. t: three lengths; two frames of t[0] are alike, all three ragged. */
typedef struct {
    int ci, co, k, groups, stride, dilation, conv_groups, left, right, mode, act;
    int t[FRAMES_MAX];
} layer_row;
static const layer_row layers[] = {
    {128, 256, 3, 32, 1, 1, 1, 1, 1, NCT_ZEROS, NCT_NONE, {66, 1, 150}},
    {3, 20, 5, 4, 1, 1, 1, 2, 2, NCT_ZEROS, NCT_GELU, {37, 1, 140}},
    {1024, 2048, 5, 8, 1, 1, 1, 2, 2, NCT_ZEROS, NCT_MISH, {4, 1, 3}},
    {1, 512, 10, 512, 5, 1, 1, 0, 0, NCT_ZEROS, NCT_GELU, {333, 10, 60}},
    {64, 128, 7, 16, 1, 1, 1, 3, 3, NCT_ZEROS, NCT_SILU, {129, 1, 60}},
    {40, 72, 3, 3, 1, 1, 1, 1, 1, NCT_ZEROS, NCT_MISH, {65, 1, 130}},
    {2, 32, 7, 1, 1, 1, 1, 0, 0, NCT_ZEROS, NCT_NONE, {700, 7, 90}},
    {64, 16, 3, 1, 1, 2, 1, 2, 2, NCT_ZEROS, NCT_GELU, {301, 1, 64}},
    {64, 32, 8, 4, 4, 1, 1, 0, 0, NCT_ZEROS, NCT_GELU, {140, 8, 75}},
    {256, 256, 5, 8, 1, 1, 1, 2, 2, NCT_ZEROS, NCT_MISH, {16, 1, 12}},
    {96, 96, 3, 1, 1, 16, 96, 16, 16, NCT_ZEROS, NCT_NONE, {130, 1, 45}},
    {130, 72, 1, 1, 1, 1, 1, 0, 0, NCT_ZEROS, NCT_NONE, {130, 1, 45}},
    {24, 40, 3, 5, 1, 1, 1, 2, 2, NCT_REFLECT, NCT_ELU, {70, 3, 19}},
    {32, 48, 5, 6, 1, 2, 2, 4, 4, NCT_CIRCULAR, NCT_RELU, {90, 4, 33}},
    {256, 128, 3, 8, 1, 1, 1, 1, 1, NCT_ZEROS, NCT_MISH, {63, 1, 12}},
    {128, 512, 8, 4, 4, 1, 1, 0, 0, NCT_ZEROS, NCT_GELU, {40, 8, 12}},
    {4, 32, 3, 4, 1, 1, 1, 1, 1, NCT_ZEROS, NCT_SILU, {60, 1, 33}},
};

/* What a job asks for. gap: between rows, so that they are unaligned. */
typedef struct {
    const char *name;
    int n_frames, gap, x_dtype, y_dtype, norm;
    bool stats, no_y, conv_only;
} job_row;
static const job_row jobs[] = {
    {"ragged", 3, 1, NCT_F32, NCT_F32, NCT_NORM_OWN, true, false, false},
    {"alike", 2, 0, NCT_F32, NCT_BF16, NCT_NORM_OWN, false, false, false},
    {"one", 1, 4, NCT_BF16, NCT_BF16, NCT_NORM_OWN, false, false, false},
    {"i16", 3, 3, NCT_I16, NCT_F16, NCT_NORM_OWN, false, false, false},
    {"running", 3, 0, NCT_F32, NCT_F32, NCT_NORM_RUNNING, true, false, false},
    {"given", 3, 1, NCT_F32, NCT_F32, NCT_NORM_GIVEN, true, false, false},
    {"observe", 3, 0, NCT_F16, NCT_F32, NCT_NORM_OWN, true, true, false},
    {"conv", 3, 1, NCT_F32, NCT_F32, NCT_NORM_OWN, false, false, true},
};

typedef struct {
    void *host, *dev;
    size_t bytes;
} twin;
typedef struct {
    nct_params p;
    nct_weights w;
    float *values[4];
} made;

static int n_walked, n_wrong;
static char under_way[160]; /* the job, for what ends the walk */
static double end_s;

static void die(const char *what) {
    fprintf(stderr, "walk: %s%s\n", under_way, what);
    exit(1);
}
static void must(cudaError_t err, const char *what) {
    if (!err) return;
    fprintf(stderr, "walk: %s%s: %s\n", under_way, what, cudaGetErrorString(err));
    exit(1);
}
static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static float next_value(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int)(*seed >> 8) / 8388608.0f - 1.0f; /* [-1, 1) */
}
static size_t dtype_bytes(int dtype) {
    return dtype == NCT_F32 ? 4 : 2;
}

/* ---- values ---- */
static void put(void *x, int dtype, size_t i, float v) {
    if (dtype == NCT_F32) ((float *)x)[i] = v;
    if (dtype == NCT_I16) ((int16_t *)x)[i] = (int16_t)lrintf(v * 32000);
    if (dtype == NCT_F16) {
        _Float16 h = (_Float16)v;
        memcpy((char *)x + 2 * i, &h, 2);
    }
    if (dtype == NCT_BF16) { /* cut, not rounded: any value will do */
        uint32_t bits;
        memcpy(&bits, &v, 4);
        ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
    }
}
static double get(const void *y, int dtype, size_t i) {
    if (dtype == NCT_F32) return (double)((const float *)y)[i];
    if (dtype == NCT_F16) {
        _Float16 h;
        memcpy(&h, (const char *)y + 2 * i, 2);
        return (double)h;
    }
    uint32_t bits = (uint32_t)((const uint16_t *)y)[i] << 16;
    float v;
    memcpy(&v, &bits, 4);
    return (double)v;
}

static twin twin_of(size_t bytes) {
    twin t = {calloc(1, bytes + !bytes), NULL, bytes};
    if (!t.host) die("out of memory");
    return t;
}
static void up(twin *t) {
    if (t->bytes && !t->dev) must(cudaMalloc(&t->dev, t->bytes), "cudaMalloc");
    if (t->bytes) must(cudaMemcpy(t->dev, t->host, t->bytes, cudaMemcpyHostToDevice), "copying in");
}
static made make(const layer_row *l) {
    unsigned seed = 1;
    made m = {.p = {.in_channels = l->ci,
                  .out_channels = l->co,
                  .kernel_size = l->k,
                  .stride = l->stride,
                  .dilation = l->dilation,
                  .groups = l->conv_groups,
                  .num_groups = l->groups,
                  .pad_left = l->left,
                  .pad_right = l->right,
                  .padding_mode = l->mode,
                  .activation = l->act,
                  .eps = 1e-5}};
    size_t taps = (size_t)(l->ci / l->conv_groups * l->k),
           counts[4] = {(size_t)l->co * taps, (size_t)l->co, (size_t)l->co, (size_t)l->co};
    float scale[4] = {1 / sqrtf((float)taps), 0.1f, 0.5f, 0.5f};
    nct_tensor *at[4] = {&m.w.weight, &m.w.bias, &m.w.gamma, &m.w.beta};
    for (int i = 0; i < 4; i++) {
        m.values[i] = malloc(counts[i] * sizeof(float));
        if (!m.values[i]) die("out of memory");
        for (size_t n = 0; n < counts[i]; n++) m.values[i][n] = next_value(&seed) * scale[i] + (i == 2 ? 1.0f : 0.0f);
        *at[i] = (nct_tensor){m.values[i], NCT_F32, 0};
    }
    return m;
}

/* ---- one job ---- */
typedef struct {
    nct_job job; /* its pointers are the host's */
    nct_frame frames[FRAMES_MAX];
    twin x, y, stats, frames_dev;
    void *y_want;
    nct_stat *stats_want;
    unsigned char *y_got; /* and the statistics behind it */
} work;

static void lay_out(work *k, const layer_row *l, const made *m, const job_row *j) {
    int64_t x_at = j->gap, y_at = j->gap, t_out;
    bool alike = j->n_frames == 2;
    for (int n = 0; n < j->n_frames; n++) {
        int t = l->t[alike ? 0 : n];
        nct_frame *f = &k->frames[n];
        if (nct_out_steps(&m->p, t, l->left, l->right, &t_out, NULL)) die("a frame of the table is too short");
        *f = (nct_frame){.x_off = x_at,
            .y_off = y_at,
            .x_pitch = t + j->gap,
            .y_pitch = t_out + j->gap,
            .t_in = t,
            .t_out = (int32_t)t_out,
            .pad_left = l->left,
            .pad_right = l->right,
            .stat_in = j->norm == NCT_NORM_OWN ? -1 : n,
            .stat_out = j->stats && j->norm != NCT_NORM_GIVEN ? n : -1};
        x_at += (int64_t)l->ci * f->x_pitch;
        y_at += (int64_t)l->co * f->y_pitch;
    }
    k->job = (nct_job){.n_frames = j->n_frames,
        .x_dtype = j->x_dtype,
        .y_dtype = j->y_dtype,
        .norm = j->norm,
        .frames = k->frames,
        .x_count = x_at,
        .y_count = j->no_y ? 0 : y_at,
        .n_stats = j->stats ? j->n_frames : 0,
        .flags = j->conv_only ? NCT_CONV_ONLY : 0};
}

/* Inputs, and what nct_reference makes of them. */
static void work_make(work *k, const layer_row *l, const made *m, const job_row *j) {
    lay_out(k, l, m, j);
    size_t n_stats = (size_t)(k->job.n_stats * l->groups);
    unsigned seed = 7;
    k->x = twin_of((size_t)k->job.x_count * dtype_bytes(j->x_dtype));
    k->y = twin_of((size_t)k->job.y_count * dtype_bytes(j->y_dtype));
    k->stats = twin_of(n_stats * sizeof(nct_stat));
    k->frames_dev = twin_of(j->n_frames == 2 ? 0 : sizeof(nct_frame) * (size_t)j->n_frames);
    memcpy(k->frames_dev.host, k->frames, k->frames_dev.bytes);
    for (int64_t i = 0; i < k->job.x_count; i++) put(k->x.host, j->x_dtype, (size_t)i, next_value(&seed));
    nct_stat *s = k->stats.host;
    for (size_t i = 0; i < n_stats; i++) s[i] = (nct_stat){100, 0.1 * (double)next_value(&seed), 50};
    memset(k->y.host, 0x7b, k->y.bytes);
    k->y_want = malloc(k->y.bytes + 1);
    k->stats_want = malloc(k->stats.bytes + 1);
    k->y_got = malloc(k->y.bytes + k->stats.bytes + 1);
    if (!k->y_want || !k->stats_want || !k->y_got) die("out of memory");
    memcpy(k->y_want, k->y.host, k->y.bytes);
    memcpy(k->stats_want, k->stats.host, k->stats.bytes);
    nct_job want = k->job;
    nct_why why;
    want.x = k->x.host;
    want.y = j->no_y ? NULL : k->y_want;
    want.stats = j->stats ? k->stats_want : NULL;
    if (nct_reference(&m->p, &m->w, &want, &why)) die(why.text);
}
/* Also what lies between the rows must be as it was: the reference leaves it alone. */
static double worst_of(const work *k, int dtype) {
    double worst = 0;
    for (int64_t i = 0; i < k->job.y_count; i++) {
        double want = get(k->y_want, dtype, (size_t)i), diff = fabs(get(k->y_got, dtype, (size_t)i) - want);
        if (isnan(want) && isnan(diff)) continue; /* the poison */
        diff /= fmax(1, fabs(want));
        if (!(diff <= worst)) worst = isnan(diff) ? INFINITY : diff;
    }
    const nct_stat *want = k->stats_want;
    for (size_t i = 0; i < k->stats.bytes / sizeof *want; i++) {
        nct_stat got;
        memcpy(&got, k->y_got + k->y.bytes + i * sizeof got, sizeof got);
        double diff = fabs(got.mean - want[i].mean) + fabs(got.m2 - want[i].m2) / fmax(1, want[i].m2);
        if (got.count != want[i].count || !(diff <= 1)) worst = INFINITY;
    }
    return worst;
}

static int run_job(nct_layer *l, work *k, const job_row *j, nct_why *why) {
    nct_job job = k->job;
    uint32_t *flags = NULL;
    int64_t most = 0, sum = 0;
    for (int n = 0; n < j->n_frames; n++) {
        most = k->frames[n].t_out > most ? k->frames[n].t_out : most;
        sum += k->frames[n].t_out;
    }
    nct_limits lim = {j->n_frames, 1, most, sum};
    if (nct_workspace(&l, 1, &lim, &job.workspace_bytes, why)) die(why->text);
    if (job.workspace_bytes) must(cudaMalloc(&job.workspace, job.workspace_bytes), "cudaMalloc");
    if (!j->conv_only) must(cudaMalloc((void **)&flags, sizeof *flags * (size_t)j->n_frames), "cudaMalloc");
    up(&k->x), up(&k->y), up(&k->stats), up(&k->frames_dev);
    job.x = k->x.dev;
    job.y = j->no_y ? NULL : k->y.dev;
    job.stats = j->stats ? k->stats.dev : NULL;
    job.frames_dev = k->frames_dev.dev;
    job.frame_flags = flags;
    int error = nct_launch(&l, 1, &job, why);
    must(cudaDeviceSynchronize(), "a job");
    if (k->y.bytes) must(cudaMemcpy(k->y_got, k->y.dev, k->y.bytes, cudaMemcpyDeviceToHost), "copying out");
    if (k->stats.bytes)
        must(cudaMemcpy(k->y_got + k->y.bytes, k->stats.dev, k->stats.bytes, cudaMemcpyDeviceToHost), "copying out");
    must(cudaFree(job.workspace), "cudaFree");
    must(cudaFree(flags), "cudaFree");
    return error;
}

enum { LAYERS = sizeof layers / sizeof *layers, JOBS = sizeof jobs / sizeof *jobs, PRECISIONS = 3 };

/* What a layer and its jobs need, made when first asked for. */
static made layers_made[LAYERS];
static work works[LAYERS][JOBS];

static const made *layer_at(int l) {
    if (!layers_made[l].values[0]) layers_made[l] = make(&layers[l]);
    return &layers_made[l];
}
static work *work_at(int l, int j) {
    if (!works[l][j].y_got) work_make(&works[l][j], &layers[l], layer_at(l), &jobs[j]);
    return &works[l][j];
}

static void walk_job(int l, int j, const char *row, int precision, nct_layer *layer) {
    static const double bounds[PRECISIONS] = {[NCT_PREC_F32] = 1e-3, [NCT_PREC_TF32] = 5e-2, [NCT_PREC_BF16] = 3e-1};
    work *k = work_at(l, j);
    nct_why why;
    snprintf(under_way, sizeof under_way, "%s, precision %d, %s, layer %d: ", row, precision, jobs[j].name, l);
    int error = run_job(layer, k, &jobs[j], &why);
    if (error && error != -ENOTSUP) die(why.text);
    if (error) return;
    double worst = worst_of(k, jobs[j].y_dtype), bound = bounds[precision] + (jobs[j].y_dtype == NCT_F32 ? 0 : 1e-2);
    n_walked++;
    if (worst <= bound) return;
    n_wrong++;
    printf("WRONG: %s, precision %d, %s, layer %d: %g > %g\n", row, precision, jobs[j].name, l, worst, bound);
}

/* Where a row stands. */
typedef struct {
    const char *name;
    int pass, next, jobs; /* next: of by_weights */
} row_place;
static int by_weights[LAYERS];

static void sort_layers(void) {
    for (int l = 0; l < LAYERS; l++) {
        int64_t mine = (int64_t)layers[l].ci * layers[l].co * layers[l].k;
        int at = l;
        for (; at; at--) {
            const layer_row *o = &layers[by_weights[at - 1]];
            if ((int64_t)o->ci * o->co * o->k <= mine) break;
            by_weights[at] = by_weights[at - 1];
        }
        by_weights[at] = l;
    }
}
static int walk_layer(int r, const row_place *at, int l) {
    const made *m = layer_at(l);
    int before = n_walked;
    if (!strncmp(at->name, "simt", 4) && m->p.in_channels >= 1024) return 0; /* minutes under a checker */
    for (int precision = 0; precision < PRECISIONS && now_s() < end_s; precision++) {
        nct_where where = {.device = 0, .precision = precision, .force = at->name};
        nct_layer *layer;
        if (nct_layer_new(&layer, &m->p, &m->w, &where, NULL, NULL)) continue;
        walk_job(l, (l + r + precision + at->pass) % JOBS, at->name, precision, layer);
        nct_layer_free(layer);
    }
    return n_walked - before;
}
/* The next layer that the row takes; false: there is none any more. */
static bool walk_turn(int r, row_place *at) {
    for (; at->pass < JOBS && now_s() < end_s; at->pass++, at->next = 0)
        while (at->next < LAYERS) {
            int n = walk_layer(r, at, by_weights[at->next++]);
            at->jobs += n;
            if (n) return true;
        }
    return false;
}

int main(int argc, char **argv) {
    static const struct option names[] = {
        {"seconds", 1, NULL, 's'}, {"rows", 1, NULL, 'r'}, {"part", 1, NULL, 'p'}, {"list", 0, NULL, 'l'}, {0}};
    static row_place rows[ROWS_MAX];
    const char *only = NULL, *name;
    int n_rows = 0, devices = 0, n_ran = 0, part = 0, parts = 1;
    bool list = false, more = true;
    end_s = 1e18;
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (c == 's') end_s = now_s() + atof(optarg);
        if (c == 'r') only = optarg;
        if (c == 'p' && (sscanf(optarg, "%d/%d", &part, &parts) != 2 || part < 0 || part >= parts))
            die("--part i/n, i < n");
        if (c == 'l') list = true;
        if (c == '?') return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (cudaGetDeviceCount(&devices) || !devices) {
        fprintf(stderr, "walk: no GPU\n");
        return 77;
    }
    for (int r = 0; n_rows < ROWS_MAX && (name = nct_variant(0, r)); r++) {
        if (list) puts(name);
        if (r % parts == part && !(only && !strstr(only, name))) rows[n_rows++].name = name;
    }
    if (list) return 0;
    sort_layers();
    while (more) {
        more = false;
        for (int r = 0; r < n_rows; r++) more |= walk_turn(r, &rows[r]);
    }
    for (int r = 0; r < n_rows; r++) {
        printf("row %s %d\n", rows[r].name, rows[r].jobs);
        n_ran += rows[r].jobs > 0;
    }
    printf("%d jobs over %d layers, %d wrong; %d of %d rows ran\n", n_walked, LAYERS, n_wrong, n_ran, n_rows);
    return n_wrong || !n_walked;
}
