/* ini.c: reads the grammar of ini.h, a line at a time. Called by config.c (and the fuzzer); owns nothing,
 * opens no file. Debian's inih was the first choice and lost: it cuts values at 191 octets and section names
 * at 49 without a word, gives no line numbers to its caller and glues indented lines to the one before. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "ini.h"

static int blank(char c) {
    return c == ' ' || c == '\t';
}
static int key_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

static int fail(ini_why *why, const char *text) {
    snprintf(why->text, sizeof why->text, "%s", text);
    return -EINVAL;
}

/* Cuts a trailing comment (at the start, or after a blank) and the blanks around the rest, in place. */
static char *trim(char *s) {
    while (blank(*s)) s++;
    for (char *p = s; *p; p++) {
        if ((*p == '#' || *p == ';') && (p == s || blank(p[-1]))) {
            *p = 0;
            break;
        }
    }
    char *end = s + strlen(s);
    while (end > s && blank(end[-1])) *--end = 0;
    return s;
}

static int read_section(char *s, int line, const ini_reader *r, ini_why *why) {
    size_t len = strlen(s);
    if (len < 3 || s[len - 1] != ']') return fail(why, "a section is written [name] or [model NAME]");
    s[len - 1] = 0;
    char *name = trim(s + 1), *word = name;
    while (*word && !blank(*word)) word++;
    if (*word) {
        *word++ = 0;
        while (blank(*word)) word++;
    }
    if (!*name || strpbrk(word, " \t]")) return fail(why, "a section is written [name] or [model NAME]");
    return r->section(r->ctx, name, word, line, why);
}

static int read_entry(char *s, int line, const ini_reader *r, ini_why *why) {
    char *key = s;
    while (key_char(*s)) s++;
    char *end = s;
    while (blank(*s)) s++;
    if (end == key || *s != '=') return fail(why, "expected `key = value` (keys are a-z, 0-9 and _)");
    *end = 0;
    s++;
    while (blank(*s)) s++;
    if (*s == '#' || *s == ';') *s = 0; /* a comment with or without a blank before it: no value can begin so */
    return r->entry(r->ctx, key, s, line, why);
}

static int read_line(char *text, int line, const ini_reader *r, ini_why *why) {
    char *s = trim(text);
    if (!*s) return 0;
    return *s == '[' ? read_section(s, line, r, why) : read_entry(s, line, r, why);
}

int ini_parse(const char *text, size_t len, const ini_reader *reader, int *ret_line, ini_why *why) {
    char buf[INI_LINE_MAX + 1];
    int line = 0;
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) { /* editors on other systems write it; it says nothing */
        text += 3;
        len -= 3;
    }
    for (size_t at = 0; at < len;) {
        const char *lf = memchr(text + at, '\n', len - at);
        size_t n = lf ? (size_t)(lf - (text + at)) : len - at, next = at + n + 1;
        int r = 0;
        line++;
        if (n && text[at + n - 1] == '\r') n--;
        if (n > INI_LINE_MAX)
            r = fail(why, "the line is longer than 4096 octets");
        else if (memchr(text + at, 0, n))
            r = fail(why, "the line holds a NUL octet: this is not a text file");
        if (!r) {
            memcpy(buf, text + at, n);
            buf[n] = 0;
            r = read_line(buf, line, reader, why);
        }
        if (r) {
            *ret_line = line;
            return r;
        }
        at = next;
    }
    return 0;
}
