/* top.c: `nct top`, what a running daemon does, refreshed: from its /api/status over HTTP, the same source as its page. A
 * screen on a terminal; plain text, one report after the other, everywhere else. */
#include "top.h"
#include "cli.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const cli_option options_top[] = {{"http", 'H', "HOST:PORT", "127.0.0.1:7772", "The daemon's http.endpoint."},
    {"interval", 'i', "S", "1 s", "Time between two looks; rates are of this time."},
    {"once", '1', NULL, NULL, "One report in plain text after one interval, then end."},
    {"count", 'k', "N", "no end", "End after N reports."},
    {"sort", 's', "rate|age|gaps|name", "rate", "Order of the streams."},
    {"streams", 0, "N", "20", "Streams in a plain report; a screen shows what fits."},
    {"find", 'f', "TEXT", NULL, "Only streams with TEXT in MODEL/STREAM."},
    {"timeout", 0, "S", "5 s", "Longest wait for the daemon's answer."},
    {"json", 0, NULL, NULL, "Write what the daemon says as JSON, one object a line."}, {0}};

typedef struct {
    const char *http, *find;
    double interval_s, timeout_s;
    uint64_t count, streams;
    int json, order;
} top_options;

static int take_option(top_options *o, const char *name, const char *v) {
    if (!strcmp(name, "http"))
        o->http = v;
    else if (!strcmp(name, "find"))
        o->find = v;
    else if (!strcmp(name, "interval"))
        return cli_double("--interval", v, 0.05, 3600, &o->interval_s);
    else if (!strcmp(name, "timeout"))
        return cli_double("--timeout", v, 0.1, 3600, &o->timeout_s);
    else if (!strcmp(name, "count"))
        return cli_u64("--count", v, 1, UINT64_MAX - 1, &o->count);
    else if (!strcmp(name, "streams"))
        return cli_u64("--streams", v, 0, 1000, &o->streams);
    else if (!strcmp(name, "sort"))
        return (o->order = cli_word("--sort", v, "rate|age|gaps|name")) < 0 ? -EINVAL : 0;
    else if (!strcmp(name, "once"))
        o->count = 1;
    else
        o->json = 1;
    return 0;
}

static int read_options(top_options *o, int argc, char **argv) {
    const char *value;
    int row;
    cli_args a;
    *o = (top_options){.http = "127.0.0.1:7772", .interval_s = 1, .timeout_s = 5, .count = UINT64_MAX, .streams = 20};
    cli_args_init(&a, options_top, argc, argv);
    while ((row = cli_next(&a, &value)) != CLI_END) {
        if (row == CLI_WRONG) return CLI_USAGE;
        if (row == CLI_OPERAND) return cli_usage("top takes no operand, '%s' is one", cli_quote(value));
        if (take_option(o, options_top[row].name, value)) return CLI_USAGE;
    }
    return CLI_OK;
}

/* ---- looks -------------------------------------------------------------------------------------------------- */
/* /api/status?q=TEXT, with everything but letters and digits escaped. */
static void path_of(const top_options *o, char to[512]) {
    size_t n = (size_t)sprintf(to, "/api/status");
    if (!o->find) return;
    n += (size_t)sprintf(to + n, "?q=");
    for (const char *c = o->find; *c && n < 500; c++) n += (size_t)sprintf(to + n, "%%%02X", (unsigned char)*c);
}

static int look(const top_options *o, top_facts *f, nct_why *why) {
    char path[512];
    json_t *snapshot;
    path_of(o, path);
    int r = top_fetch(&snapshot, o->http, path, o->timeout_s, why);
    if (r) return r;
    top_facts_add(f, snapshot);
    return top_streams_sort(f, (top_order)o->order);
}

static int exit_of(int error) {
    return error == -EINVAL ? CLI_USAGE : error == -EPROTO ? CLI_FAILED : CLI_NO_DAEMON;
}

static void pause_s(double s) {
    time_t whole = (time_t)s;
    nanosleep(&(struct timespec){whole, (long)((s - (double)whole) * 1e9)}, NULL);
}

/* ---- plain -------------------------------------------------------------------------------------------------- */
static void plain_line(void *ctx, const char *text, top_look look_) {
    (void)ctx, (void)look_;
    puts(text);
}

static int blocks(void) {
    const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < 3; i++) {
        const char *v = getenv(names[i]);
        if (v && *v) return strcasestr(v, "utf-8") || strcasestr(v, "utf8");
    }
    return 0;
}

static int plain(const top_options *o, top_facts *f) {
    top_view view = {.width = 100,
        .most = (size_t)o->streams,
        .order = (top_order)o->order,
        .blocks = blocks(),
        .line = plain_line};
    nct_why why;
    for (uint64_t n = 0; n < o->count && !cli_stopped; n++) {
        pause_s(o->interval_s);
        if (cli_stopped) break;
        int r = look(o, f, &why);
        if (r) {
            cli_say("%s", why.text);
            return exit_of(r);
        }
        if (o->json) {
            json_dumpf(f->now, stdout, JSON_COMPACT);
            putchar('\n');
        } else {
            if (n) putchar('\n');
            top_show(f, &view);
        }
        if (fflush(stdout)) break; /* the reader has had enough */
    }
    return CLI_OK;
}

/* ---- a screen ----------------------------------------------------------------------------------------------- */
typedef struct {
    const top_options *o;
    top_facts *f;
    top_view view;
    size_t shown;
    int paused;
    char trouble[300];
} screen;

static void draw(screen *s) {
    char hint[512];
    top_view *v = &s->view;
    top_term_size(&v->width, &v->height);
    if (s->f->n_streams <= v->first) v->first = s->f->n_streams ? s->f->n_streams - 1 : 0;
    snprintf(hint, sizeof hint, "q quit  p %s  s sort by %s  arrows scroll%s", s->paused ? "go on" : "pause",
        top_order_name(v->order), s->paused ? "  PAUSED" : "");
    v->hint = *s->trouble ? s->trouble : hint;
    v->hint_look = *s->trouble ? LOOK_ALERT : LOOK_FAINT;
    top_term_begin();
    s->shown = top_show(s->f, v);
    top_term_end();
    v->hint = NULL;
}

/* 0; 1: the end. */
static int pressed(screen *s, int key) {
    top_view *v = &s->view;
    size_t page = s->shown ? s->shown : 1, last = s->f->n_streams > page ? s->f->n_streams - page : 0;
    switch (key) {
    case 'q':
    case 'Q':
    case TOP_KEY_END_OF_INPUT: return 1;
    case 'p': s->paused = !s->paused; break;
    case 's':
        v->order = (top_order)((v->order + 1) % TOP_ORDERS);
        top_streams_sort(s->f, v->order);
        break;
    case 'k':
    case TOP_KEY_UP: v->first -= v->first > 0; break;
    case 'j':
    case TOP_KEY_DOWN: v->first += v->first < last; break;
    case TOP_KEY_PAGE_UP: v->first -= v->first < page ? v->first : page; break;
    case TOP_KEY_PAGE_DOWN: v->first = v->first + page < last ? v->first + page : last; break;
    default: break;
    }
    return 0;
}

/* A daemon that goes away stays on the screen as it was last seen, with what is wrong, until it is there again. */
static int full(const top_options *o, top_facts *f) {
    screen s = {.o = o, .f = f, .view = {.order = (top_order)o->order, .blocks = blocks(), .line = top_term_line}};
    double next_s = cli_now_s() + o->interval_s;
    int r = top_term_enter(), key;
    if (r) return cli_say("the terminal: %s", strerror(-r)), CLI_FAILED;
    for (uint64_t n = 0; n < o->count && !cli_stopped;) {
        draw(&s);
        key = top_term_key(next_s - cli_now_s());
        if (key >= 0 && pressed(&s, key)) break;
        if (cli_now_s() < next_s || cli_stopped) continue;
        next_s = cli_now_s() + o->interval_s;
        if (s.paused) continue;
        nct_why why = {""};
        top_options now = *o;
        now.order = (int)s.view.order;
        r = look(&now, f, &why);
        snprintf(s.trouble, sizeof s.trouble, "%s", r ? why.text : "");
        n += !r;
    }
    top_term_leave();
    return CLI_OK;
}

int cmd_top(int argc, char **argv) {
    top_options o;
    top_facts f = {NULL};
    nct_why why;
    const char *term = getenv("TERM");
    int code = read_options(&o, argc, argv);
    if (code) return code;
    cli_catch_signals();
    int r = look(&o, &f, &why);
    if (r) {
        cli_say("%s", why.text);
        code = exit_of(r);
    } else {
        int is_screen = isatty(STDOUT_FILENO) && isatty(STDIN_FILENO) && term && strcmp(term, "dumb") != 0;
        code = is_screen && o.count != 1 && !o.json ? full(&o, &f) : plain(&o, &f);
    }
    top_facts_done(&f);
    return code;
}
