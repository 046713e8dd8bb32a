/* progress.c: the bar, or JSON lines. Called by run.c and run_pieces.c. Shows at most ten times a second. */
#include "progress.h"
#include "cli.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void clear_line(void *ctx) {
    progress *p = ctx;
    if (p->line_open) fputs("\r\x1b[K", stderr);
    p->line_open = 0;
}

void progress_start(progress *p, progress_mode mode, int files, double all_bytes) {
    if (mode == PROGRESS_AUTO) mode = isatty(STDERR_FILENO) ? PROGRESS_BAR : PROGRESS_NONE;
    *p = (progress){
        .mode = mode, .files = files, .all = all_bytes, .began_s = cli_now_s(), .of_units = -1, .name = ""};
    if (mode == PROGRESS_BAR) cli_set_line_break(clear_line, p);
}

double progress_fraction(const progress *p) {
    double part = p->of_units > 0 ? p->units / p->of_units : -1;
    if (p->files == 1) return part;
    if (p->all <= 0) return -1;
    return (p->before + (part > 0 ? part : 0) * p->weight) / p->all;
}

double progress_left_s(const progress *p, double now_s) {
    double f = progress_fraction(p), elapsed = now_s - p->began_s;
    if (f < 0.01 || elapsed < 1) return -1;
    return elapsed * (1 - f) / f;
}

static void span_text(char out[32], double seconds) {
    long s = (long)(seconds + 0.5);
    if (s < 60)
        snprintf(out, 32, "%ld s", s);
    else if (s < 3600)
        snprintf(out, 32, "%ld:%02ld min", s / 60, s % 60);
    else
        snprintf(out, 32, "%ld:%02ld h", s / 3600, s / 60 % 60);
}

static void show_bar(progress *p, const char *doing, double now) {
    enum { WIDTH = 24 };
    char bar[WIDTH + 1], left[32] = "unknown", share[16] = "unknown", count[40] = "";
    double f = progress_fraction(p), l = progress_left_s(p, now);
    if (l >= 0) span_text(left, l);
    if (f >= 0) snprintf(share, sizeof share, "%.1f %%", f * 100);
    for (int i = 0; i < WIDTH; i++) bar[i] = f >= 0 && i < (int)(f * WIDTH) ? '#' : '.';
    bar[WIDTH] = 0;
    if (p->files > 1) snprintf(count, sizeof count, "%d/%d ", p->file_no, p->files);
    fprintf(stderr, "\r\x1b[K[%s] %s, left: %s  %s%.40s%s", bar, share, left, count, cli_quote(p->name), doing);
    fflush(stderr);
    p->line_open = 1;
}

static json_t *number(double v) {
    return v < 0 ? json_null() : json_real(v);
}

static void show_json(const progress *p, double now) {
    json_t *j = json_pack("{s:s,s:i,s:i,s:o,s:o,s:f}", "file", cli_quote(p->name), "file_no", p->file_no, "files",
        p->files, "fraction", number(progress_fraction(p)), "left_s", number(progress_left_s(p, now)), "elapsed_s",
        now - p->began_s);
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    if (text) fprintf(stderr, "%s\n", text);
    free(text);
    json_decref(j);
}

static void show(progress *p, const char *doing, int always) {
    double now = cli_now_s();
    if (p->mode == PROGRESS_NONE || (!always && now - p->shown_s < (p->mode == PROGRESS_BAR ? 0.1 : 0.5))) return;
    p->shown_s = now;
    if (p->mode == PROGRESS_BAR)
        show_bar(p, doing, now);
    else
        show_json(p, now);
}

void progress_file(progress *p, const char *name, double bytes) {
    p->file_no++;
    p->name = name;
    p->weight = bytes;
    p->units = 0;
    p->of_units = -1;
    show(p, "", p->files == 1);
}

void progress_of(progress *p, double of_units) {
    p->units = 0;
    p->of_units = of_units;
}

void progress_add(progress *p, double units) {
    p->units += units;
    show(p, "", 0);
}

void progress_spooled(progress *p, int64_t bytes) {
    char doing[64];
    snprintf(doing, sizeof doing, " (read %.1f MB so far)", (double)bytes / 1e6);
    show(p, doing, 0);
}

void progress_file_over(progress *p) {
    p->before += p->weight;
    p->weight = 0;
    show(p, "", p->mode == PROGRESS_JSON && p->file_no == p->files);
}

void progress_end(progress *p) {
    clear_line(p);
    cli_set_line_break(NULL, NULL);
    p->mode = PROGRESS_NONE;
}
