/* run.h: what the files of `nct run` share. Internal to run*.c.
 *
 *     run.c          options, the loop over inputs, the summary
 *     run_inputs.c   which files, and what their results are called
 *     run_daemon.c   the daemon: a named one, or a private one made to measure
 *     run_file.c     one input from open to rename
 *     run_source.c   steps of an input as pieces of the padded axis
 *     run_pieces.c   frames on their way: one, two passes of pieces, or windows
 *     run_report.c   figures and JSON */
#ifndef NCT_CLI_RUN_H
#define NCT_CLI_RUN_H
#include <jansson.h>
#include "audio.h"
#include "output.h"
#include "pieces.h"
#include "plot.h"
#include "private.h"
#include "progress.h"
#include "run_inputs.h"
#include "served.h"

enum { RUN_DEPTH_MAX = 8, RUN_PARAMS_MAX = 64 };

typedef struct {
    const char *model, *connect, *name, *precision, *engine;
    const char *params[RUN_PARAMS_MAX];
    int n_params;
    uint32_t threads;
    const char *out, *out_dir, *template, *plot;
    int skip_existing;
    audio_raw raw;
    output_kind format; /* OUTPUT_NONE: by the output's extension */
    output_encoding encoding;
    int clip_fails;
    double window_s;
    uint64_t window_steps, piece_steps; /* 0: not given */
    int windowed;
    progress_mode progress;
    int json;
    double timeout_s;
} run_options;

typedef struct {
    run_options o;
    inputs in;
    nct *client;        /* NULL: no daemon yet */
    private_daemon own; /* pid 0: none */
    served daemon;
    served_model model; /* of the file, or of the daemon */
    char stream[65];
    progress bar;
    /* The whole run's figures. */
    int done, failed, skipped, warned;
    double audio_s, work_s, wall_s;
    uint64_t frames;
    int64_t steps_in;
} run;

/* One input's fate. */
typedef struct {
    const run_input *in;
    audio_info about;
    pieces plan;
    int64_t t_in, t_out, clipped, not_finite;
    int rate_out;
    uint64_t frames, n_pieces; /* n_pieces 0: one frame */
    double wall_s, start_s;    /* of the work, and of starting a private daemon before it */
    json_t *warnings;
    nct_why why; /* of a failure */
    int fatal;   /* exit code that ends the whole run; 0: the next input can be tried */
} run_result;

void run_warn(run *r, run_result *f, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* run_daemon.c. Exit codes; a sentence was said. */
int run_model(run *r); /* connect, or read the model file */
/* Have a daemon: `single` steps of the only input (-1: several, or unknown). 0, or an error with a sentence in f->why. */
int run_daemon(run *r, run_result *f, int64_t single_t_in, int64_t single_t_out);
void run_daemon_end(run *r);

/* run_file.c: 0, or a negative errno (f->why, f->fatal). */
int run_file(run *r, run_result *f);

/* run_pieces.c: 0; RUN_SHORT: the input ended before its length (f->t_in is the true one), do it again; or an error. */
#define RUN_SHORT 1
int run_frames(run *r, run_result *f, audio *a, output *o, plot *p);

/* run_report.c */
void run_report_file(const run *r, const run_result *f, int error);
void run_report_all(const run *r, int code);
#endif
