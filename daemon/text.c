/* text.c: see text.h. Called by metrics, status and live on the loop thread. printf is used for doubles alone, and its
 * decimal point is put right: a library may have called setlocale(). */
#include "text.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(textbuf *t, size_t more) {
    if (t->failed) return false;
    if (t->bytes + more < t->room) return true;
    size_t room = t->room ? t->room : 4096;
    while (room <= t->bytes + more) room *= 2;
    char *at = realloc(t->at, room);
    if (!at) {
        t->failed = true;
        return false;
    }
    t->at = at;
    t->room = room;
    return true;
}

void text_put_bytes(textbuf *t, const char *s, size_t bytes) {
    if (!reserve(t, bytes)) return;
    memcpy(t->at + t->bytes, s, bytes);
    t->bytes += bytes;
    t->at[t->bytes] = 0;
}

void text_put(textbuf *t, const char *s) {
    text_put_bytes(t, s, strlen(s));
}

static void digits(textbuf *t, uint64_t n, int least) {
    char out[24], *end = out + sizeof out, *at = end;
    for (; n || least > 0; n /= 10, least--) *--at = (char)('0' + n % 10);
    text_put_bytes(t, at, (size_t)(end - at));
}

void text_u64(textbuf *t, uint64_t n) {
    digits(t, n, 1);
}

void text_i64(textbuf *t, int64_t n) {
    if (n < 0) text_put_bytes(t, "-", 1);
    digits(t, n < 0 ? 0 - (uint64_t)n : (uint64_t)n, 1);
}

void text_seconds(textbuf *t, uint64_t ns) {
    digits(t, ns / 1000000000u, 1);
    text_put_bytes(t, ".", 1);
    digits(t, ns % 1000000000u, 9);
}

void text_double(textbuf *t, double x) {
    char out[64], *to = out;
    if (isnan(x)) return text_put(t, "NaN");
    if (isinf(x)) return text_put(t, x < 0 ? "-Inf" : "+Inf");
    for (int n = 15; n <= 17; n++) {
        snprintf(out, sizeof out, "%.*g", n, x);
        if (strtod(out, NULL) == x) break; /* both in the same locale */
    }
    for (const char *from = out; *from; from++) {
        if (strchr("0123456789+-e", *from))
            *to++ = *from;
        else if (to == out || to[-1] != '.') /* the locale's point may have several octets */
            *to++ = '.';
    }
    text_put_bytes(t, out, (size_t)(to - out));
}

void text_json_double(textbuf *t, double x) {
    if (isfinite(x))
        text_double(t, x);
    else
        text_put(t, "null");
}

/* Octets of the UTF-8 sequence at s, 0 when it is none: no overlong form, no surrogate, nothing past U+10FFFF. */
static size_t utf8(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    size_t n = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return n;
}

static void escaped(textbuf *t, const char *s, bool json) {
    const unsigned char *at = (const unsigned char *)s;
    while (*at) {
        char code[8];
        size_t n = utf8(at);
        if (!n)
            text_put(t, "\xef\xbf\xbd"), n = 1;
        else if (*at == '\\' || *at == '"')
            text_put_bytes(t, (char[]){'\\', (char)*at}, 2);
        else if (*at == '\n')
            text_put(t, "\\n");
        else if (json && *at < 0x20)
            text_put_bytes(t, code, (size_t)snprintf(code, sizeof code, "\\u%04x", *at));
        else
            text_put_bytes(t, (const char *)at, n);
        at += n;
    }
}

void text_label(textbuf *t, const char *s) {
    escaped(t, s, false);
}

void text_json(textbuf *t, const char *s) {
    text_put_bytes(t, "\"", 1);
    escaped(t, s, true);
    text_put_bytes(t, "\"", 1);
}

void text_base64(textbuf *t, const unsigned char *bytes, size_t n) {
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t b = (uint32_t)bytes[i] << 16;
        if (i + 1 < n) b |= (uint32_t)bytes[i + 1] << 8;
        if (i + 2 < n) b |= bytes[i + 2];
        char out[4] = {
            set[b >> 18], set[b >> 12 & 63], i + 1 < n ? set[b >> 6 & 63] : '=', i + 2 < n ? set[b & 63] : '='};
        text_put_bytes(t, out, 4);
    }
}

char *text_take(textbuf *t, size_t *ret_bytes) {
    char *at = t->at;
    if (t->failed || !at) {
        text_done(t);
        return NULL;
    }
    *ret_bytes = t->bytes;
    *t = (textbuf){NULL};
    return at;
}

void text_done(textbuf *t) {
    free(t->at);
    *t = (textbuf){NULL};
}
