/* cli.c: reads command lines by option tables, and says things on stderr. Called by every subcommand, on the
 * one thread. Knows no subcommand. */
#include "cli.h"
#include "help.h"
#include "keys.h"
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

volatile int cli_stopped;
static void (*break_line)(void *ctx);
static void *break_ctx;

/* ---- saying things
 * ----------------------------------------------------------------------------------------- */
void cli_set_line_break(void (*fn)(void *ctx), void *ctx) {
    break_line = fn;
    break_ctx = ctx;
}

static void say(const char *format, va_list args) {
    if (break_line) break_line(break_ctx);
    fputs("nct: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

void cli_say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

int cli_usage(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    return CLI_USAGE;
}

int cli_why(nct_why *why, int error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (why) vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return error;
}

const char *cli_quote(const char *name) {
    static char buffers[4][1024];
    static int turn;
    char *out = buffers[turn++ % 4];
    size_t n = 0;
    const unsigned char *p = (const unsigned char *)name;
    for (; *p && n < 1024 - 8; p++) {
        if (*p == '\n')
            n += (size_t)sprintf(out + n, "\\n");
        else if (*p < 0x20 || *p == 0x7f)
            n += (size_t)sprintf(out + n, "\\x%02x", *p);
        else if (*p == '\\' || *p == '\'' || *p == '"')
            n += (size_t)sprintf(out + n, "\\%c", *p);
        else
            out[n++] = (char)*p;
    }
    strcpy(out + n, *p ? "..." : "");
    return out;
}

int cli_exit_of(int error) {
    switch (-error) {
    case 0: return CLI_OK;
    case ETIMEDOUT:
    case ECONNREFUSED:
    case ENODEV: return CLI_NO_DAEMON;
    case EAGAIN:
    case ENOBUFS:
    case ESHUTDOWN:
    case EUSERS:
    case ESTALE:
    case ETIME: return CLI_TRY_AGAIN;
    case EACCES:
    case EPROTO: return CLI_CONFIG;
    default: return CLI_FAILED;
    }
}

/* ---- options
 * ----------------------------------------------------------------------------------------------- */
void cli_args_init(cli_args *a, const cli_option *options, int argc, char **argv) {
    *a = (cli_args){.options = options, .argc = argc, .at = 1, .argv = argv};
}

int cli_row(const cli_option *options, const char *name) {
    for (int i = 0; options[i].name; i++)
        if (!strcmp(options[i].name, name)) return i;
    assert(!"no such option in the table");
    return -1;
}

static int unknown_option(const cli_args *a, const char *word, size_t len) {
    const char *words[64];
    char name[64];
    int n = 0;
    snprintf(name, sizeof name, "%.*s", (int)(len < 63 ? len : 63), word);
    for (const cli_option *o = a->options; o->name && n < 64; o++) words[n++] = o->name;
    const char *near = help_nearest(name, words, n);
    if (near)
        cli_say("%s has no option --%s; did you mean --%s?", a->argv[0], cli_quote(name), near);
    else
        cli_say("%s has no option --%s; `nct help %s` lists them", a->argv[0], cli_quote(name), a->argv[0]);
    return CLI_WRONG;
}

static int take_value(cli_args *a, const cli_option *o, const char **ret_value) {
    if (a->at >= a->argc) {
        cli_say("--%s needs a value: %s", o->name, o->arg);
        return CLI_WRONG;
    }
    *ret_value = a->argv[a->at++];
    return 0;
}

static int long_option(cli_args *a, const char *word, const char **ret_value) {
    size_t len = strcspn(word, "=");
    const char *value = word[len] ? word + len + 1 : NULL;
    if (len == 4 && !memcmp(word, "help", 4)) {
        cli_help(a->argv[0]);
        exit(help_flush(CLI_OK));
    }
    for (int i = 0; a->options[i].name; i++) {
        const cli_option *o = &a->options[i];
        if (strlen(o->name) != len || memcmp(o->name, word, len) != 0) continue;
        if (value && !o->arg) {
            cli_say("--%s takes no value", o->name);
            return CLI_WRONG;
        }
        *ret_value = value;
        if (o->arg && !value && take_value(a, o, ret_value)) return CLI_WRONG;
        return i;
    }
    return unknown_option(a, word, len);
}

static int short_option(cli_args *a, const char **ret_value) {
    char letter = *a->letters++;
    for (int i = 0; a->options[i].name; i++) {
        const cli_option *o = &a->options[i];
        if (o->letter != letter) continue;
        *ret_value = NULL;
        if (o->arg) {
            *ret_value = *a->letters ? a->letters : NULL;
            a->letters = NULL;
            if (!*ret_value && take_value(a, o, ret_value)) return CLI_WRONG;
        }
        return i;
    }
    cli_say("%s has no option -%c; `nct help %s` lists them (a file of that name goes after --)", a->argv[0], letter,
        a->argv[0]);
    return CLI_WRONG;
}

static int next(cli_args *a, const char **ret_value) {
    if (a->letters && *a->letters) return short_option(a, ret_value);
    a->letters = NULL;
    if (a->at >= a->argc) return CLI_END;
    const char *word = a->argv[a->at++];
    if (!a->only_operands && !strcmp(word, "--")) {
        a->only_operands = 1;
        return next(a, ret_value);
    }
    if (a->only_operands || word[0] != '-' || !word[1]) {
        *ret_value = word;
        return CLI_OPERAND;
    }
    if (word[1] == '-') return long_option(a, word + 2, ret_value);
    a->letters = word + 1;
    return short_option(a, ret_value);
}

int cli_next(cli_args *a, const char **ret_value) {
    int row = next(a, ret_value);
    while (row >= 0 && keys_option(a->options[row].name)) {
        if (keys_take(a->options[row].name, *ret_value)) return CLI_WRONG;
        row = next(a, ret_value);
    }
    return row;
}

/* ---- values
 * ------------------------------------------------------------------------------------------------ */
int cli_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret) {
    char *end = NULL;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text < '0' || *text > '9' || v < min || v > max) {
        cli_say("%s is '%s'; it must be a whole number from %llu to %llu", what, cli_quote(text),
            (unsigned long long)min, (unsigned long long)max);
        return -EINVAL;
    }
    *ret = v;
    return 0;
}

int cli_double(const char *what, const char *text, double min, double max, double *ret) {
    char *end = NULL;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= min && v <= max)) {
        cli_say("%s is '%s'; it must be a number from %g to %g", what, cli_quote(text), min, max);
        return -EINVAL;
    }
    *ret = v;
    return 0;
}

int cli_span(const char *what, const char *text, double *ret_seconds, uint64_t *ret_steps) {
    static const struct {
        const char *unit;
        double seconds; /* 0: steps */
    } units[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"min", 60}, {"steps", 0}, {"", 0}};
    char *end = NULL;
    double v = strtod(text, &end);
    for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0 || !(v > 0) || v > 1e9) continue;
        if (!units[i].seconds && v != floor(v)) break;
        *ret_seconds = v * units[i].seconds;
        *ret_steps = units[i].seconds ? 0 : (uint64_t)v;
        return 0;
    }
    cli_say("%s is '%s'; it must be a time such as 1s, 500ms, 2min, or a whole number of steps such as 4800", what,
        cli_quote(text));
    return -EINVAL;
}

int cli_word(const char *what, const char *text, const char *words) {
    size_t len = strlen(text);
    int n = 0;
    for (const char *p = words; *p; n++) {
        size_t l = strcspn(p, "|");
        if (l == len && !memcmp(p, text, len)) return n;
        p += l + (p[l] == '|');
    }
    cli_say("%s is '%s'; it must be one of %s", what, cli_quote(text), words);
    return -EINVAL;
}

/* ---- the process
 * ------------------------------------------------------------------------------------------- */
double cli_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void on_signal(int number) {
    cli_stopped = number;
}

void cli_catch_signals(void) {
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
    act.sa_handler = SIG_IGN; /* a reader that went away is an EPIPE that is reported, not a death */
    sigaction(SIGPIPE, &act, NULL);
    sigaction(SIGXFSZ, &act, NULL); /* past ulimit -f: EFBIG, as a full disk is ENOSPC */
}

int cli_write_all(int fd, const void *bytes, size_t len) {
    const char *p = bytes;
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR && !cli_stopped) continue;
        if (n < 0) return -errno;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}
