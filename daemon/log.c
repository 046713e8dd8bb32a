/* log.c: the daemon's events on stderr. Owns the level and the count of dropped lines; called on any thread;
 * opens nothing, buffers nothing between calls. Libraries of this project never log: they return sentences.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "log.h"

#define TEXT_MAX       2000
#define LINE_MAX_BYTES (4 * TEXT_MAX + 64)
#define FULL_PIPE_MS   100

static atomic_int least = LOG_INFO;
static atomic_uint dropped;
static atomic_bool stopped; /* the reader took nothing in time: nobody waits for it again until it does */

void log_set_level(log_level level) {
    atomic_store(&least, level);
}

/* Length of the valid UTF-8 sequence at s (1..4), 0 if there is none (RFC 3629: no overlong forms, no
 * surrogates). */
static int utf8_length(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    int n = s[0] >= 0xc2 && s[0] <= 0xdf ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)) return 0;
    if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return n;
}

char *log_escape(const char *text, char *out, unsigned long size) {
    unsigned long at = 0;
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        int n = utf8_length(s);
        int plain = n > 0 && *s >= 0x20 && *s != 0x7f;
        unsigned long need = plain ? (unsigned long)n : 4;
        if (at + need + 1 > size) break;
        if (plain)
            memcpy(out + at, s, (size_t)n);
        else
            snprintf(out + at, size - at, "\\x%02x", *s);
        at += need;
        s += plain ? n : 1;
    }
    out[at] = 0;
    return out;
}

/* One write; a pipe that is full is given FULL_PIPE_MS, so that a reader who stopped cannot stop the loop. */
static int write_line(const char *line, size_t len) {
    struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&fd, 1, atomic_load(&stopped) ? 0 : FULL_PIPE_MS) == 0) {
        atomic_store(&stopped, true);
        return -EAGAIN;
    }
    atomic_store(&stopped, false);
    while (write(STDERR_FILENO, line, len) < 0)
        if (errno != EINTR) return -errno;
    return 0;
}

void log_event(log_level level, const char *format, ...) {
    static const char priority[] = {'7', '6', '4', '3'};
    char text[TEXT_MAX + 1], line[LINE_MAX_BYTES];
    if ((int)level < atomic_load(&least)) return;
    int saved = errno;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);
    unsigned lost = atomic_exchange(&dropped, 0);
    int at = snprintf(line, sizeof line, "<%c>", priority[level]);
    if (lost) at += snprintf(line + at, sizeof line - (size_t)at, "(%u lines lost before this one) ", lost);
    log_escape(text, line + at, sizeof line - (size_t)at - 1);
    size_t len = strlen(line);
    line[len++] = '\n';
    if (write_line(line, len)) atomic_fetch_add(&dropped, lost + 1);
    errno = saved;
}
