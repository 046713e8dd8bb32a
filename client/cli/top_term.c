/* top_term.c: the terminal of `nct top`. Owns its mode between top_term_enter() and top_term_leave(). Escape sequences are those
 * of ECMA-48 that every terminal of today knows; no library stands behind it. */
#include "top.h"
#include "cli.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define ENTER "\x1b[?1049h\x1b[?25l" /* the other screen, no cursor */
#define LEAVE "\x1b[0m\x1b[?25h\x1b[?1049l"

static struct termios before;
static volatile sig_atomic_t entered, asked_to_stop, resized;

/* From signal handlers too: nothing here but write() and tcsetattr(). */
static void give_back(void) {
    if (!entered) return;
    entered = 0;
    ssize_t n = write(STDOUT_FILENO, LEAVE, sizeof LEAVE - 1);
    (void)n;
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static int take(void) {
    struct termios raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &raw)) return -errno;
    entered = 1;
    return cli_write_all(STDOUT_FILENO, ENTER, sizeof ENTER - 1);
}

static void on_fatal(int number) {
    give_back();
    signal(number, SIG_DFL);
    raise(number);
}

static void on_stop(int number) {
    (void)number;
    asked_to_stop = 1;
}

static void on_size(int number) {
    (void)number;
    resized = 1;
}

int top_term_enter(void) {
    static const int fatal[] = {SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    if (tcgetattr(STDIN_FILENO, &before)) return -errno;
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        sigaction(fatal[i], &(struct sigaction){.sa_handler = on_fatal}, NULL);
    sigaction(SIGTSTP, &(struct sigaction){.sa_handler = on_stop}, NULL);
    sigaction(SIGWINCH, &(struct sigaction){.sa_handler = on_size}, NULL);
    atexit(give_back);
    return take();
}

void top_term_leave(void) {
    give_back();
}

void top_term_size(int *ret_width, int *ret_height) {
    struct winsize w = {0};
    int known = !ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) && w.ws_col > 0 && w.ws_row > 0;
    *ret_width = known ? w.ws_col : 80;
    *ret_height = known ? w.ws_row : 24;
}

/* Ctrl-Z: the shell gets its terminal as it was; afterwards everything is drawn anew. */
static void stop_here(void) {
    asked_to_stop = 0;
    give_back();
    raise(SIGSTOP);
    take();
}

static struct {
    char text[32];
    size_t n;
} typed; /* read and not taken yet */

/* The first key of what was typed: a character, ESC [ A and its like; -1: a sequence that means nothing here. */
static int take_key(void) {
    static const struct {
        const char *text;
        int key;
    } keys[] = {{"\x1b[A", TOP_KEY_UP}, {"\x1b[B", TOP_KEY_DOWN}, {"\x1bOA", TOP_KEY_UP}, {"\x1bOB", TOP_KEY_DOWN},
        {"\x1b[5~", TOP_KEY_PAGE_UP}, {"\x1b[6~", TOP_KEY_PAGE_DOWN}};
    size_t used = typed.text[0] == '\x1b' ? typed.n : 1;
    int key = typed.text[0] == '\x1b' ? -1 : (unsigned char)typed.text[0];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t len = strlen(keys[i].text);
        if (typed.n < len || memcmp(typed.text, keys[i].text, len) != 0) continue;
        used = len;
        key = keys[i].key;
    }
    typed.n -= used;
    memmove(typed.text, typed.text + used, typed.n);
    return key;
}

int top_term_key(double seconds) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    if (typed.n) return take_key();
    if (resized) {
        resized = 0;
        return -1;
    }
    int ready = poll(&in, 1, seconds > 0 ? (int)(seconds * 1000) + 1 : 0);
    if (asked_to_stop) stop_here();
    if (ready <= 0) return -1;
    ssize_t n = read(STDIN_FILENO, typed.text, sizeof typed.text);
    if (n == 0 || (n < 0 && errno != EINTR)) return TOP_KEY_END_OF_INPUT;
    if (n < 0) return -1;
    typed.n = (size_t)n;
    return take_key();
}

/* ---- drawing: one write a picture, so that nothing flickers ------------------------------------------------- */
static struct {
    char *text;
    size_t n;
    FILE *to;
    int lines;
} picture;

void top_term_begin(void) {
    picture.lines = 0;
    picture.to = open_memstream(&picture.text, &picture.n);
}

void top_term_line(void *ctx, const char *text, top_look look) {
    static const char *const on[] = {"", "\x1b[1m", "\x1b[7m", "\x1b[1;31m", "\x1b[2m"};
    const char *no_color = getenv("NO_COLOR");
    (void)ctx;
    if (!picture.to) return;
    const char *start = look == LOOK_ALERT && no_color && *no_color ? on[LOOK_TITLE] : on[look];
    fprintf(picture.to, "\x1b[%d;1H%s%s%s\x1b[K", ++picture.lines, start, text, *start ? "\x1b[0m" : "");
}

void top_term_end(void) {
    if (!picture.to) return;
    fputs("\x1b[J", picture.to);
    fclose(picture.to);
    cli_write_all(STDOUT_FILENO, picture.text, picture.n);
    free(picture.text);
    picture.text = NULL;
    picture.to = NULL;
}
