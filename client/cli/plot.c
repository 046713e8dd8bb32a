/* plot.c: gathers a result's envelope while it passes, and draws it at the end. Called by run_file.c and run_pieces.c.
 *
 * Spans of time are 2^k steps; when the columns are full, neighbours are merged and spans double: one pass, no length needed. */
#include "plot.h"
#include "cli.h"
#include "canvas.h"
#include "target.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { COLUMNS = 2 * PLOT_COLUMNS, ROWS_MAX = 1024, LINES_MAX = 12, WIDTH = 1100, HEIGHT = 640 };
enum { LEFT = 120, RIGHT = 150, TOP = 50, BOTTOM = 60, IN_W = WIDTH - LEFT - RIGHT, IN_H = HEIGHT - TOP - BOTTOM };

typedef struct {
    float least, greatest;
    double squares, count;
} cell;

struct plot {
    char *path, title[96];
    int channels, rows, svg;
    double step_s;
    int64_t span, steps; /* steps of a column, steps seen */
    cell *cells;         /* [rows][COLUMNS] */
};

static int refuse(nct_why *why, int error, const char *what) {
    snprintf(why->text, sizeof why->text, "--plot: %s", what);
    return error;
}

int plot_new(plot **ret, const char *path, int channels, double step_s, const char *title, nct_why *why) {
    const char *dot = strrchr(path, '.');
    int svg = dot && !strcasecmp(dot, ".svg");
    if (!svg && (!dot || strcasecmp(dot, ".png") != 0))
        return refuse(why, -EINVAL, "the file must end in .png or .svg");
    plot *p = calloc(1, sizeof *p);
    if (!p) return refuse(why, -ENOMEM, "no memory");
    p->rows = channels < ROWS_MAX ? channels : ROWS_MAX;
    p->path = strdup(path);
    p->cells = calloc((size_t)p->rows * COLUMNS, sizeof *p->cells);
    p->channels = channels;
    p->step_s = step_s;
    p->span = 1;
    p->svg = svg;
    snprintf(p->title, sizeof p->title, "%.60s", title);
    if (!p->path || !p->cells) {
        plot_free(p);
        return refuse(why, -ENOMEM, "no memory");
    }
    *ret = p;
    return 0;
}

void plot_free(plot *p) {
    if (!p) return;
    free(p->path);
    free(p->cells);
    free(p);
}

/* ---- gathering --------------------------------------------------------------------------------------------- */
static void merge(cell *a, const cell *b) {
    if (b->count == 0) return;
    if (a->count == 0 || b->least < a->least) a->least = b->least;
    if (a->count == 0 || b->greatest > a->greatest) a->greatest = b->greatest;
    a->squares += b->squares;
    a->count += b->count;
}

static void halve(plot *p) {
    for (int r = 0; r < p->rows; r++) {
        cell *row = p->cells + (size_t)r * COLUMNS;
        for (int i = 0; i < COLUMNS / 2; i++) {
            cell both = row[2 * i];
            merge(&both, &row[2 * i + 1]);
            row[i] = both;
        }
        memset(row + COLUMNS / 2, 0, sizeof *row * (COLUMNS / 2));
    }
    p->span *= 2;
}

void plot_add(plot *p, const void *payload, int64_t pos, int64_t n) {
    while (pos + n > p->span * COLUMNS) halve(p);
    if (pos + n > p->steps) p->steps = pos + n;
    for (int c = 0; c < p->channels; c++) {
        cell *row = p->cells + (size_t)((int64_t)c * p->rows / p->channels) * COLUMNS;
        const char *from = (const char *)payload + (int64_t)c * n * 4;
        for (int64_t i = 0; i < n; i++) {
            float v;
            memcpy(&v, from + 4 * i, 4);
            if (!isfinite(v)) continue;
            cell *a = row + (pos + i) / p->span;
            if (a->count == 0 || v < a->least) a->least = v;
            if (a->count == 0 || v > a->greatest) a->greatest = v;
            a->squares += (double)v * v;
            a->count++;
        }
    }
}

/* Cell of column `x` of `n`, from all spans it covers. */
static cell column(const plot *p, int row, int x, int n) {
    int64_t used = (p->steps + p->span - 1) / p->span, from = x * used / n, to = (x + 1) * used / n;
    cell sum = {0};
    if (to == from) to = from + 1;
    for (int64_t i = from; i < to && i < COLUMNS; i++) merge(&sum, p->cells + (size_t)row * COLUMNS + i);
    return sum;
}

/* ---- drawing ----------------------------------------------------------------------------------------------- */
/* 1, 2 or 5 times a power of ten, so that about `n` of them cover `range`. */
static double tick_step(double range, int n) {
    double raw = range / n, power = pow(10, floor(log10(raw)));
    double m = raw / power;
    return power * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
}

static void frame(canvas *c, const plot *p) {
    char text[128];
    double seconds = (double)p->steps * p->step_s;
    for (int side = 0; side < 2; side++) {
        canvas_rect(c, LEFT - 1 + side * (IN_W + 1), TOP, 1, IN_H, 0x444444);
        canvas_rect(c, LEFT, TOP - 1 + side * (IN_H + 1), IN_W, 1, 0x444444);
    }
    snprintf(text, sizeof text, "%s", p->title);
    canvas_text(c, LEFT, TOP * 0.5, TEXT_LEFT, text);
    canvas_text(c, LEFT + IN_W * 0.5, HEIGHT - 16, TEXT_MIDDLE, "time (s)");
    if (!(seconds > 0)) return;
    double step = tick_step(seconds, 8);
    for (int i = 0; i <= (int)(seconds / step * (1 + 1e-9)); i++) {
        double t = i * step;
        double x = LEFT + t / seconds * IN_W;
        canvas_rect(c, x, TOP + IN_H, 1, 6, 0x444444);
        snprintf(text, sizeof text, "%.6g", t);
        canvas_text(c, x, TOP + IN_H + 18, TEXT_MIDDLE, text);
    }
}

static double loudest(const plot *p) {
    double most = 0;
    for (int r = 0; r < p->rows; r++)
        for (int i = 0; i < COLUMNS; i++) {
            const cell *a = p->cells + (size_t)r * COLUMNS + i;
            if (a->count) most = fmax(most, fmax(-(double)a->least, (double)a->greatest));
        }
    return most > 0 ? most : 1;
}

/* Up to 12 channels: one band each, all to one scale. */
static void draw_lines(canvas *c, const plot *p) {
    static const uint32_t colours[] = {0x1f5fa8, 0xb5482a, 0x2f7d4f, 0x7a4fa0};
    double most = loudest(p), band = (double)IN_H / p->rows;
    char text[64];
    for (int r = 0; r < p->rows; r++) {
        double middle = TOP + (r + 0.5) * band, scale = band * 0.46 / most;
        int64_t spans = (p->steps + p->span - 1) / p->span;
        int n = spans < IN_W ? (int)(spans ? spans : 1) : IN_W;
        canvas_rect(c, LEFT, middle, IN_W, 1, 0xdddddd);
        cell before = {0};
        for (int x = 0; x < n && p->steps; x++) {
            cell a = column(p, r, x, n), own = a;
            if (!a.count) continue;
            /* Reach to where the column before ended: a curve, not points. */
            if (before.count && before.least > a.greatest) a.greatest = before.least;
            if (before.count && before.greatest < a.least) a.least = before.greatest;
            before = own;
            canvas_rect(c, LEFT + (double)x * IN_W / n, middle - a.greatest * scale, (double)IN_W / n,
                (a.greatest - a.least) * scale, colours[r % 4]);
        }
        if (r) canvas_rect(c, LEFT, TOP + r * band, IN_W, 1, 0x888888);
        snprintf(text, sizeof text, "ch %d", r);
        canvas_text(c, LEFT - 12, middle, TEXT_RIGHT, text);
        if (band < 60) continue;
        snprintf(text, sizeof text, "%+.3g", most);
        canvas_text(c, LEFT + IN_W + 10, middle - band * 0.46 + 8, TEXT_LEFT, text);
        canvas_text(c, LEFT + IN_W + 10, middle, TEXT_LEFT, "0");
        snprintf(text, sizeof text, "%+.3g", -most);
        canvas_text(c, LEFT + IN_W + 10, middle + band * 0.46 - 8, TEXT_LEFT, text);
    }
    snprintf(text, sizeof text, "range %.3g", most);
    if (p->rows > 1 && (double)IN_H / p->rows < 60) canvas_text(c, WIDTH - 8, TOP * 0.5, TEXT_RIGHT, text);
}

/* White over blue to near black, by lightness, so that grey prints and colour-blind eyes keep the order. */
static uint32_t shade(double v) {
    static const double stops[5][3] = {{250, 250, 245}, {170, 210, 215}, {70, 150, 180}, {30, 80, 140}, {15, 20, 60}};
    double x = (v < 0 ? 0 : v > 1 ? 1 : v) * 4;
    int i = x >= 4 ? 3 : (int)x;
    uint32_t rgb = 0;
    for (int k = 0; k < 3; k++)
        rgb = rgb << 8 | (uint32_t)(stops[i][k] + (stops[i + 1][k] - stops[i][k]) * (x - i) + 0.5);
    return rgb;
}

static double rms(cell a) {
    return a.count ? sqrt(a.squares / a.count) : 0;
}

static void colour_bar(canvas *c, double most) {
    char text[32];
    for (int i = 0; i < 100; i++)
        canvas_rect(
            c, LEFT + IN_W + 20, TOP + IN_H - (i + 1) * IN_H / 100.0, 18, IN_H / 100.0 + 0.5, shade(i / 99.0));
    for (int i = 0; i <= 4; i++) {
        snprintf(text, sizeof text, "%.3g", most * i / 4);
        canvas_text(c, LEFT + IN_W + 44, TOP + IN_H - i * IN_H / 4.0, TEXT_LEFT, text);
    }
    canvas_text(c, LEFT + IN_W + 20, TOP * 0.5, TEXT_LEFT, "rms");
}

/* More than 12 channels: time across, channels down, root mean square as shade. */
static void draw_map(canvas *c, const plot *p) {
    int n = p->svg ? 220 : IN_W;
    int64_t spans = (p->steps + p->span - 1) / p->span;
    if (spans < n) n = (int)(spans ? spans : 1);
    double most = 0, high = (double)IN_H / p->rows, wide = (double)IN_W / n;
    char text[32];
    for (int r = 0; r < p->rows; r++)
        for (int x = 0; x < n; x++) most = fmax(most, rms(column(p, r, x, n)));
    if (!(most > 0)) most = 1;
    for (int r = 0; r < p->rows && p->steps; r++)
        for (int x = 0; x < n; x++)
            canvas_rect(c, LEFT + x * wide, TOP + r * high, wide, high, shade(rms(column(p, r, x, n)) / most));
    int step = (int)fmax(1, tick_step(p->channels, 8));
    for (int ch = 0; ch < p->channels; ch += step) {
        double y = TOP + (ch + 0.5) / p->channels * IN_H;
        snprintf(text, sizeof text, "ch %d", ch);
        canvas_text(c, LEFT - 12, y, TEXT_RIGHT, text);
        canvas_rect(c, LEFT - 7, y, 6, 1, 0x444444);
    }
    colour_bar(c, most);
}

static int draw(const plot *p, FILE *to) {
    canvas c;
    int r = canvas_init(&c, WIDTH, HEIGHT, p->svg ? to : NULL);
    if (r) return r;
    if (p->rows <= LINES_MAX)
        draw_lines(&c, p);
    else
        draw_map(&c, p);
    frame(&c, p);
    r = canvas_finish(&c, to);
    canvas_done(&c);
    return r;
}

static int named(const plot *p, nct_why *why, int error) {
    nct_why of_target = *why;
    if (error) snprintf(why->text, sizeof why->text, "--plot '%.90s': %.140s", cli_quote(p->path), of_target.text);
    return error;
}

int plot_finish(plot *p, nct_why *why) {
    target t;
    int r = named(p, why, target_open(&t, p->path, 0, why));
    FILE *to = r ? NULL : fdopen(dup(t.fd), "wb");
    if (!r && !to) r = refuse(why, -errno, strerror(errno));
    if (to) {
        errno = 0;
        r = draw(p, to);
        if (fclose(to) && !r) r = -errno;
        if (r) refuse(why, r, strerror(-r));
    }
    if (!r)
        r = named(p, why, target_finish(&t, why));
    else
        target_abort(&t);
    plot_free(p);
    return r;
}
