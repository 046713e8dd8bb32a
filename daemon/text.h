/* text.h: a text that grows: what /metrics and /api/status are written into. Numbers look the same in every locale
 * (a dot; NaN, +Inf, -Inf). After a failed allocation everything is ignored and text_take() says so. Any thread. */
#ifndef NCTD_TEXT_H
#define NCTD_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *at; /* 0-terminated; NULL: nothing yet */
    size_t bytes, room;
    bool failed;
} textbuf;

void text_put(textbuf *t, const char *s);
void text_put_bytes(textbuf *t, const char *s, size_t bytes);
void text_u64(textbuf *t, uint64_t n);
void text_i64(textbuf *t, int64_t n);
/* ns as seconds with nine decimals, exact. */
void text_seconds(textbuf *t, uint64_t ns);
/* The shortest of 17 digits or less that reads back as x. */
void text_double(textbuf *t, double x);
/* Inside a Prometheus label's quotes: \\ \" \n; each octet that is not UTF-8 becomes U+FFFD. */
void text_label(textbuf *t, const char *s);
/* A JSON string with its quotes; each octet that is not UTF-8 becomes U+FFFD. */
void text_json(textbuf *t, const char *s);
/* A JSON number; what is not finite is null. */
void text_json_double(textbuf *t, double x);
void text_base64(textbuf *t, const unsigned char *bytes, size_t n);
/* The text, the caller's to free, and its length; NULL without memory. *t is empty afterwards. */
char *text_take(textbuf *t, size_t *ret_bytes);
void text_done(textbuf *t);
#endif
