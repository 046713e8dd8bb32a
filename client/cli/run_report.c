/* run_report.c: figures of an input and of the run: lines on stderr, and with --json objects on stdout (on stderr when stdout
 * carries the result). Called by run.c. */
#include "run.h"
#include "cli.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(const run *r, json_t *j) {
    char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
    FILE *to = r->o.out && !strcmp(r->o.out, "-") ? stderr : stdout;
    if (text) fprintf(to, "%s\n", text);
    fflush(to);
    free(text);
    json_decref(j);
}

/* JSON is UTF-8, names are bytes: what is not text is shown escaped. */
static json_t *name(const char *path) {
    json_t *j = json_string(path);
    if (j) return j;
    char *text = malloc(4 * strlen(path) + 1);
    if (!text) return json_null();
    char *to = text;
    for (const unsigned char *p = (const unsigned char *)path; *p; p++)
        to += sprintf(to, *p < 0x80 ? "%c" : "\\x%02x", *p);
    j = json_string(text);
    free(text);
    return j ? j : json_null();
}

static double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

static double audio_s(const run_result *f) {
    return f->about.rate > 0 && f->t_in > 0 ? (double)f->t_in / f->about.rate : 0;
}

static void report_json(const run *r, const run_result *f, int error) {
    json_t *j = json_pack("{s:o,s:o,s:b}", "input", name(f->in->path), "output", name(f->in->out), "ok", !error);
    if (error) json_object_set_new(j, "error", name(f->why.text));
    if (f->about.channels) {
        json_object_set_new(j, "format", name(f->about.format));
        json_object_set_new(j, "channels_in", json_integer(f->about.channels));
        json_object_set_new(j, "rate_in", json_integer(f->about.rate));
        json_object_set_new(j, "steps_in", json_integer(f->t_in));
    }
    if (!error) {
        json_object_set_new(j, "channels_out", json_integer(r->model.params.out_channels));
        json_object_set_new(j, "rate_out", json_integer(f->rate_out));
        json_object_set_new(j, "steps_out", json_integer(f->t_out));
        json_object_set_new(j, "pieces", json_integer((json_int_t)f->n_pieces));
        json_object_set_new(j, "frames", json_integer((json_int_t)f->frames));
        json_object_set_new(j, "clipped", json_integer(f->clipped));
        json_object_set_new(j, "not_finite", json_integer(f->not_finite));
        json_object_set_new(j, "audio_s", json_real(audio_s(f)));
        json_object_set_new(j, "wall_s", json_real(f->wall_s));
        json_object_set_new(j, "start_s", json_real(f->start_s));
        json_object_set_new(j, "real_time_factor", json_real(ratio(audio_s(f), f->wall_s)));
        json_object_set_new(j, "frames_per_s", json_real(ratio((double)f->frames, f->wall_s)));
    }
    json_object_set(j, "warnings", f->warnings);
    put(r, j);
}

void run_report_file(const run *r, const run_result *f, int error) {
    if (r->o.json) report_json(r, f, error);
}

static void summary_json(const run *r, int code) {
    json_t *j = json_pack("{s:b,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:I,s:s,s:s,s:s,s:s}", "summary", 1, "exit_code",
        code, "done", r->done, "failed", r->failed, "skipped", r->skipped, "warnings", r->warned, "audio_s",
        r->audio_s, "wall_s", r->wall_s, "real_time_factor", ratio(r->audio_s, r->work_s), "frames_per_s",
        ratio((double)r->frames, r->work_s), "frames", (json_int_t)r->frames, "backend", r->daemon.backend, "variant",
        r->daemon.variant, "precision", r->daemon.precision, "digest", r->model.digest);
    if (j) put(r, j);
}

void run_report_all(const run *r, int code) {
    if (r->o.json) summary_json(r, code);
    if (r->done)
        cli_say("%.3f s of sound in %.3f s: %.1f x real time, %.1f frames/s%s%s%s%s%s", r->audio_s, r->work_s,
            ratio(r->audio_s, r->work_s), ratio((double)r->frames, r->work_s), *r->daemon.precision ? ", " : "",
            r->daemon.precision, *r->daemon.backend ? " on " : "", r->daemon.backend,
            r->o.connect ? "" : " (private daemon)");
    if (r->in.n > 1 || r->skipped)
        cli_say("%d done, %d failed, %d skipped, %d warnings", r->done, r->failed, r->skipped, r->warned);
}
