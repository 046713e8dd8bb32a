/* run_file.c: one input of nct run, from open to rename. Called by run.c for each input in turn. Everything that can be refused
 * is refused before a daemon is started or a byte is written. */
#include "run.h"
#include "cli.h"
#include "target.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void run_warn(run *r, run_result *f, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (size_t i = 0; i < json_array_size(f->warnings); i++)
        if (!strcmp(json_string_value(json_array_get(f->warnings, i)), text)) return;
    json_array_append_new(f->warnings, json_string(text));
    cli_say("%s: warning: %s", cli_quote(f->in->path), text);
    r->warned++;
}

static int refuse(run_result *f, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int refuse(run_result *f, int error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(f->why.text, sizeof f->why.text, format, args);
    va_end(args);
    return error;
}

/* What was refused is the file that was to be written; the message is printed under the input's name. */
static int named(run_result *f, const char *what, const char *path, int error) {
    nct_why why = f->why;
    return error ? refuse(f, error, "%s '%s': %s", what, cli_quote(path), why.text) : 0;
}

/* ---- checks ------------------------------------------------------------------------------------------------ */
static int check_input(run *r, run_result *f) {
    const served_model *m = &r->model;
    if (f->about.channels != m->params.in_channels) {
        char text[256];
        audio_channels_differ(&f->about, r->o.raw.dtype != 0, m->params.in_channels, text);
        return refuse(f, -EINVAL, "%s", text);
    }
    if (m->sample_rate > 0 && m->sample_rate != f->about.rate)
        return refuse(f, -EINVAL, "file has %d Hz, model is made for %g Hz; resample the file first", f->about.rate,
            m->sample_rate);
    return 0;
}

static int same_file(run *r, run_result *f) {
    struct stat st;
    if (!strcmp(f->in->out, "-") || stat(f->in->out, &st) || !S_ISREG(st.st_mode)) return 0;
    struct stat model;
    if (r->o.model && !stat(r->o.model, &model) && model.st_dev == st.st_dev && model.st_ino == st.st_ino)
        return refuse(f, -EINVAL, "output '%s' is the model file; name another", cli_quote(f->in->out));
    const run_input *i = inputs_same_file(&r->in, st.st_dev, st.st_ino);
    if (!i) return 0;
    if (i == f->in) return refuse(f, -EINVAL, "output '%s' is the input itself", cli_quote(f->in->out));
    return refuse(f, -EINVAL, "output '%s' is the input '%s'", cli_quote(f->in->out), cli_quote(i->path));
}

static output_spec spec_of(const run *r, const run_result *f) {
    output_kind k = r->o.format ? r->o.format : output_kind_of(f->in->out);
    if (!k && r->o.raw.dtype) k = OUTPUT_RAW;
    if (!k) k = OUTPUT_WAV; /* a pipe or a device: run.c let nothing else through */
    output_encoding e = r->o.encoding;
    if (k == OUTPUT_RAW && e == ENCODE_DEFAULT) switch (r->o.raw.dtype) {
        case NCT_I16: e = ENCODE_I16; break;
        case NCT_I32: e = ENCODE_I32; break;
        case NCT_F64: e = ENCODE_F64; break;
        default: break;
        }
    return (output_spec){.path = f->in->out,
        .kind = k,
        .encoding = e,
        .channels = r->model.params.out_channels,
        .rate = f->rate_out,
        .steps = f->t_out,
        .live = r->o.windowed && target_is_stream(f->in->out)};
}

/* The output's rate is the input's / stride; a header holds whole numbers only: nearest, half up. */
static void out_rate(run *r, run_result *f, output_kind kind) {
    int rate = f->about.rate, s = r->model.params.stride;
    f->rate_out = rate / s + (2 * (rate % s) >= s);
    if (f->rate_out < 1) f->rate_out = 1;
    if ((int64_t)f->rate_out * s != rate && kind != OUTPUT_NPY && kind != OUTPUT_RAW)
        run_warn(r, f, "%d Hz / stride %d is %.6g Hz; the result's header says %d Hz", rate, s, (double)rate / s,
            f->rate_out);
}

static void length_warnings(run *r, run_result *f, const audio_info *now) {
    if (now->announced >= 0 && now->steps >= 0 && now->steps < now->announced)
        run_warn(r, f, "header announced %lld steps, got %lld", (long long)now->announced, (long long)now->steps);
    if (now->odd_bytes)
        run_warn(r, f, "%lld bytes after the last whole step are left out", (long long)now->odd_bytes);
}

/* ---- the work ---------------------------------------------------------------------------------------------- */
static int plan(run *r, run_result *f) {
    const nct_params *p = &r->model.params;
    pieces_limits l = {.max_frame_bytes = r->client ? r->daemon.max_frame_bytes : 16 << 20,
        .aim_bytes = 1 << 20,
        .force_steps = (int64_t)(r->o.windowed ? r->o.window_steps : r->o.piece_steps)};
    f->n_pieces = 0;
    f->t_out = f->t_in < 0 ? -1 : 0;
    if (f->t_in == 0) return 0;
    int e = pieces_plan(&f->plan, p, f->t_in, &l, &f->why);
    /* One frame needs no piece to fit. */
    if (e == -EMSGSIZE && f->t_in > 0 && !l.force_steps) {
        f->plan = (pieces){.t_in = f->t_in};
        int64_t t_out;
        e = nct_out_steps(p, f->t_in, p->pad_left, p->pad_right, &t_out, &f->why);
        if (!e && !pieces_whole_fits(p, f->t_in, t_out, l.max_frame_bytes))
            e = pieces_plan(&f->plan, p, f->t_in, &l, &f->why);
        f->plan.t_out = t_out;
    }
    if (e) return e;
    f->t_out = f->plan.t_out;
    if (r->o.windowed) return 0;
    if (r->o.piece_steps || !pieces_whole_fits(p, f->t_in, f->t_out, l.max_frame_bytes))
        f->n_pieces = (uint64_t)f->plan.n;
    return 0;
}

static int picture(run *r, run_result *f, plot **ret) {
    if (!r->o.plot) return 0;
    return plot_new(ret, r->o.plot, r->model.params.out_channels, (double)r->model.params.stride / f->about.rate,
        strrchr(f->in->path, '/') ? strrchr(f->in->path, '/') + 1 : f->in->path, &f->why);
}

static int check_clipping(run *r, run_result *f, const output_counts *c) {
    f->clipped = c->clipped;
    f->not_finite = c->not_finite;
    if (c->not_finite) run_warn(r, f, "%lld samples of the result are NaN or infinite", (long long)c->not_finite);
    if (!c->clipped) return 0;
    int64_t all = c->steps * r->model.params.out_channels;
    if (r->o.clip_fails)
        return refuse(f, -ERANGE,
            "%lld of %lld samples lie outside [-1, 1] and --clip is fail; --encoding f32 holds them",
            (long long)c->clipped, (long long)all);
    run_warn(
        r, f, "%lld of %lld samples lay outside [-1, 1] and were clipped", (long long)c->clipped, (long long)all);
    return 0;
}

/* One try: -ENODATA when the input turned out shorter than it said. */
static int attempt(run *r, run_result *f, audio *a) {
    output *o = NULL;
    plot *p = NULL;
    output_counts counts = {0};
    int e = plan(r, f);
    output_spec spec = spec_of(r, f);
    if (!e) e = output_check(&spec, &f->why);
    if (!e && f->t_in) e = run_daemon(r, f, r->in.n == 1 ? f->t_in : -1, r->in.n == 1 ? f->t_out : -1);
    if (!e) e = plan(r, f); /* now with the daemon's own limits */
    spec.steps = f->t_out;
    if (!e) e = named(f, "output", spec.path, output_open(&o, &spec, &f->why));
    if (!e) e = picture(r, f, &p);
    if (!e && f->t_in) e = run_frames(r, f, a, o, p);
    if (e == RUN_SHORT) e = -ENODATA;
    if (!e) {
        counts = output_counted(o);
        e = check_clipping(r, f, &counts);
    }
    if (!e) {
        e = output_finish(o, &counts, &f->why);
        o = NULL;
        f->t_out = counts.steps;
    }
    if (!e && p) {
        e = plot_finish(p, &f->why);
        p = NULL;
    }
    plot_free(p);
    output_abort(o);
    return e;
}

static int heard_spool(void *ctx, int64_t bytes) {
    run *r = ctx;
    progress_spooled(&r->bar, bytes);
    return cli_stopped ? -EINTR : 0;
}

int run_file(run *r, run_result *f) {
    double began = cli_now_s();
    audio *a = NULL;
    f->warnings = json_array();
    int e = audio_open(&a, f->in->path, &r->o.raw, r->o.windowed, heard_spool, r, &f->why);
    if (!e) {
        f->about = *audio_about(a);
        f->t_in = f->about.steps;
        e = check_input(r, f);
    }
    if (!e) e = same_file(r, f);
    if (!e) {
        output_spec s = spec_of(r, f);
        out_rate(r, f, s.kind);
        if (f->t_in >= 0) length_warnings(r, f, &f->about);
        if (f->t_in == 0) run_warn(r, f, "holds no samples; the result is empty");
        if (r->o.window_s > 0) r->o.window_steps = (uint64_t)(r->o.window_s * f->about.rate + 0.5);
        if (r->o.windowed && !r->o.window_steps) r->o.window_steps = 1;
    }
    /* Twice shorter than it said is a file that somebody else is writing. */
    for (int i = 0; !e; i++) {
        e = attempt(r, f, a);
        if (e != -ENODATA) break;
        e = i < 2 ? 0 : refuse(f, -EIO, "its length changes while it is read");
        audio_shorten(a, f->t_in);
        if (!e) length_warnings(r, f, audio_about(a));
    }
    if (!e && f->about.steps < 0)
        length_warnings(r, f,
            &(audio_info){.announced = f->about.announced, .steps = f->t_in, .odd_bytes = audio_about(a)->odd_bytes});
    if (!e) audio_drain(a);
    if (cli_stopped && e) f->fatal = CLI_FAILED;
    audio_close(a);
    f->wall_s = cli_now_s() - began - f->start_s;
    return e;
}
