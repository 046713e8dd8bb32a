/* safetensors_text.c: the sentences of a refusal: names from files made fit to print, shapes, lists that fit.
 *
 * Called by safetensors*.c and model*.c; any thread. */
#include "safetensors.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* How many of the first `max` bytes end on a whole UTF-8 character. */
static size_t utf8_floor(const char *s, size_t max) {
    size_t lead = max;
    while (lead && ((unsigned char)s[lead - 1] & 0xc0) == 0x80) lead--;
    if (lead == 0) return 0;
    unsigned char c = (unsigned char)s[lead - 1];
    size_t want = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    return max - (lead - 1) >= want ? max : lead - 1;
}

static size_t utf8_ceil(const char *s, size_t from) {
    while (((unsigned char)s[from] & 0xc0) == 0x80) from++;
    return from;
}

const char *st_printable(st_text *buf, const char *name) {
    size_t len = strlen(name), max = 96;
    if (len <= max) {
        memcpy(buf->text, name, len + 1);
    } else { /* both ends tell keys apart: the layer's place in front, the parameter behind */
        size_t head = utf8_floor(name, max / 2), tail = utf8_ceil(name, len - max / 2);
        snprintf(buf->text, sizeof buf->text, "%.*s...%s", (int)head, name, name + tail);
    }
    for (char *p = buf->text; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    }
    return buf->text;
}

const char *st_shape(st_text *buf, const st_tensor *t) {
    size_t len = 0;
    buf->text[len++] = '[';
    for (int32_t i = 0; i < t->rank && i < ST_SHOWN_RANK && len < sizeof buf->text - 32; i++)
        len += (size_t)snprintf(
            buf->text + len, sizeof buf->text - len, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(buf->text + len, sizeof buf->text - len, t->rank > ST_SHOWN_RANK ? ", ...]" : "]");
    return buf->text;
}

int file_why(nct_why *why, int error, const char *path, const char *format, ...) {
    va_list ap;
    size_t len = 0;
    st_text t;
    if (!why) return error;
    if (path) len = (size_t)snprintf(why->text, sizeof why->text, "%s: ", st_printable(&t, path));
    va_start(ap, format);
    int n = vsnprintf(why->text + len, sizeof why->text - len, format, ap);
    va_end(ap);
    if (n > 0 && len + (size_t)n >= sizeof why->text) why->text[utf8_floor(why->text, sizeof why->text - 1)] = 0;
    return error;
}

void st_list_add(st_list *l, const char *format, ...) {
    char one[256];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(one, sizeof one, format, ap);
    va_end(ap);
    size_t room = sizeof l->text - 24; /* for ", and N more" */
    if (n < 0 || l->left_out || l->len + (size_t)n + 2 > room) {
        l->left_out++;
        return;
    }
    l->len += (size_t)snprintf(l->text + l->len, sizeof l->text - l->len, "%s%s", l->len ? ", " : "", one);
}

const char *st_list_end(st_list *l) {
    if (l->left_out) snprintf(l->text + l->len, sizeof l->text - l->len, " and %zu more", l->left_out);
    return l->len || l->left_out ? l->text : "nothing";
}
