/* run.c: `nct run`, sound files in, result files out. Owns the options and the loop over inputs; one file after the other, on the
 * one thread. What is done with a file is run_file.c's. */
#include "run.h"
#include "cli.h"
#include "target.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const cli_option options_run[] = {
    {"model", 'm', "FILE", NULL, "The layer: a safetensors file, served by a private daemon for this run."},
    {"param", 'p', "KEY=VALUE", NULL,
        "A layer parameter that the file does not hold (num_groups=2, stride=4, ...); can be repeated."},
    CLI_OPTION_CONNECT(NULL), CLI_OPTION_KEYS,
    {"name", 'n', "MODEL", "its only one", "With --connect: the daemon's model."},
    {"output", 'o', "FILE", NULL, "Result of the one input; - is stdout; the extension chooses the format."},
    {"output-dir", 'O', "DIR", NULL, "Folder for the results of many inputs; made where it is missing."},
    {"template", 0, "NAME", "{dir}{stem}.wav", "Names below -O, of {dir} {stem} {name} {ext}."},
    {"recursive", 'r', "FOLDER", NULL, "All sound files below FOLDER, sorted by name; can be repeated."},
    {"match", 0, "GLOB", "sound files by extension", "What -r takes, by base name: '*.wav'."},
    {"files-from", 0, "FILE", NULL, "Inputs from a list, one a line (or NUL-terminated); - is stdin."},
    {"skip-existing", 0, NULL, NULL, "Leave out inputs whose result is there."},
    {"shard", 0, "I/N", "1/1", "Only every N-th input, from the I-th on."},
    {"raw", 0, "f32|f64|i16|i32", NULL,
        "Inputs are headerless, interleaved, little-endian; the result is written the same way to a pipe."},
    {"rate", 0, "HZ", NULL, "With --raw: its sample rate."}, {"channels", 0, "N", NULL, "With --raw: its channels."},
    {"window", 0, "SPAN", NULL,
        "For endless pipes: normalise every SPAN (1s, 500ms, 4800 steps) by itself, write it when it is done."},
    {"format", 0, "wav|flac|aiff|caf|w64|au|npy|raw", "by extension; wav to a pipe", "Format of the result."},
    {"encoding", 0, OUTPUT_ENCODINGS, "f32; flac i24", "Samples of the result; integers saturate at [-1, 1]."},
    {"clip", 0, "saturate|fail", "saturate",
        "What to do when an integer encoding cannot hold a sample; they are counted."},
    {"plot", 0, "FILE.png|.svg", NULL, "Draw the result of the one input, with axes."},
    {"precision", 0, "f32|tf32|bf16", "f32", "Of the products; with --connect it must be the daemon's."},
    {"engine", 0, "auto|cpu|cuda", "cpu below 1 s of work, else auto", "What the private daemon computes on."},
    {"threads", 0, "N", "all CPUs", "Threads of the private daemon's CPU engine."},
    {"piece-steps", 0, "N", "chosen by size", "Cut inputs into pieces of N steps, however short; for tests."},
    {"timeout", 0, "S", "30 s", "Longest silence of the daemon, and longest time without room, before giving up."},
    {"progress", 0, PROGRESS_MODES, "auto: bar on a terminal",
        "Progress on stderr, with an estimate where there is one."},
    {"json", 0, NULL, NULL, "One JSON object an input and one at the end, on stdout (on stderr with -o -)."}, {0}};

/* ---- reading the options ----------------------------------------------------------------------------------- */
typedef struct {
    const char *match, *list, *shard;
    const char *folders[64];
    int n_folders;
} wanted;

static int is(int row, const char *name) {
    return !strcmp(options_run[row].name, name);
}

static int take_param(run_options *o, const char *value) {
    const char *equals = strchr(value, '=');
    if (!equals || equals == value || strpbrk(value, "\r\n"))
        return cli_usage("--param is '%s'; it must be KEY=VALUE, as in num_groups=2", cli_quote(value));
    if (o->n_params == RUN_PARAMS_MAX) return cli_usage("more than %d --param", RUN_PARAMS_MAX);
    o->params[o->n_params++] = value;
    return 0;
}

static int take_word(int row, const char *v, const char *words, int *ret) {
    char what[40];
    snprintf(what, sizeof what, "--%s", options_run[row].name);
    int n = cli_word(what, v, words);
    if (n >= 0) *ret = n;
    return n < 0 ? CLI_USAGE : 0;
}

static int take_number(int row, const char *v, uint64_t min, uint64_t max, uint64_t *ret) {
    char what[40];
    snprintf(what, sizeof what, "--%s", options_run[row].name);
    return cli_u64(what, v, min, max, ret) ? CLI_USAGE : 0;
}

/* Words and numbers. */
static int take_value(run_options *o, int row, const char *v) {
    static const int dtypes[] = {NCT_F32, NCT_F64, NCT_I16, NCT_I32};
    int word = 0, r = 0;
    uint64_t n = 0;
    if (is(row, "raw") && !(r = take_word(row, v, options_run[row].arg, &word)))
        o->raw.dtype = dtypes[word];
    else if (is(row, "rate") && !(r = take_number(row, v, 1, 1 << 30, &n)))
        o->raw.rate = (int)n;
    else if (is(row, "channels") && !(r = take_number(row, v, 1, 65535, &n)))
        o->raw.channels = (int)n;
    else if (is(row, "format") && !(r = take_word(row, v, options_run[row].arg, &word)))
        o->format = output_kind_named(v);
    else if (is(row, "encoding") && !(r = take_word(row, v, OUTPUT_ENCODINGS, &word)))
        o->encoding = (output_encoding)word;
    else if (is(row, "clip"))
        r = take_word(row, v, options_run[row].arg, &o->clip_fails);
    else if (is(row, "precision") && !(r = take_word(row, v, options_run[row].arg, &word)))
        o->precision = v;
    else if (is(row, "engine") && !(r = take_word(row, v, options_run[row].arg, &word)))
        o->engine = v;
    else if (is(row, "threads") && !(r = take_number(row, v, 1, 256, &n)))
        o->threads = (uint32_t)n;
    else if (is(row, "piece-steps"))
        r = take_number(row, v, 1, INT32_MAX, &o->piece_steps);
    else if (is(row, "progress") && !(r = take_word(row, v, PROGRESS_MODES, &word)))
        o->progress = (progress_mode)word;
    else if (is(row, "timeout"))
        r = cli_double("--timeout", v, 0.1, 86400, &o->timeout_s) ? CLI_USAGE : 0;
    else if (is(row, "window")) {
        r = cli_span("--window", v, &o->window_s, &o->window_steps) ? CLI_USAGE : 0;
        o->windowed = 1;
    }
    return r;
}

static int take_option(run *r, wanted *w, int row, const char *v) {
    run_options *o = &r->o;
    if (is(row, "model"))
        o->model = v;
    else if (is(row, "param"))
        return take_param(o, v);
    else if (is(row, "connect"))
        o->connect = v;
    else if (is(row, "name"))
        o->name = v;
    else if (is(row, "output"))
        o->out = v;
    else if (is(row, "output-dir"))
        o->out_dir = v;
    else if (is(row, "template"))
        o->template = v;
    else if (is(row, "match"))
        w->match = v;
    else if (is(row, "files-from"))
        w->list = v;
    else if (is(row, "skip-existing"))
        o->skip_existing = 1;
    else if (is(row, "shard"))
        w->shard = v;
    else if (is(row, "plot"))
        o->plot = v;
    else if (is(row, "json"))
        o->json = 1;
    else if (is(row, "recursive")) {
        if (w->n_folders == 64) return cli_usage("more than 64 -r");
        w->folders[w->n_folders++] = v;
    } else
        return take_value(o, row, v);
    return 0;
}

/* ---- what goes with what ----------------------------------------------------------------------------------- */
static int check_sources(const run_options *o) {
    if (o->model && o->connect)
        return cli_usage("--model starts a private daemon, --connect names one: give one of them");
    if (!o->model && !o->connect) return cli_usage("give --model FILE, or --connect ENDPOINT of a running daemon");
    if (o->connect && (o->n_params || o->engine || o->threads))
        return cli_usage("--param, --engine and --threads are the daemon's own; they go with --model");
    if (o->model && o->name) return cli_usage("--name goes with --connect");
    if (o->raw.dtype && (!o->raw.rate || !o->raw.channels))
        return cli_usage("--raw needs --rate HZ and --channels N");
    if (!o->raw.dtype && (o->raw.rate || o->raw.channels))
        return cli_usage("--rate and --channels are for --raw; a sound file says its own");
    if (o->windowed && o->piece_steps) return cli_usage("--window and --piece-steps exclude each other");
    return 0;
}

static int check_targets(const run *r, const wanted *w) {
    const run_options *o = &r->o;
    int many = w->n_folders || w->list || w->shard;
    if (o->out && o->out_dir) return cli_usage("-o names one result, -O a folder for many: give one of them");
    if (!o->out && !o->out_dir) return cli_usage("give -o FILE for one input, or -O DIR for many");
    if (o->out && (many || r->in.n != 1))
        return cli_usage("-o is for one input; there are %s: use -O DIR",
            many || r->in.n ? "more (or a folder, list or shard)" : "none");
    if (!many && !r->in.n) return cli_usage("no input is named: files, - for stdin, -r FOLDER or --files-from FILE");
    if (!o->out && o->plot) return cli_usage("--plot draws one result: it goes with -o");
    if (!o->out_dir && o->template) return cli_usage("--template goes with -O");
    if (w->match && !w->n_folders) return cli_usage("--match goes with -r");
    const char *name = o->out ? o->out : o->template ? o->template : "x.wav";
    int is_pipe = o->out && !strcmp(o->out, "-");
    if (is_pipe && isatty(STDOUT_FILENO))
        return cli_usage("the result is binary and stdout is a terminal; name a file or a pipe");
    if (o->plot && (!strchr(o->plot, '.') || (strcasecmp(strrchr(o->plot, '.'), ".png") != 0 &&
                                                 strcasecmp(strrchr(o->plot, '.'), ".svg") != 0)))
        return cli_usage("--plot is '%s'; it must end in .png or .svg", cli_quote(o->plot));
    if (!o->format && !o->raw.dtype && !(o->out && target_is_stream(o->out)) && !output_kind_of(name))
        return cli_usage(
            "'%s' has no extension that names a format (wav, flac, aiff, caf, w64, au, npy, raw); or say --format",
            cli_quote(name));
    return 0;
}

static int add_inputs(run *r, const wanted *w) {
    int e = 0;
    for (int i = 0; i < w->n_folders && !e; i++) e = inputs_add_folder(&r->in, w->folders[i], w->match, r->o.out_dir);
    if (!e && w->list) e = inputs_add_list(&r->in, w->list);
    uint64_t i = 1, n = 1;
    if (!e && w->shard) {
        char copy[64];
        snprintf(copy, sizeof copy, "%s", w->shard);
        char *slash = strchr(copy, '/');
        if (!slash) return cli_usage("--shard is '%s'; it must be I/N, as in 2/8", cli_quote(w->shard));
        *slash = 0;
        if (cli_u64("N of --shard", slash + 1, 1, 1000000, &n) || cli_u64("I of --shard", copy, 1, n, &i))
            return CLI_USAGE;
        inputs_shard(&r->in, i, n);
    }
    if (e) return e;
    if (r->o.out && r->in.n) {
        r->in.v[0].out = strdup(r->o.out);
        return r->in.v[0].out ? 0 : CLI_FAILED;
    }
    return inputs_name(&r->in, r->o.out_dir, r->o.template ? r->o.template : "{dir}{stem}.wav");
}

static int read_command(run *r, int argc, char **argv) {
    cli_args a;
    wanted w = {0};
    const char *value;
    int row, e = 0;
    r->o = (run_options){.timeout_s = 30, .encoding = ENCODE_DEFAULT};
    cli_args_init(&a, options_run, argc, argv);
    while (!e && (row = cli_next(&a, &value)) != CLI_END) {
        if (row == CLI_WRONG) return CLI_USAGE;
        e = row == CLI_OPERAND ? inputs_add(&r->in, value, "") : take_option(r, &w, row, value);
    }
    if (!e) e = check_sources(&r->o);
    if (!e) e = check_targets(r, &w);
    if (!e) e = add_inputs(r, &w);
    return e;
}

/* ---- the loop ---------------------------------------------------------------------------------------------- */
static int make_folders(const char *path) {
    char *copy = strdup(path);
    if (!copy) return -ENOMEM;
    int e = 0;
    for (char *p = copy + 1; !e && (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(copy, 0777) && errno != EEXIST) e = -errno;
        *p = '/';
    }
    free(copy);
    return e;
}

static int exists(const char *path) {
    struct stat st;
    return strcmp(path, "-") != 0 && !stat(path, &st) && S_ISREG(st.st_mode);
}

/* The failures, kept for the end of the run. */
typedef struct {
    char *text;
    size_t size;
    FILE *to;
} failures;

static int one(run *r, const run_input *in, failures *list) {
    run_result f = {.in = in};
    progress_file(&r->bar, in->path, (double)in->bytes);
    int e = r->o.out_dir ? make_folders(in->out) : 0;
    if (e)
        snprintf(f.why.text, sizeof f.why.text, "a folder for '%s': %s", cli_quote(in->out), strerror(-e));
    else
        e = run_file(r, &f);
    progress_file_over(&r->bar);
    if (e) {
        r->failed++;
        fprintf(list->to, "  %s: %s\n", cli_quote(in->path), f.why.text);
        if (r->in.n == 1) cli_say("%s: %s", cli_quote(in->path), f.why.text);
    } else {
        r->done++;
        r->audio_s += f.about.rate ? (double)(f.t_in > 0 ? f.t_in : 0) / f.about.rate : 0;
        r->frames += f.frames;
        r->steps_in += f.t_in;
        r->work_s += f.wall_s;
    }
    run_report_file(r, &f, e);
    json_decref(f.warnings);
    return f.fatal;
}

static double all_bytes(const inputs *in) {
    double sum = 0;
    for (int i = 0; i < in->n; i++) {
        if (!in->v[i].there) return -1;
        sum += (double)in->v[i].bytes;
    }
    return sum;
}

static int loop(run *r) {
    failures list = {0};
    list.to = open_memstream(&list.text, &list.size);
    if (!list.to) return CLI_FAILED;
    double began = cli_now_s();
    int fatal = 0, i = 0;
    progress_start(&r->bar, r->o.progress, r->in.n, all_bytes(&r->in));
    for (; i < r->in.n && !fatal && !cli_stopped; i++) {
        if (r->o.skip_existing && exists(r->in.v[i].out)) {
            r->skipped++;
            progress_file(&r->bar, r->in.v[i].path, (double)r->in.v[i].bytes);
            progress_file_over(&r->bar);
        } else {
            fatal = one(r, &r->in.v[i], &list);
        }
    }
    progress_end(&r->bar);
    r->wall_s = cli_now_s() - began;
    fclose(list.to);
    int code = fatal ? fatal : r->failed || cli_stopped ? CLI_FAILED : CLI_OK;
    run_report_all(r, code);
    if (r->failed && r->in.n > 1) fprintf(stderr, "nct: failed:\n%s", list.text);
    if (i < r->in.n) cli_say("stopped after %d of %d inputs", i, r->in.n);
    free(list.text);
    return code;
}

int cmd_run(int argc, char **argv) {
    run r = {0};
    r.own.fd = -1;
    int code = read_command(&r, argc, argv);
    if (!code) {
        cli_catch_signals();
        code = run_model(&r);
    }
    if (!code) code = loop(&r);
    run_daemon_end(&r);
    inputs_done(&r.in);
    return code;
}
